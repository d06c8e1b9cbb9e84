//! `narval gc` beside Nix of every version, and what it removes, counts and leaves.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::lab::Lab;
use crate::support::{NARVAL, Nix, Store, stdout};
use crate::trouble::PATIENCE;

/// Dead trees that are collected while Nix adds a path.
const TREES: usize = 12;

/// Files in each: removing them takes longer than starting Nix.
const FILES: usize = 800;

fn versions() -> Vec<Nix> {
    let mut versions = Nix::BOTH.to_vec();
    versions.extend(Nix::has_oldest().then_some(Nix::Oldest));
    versions
}

/// `name` of this Nix for a store root, without substitutes.
fn nix_store(nix: Nix, root: &str, args: &[&str]) -> Command {
    let mut command = Command::new(nix.program("nix-store"));
    command.args(["--store", root]).args(args).env_remove("NIX_REMOTE").env("HOME", root);
    command.env("NIX_CONFIG", "substitute = false\nbuild-users-group =");
    command
}

fn narval(args: &[&str]) -> Command {
    let mut command = Command::new(NARVAL);
    command.args(args).env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", "/nonexistent");
    command
}

/// The valid paths of a store root, and those of them without files.
fn valid(root: &str) -> (BTreeSet<String>, Vec<String>) {
    let database = format!("{root}/nix/var/nix/db/db.sqlite");
    let connection = rusqlite::Connection::open(database).unwrap();
    connection.busy_timeout(PATIENCE).unwrap();
    let mut statement = connection.prepare("select path from ValidPaths").unwrap();
    let paths: BTreeSet<String> = statement.query_map((), |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let lost = paths.iter().filter(|path| std::fs::symlink_metadata(format!("{root}{path}")).is_err());
    let lost = lost.cloned().collect();
    (paths, lost)
}

/// Ends with the test, however that ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Running {
    fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    fn succeed(&mut self, what: &str) {
        let until = Instant::now() + PATIENCE;
        while self.is_running() {
            assert!(Instant::now() < until, "{what} does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(self.0.wait().unwrap().success(), "{what}");
    }
}

/// What the rounds need: trees, and a file whose name is collected last.
struct Sources {
    lab: Store,
    trees: Vec<String>,
    last: String,
}

impl Sources {
    fn new() -> Self {
        let lab = Store::new();
        let trees = (0..TREES).map(|tree| {
            let folder = lab.path(&format!("tree-{tree}"));
            std::fs::create_dir(&folder).unwrap();
            (0..FILES)
                .for_each(|file| std::fs::write(folder.join(file.to_string()), format!("{tree} {file}")).unwrap());
            folder.to_str().unwrap().to_owned()
        });
        let trees = trees.collect();
        let last = lab.path("last");
        std::fs::write(&last, "last").unwrap();
        let last = last.to_str().unwrap().to_owned();
        Self { lab, trees, last }
    }

    /// A store in which all of it is dead, and in which nobody has collected yet. Returns the path of `last`.
    fn store(&self, root: &str) -> String {
        let add: Vec<&str> = self.trees.iter().chain([&self.last]).map(String::as_str).collect();
        let added = stdout(nix_store(Nix::Newest, root, &[&["--add"], &add[..]].concat()).output().unwrap());
        assert!(!Path::new(root).join("nix/var/nix/gc-socket").exists());
        added.lines().last().unwrap().to_owned()
    }

    fn remove(&self, root: &str) {
        Command::new("chmod").args(["-R", "u+w", root]).status().unwrap();
        std::fs::remove_dir_all(root).unwrap();
    }

    /// `nix-store --export` of one path, without the end of the stream.
    fn export(&self, root: &str, path: &str) -> Vec<u8> {
        let output = nix_store(Nix::Newest, root, &["--export", path]).output().unwrap();
        assert!(output.status.success());
        output.stdout[..output.stdout.len() - 8].to_vec()
    }
}

/// How many rounds each version of Nix gets.
fn rounds() -> usize {
    std::env::var("NARVAL_TEST_GC_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(4)
}

/// Starts a collection and waits until it has deleted this many paths, or all.
fn collect(root: &str, deleted: usize) -> Running {
    let count = || valid(root).0.len();
    let until = count().saturating_sub(deleted);
    let mut command = narval(&["gc", "--quiet", "--store", root]);
    let mut collection = Running(command.stdin(Stdio::null()).spawn().unwrap());
    while collection.is_running() && count() > until {
        std::thread::sleep(Duration::from_micros(200));
    }
    collection
}

/// A path that Nix adds in the middle of a collection, which is about to delete it, is there afterwards. Nix 2.5 and
/// newer ask the collection through its socket; 2.8 only if the socket's file exists. Nix 2.3 waits for `gc.lock` if it
/// has no file of temporary roots yet.
#[test]
fn a_path_that_nix_adds_during_a_collection_stays() {
    let sources = Sources::new();
    let root = sources.lab.path("mine").to_str().unwrap().to_owned();
    for nix in versions() {
        let mut during = 0;
        for round in 0..rounds() {
            let last = sources.store(&root);
            let mut collection = collect(&root, 1 + round % TREES);
            let mut add = nix_store(nix, &root, &["--add", &sources.last]);
            let mut add = Running(add.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
            during += usize::from(collection.is_running());
            add.succeed("nix-store --add");
            let (paths, lost) = valid(&root);
            assert!(paths.contains(&last) && lost.is_empty(), "{nix:?}, round {round}: {lost:?}");
            collection.succeed("narval gc");
            let (paths, lost) = valid(&root);
            assert!(paths.contains(&last) && lost.is_empty(), "{nix:?}, round {round}: {lost:?}");
            sources.remove(&root);
        }
        assert!(during > 0, "{nix:?}: no path was added during a collection");
    }
}

/// The same for a process that has its file of temporary roots already, as a daemon's connection has. Nix 2.3 then only
/// waits for a collection that holds a lock on that file.
#[test]
fn a_path_that_nix_imports_during_a_collection_stays() {
    let sources = Sources::new();
    let root = sources.lab.path("mine").to_str().unwrap().to_owned();
    let first = sources.lab.add_file("first", "first");
    let first_export = sources.export(&sources.lab.uri(), &first);
    for nix in versions() {
        for round in 0..rounds() {
            let last = sources.store(&root);
            let last_export = sources.export(&root, &last);
            let mut import = nix_store(nix, &root, &["--import"]);
            import.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut import = Running(import.spawn().unwrap());
            let mut input = import.0.stdin.take().unwrap();
            input.write_all(&first_export).unwrap();
            let until = Instant::now() + PATIENCE;
            while !valid(&root).0.contains(&first) {
                assert!(Instant::now() < until && import.is_running(), "{nix:?} does not import");
                std::thread::sleep(Duration::from_millis(2));
            }
            let mut collection = collect(&root, 1 + round % TREES);
            input.write_all(&last_export).unwrap();
            input.write_all(&[0; 8]).unwrap();
            drop(input);
            import.succeed("nix-store --import");
            let (paths, lost) = valid(&root);
            assert!(paths.contains(&last) && lost.is_empty(), "{nix:?}, round {round}: {lost:?}");
            collection.succeed("narval gc");
            let (paths, lost) = valid(&root);
            assert!(paths.contains(&last) && lost.is_empty(), "{nix:?}, round {round}: {lost:?}");
            sources.remove(&root);
        }
    }
}

/// Every file below a folder, with mode, time and contents.
fn snapshot(folder: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let mut all = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let found = std::fs::symlink_metadata(&path).unwrap();
            let contents = if found.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
            let hash = narval_nix::NarHash::of(&contents).to_nix32();
            let (mode, seconds, nanos) = (found.mode(), found.mtime(), found.mtime_nsec());
            all.push(format!("{} {mode:o} {seconds}.{nanos} {} {hash}", path.display(), contents.len()));
            if found.is_dir() {
                folders.push(path);
            }
        }
    }
    all.sort();
    all
}

fn assert_unchanged(root: &str, before: &[String]) {
    let after = snapshot(Path::new(root));
    let only = |these: &[String], those: &[String]| -> Vec<String> {
        these.iter().filter(|line| !those.contains(line)).cloned().collect()
    };
    assert_eq!((only(before, &after), only(&after, before)), (Vec::new(), Vec::new()));
}

/// A dry run says what the run then does, and writes nothing; where there is no store, none is made.
#[test]
fn a_dry_run_only_looks() {
    let lab = Lab::new();
    let (root, profile) = (lab.folder("mine"), lab.folder("profile"));
    let message = lab.fails(3, &["gc", "--dry-run", "--keep", "1", "--store", &root]);
    assert!(message.contains("there is no store at"), "{message}");
    assert!(!Path::new(&root).exists());
    for path in [&lab.hello, &lab.top, &lab.tree] {
        lab.install(&root, &["--profile", &profile, path]);
    }
    let loose = Path::new(&root).join("nix/store/00000000000000000000000000000000-loose");
    std::fs::write(&loose, "x".repeat(10_000)).unwrap();
    std::os::unix::fs::symlink("/nonexistent", Path::new(&root).join("nix/var/nix/gcroots/auto/stale")).unwrap();
    let json = |arguments: &[&str]| -> serde_json::Value {
        let text = lab.done(&[&["gc", "--json", "--store", &root], arguments].concat());
        serde_json::from_str(text.lines().last().unwrap()).unwrap()
    };
    for keep in [&[][..], &["--keep", "2"], &["--keep", "0"]] {
        let before = snapshot(Path::new(&root));
        let mut dry = json(&[&["--dry-run"], keep].concat());
        assert_unchanged(&root, &before);
        let mut done = json(keep);
        assert_eq!((dry["dryRun"].take(), done["dryRun"].take()), (true.into(), false.into()));
        assert_eq!(dry, done, "{keep:?}");
    }
    // `narval gc --keep 0` keeps the current generation: the last one, with everything that was installed.
    lab.done(&["remove", "--profile", &profile, "--store", &root, "hello-1.0"]);
    let before = snapshot(Path::new(&root));
    let dry = lab.done(&["gc", "--keep", "0", "--dry-run", "--store", &root]);
    assert!(dry.contains(Path::new(&lab.hello).file_name().unwrap().to_str().unwrap()), "{dry}");
    assert!(dry.lines().last().unwrap().starts_with("would remove 1 path and 1 generation ("), "{dry}");
    assert_unchanged(&root, &before);
    let done = lab.done(&["gc", "--keep", "0", "--store", &root]);
    assert_eq!(done, dry.lines().last().unwrap().replace("would remove", "removed"));
}

/// What is not a store path, or was never registered, is counted.
#[test]
fn leftovers_are_counted() {
    let lab = Lab::new();
    let root = lab.folder("mine");
    lab.install(&root, &[&lab.hello]);
    for name in ["00000000000000000000000000000000-a", "00000000000000000000000000000000-b"] {
        std::fs::write(Path::new(&root).join("nix/store").join(name), "x").unwrap();
    }
    assert!(lab.done(&["gc", "--store", &root]).starts_with("removed 1 path and 2 leftovers ("));
}

/// A root through a file is stale; one through a folder that is closed to us stops the collection, and is named.
#[test]
fn roots_that_cannot_be_followed() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let lab = Lab::new();
    let root = lab.folder("mine");
    lab.install(&root, &[&lab.hello]);
    let auto = Path::new(&root).join("nix/var/nix/gcroots/auto");
    let file = lab.folder("file");
    std::fs::write(&file, "").unwrap();
    symlink(format!("{file}/link"), auto.join("through-a-file")).unwrap();
    assert!(lab.done(&["gc", "--store", &root]).starts_with("removed 1 path "));
    assert!(std::fs::symlink_metadata(auto.join("through-a-file")).is_err());

    let closed = lab.folder("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).unwrap();
    lab.install(&root, &[&lab.hello]);
    symlink(format!("{closed}/link"), auto.join("through-a-closed-folder")).unwrap();
    if !rustix::process::geteuid().is_root() {
        std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o000)).unwrap();
        let message = lab.fails(1, &["gc", "--store", &root]);
        assert!(message.contains("auto/through-a-closed-folder") && message.contains("closed/link"), "{message}");
        return;
    }
    // Root may look everywhere; somebody else who owns the store may not.
    std::fs::set_permissions(lab.store.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    assert!(Command::new("chown").args(["-R", "65534", &root]).status().unwrap().success());
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", NARVAL, "gc", "--store", &root]);
    let output = command.env("HOME", "/nonexistent").output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("auto/through-a-closed-folder") && message.contains("closed/link"), "{message}");
    assert!(Path::new(&format!("{root}{}", lab.hello)).exists());
}
