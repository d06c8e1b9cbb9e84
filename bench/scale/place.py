"""What several servers over one bucket need on one machine: versitygw, PostgreSQL, and processes that end with the script."""
import glob, hashlib, hmac, os, re, shutil, signal, socket, subprocess, sys, tempfile, time
import urllib.parse

root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
work = tempfile.mkdtemp(prefix="narval-scale-")
os.chmod(work, 0o755)
KEY, SECRET = "bench-key", "bench-secret-key"
env = dict(os.environ, HOME=work, XDG_CACHE_HOME=work + "/cache", AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET,
           AWS_EC2_METADATA_DISABLED="true", NO_PROXY="127.0.0.1", NIX_CONFIG="experimental-features = nix-command")
env.pop("NIX_REMOTE", None)
children = []
# Ended by a signal, it cleans up, too.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def start(command, port, name, **more):
    log = open(f"{work}/{name}.log", "ab")
    child = subprocess.Popen(command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL, **more)
    children.append(child)
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return child
        except OSError:
            if child.poll() is not None or time.monotonic() > until:
                children.remove(child)
                child.kill()
                raise SystemExit(f"{name} does not start: {open(log.name).read()[-2000:]}")
            time.sleep(0.05)


def end(child, with_signal=signal.SIGTERM):
    children.remove(child)
    child.send_signal(with_signal)
    child.wait()


def run(*command):
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stderr}")
    return done.stdout.strip()


def signed(method, target, port, query=(), lasts=3600):
    """The target of a presigned request (Signature Version 4)."""
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    scope = f"{now[:8]}/us-east-1/s3/aws4_request"
    fields = {"X-Amz-Algorithm": "AWS4-HMAC-SHA256", "X-Amz-Credential": f"{KEY}/{scope}", "X-Amz-Date": now,
              "X-Amz-Expires": str(lasts), "X-Amz-SignedHeaders": "host", **dict(query)}
    quote = lambda text: urllib.parse.quote(text, safe="-_.~")
    text = "&".join(f"{quote(name)}={quote(fields[name])}" for name in sorted(fields))
    asked = f"{method}\n{target}\n{text}\nhost:127.0.0.1:{port}\n\nhost\nUNSIGNED-PAYLOAD"
    what = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(asked.encode()).hexdigest()}"
    key = ("AWS4" + SECRET).encode()
    for part in (now[:8], "us-east-1", "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return f"{target}?{text}&X-Amz-Signature={hmac.new(key, what.encode(), hashlib.sha256).hexdigest()}"


class Http:
    """One connection; answers with Content-Length."""

    def __init__(self, port):
        self.port, self.socket = port, socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get(self, target, method="GET"):
        """The body, the milliseconds to its first byte, and those to its last."""
        begun = time.perf_counter()
        self.socket.sendall(f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Length: 0\r\n\r\n".encode()
                            if method == "PUT" else
                            f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n\r\n".encode())
        got, first = b"", None
        while b"\r\n\r\n" not in got:
            piece = self.socket.recv(1 << 16)
            if not piece:
                raise SystemExit(f"{target}: the connection ended")
            got += piece
        head, body = got.split(b"\r\n\r\n", 1)
        if head.split(b" ", 2)[1] not in (b"200", b"201"):
            raise SystemExit(f"{target}: {head.decode()} {body[:300]}")
        length = int(re.search(rb"(?i)content-length: *(\d+)", head).group(1))
        pieces, have = [body], len(body)
        first = time.perf_counter() if body or not length else None
        while have < length:
            piece = self.socket.recv(1 << 18)
            first = first or time.perf_counter()
            pieces.append(piece)
            have += len(piece)
        return b"".join(pieces), (first - begun) * 1e3, (time.perf_counter() - begun) * 1e3


class Postgres:
    """A server of one's own."""

    def __init__(self, *options):
        self.folder, self.port = work + "/postgres", free_port()
        os.mkdir(self.folder)
        programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1:] or [os.path.dirname(shutil.which("postgres") or "")]
        as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if as_user:
            shutil.chown(self.folder, "postgres")
        run(*as_user, programs[0] + "/initdb", "-D", self.folder + "/d", "-A", "trust", "-U", "narval", "--no-sync", "-E", "UTF8",
            "--locale=C")
        self.psql = programs[0] + "/psql"
        self.command = [*as_user, programs[0] + "/postgres", "-D", self.folder + "/d", "-h", "127.0.0.1", "-p", str(self.port),
                        "-k", "", *options]
        self.child = start(self.command, self.port, "postgres")
        self.url = f"postgres://narval@127.0.0.1:{self.port}/postgres?sslmode=disable"
        # It listens before it answers.
        until = time.monotonic() + 60
        while subprocess.run([programs[0] + "/pg_isready", "-q", "-d", self.url], env=env).returncode and time.monotonic() < until:
            time.sleep(0.05)

    def sql(self, statement):
        return run(self.psql, "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", self.url, "-c", statement)

    def restart(self):
        """Ends all connections at once, as after a crash."""
        children.remove(self.child)
        # runuser would not pass the signal on.
        with open(self.folder + "/d/postmaster.pid") as file:
            os.kill(int(file.readline()), signal.SIGQUIT)
        self.child.wait()
        self.child = start(self.command, self.port, "postgres")


def gateway():
    """Starts versitygw with an empty bucket `bench`. Returns its port."""
    port = free_port()
    for folder in ("root", "side"):
        os.mkdir(f"{work}/{folder}")
    env.update(ROOT_ACCESS_KEY=KEY, ROOT_SECRET_KEY=SECRET)
    program = shutil.which("versitygw", path=f"{root}/target/tools:{os.environ['PATH']}")
    if not program:
        raise SystemExit("versitygw is missing: run tools/setup-s3")
    start([program, "--port", f"127.0.0.1:{port}", "--keep-alive", "-q", "posix", "--sidecar", work + "/side", work + "/root"],
          port, "versitygw")
    Http(port).get(signed("PUT", "/bench", port), "PUT")
    return port


def clean(keep=False):
    """Ends everything that was started, and removes the work folder, unless it is to be looked at."""
    for child in reversed(children):
        child.send_signal(signal.SIGINT)
    for child in children:
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
    if keep:
        return
    subprocess.run(["chmod", "-R", "u+w", work])
    shutil.rmtree(work, ignore_errors=True)
