//! What the tests share: the real programs, real Nix, a store root of the test's own, and plain HTTP over sockets.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

pub const NIX_SERVE: &str = env!("CARGO_BIN_EXE_nix-serve");
pub const NARVAL: &str = env!("CARGO_BIN_EXE_narval");

/// A program of ours that serves, killed when dropped.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    log: Arc<Mutex<String>>,
}

impl Server {
    /// Starts `nix-serve` over a store.
    pub fn nix_serve(store: &Store, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut command = Command::new(NIX_SERVE);
        command.args(["--listen", "127.0.0.1:0", "--store", &store.uri()]).args(args);
        Self::start(command, env)
    }

    /// Starts `narval serve` over a store.
    pub fn narval(store: &Store, args: &[&str]) -> Self {
        let mut command = Command::new(NARVAL);
        command.args(["serve", "--listen", "127.0.0.1:0", "--store", &store.uri()]).args(args);
        Self::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())])
    }

    /// Starts a program that says where it listens.
    pub fn start(mut command: Command, env: &[(&str, &str)]) -> Self {
        for name in ["NIX_SECRET_KEY_FILE", "NIX_REMOTE", "NOTIFY_SOCKET", "JOURNAL_STREAM"] {
            command.env_remove(name);
        }
        // A good upstream on a machine that is busy may need longer than the default.
        let has = |option| command.get_args().any(|arg| arg == option);
        if has("--upstream") && !has("--upstream-absent-after") {
            command.args(["--upstream-absent-after", "1m"]);
        }
        command.envs(env.iter().copied()).stdin(Stdio::null()).stdout(Stdio::inherit()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (sink, stderr) = (Arc::clone(&log), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut log = sink.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        let mut server = Self { child, address: "127.0.0.1:1".parse().unwrap(), log };
        server.address = server
            // In other formats of the log, more follows on the line.
            .wait_for(|log| {
                let rest = log.split("listening on http").nth(1)?.split("://").nth(1)?;
                rest.split(|c: char| !c.is_ascii_hexdigit() && !".:[]".contains(c)).next()?.parse().ok()
            });
        server
    }

    /// Waits until the log says something.
    pub fn wait_for<T>(&mut self, find: impl Fn(&str) -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            let log = self.log();
            if let Some(found) = find(&log) {
                return found;
            }
            assert!(self.child.try_wait().unwrap().is_none(), "the server ended: {log}");
            assert!(Instant::now() < until, "not in the log: {log}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none() && self.get("/nix-cache-info").status == 200
    }

    /// Ends the server with a SIGTERM, and gives its exit code.
    pub fn terminate(self) -> Option<i32> {
        self.end("-TERM")
    }

    /// Ends the server with a signal, and gives its exit code.
    pub fn end(mut self, signal: &str) -> Option<i32> {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the server did not end: {}", self.log());
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[])
    }

    pub fn ask(&self, method: &str, path: &str, fields: &[&str]) -> Answer {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n");
        for field in fields {
            request.push_str(field);
            request.push_str("\r\n");
        }
        request.push_str("\r\n");
        let raw = self.send(request.as_bytes());
        Answer::parse(&raw).unwrap_or_else(|| panic!("{method} {path}: {:?}", String::from_utf8_lossy(&raw)))
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends bytes and reads until the server closes; a reset ends it, too.
    pub fn send(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        // The server may answer and close before all is sent.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Another program, killed when dropped.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An answer as it came.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
    /// Whether the body has the length that its head announced.
    pub complete: bool,
}

impl Answer {
    pub fn parse(raw: &[u8]) -> Option<Self> {
        let split = raw.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = String::from_utf8(raw[..split].to_vec()).ok()?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let mut answer = Self { status, head, body: raw[split + 4..].to_vec(), complete: true };
        if answer.field("transfer-encoding").is_some_and(|coding| coding == "chunked") {
            let (body, complete) = dechunk(&answer.body);
            (answer.body, answer.complete) = (body, complete);
        } else if let Some(length) = answer.field("content-length") {
            answer.complete = length.parse() == Ok(answer.body.len());
        }
        Some(answer)
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// A figure of `/metrics` by its name, with some labels or none: of all caches that the answer has.
    pub fn figure(&self, name: &str) -> Option<u64> {
        let (name, wanted) = name.trim_end_matches('}').split_once('{').unwrap_or((name, ""));
        let value = |line: &str| -> Option<f64> {
            let (sample, value) = line.rsplit_once(' ')?;
            let (of, labels) = sample.split_once('{').unwrap_or((sample, ""));
            let fits = of == name && wanted.split(',').all(|label| labels.contains(label));
            fits.then(|| value.parse().ok())?
        };
        let values: Vec<f64> = self.text().lines().filter_map(value).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() as u64)
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

fn dechunk(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|window| window == b"\r\n") else { return (body, false) };
        let size = std::str::from_utf8(&rest[..end]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
        let Some(size) = size else { return (body, false) };
        let from = end + 2;
        if rest.len() < from + size + 2 {
            body.extend_from_slice(rest.get(from..).unwrap_or_default());
            return (body, false);
        }
        body.extend_from_slice(&rest[from..from + size]);
        if size == 0 {
            return (body, true);
        }
        rest = &rest[from + size + 2..];
    }
}

/// A store root of the test's own, made by real Nix.
pub struct Store {
    pub dir: tempfile::TempDir,
    nix: Nix,
}

/// Which Nix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nix {
    Newest,
    /// 2.8
    Old,
    /// 2.3, which knows neither zstd nor `--refresh`; not every machine can have it.
    Oldest,
}

impl Nix {
    pub const BOTH: [Self; 2] = [Self::Newest, Self::Old];

    /// The name of one of its programs.
    pub fn program(self, name: &str) -> String {
        let other = |suffix: &str| name.replacen("nix", &format!("nix{suffix}"), 1);
        match self {
            Self::Newest => name.to_owned(),
            Self::Old => other("-old"),
            Self::Oldest => other("-oldest"),
        }
    }

    /// Whether Nix 2.3 is here; otherwise says that a test is skipped.
    pub fn has_oldest() -> bool {
        let works = Command::new("nix-oldest").arg("--version").output().is_ok_and(|output| output.status.success());
        if !works {
            eprintln!("note: skipped: no Nix 2.3 here (tools/setup-nix installs it if the archive has it)");
        }
        works
    }

    /// `nix` with the new command line switched on and a cache of its own.
    pub fn nix(self, home: &Path, args: &[&str]) -> Output {
        self.nix_with(home, &[], args)
    }

    /// The same with further variables.
    pub fn nix_with(self, home: &Path, env: &[(&str, &str)], args: &[&str]) -> Output {
        let mut command = Command::new(self.program("nix"));
        if self == Self::Oldest {
            command.args(args.iter().filter(|arg| **arg != "--refresh"));
        } else {
            command.args(["--extra-experimental-features", "nix-command"]).args(args);
        }
        command.envs(env.iter().copied());
        output(command, home)
    }

    /// Starts its daemon for a store, and waits until it listens on `socket`.
    pub fn daemon(self, home: &Path, socket: &Path, remote: &str, config: &str) -> Running {
        let mut command = Command::new(self.program("nix-daemon"));
        command.env("NIX_DAEMON_SOCKET_PATH", socket).env("NIX_REMOTE", remote).env("HOME", home);
        command.env("NIX_CONFIG", config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let daemon = Running(command.spawn().unwrap());
        let until = Instant::now() + PATIENCE;
        while UnixStream::connect(socket).is_err() {
            assert!(Instant::now() < until, "the daemon does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        daemon
    }

    pub fn nix_store(self, home: &Path, args: &[&str]) -> Output {
        let mut command = Command::new(self.program("nix-store"));
        command.args(args);
        output(command, home)
    }
}

fn output(mut command: Command, home: &Path) -> Output {
    command.env("HOME", home).env("XDG_CACHE_HOME", home.join("nix-cache")).env_remove("NIX_REMOTE");
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error} (tools/setup-nix --old installs it)"))
}

/// The text that a command printed; fails unless it succeeded.
pub fn stdout(output: Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Store {
    pub fn new() -> Self {
        Self::made_by(Nix::Newest)
    }

    pub fn made_by(nix: Nix) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("root")).unwrap();
        let store = Self { dir, nix };
        // Servers refuse a folder that holds no store.
        assert!(store.nix_store(&["--init"]).status.success());
        store
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// The store URI: the root.
    pub fn uri(&self) -> String {
        self.path("root").to_str().unwrap().to_owned()
    }

    /// Where the files of a store path are.
    pub fn real(&self, path: &str) -> PathBuf {
        self.path("root").join(path.strip_prefix('/').unwrap())
    }

    pub fn nix_store(&self, args: &[&str]) -> Output {
        let mut all = vec!["--store".to_owned(), self.uri()];
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        self.nix.nix_store(self.dir.path(), &all.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Adds a file or tree with `nix-store --add`; the store path.
    pub fn add(&self, path: &Path) -> String {
        stdout(self.nix_store(&["--add", path.to_str().unwrap()]))
    }

    /// Adds a file of this name and contents.
    pub fn add_file(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::write(&path, contents).unwrap();
        self.add(&path)
    }

    /// Its folder's name, which no other one of a run of the tests has.
    pub fn name(&self) -> String {
        self.dir.path().file_name().unwrap().to_str().unwrap().trim_start_matches('.').to_owned()
    }

    /// Adds a tree with all that a NAR can hold: names that are not UTF-8, empty files and folders, symlinks,
    /// executables, and a file large enough to be sent by itself.
    pub fn add_tree(&self, name: &str) -> String {
        use std::os::unix::ffi::OsStrExt;
        use std::os::unix::fs::PermissionsExt;
        let root = self.path(name);
        std::fs::create_dir_all(root.join("bin")).unwrap();
        std::fs::create_dir_all(root.join("empty")).unwrap();
        std::fs::create_dir_all(root.join("many")).unwrap();
        std::fs::write(root.join("bin/run"), "#!/bin/sh\necho hello\n").unwrap();
        std::fs::set_permissions(root.join("bin/run"), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(root.join("nothing"), "").unwrap();
        std::fs::write(root.join(std::ffi::OsStr::from_bytes(b"latin-\xe9")), "not UTF-8\n").unwrap();
        std::os::unix::fs::symlink("bin/run", root.join("link")).unwrap();
        std::os::unix::fs::symlink("/nowhere", root.join("dangling")).unwrap();
        let large: Vec<u8> = (0..400_000_u32).map(|number| (number % 251) as u8).collect();
        std::fs::write(root.join("large"), large).unwrap();
        for number in 0..300 {
            std::fs::write(root.join(format!("many/{number}")), format!("{number}\n").repeat(number)).unwrap();
        }
        self.add(&root)
    }

    /// The NAR of a store path, as Nix dumps it.
    pub fn dump(&self, path: &str) -> Vec<u8> {
        let output = self.nix.nix_store(self.dir.path(), &["--dump", self.real(path).to_str().unwrap()]);
        assert!(output.status.success());
        output.stdout
    }

    /// A new secret key: its file, and the public key.
    pub fn key(&self, name: &str) -> (PathBuf, String) {
        let file = self.path(&format!("{name}.sec"));
        let made = Command::new(NARVAL).args(["key", "generate", name, "--out"]).arg(&file).output().unwrap();
        (file, stdout(made))
    }
}

/// The path that `tools/make-closure` has made in the machine's store, if it has. Its root has the path's full name: whatever else is in that store, or
/// is collected there, is nobody's business.
pub fn made_closure() -> Option<String> {
    let roots = std::fs::read_dir("/nix/var/nix/gcroots").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let is_made = |root: &PathBuf| {
        let name = root.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("narval-hello-") && !name.ends_with(".drv") && root.is_dir()
    };
    // The version is that of the Debian or Ubuntu release.
    let root = roots.filter(is_made).max()?;
    Some(std::fs::canonicalize(root).ok()?.to_str()?.to_owned())
}

/// A certificate for this machine, made in this folder: the files of the chain and of the key.
pub fn certificate(folder: &Path) -> [PathBuf; 2] {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
    let files = ["cert.pem", "key.pem"].map(|name| folder.join(name));
    std::fs::write(&files[0], made.cert.pem()).unwrap();
    std::fs::write(&files[1], made.signing_key.serialize_pem()).unwrap();
    files
}

/// The hash part of a store path.
/// Copies our program. By another process: a file that this one has open for writing is inherited by whatever a test
/// beside us starts at that moment, and cannot be executed until then ("text file busy").
pub fn copy_program(to: impl AsRef<Path>) {
    assert!(Command::new("cp").arg(NARVAL).arg(to.as_ref()).status().unwrap().success());
}

/// Bytes that do not compress, of their own for each seed but 0. By eights (xorshift64): unoptimized, an iterator takes as long for each byte.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let (mut state, mut bytes) = (seed, vec![0; len.next_multiple_of(8)]);
    for eight in bytes.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        eight.copy_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

pub fn hash_part(path: &str) -> &str {
    path.rsplit('/').next().and_then(|name| name.get(..32)).unwrap()
}

/// The value of a narinfo's key.
pub fn value<'a>(narinfo: &'a str, key: &str) -> Option<&'a str> {
    narinfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
}
