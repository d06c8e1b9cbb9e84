//! Real Nix, in store roots of its own.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails so")]

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use narval_nix::StorePath;
use narval_store::{Environment, StoreConfig};

/// The newest Nix, and an old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nix {
    New,
    Old,
}

impl Nix {
    pub const BOTH: [Self; 2] = [Self::New, Self::Old];

    fn program(self, name: &str) -> String {
        match self {
            Self::New => name.to_owned(),
            Self::Old => name.replacen("nix", "nix-old", 1),
        }
    }

    /// A command of this Nix, in an environment that no other store is named in.
    pub fn command(self, name: &str) -> Command {
        let mut command = Command::new(self.program(name));
        for variable in
            ["NIX_REMOTE", "NIX_STORE_DIR", "NIX_STORE", "NIX_STATE_DIR", "NIX_LOG_DIR", "NIX_DAEMON_SOCKET_PATH"]
        {
            command.env_remove(variable);
        }
        command.env("NIX_CONFIG", "experimental-features = nix-command ca-derivations\nbuild-users-group =\nsandbox = false\nsubstitute = false");
        command
    }
}

/// Runs a command that must succeed; what it prints.
pub fn run(command: &mut Command) -> String {
    String::from_utf8(run_raw(command).stdout).unwrap().trim_end().to_owned()
}

/// As [`run`], with all of the output.
pub fn run_raw(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| {
        panic!("cannot run {command:?}: {error}; real Nix is needed as nix and nix-old on PATH")
    });
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// A store root made by one version of Nix.
pub struct Lab {
    pub nix: Nix,
    pub dir: tempfile::TempDir,
    /// Whether the store directory is a directory of the lab rather than `/nix/store` below a root. Building in a root
    /// needs namespaces, which a test need not have.
    physical: bool,
}

impl Lab {
    pub fn new(nix: Nix) -> Self {
        let dir = tempfile::Builder::new().prefix("narval-lab-").tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        Self { nix, dir, physical: false }
    }

    /// A store that can be built in, with a store directory of its own.
    pub fn physical(nix: Nix) -> Self {
        let mut lab = Self::new(nix);
        lab.physical = true;
        lab
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// The store's URI.
    pub fn uri(&self) -> String {
        let root = self.root().display().to_string();
        if self.physical { format!("local?store={root}/store&state={root}/state&log={root}/log") } else { root }
    }

    pub fn config(&self) -> StoreConfig {
        StoreConfig::parse(&self.uri(), &Environment::default()).unwrap()
    }

    pub fn full(&self, path: &StorePath) -> String {
        self.config().store_dir.display(path).to_string()
    }

    fn parse(&self, full: &str) -> StorePath {
        self.config().store_dir.parse(full.lines().last().unwrap_or_default()).unwrap()
    }

    /// `nix-store --store URI ARGUMENTS`.
    pub fn nix_store(&self, arguments: &[&str]) -> String {
        run(self.nix.command("nix-store").arg("--store").arg(self.uri()).args(arguments))
    }

    /// Adds a file or directory.
    pub fn add(&self, source: &Path) -> StorePath {
        self.parse(&self.nix_store(&["--add", source.to_str().unwrap()]))
    }

    /// Adds a file with this name and contents.
    pub fn add_file(&self, name: &str, contents: &str) -> StorePath {
        let file = self.dir.path().join(name);
        std::fs::write(&file, contents).unwrap();
        self.add(&file)
    }

    pub fn delete(&self, path: &StorePath) {
        self.nix_store(&["--delete", &self.full(path)]);
    }

    /// Builds `name` with this script, which finds `$out` and these paths as its arguments. Only in a physical store.
    pub fn build(&self, name: &str, script: &str, inputs: &[&StorePath]) -> StorePath {
        let inputs: String =
            inputs.iter().map(|path| format!("(builtins.storePath \"{}\") ", self.full(path))).collect();
        self.build_expression(&format!(
            "derivation {{ name = \"{name}\"; system = builtins.currentSystem; builder = \"/bin/sh\"; \
             PATH = \"/usr/bin:/bin\"; args = [ \"-c\" ''{script}'' \"sh\" {inputs}]; }}"
        ))
    }

    /// Builds what a Nix expression describes. Only in a physical store.
    pub fn build_expression(&self, expression: &str) -> StorePath {
        let arguments = ["--no-out-link", "-E", expression];
        self.parse(&run(self.nix.command("nix-build").arg("--store").arg(self.uri()).args(arguments)))
    }

    /// A daemon for this store.
    pub fn daemon(&self) -> TestDaemon {
        start_daemon(self.nix, &self.dir.path().join("socket"), &self.uri())
    }
}

/// Starts a daemon for the store with this URI.
pub fn start_daemon(nix: Nix, socket: &Path, uri: &str) -> TestDaemon {
    std::fs::remove_file(socket).ok();
    let mut command = nix.command("nix-daemon");
    command.env("NIX_DAEMON_SOCKET_PATH", socket).env("NIX_REMOTE", uri);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let daemon = TestDaemon { child, socket: socket.to_owned() };
    let until = Instant::now() + Duration::from_secs(60);
    while std::os::unix::net::UnixStream::connect(&daemon.socket).is_err() {
        assert!(Instant::now() < until, "the daemon does not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    daemon
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Store directories are read-only, and a test need not run as root.
        Command::new("chmod").args(["-R", "u+w"]).arg(self.dir.path()).stderr(Stdio::null()).status().ok();
    }
}

/// A daemon that ends with its test.
pub struct TestDaemon {
    pub child: Child,
    pub socket: PathBuf,
}

impl Drop for TestDaemon {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A tree with everything that makes NARs interesting.
pub fn odd_tree(dir: &Path) {
    use std::os::unix::ffi::OsStrExt;
    let raw = |bytes: &[u8]| dir.join(std::ffi::OsStr::from_bytes(bytes));
    std::fs::create_dir_all(dir.join("empty-dir")).unwrap();
    let mut deep = dir.join("deep");
    for level in 0..40 {
        deep.push(format!("{level}"));
    }
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(deep.join("bottom"), "bottom").unwrap();
    std::fs::write(dir.join("empty"), "").unwrap();
    std::fs::write(raw(b"not-utf8-\xff\xfe"), "bytes").unwrap();
    std::fs::write(raw(b"new\nline \"quote\" \\"), "x").unwrap();
    // The last is what Nix appends on file systems that do not distinguish case; here it is a name like others.
    for name in ["a", "a.b", "a-b", "A", "a0", "ab", "\u{e4}", "~", "a~nix~case~hack~1"] {
        std::fs::write(dir.join(name), name).unwrap();
    }
    std::fs::create_dir(dir.join("a+")).unwrap();
    std::fs::write(dir.join("a+").join("inside"), "inside").unwrap();
    std::fs::write(dir.join("n".repeat(255)), "long name").unwrap();
    for (size, name) in
        [(1, "1"), (7, "7"), (8, "8"), (9, "9"), (131_071, "below"), (131_072, "whole"), (400_001, "large")]
    {
        let contents: Vec<u8> = (0..size).map(|index: u32| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        std::fs::write(dir.join(format!("size-{name}")), contents).unwrap();
    }
    for index in 0..700 {
        let below = dir.join(format!("many/{}", index % 7));
        std::fs::create_dir_all(&below).unwrap();
        std::fs::write(below.join(format!("file-{index}")), "x".repeat(index * 3)).unwrap();
    }
    std::fs::hard_link(dir.join("size-large"), dir.join("size-large-link")).unwrap();
    for (mode, name) in [(0o755, "rwx"), (0o500, "owner-x"), (0o655, "others-x"), (0o400, "r")] {
        std::fs::write(dir.join(name), name).unwrap();
        std::fs::set_permissions(dir.join(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    symlink("/nix/store/absolute", dir.join("link-absolute")).unwrap();
    symlink("../../outside", dir.join("link-outside")).unwrap();
    symlink("t".repeat(4095), dir.join("link-long")).unwrap();
    symlink("empty-dir", dir.join("link-dir")).unwrap();
}
