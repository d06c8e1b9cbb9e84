/* floor: what the kernel alone costs a server of static files.
 *
 *   cc -O2 -o target/floor bench/floor/floor.c
 *   target/release/narval-bench static --start 'floor=target/floor {dir} {port}' ...
 *
 * All files are found and opened, and their heads written, before the first request. A request is one recv, one lookup of its
 * target by hash, and one send (files up to 32 KiB, from memory) or a send of the head and sendfile(2) of the rest. It reads
 * nothing of a request but its target, version and whether it has "Connection: close" in it, checks nothing, has no deadlines and knows
 * no other answer: no server of static files can do with less, except by fewer system calls.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PLACES = 1 << 14, CONNECTIONS = 1 << 16, MEMORY_MAX = 32 * 1024, CORK_MIN = 256 * 1024 };

/* A file, with the beginning of its answer: where the connection is kept, and where it ends. */
struct file { char target[256]; int fd; off_t size; size_t head[2]; char *answer[2]; };
static struct file *files[PLACES];
static struct connection { struct file *file; off_t at; int close; } connections[CONNECTIONS];

static void die(const char *what) { perror(what); exit(1); }

static struct file **place(const char *target, size_t length) {
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)target[i]) * 16777619u;
  struct file **at = &files[hash % PLACES];
  while (*at && (strlen((*at)->target) != length || memcmp((*at)->target, target, length)))
    at = at + 1 < files + PLACES ? at + 1 : files;
  return at;
}

static void find(const char *root, const char *below) {
  char path[4096];
  snprintf(path, sizeof path, "%s%s", root, below);
  DIR *dir = opendir(path);
  if (!dir) die(path);
  for (struct dirent *entry; (entry = readdir(dir));) {
    struct file file = {.fd = -1};
    struct stat stat;
    if (entry->d_name[0] == '.') continue;
    if (snprintf(file.target, sizeof file.target, "%s/%s", below, entry->d_name) >= (int)sizeof file.target) continue;
    snprintf(path, sizeof path, "%s%s", root, file.target);
    if ((file.fd = open(path, O_RDONLY | O_CLOEXEC)) < 0 || fstat(file.fd, &stat)) die(path);
    if (S_ISDIR(stat.st_mode)) { close(file.fd); find(root, file.target); continue; }
    file.size = stat.st_size;
    for (int ends = 0; ends < 2; ends++) {
      if (!(file.answer[ends] = malloc(512 + MEMORY_MAX))) die("malloc");
      file.head[ends] = sprintf(file.answer[ends], "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
        "Content-Length: %jd\r\nDate: Sat, 01 Jan 2000 00:00:00 GMT\r\nLast-Modified: Sat, 01 Jan 2000 00:00:00 GMT\r\n"
        "ETag: \"%jx-%jx\"\r\nAccept-Ranges: bytes\r\n%s\r\n", (intmax_t)file.size, (intmax_t)stat.st_mtime,
        (intmax_t)file.size, ends ? "Connection: close\r\n" : "");
      if (file.size <= MEMORY_MAX && pread(file.fd, file.answer[ends] + file.head[ends], file.size, 0) != file.size) die(path);
    }
    struct file **at = place(file.target, strlen(file.target));
    if (!(*at = malloc(sizeof file))) die("malloc");
    **at = file;
  }
  closedir(dir);
}

/* Sends what is left of an answer, as much as fits. */
static void go_on(int fd) {
  struct connection *connection = &connections[fd];
  struct file *file = connection->file;
  if (!file) return;
  while (connection->at < file->size) {
    ssize_t sent = sendfile(fd, file->fd, &connection->at, file->size - connection->at);
    if (sent < 0 && errno == EAGAIN) return;
    if (sent <= 0) { close(fd); connection->file = NULL; return; }
  }
  connection->file = NULL;
  if (connection->close) close(fd);
  else if (file->size > CORK_MIN) setsockopt(fd, IPPROTO_TCP, TCP_CORK, &(int){0}, sizeof(int));
}

static void answer(int fd) {
  char head[4096];
  ssize_t length = recv(fd, head, sizeof head - 1, 0);
  if (length < 0 && errno == EAGAIN) return;
  if (length <= 0) { close(fd); connections[fd].file = NULL; return; }
  head[length] = 0;
  char *end = length > 4 ? memchr(head + 4, ' ', length - 4) : NULL;
  struct file *file = end ? *place(head + 4, end - (head + 4)) : NULL;
  if (!file) { close(fd); return; }
  connections[fd] = (struct connection){file, 0, strcasestr(head, "connection: close") || strstr(head, " HTTP/1.0\r\n")};
  int from_memory = file->size <= MEMORY_MAX;
  if (file->size > CORK_MIN) setsockopt(fd, IPPROTO_TCP, TCP_CORK, &(int){1}, sizeof(int));
  int ends = connections[fd].close;
  size_t count = file->head[ends] + (from_memory ? file->size : 0);
  int more = !from_memory || ends ? MSG_MORE : 0;
  if (send(fd, file->answer[ends], count, more | MSG_NOSIGNAL) != (ssize_t)count) { close(fd); connections[fd].file = NULL; return; }
  if (from_memory) connections[fd].at = file->size;
  go_on(fd);
}

int main(int argc, char **argv) {
  if (argc != 3) { fprintf(stderr, "usage: floor DIR PORT\n"); return 2; }
  find(argv[1], "");
  signal(SIGPIPE, SIG_IGN);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2])), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1, epoll = epoll_create1(0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) die("listen");
  epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &(struct epoll_event){.events = EPOLLIN, .data.fd = listener});
  for (;;) {
    struct epoll_event events[256];
    int count = epoll_wait(epoll, events, 256, -1);
    for (int i = 0; i < count; i++) {
      int fd = events[i].data.fd;
      if (fd == listener) {
        if ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) < 0) continue;
        if (fd >= CONNECTIONS) { close(fd); continue; }
        connections[fd].file = NULL;
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.fd = fd});
        continue;
      }
      if (connections[fd].file) go_on(fd);
      else if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) answer(fd);
    }
  }
}
