"""A `narval serve` over TLS with hostile contents, and what its attackers and its honest client are made of. Standard library only."""
import bz2, hashlib, http.client, lzma, multiprocessing, os, resource, shutil, signal, socket, ssl, struct, subprocess, sys, tempfile, time

work = tempfile.mkdtemp(prefix="narval-hostile-")
HOST = "127.0.0.1"
ALPHABET = "0123456789abcdfghijklmnpqrsvwxyz"
MAGIC = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 8, 9
ERRORS = ["NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED", "FRAME_SIZE_ERROR",
          "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED"]
# Ended by a signal, it cleans up, too.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def many_descriptors():
    """All that are allowed; the server raises its own limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# ------------------------------------------------------------------ contents
def nix32(digest):
    number = int.from_bytes(digest, "little")
    length = (len(digest) * 8 - 1) // 5 + 1
    return "".join(ALPHABET[number >> 5 * place & 31] for place in reversed(range(length)))


def word(data):
    return struct.pack("<Q", len(data)) + data + b"\0" * (-len(data) % 8)


def nar(files):
    """The pieces of a NAR of a folder; files: (name, size, the piece that is repeated)."""
    yield b"".join(map(word, (b"nix-archive-1", b"(", b"type", b"directory")))
    for name, size, block in files:
        yield b"".join(map(word, (b"entry", b"(", b"name", name, b"node", b"(", b"type", b"regular", b"contents"))) + struct.pack("<Q", size)
        for start in range(0, size, len(block)):
            yield block[: min(len(block), size - start)]
        yield b"\0" * (-size % 8) + b"".join(map(word, (b")", b")")))
    yield word(b")")


class Nar:
    """A compressed NAR in memory, with its hashes."""

    def __init__(self, files, kind):
        coder = {"bzip2": bz2.BZ2Compressor, "none": None,
                 # the largest dictionary that a decoder of ours accepts; the fast mode keeps the compressor's own memory small
                 "xz": lambda: lzma.LZMACompressor(filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 128 << 20}])}[kind]
        coder, hashed, size, out = coder and coder(), hashlib.sha256(), 0, []
        for piece in nar(files):
            hashed.update(piece)
            size += len(piece)
            out.append(coder.compress(piece) if coder else piece)
        self.file = b"".join(out) + (coder.flush() if coder else b"")
        self.kind, self.size, self.hash = kind, size, nix32(hashed.digest())
        self.file_hash = nix32(hashlib.sha256(self.file).digest())
        self.url = f"nar/{self.file_hash}.nar" + {"bzip2": ".bz2", "xz": ".xz", "none": ""}[kind]

    def narinfo(self, part, name, references=()):
        return (f"StorePath: /nix/store/{part}-{name}\nURL: {self.url}\nCompression: {self.kind}\nFileHash: sha256:{self.file_hash}\n"
                f"FileSize: {len(self.file)}\nNarHash: sha256:{self.hash}\nNarSize: {self.size}\n"
                f"References: {' '.join(references)}\n").encode()


def hash_part(number):
    return nix32(hashlib.sha256(b"%d" % number).digest()[:20])


# -------------------------------------------------------------------- server
class Server:
    """`narval serve` over TLS, with a push token and an uploaded NAR of each hostile kind."""

    def __init__(self, narval, *options, env=()):
        many_descriptors()
        self.narval = os.path.abspath(narval)
        self.env = dict(os.environ, HOME=work, XDG_CACHE_HOME=work + "/cache", **dict(env))
        self.data, self.port = work + "/data", free_port()
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", work + "/tls.key", "-out", work + "/tls.pem")
        self.token = run(self.narval, "token", "create", "--data", self.data, "--push", "hostile", env=self.env).strip().split("\n")[-1]
        self.log = open(work + "/server.log", "ab")
        self.child = subprocess.Popen([self.narval, "serve", "--data", self.data, "--listen", f"{HOST}:{self.port}", "--tls-cert", work + "/tls.pem",
                                       "--tls-key", work + "/tls.key", *options], env=self.env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        until = time.monotonic() + 30
        while True:
            try:
                socket.create_connection((HOST, self.port)).close()
                return
            except OSError:
                if self.child.poll() is not None or time.monotonic() > until:
                    raise SystemExit("the server does not start: " + open(work + "/server.log").read()[-2000:])
                time.sleep(0.05)

    def put(self, pairs):
        """Uploads: (target, body)."""
        connection = honest(self.port, HOST)
        for target, body in pairs:
            connection.request("PUT", target, body, {"Authorization": "Bearer " + self.token})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status not in (200, 201, 204):
                raise SystemExit(f"PUT {target}: {answer.status} {text[:300]}")

    def commit(self, narinfos):
        body = b"".join(b"%s %d\n%s" % (part.encode(), len(narinfo), narinfo) for part, narinfo in narinfos) + b"end %d\n" % len(narinfos)
        connection = honest(self.port, HOST, 600)
        connection.request("POST", "/_narval/v1/commit", body, {"Authorization": "Bearer " + self.token})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise SystemExit(f"commit: {answer.status} {text[:300]}")

    def fill(self, zeros, paths):
        """A bzip2 NAR of zeros with a file behind them, a closure of many paths, a large file, and small paths to ask for. Returns their hash parts."""
        bomb = Nar([(b"a", zeros, bytes(1 << 20)), (b"z", 6, b"hello\n")], "bzip2")
        plain = Nar([(b"a", 64 << 20, os.urandom(1 << 20))], "none")
        small = Nar([(b"a", 6, b"hello\n")], "none")
        self.bomb, self.root, self.large = hash_part(1), hash_part(2), plain.url
        leaves = [(hash_part(100 + number), f"leaf-with-a-name-of-some-length-{number}") for number in range(paths)]
        self.leaves = [part for part, _ in leaves]
        names = ["-".join(leaf) for leaf in leaves]
        self.put([("/" + one.url, one.file) for one in (bomb, plain, small)])
        self.commit([(part, small.narinfo(part, name)) for part, name in leaves])
        self.put([(f"/{self.bomb}.narinfo", bomb.narinfo(self.bomb, "bomb")), (f"/{self.root}.narinfo", small.narinfo(self.root, "root", names)),
                  (f"/{hash_part(3)}.narinfo", plain.narinfo(hash_part(3), "large"))])

    def cpu(self):
        """Seconds of processor time so far."""
        fields = open(f"/proc/{self.child.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss(self):
        """MiB in memory now."""
        return int(open(f"/proc/{self.child.pid}/statm").read().split()[1]) * 4096 / (1 << 20)

    def end(self):
        self.child.send_signal(signal.SIGTERM)
        try:
            self.child.wait(60)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def free_port():
    with socket.create_server((HOST, 0)) as listener:
        return listener.getsockname()[1]


def run(*command, env=None):
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stderr}")
    return done.stdout


def clean():
    shutil.rmtree(work, ignore_errors=True)


# ------------------------------------------------------------------- clients
def context(protocols):
    made = ssl.create_default_context(cafile=work + "/tls.pem")
    made.set_alpn_protocols(protocols)
    return made


def connect(port, source, protocols=("h2",), receive_buffer=None):
    plain = socket.socket()
    if receive_buffer:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    plain.bind((source, 0))
    plain.settimeout(30)
    plain.connect((HOST, port))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context(list(protocols)).wrap_socket(plain, server_hostname="localhost")


def honest(port, source, timeout=60):
    """A keep-alive connection of a client of HTTP/1.1."""
    made = http.client.HTTPSConnection(HOST, port, timeout=timeout, context=context(["http/1.1"]), source_address=(source, 0))
    made._context.check_hostname = True
    return made


def percentile(times, share):
    return sorted(times)[min(len(times) - 1, int(len(times) * share))] if times else float("nan")


class Probe:
    """Another process that asks for targets in turn, every 10 ms; `take` returns the times in ms and the refusals since the last call."""

    def __init__(self, port, targets, source="127.0.0.100", pause=0.01):
        self.pipe, theirs = multiprocessing.Pipe()
        self.child = multiprocessing.Process(target=Probe.ask, args=(theirs, port, targets, source, pause), daemon=True)
        self.child.start()

    @staticmethod
    def ask(pipe, port, targets, source, pause):
        connection, times, refused, number = None, [], [], 0
        while True:
            if pipe.poll():
                if pipe.recv() == "end":
                    return
                pipe.send((times, refused))
                times, refused = [], []
            target, number, begun = targets[number % len(targets)], number + 1, time.perf_counter()
            try:
                connection = connection or honest(port, source)
                connection.request("GET", target)
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    refused.append(f"{target}: {answer.status}")
            except OSError as error:
                refused.append(f"{target}: {error!r}")
                connection = None
            except http.client.HTTPException as error:
                # A keep-alive connection may end between two requests: once more on a new one, in the same time.
                try:
                    connection = honest(port, source)
                    connection.request("GET", target)
                    connection.getresponse().read()
                except (OSError, http.client.HTTPException) as again:
                    refused.append(f"{target}: {error!r}, {again!r}")
                    connection = None
            times.append((time.perf_counter() - begun) * 1e3)
            time.sleep(pause)

    def take(self):
        self.pipe.send("take")
        return self.pipe.recv()

    def end(self):
        self.pipe.send("end")
        self.child.join(60)


# -------------------------------------------------------------------- HTTP/2
def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def integer(value, bits, first=0):
    if value < (1 << bits) - 1:
        return bytes((first | value,))
    out, value = [first | (1 << bits) - 1], value - ((1 << bits) - 1)
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def text(value):
    return integer(len(value), 7) + value


def request_block(path, method=b"GET", more=b""):
    """A header block without references to the dynamic table."""
    known = {b"GET": b"\x82", b"POST": b"\x83"}
    return known.get(method, b"\x02" + text(method)) + b"\x87\x04" + text(path) + b"\x01" + text(b"localhost") + more


def literal(name, value):
    return b"\x00" + text(name) + text(value)


def settings(**values):
    number = {"table": 1, "streams": 3, "window": 4, "frame": 5}
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", number[name], value) for name, value in values.items()))


class Endings:
    """Why connections ended, counted: read from what the server sent."""

    def __init__(self):
        self.rest, self.seen = b"", []

    def read(self, data):
        self.rest += data
        while len(self.rest) >= 9:
            length = int.from_bytes(self.rest[:3], "big")
            if len(self.rest) < 9 + length:
                return
            if self.rest[3] == GOAWAY:
                code = int.from_bytes(self.rest[13:17], "big")
                self.seen.append(ERRORS[code] if code < len(ERRORS) else hex(code))
            self.rest = self.rest[9 + length:]
