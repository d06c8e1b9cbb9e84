//! A cache made from a store of real Nix, and folders to install into.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{NARVAL, Nix, Store, stdout};

/// A store with a small closure, and a `file://` cache of it, unsigned: its paths are named by their contents.
pub(crate) struct Lab {
    pub(crate) store: Store,
    /// A text file that refers to `tree`.
    pub(crate) top: String,
    /// Every kind of file.
    pub(crate) tree: String,
    /// A program.
    pub(crate) hello: String,
}

impl Lab {
    pub(crate) fn new() -> Self {
        let store = Store::new();
        // Of this lab alone: a program that runs in another test, from a store path of the same name, would be a root here.
        let own = store.name();
        let tree = store.add_tree(&format!("tree-{own}"));
        let hello = add_program(
            &store,
            "hello-1.0",
            "hello",
            &format!(
                "# {own}
echo \"hello $* from $0\""
            ),
        );
        // Evaluation adds the text, with the tree as its reference.
        let text = format!("builtins.toFile \"top\" \"see ${{builtins.storePath {tree}}}\"");
        let args = ["--store", &store.uri(), "--eval", "--read-write-mode", "-E", &text];
        let mut command = Command::new("nix-instantiate");
        command.args(args).env_remove("NIX_REMOTE").env("HOME", store.dir.path());
        let top = stdout(command.output().unwrap()).trim_matches('"').to_owned();
        let lab = Self { store, top, tree, hello };
        let cache = lab.cache_url();
        lab.done(&["copy", "--store", &lab.store.uri(), "--to", &cache, &lab.top, &lab.hello]);
        lab
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.store.path("cache")
    }

    pub(crate) fn cache_url(&self) -> String {
        format!("file://{}", self.cache().display())
    }

    /// A folder of this lab.
    pub(crate) fn folder(&self, name: &str) -> String {
        self.store.path(name).to_str().unwrap().to_owned()
    }

    /// `narval`, in an environment of its own.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(NARVAL);
        command.args(args).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("HOME", self.store.dir.path()).env("TMPDIR", self.store.dir.path());
        // The channel that names are looked up in by default is in the internet.
        command.env("NARVAL_CHANNEL", "none");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs `narval`, which must succeed; what it prints.
    pub(crate) fn done(&self, args: &[&str]) -> String {
        stdout(self.run(args))
    }

    /// Runs `narval`, which must end with this code; what it says.
    pub(crate) fn fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {message}");
        message
    }

    /// Where the lab's cache has the NAR of a path.
    pub(crate) fn nar_of(&self, path: &str) -> String {
        let hash_part = Path::new(path).file_name().unwrap().to_str().unwrap().split('-').next().unwrap();
        let narinfo = std::fs::read_to_string(self.cache().join(format!("{hash_part}.narinfo"))).unwrap();
        format!("/{}", narinfo.lines().find_map(|line| line.strip_prefix("URL: ")).unwrap())
    }

    /// Installs from the lab's cache.
    pub(crate) fn install(&self, store: &str, paths: &[&str]) -> String {
        self.done(&[&["install", "--quiet", "--from", &self.cache_url(), "--store", store], paths].concat())
    }

    /// Real Nix finds the store without fault, with just these paths valid.
    pub(crate) fn assert_accepted(&self, store: &str, paths: &[&str]) {
        let home = self.store.dir.path();
        stdout(Nix::Newest.nix_store(home, &["--store", store, "--verify", "--check-contents"]));
        let listed = stdout(Nix::Newest.nix(home, &["path-info", "--store", store, "--all"]));
        let (mut listed, mut paths): (Vec<_>, Vec<_>) = (listed.lines().collect(), paths.to_vec());
        listed.sort_unstable();
        paths.sort_unstable();
        assert_eq!(listed, paths);
        assert_eq!(leftovers(Path::new(store)), Vec::<String>::new());
    }
}

/// Adds a folder with one program, a shell script.
pub(crate) fn add_program(store: &Store, name: &str, program: &str, script: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let bin = store.path(name).join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::write(bin.join(program), format!("#!/bin/sh\n{script}\n# {}\n", store.name())).unwrap();
    std::fs::set_permissions(bin.join(program), PermissionsExt::from_mode(0o755)).unwrap();
    store.add(&store.path(name))
}

/// Temporary names in a store directory.
pub(crate) fn leftovers(store: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(store.join("nix/store")) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.contains("-narval-tmp-") || name.starts_with(".tmp-")).collect()
}
