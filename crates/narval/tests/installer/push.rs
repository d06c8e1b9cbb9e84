//! `narval push`, to a folder and to nginx as a plain cache; real Nix reads what was pushed.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::lab::Lab;
use crate::ports::free_port;
use crate::support::{Nix, hash_part, noise, stdout, value};

/// A store path of 20 MB that hardly compresses: more than one part, and more than is kept in memory.
fn add_big(lab: &Lab) -> String {
    lab.store.add_file("big", noise(1, 20_000_000))
}

/// nginx with the methods of WebDAV, as people put it before a folder.
struct Nginx {
    child: Child,
    url: String,
    root: PathBuf,
}

impl Nginx {
    /// `None` where it is not installed. `extra` stands in the `location`.
    fn start(folder: &Path, extra: &str) -> Option<Self> {
        let root = folder.join("root");
        fs::create_dir_all(root.join("tmp")).unwrap();
        fs::create_dir_all(root.join("cache")).unwrap();
        let port = free_port();
        let user = if is_root() { "user root;" } else { "" };
        let dir = root.display();
        let config = format!(
            "daemon off; {user} pid {dir}/pid; error_log {dir}/error.log;
             events {{}}
             http {{
               access_log {dir}/access.log;
               client_body_temp_path {dir}/tmp; proxy_temp_path {dir}/tmp2; fastcgi_temp_path {dir}/tmp3;
               uwsgi_temp_path {dir}/tmp4; scgi_temp_path {dir}/tmp5;
               client_max_body_size 0;
               server {{
                 listen 127.0.0.1:{port};
                 location / {{ root {dir}/cache; dav_methods PUT; create_full_put_path on; {extra} }}
               }}
             }}"
        );
        let file = folder.join("nginx.conf");
        fs::write(&file, config).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-p").arg(&root).arg("-c").arg(&file).args(["-e", "stderr"]).stderr(Stdio::null());
        let Ok(child) = command.spawn() else {
            eprintln!("note: skipped: nginx is not installed");
            return None;
        };
        let nginx = Self { child, url: format!("http://127.0.0.1:{port}"), root };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(60), "nginx does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(nginx)
    }

    fn cache(&self) -> PathBuf {
        self.root.join("cache")
    }

    /// The requests since the last call: method and path.
    fn requests(&self) -> Vec<String> {
        let file = self.root.join("access.log");
        let text = fs::read_to_string(&file).unwrap();
        fs::OpenOptions::new().write(true).truncate(true).open(&file).unwrap();
        let requests =
            text.lines().map(|line| line.split('"').nth(1).unwrap().trim_end_matches(" HTTP/1.1").to_owned());
        requests.collect()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM ends the workers, too.
        Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        self.child.wait().unwrap();
    }
}

fn is_root() -> bool {
    stdout(Command::new("id").arg("-u").output().unwrap()) == "0"
}

/// Each narinfo of a folder has its NAR, and all that it refers to; how many there are.
fn assert_closed(cache: &Path) -> usize {
    let Ok(entries) = fs::read_dir(cache) else { return 0 };
    let mut count = 0;
    for entry in entries {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "narinfo") {
            continue;
        }
        let narinfo = fs::read_to_string(&path).unwrap();
        let nar = cache.join(value(&narinfo, "URL").unwrap());
        let size: u64 = value(&narinfo, "FileSize").unwrap().parse().unwrap();
        assert_eq!(fs::metadata(&nar).unwrap().len(), size, "{}", nar.display());
        for reference in value(&narinfo, "References").unwrap_or_default().split_whitespace() {
            let referred = cache.join(format!("{}.narinfo", &reference[..32]));
            assert!(referred.exists(), "{} refers to {reference}", path.display());
        }
        count += 1;
    }
    count
}

/// Both versions of real Nix copy a path from the cache into a store of their own, and find it right.
fn assert_nix_reads(lab: &Lab, url: &str, paths: &[&str]) {
    for (nix, name) in [(Nix::Newest, "newest"), (Nix::Old, "old")] {
        let (home, to) = (lab.store.dir.path(), lab.folder(&format!("read-by-{name}")));
        fs::remove_dir_all(home.join(".cache")).ok();
        stdout(nix.nix(home, &[&["copy", "--no-check-sigs", "--from", url, "--to", &to], paths].concat()));
        stdout(nix.nix_store(home, &["--store", &to, "--verify", "--check-contents"]));
        Command::new("chmod").args(["-R", "u+w", &to]).status().unwrap();
        fs::remove_dir_all(&to).unwrap();
    }
}

#[test]
fn a_folder_is_pushed_to() {
    let lab = Lab::new();
    let (big, key, to) = (add_big(&lab), lab.store.key("cache-1").0, lab.folder("pushed"));
    let (store, url) = (lab.store.uri(), format!("file://{to}"));
    let (link, other) = (lab.folder("result"), lab.folder("result-link"));
    std::os::unix::fs::symlink(&lab.top, &link).unwrap();
    std::os::unix::fs::symlink("result", &other).unwrap();
    let push = ["push", "--store", &store, "--to", &url, "--sign-key", key.to_str().unwrap(), &other, &big];
    let message = String::from_utf8(lab.run(&push).stderr).unwrap();
    assert!(message.contains("Pushed 3 paths to file://") && !message.contains("(0 B)"), "{message}");
    assert_eq!(assert_closed(Path::new(&to)), 3);
    let narinfo = fs::read_to_string(format!("{to}/{}.narinfo", hash_part(&lab.top))).unwrap();
    assert!(value(&narinfo, "Sig").unwrap().starts_with("cache-1:"), "{narinfo}");
    assert_nix_reads(&lab, &url, &[&lab.top, &big]);
    let before: Vec<_> = fs::read_dir(format!("{to}/nar")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let message = String::from_utf8(lab.run(&push).stderr).unwrap();
    assert!(message.contains("already has all 3 paths"), "{message}");
    assert_eq!(fs::read_dir(format!("{to}/nar")).unwrap().count(), before.len());
}

#[test]
fn a_plain_cache_is_pushed_to_as_nix_does() {
    let lab = Lab::new();
    let Some(nginx) = Nginx::start(lab.store.dir.path(), "") else { return };
    let (big, store) = (add_big(&lab), lab.store.uri());
    let push = ["push", "--json", "--store", &store, "--to", &nginx.url, &lab.top, &big];
    let summary = lab.done(&push);
    assert!(summary.contains(r#""pushed":3,"#) && summary.contains(r#""already":0,"#), "{summary}");
    let requests = nginx.requests();
    assert_eq!(requests[..2], ["GET /nix-cache-info", "PUT /nix-cache-info"], "{requests:?}");
    let index = |method: &str, of: &str| requests.iter().position(|one| one.starts_with(method) && one.contains(of));
    let (tree, top) = (index("PUT", hash_part(&lab.tree)).unwrap(), index("PUT", hash_part(&lab.top)).unwrap());
    assert!(tree < top, "references first: {requests:?}");
    // The largest NAR goes first.
    let narinfo = fs::read_to_string(nginx.cache().join(format!("{}.narinfo", hash_part(&big)))).unwrap();
    let nars: Vec<_> = requests.iter().filter(|one| one.starts_with("HEAD /nar/")).collect();
    assert_eq!((nars.len(), assert_closed(&nginx.cache())), (3, 3));
    assert!(value(&narinfo, "URL").unwrap().ends_with(".nar.zst"));
    assert_nix_reads(&lab, &nginx.url, &[&lab.top, &big]);
    nginx.requests();
    let summary = lab.done(&push);
    assert!(summary.contains(r#""pushed":0,"#) && summary.contains(r#""already":3,"#), "{summary}");
    assert!(nginx.requests().iter().all(|request| request.starts_with("GET ")));
    // A NAR that is there, and whose narinfo is not, is not sent again.
    fs::remove_file(nginx.cache().join(format!("{}.narinfo", hash_part(&big)))).unwrap();
    lab.done(&push);
    let requests = nginx.requests();
    assert!(!requests.iter().any(|request| request.starts_with("PUT /nar/")), "{requests:?}");
    let message = lab.done(&["push", "--store", &store, "--no-compression", "--to", &nginx.url, &lab.hello]);
    assert_eq!(message, "");
    assert_nix_reads(&lab, &nginx.url, &[&lab.hello]);
}

#[test]
fn what_is_pushed_is_chosen_by_name_size_and_what_others_have() {
    let lab = Lab::new();
    let (big, store) = (add_big(&lab), lab.store.uri());
    let names = |message: &str| {
        let mut names: Vec<String> = message
            .lines()
            .filter_map(|line| Some(line.split('\t').next()?.rsplit_once('/')?.1.split_once('-')?.1.to_owned()))
            .collect();
        names.sort();
        names.join(" ")
    };
    let (tree, own) = (Path::new(&lab.tree).file_name().unwrap().to_str().unwrap(), lab.store.name());
    let tree = tree.split_once('-').unwrap().1.to_owned();
    let to = format!("file://{}", lab.folder("filtered"));
    let all = ["push", "--store", &store, "--to", &to, "--dry-run"];
    for (options, expected) in [
        (&[][..], format!("big hello-1.0 top {tree}")),
        (&["--no-closure"], "big hello-1.0 top".to_owned()),
        (&["--exclude", "b*"], format!("hello-1.0 top {tree}")),
        (&["--exclude", "/^(big|top)$/"], format!("hello-1.0 {tree}")),
        // Named, but a path that is pushed refers to it.
        (&["--exclude", "tree-*"], format!("big hello-1.0 top {tree}")),
        (&["--no-closure", "--max-size", "1M"], "hello-1.0 top".to_owned()),
        (&["--min-size", "1M"], "big".to_owned()),
        // All of it was added.
        (&["--only-built"], String::new()),
    ] {
        let message = lab.done(&[&all[..], options, &[&lab.top, &lab.hello, &big]].concat());
        assert_eq!(names(&message), expected, "{options:?} {own}: {message}");
    }
    assert!(!Path::new(&lab.folder("filtered")).exists(), "a dry run creates nothing");
    assert!(
        lab.fails(2, &["push", "--store", &store, "--to", &to, "--min-size", "2", "--max-size", "1", &big])
            .contains("--min-size")
    );
    // As `nix path-info` and `find -print0` print paths.
    for (number, input) in [format!("{}\n{big}\n", lab.hello), format!("{}\0{big}\0", lab.hello)].iter().enumerate() {
        let to = lab.folder(&format!("by-stdin-{number}"));
        let mut command = lab.command(&["push", "--store", &store, "--to", &format!("file://{to}"), "--stdin"]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(assert_closed(Path::new(&to)), 2);
    }
    // A cache that anybody may read as an addition to the others.
    let Some(nginx) = Nginx::start(lab.store.dir.path(), "") else { return };
    let push = |options: &[&str]| {
        let args =
            [&["push", "--json", "--store", &store, "--to", &nginx.url][..], options, &[&lab.top, &big]].concat();
        stdout(lab.command(&args).env("NARVAL_CACHES", lab.cache_url()).output().unwrap())
    };
    let message = push(&["--dry-run"]);
    assert!(message.contains("-big") && !message.contains("-tree") && message.contains("\"paths\":1,"), "{message}");
    assert!(!nginx.cache().join("nix-cache-info").exists(), "a dry run creates nothing");
    let message = push(&[]);
    assert!(message.contains("\"pushed\":1,") && message.contains("\"elsewhere\":2"), "{message}");
    let message = push(&["--all"]);
    assert!(message.contains("\"pushed\":2,") && message.contains("\"elsewhere\":0"), "{message}");
    assert_eq!(assert_closed(&nginx.cache()), 3);
}

#[test]
fn credentials_come_from_netrc_or_a_token_file() {
    let lab = Lab::new();
    let (big, store) = (add_big(&lab), lab.store.uri());
    let extra = r#"if ($http_authorization !~ "^(Bearer nv1_secret|Basic bWU6c2VjcmV0)$") { return 401; }"#;
    let Some(nginx) = Nginx::start(lab.store.dir.path(), extra) else { return };
    fs::create_dir_all(nginx.cache()).unwrap();
    fs::write(nginx.cache().join("nix-cache-info"), "StoreDir: /nix/store\n").unwrap();
    let push = ["push", "--store", &store, "--to", &nginx.url, &big];
    let message = lab.fails(5, &push);
    assert!(message.contains("401") && message.lines().count() == 1, "{message}");
    let (token, netrc) = (lab.folder("token"), lab.folder("netrc"));
    fs::write(&token, "nv1_wrong\n").unwrap();
    lab.fails(5, &[&push[..], &["--token-file", &token]].concat());
    fs::write(&token, "nv1_secret\n").unwrap();
    lab.done(&[&push[..], &["--token-file", &token]].concat());
    assert_eq!(assert_closed(&nginx.cache()), 1);
    fs::write(&netrc, "machine 127.0.0.1 login me password secret\n").unwrap();
    lab.done(&["push", "--store", &store, "--to", &nginx.url, "--netrc-file", &netrc, &lab.top]);
    fs::write(&token, "\n").unwrap();
    assert!(lab.fails(2, &[&push[..], &["--token-file", &token]].concat()).contains("it is empty"));
}

#[test]
fn a_refusal_is_reported_in_the_servers_words() {
    let lab = Lab::new();
    let (big, store) = (add_big(&lab), lab.store.uri());
    let extra = r#"default_type text/plain; if ($request_method = PUT) { return 403 "token 'ci' may not push"; }"#;
    let Some(nginx) = Nginx::start(lab.store.dir.path(), extra) else { return };
    fs::write(nginx.cache().join("nix-cache-info"), "StoreDir: /nix/store\n").unwrap();
    // The other cache is pushed to all the same.
    let (to, url) = (lab.folder("pushed"), format!("file://{}", lab.folder("pushed")));
    let message = lab.fails(5, &["push", "--store", &store, "--to", &nginx.url, "--to", &url, &big]);
    assert!(message.contains("(403): token 'ci' may not push"), "{message}");
    assert_eq!((assert_closed(Path::new(&to)), assert_closed(&nginx.cache())), (1, 0));
    // Of another store directory, and what is not there.
    fs::write(nginx.cache().join("nix-cache-info"), "StoreDir: /gnu/store\n").unwrap();
    let message = lab.fails(1, &["push", "--store", &store, "--to", &nginx.url, &big]);
    assert!(message.contains("is a cache for the store /gnu/store"), "{message}");
    lab.fails(3, &["push", "--store", &store, "--to", &url, "00bgd045z0d4icpbc2yyz4gx48ak44la-none"]);
    lab.fails(2, &["push", "--store", &store, "--to", &url, "./none"]);
    // Files that are not the registered ones are not pushed.
    let real = lab.store.real(&lab.hello).join("bin/hello");
    Command::new("chmod").arg("u+w").arg(&real).status().unwrap();
    fs::OpenOptions::new().append(true).open(&real).unwrap().write_all(b"# more\n").unwrap();
    let message = lab.fails(4, &["push", "--store", &store, "--to", &url, &lab.hello]);
    assert!(message.contains("its files have been changed"), "{message}");
    assert_eq!(assert_closed(Path::new(&to)), 1);
}

#[test]
fn a_push_killed_at_any_time_leaves_a_closed_cache_and_the_next_one_completes() {
    let lab = Lab::new();
    let (big, store) = (add_big(&lab), lab.store.uri());
    let Some(nginx) = Nginx::start(lab.store.dir.path(), "") else { return };
    let (folder, url) = (lab.folder("pushed"), format!("file://{}", lab.folder("pushed")));
    let whole = Instant::now();
    let push = ["push", "--quiet", "--store", &store, "--to", &nginx.url, "--to", &url, &lab.top, &lab.hello, &big];
    lab.done(&push);
    let whole = whole.elapsed();
    for round in 0..8 {
        for cache in [&nginx.cache(), Path::new(&folder)] {
            fs::remove_dir_all(cache).unwrap();
            fs::create_dir_all(cache).unwrap();
        }
        let mut child = lab.command(&push).stdin(Stdio::null()).spawn().unwrap();
        std::thread::sleep(whole * (round + 1) / 10);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_closed(&nginx.cache());
        assert_closed(Path::new(&folder));
    }
    lab.done(&push);
    assert_eq!((assert_closed(&nginx.cache()), assert_closed(Path::new(&folder))), (4, 4));
}
