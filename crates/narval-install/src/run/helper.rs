//! External programs that can mount a store at its place if this process may not: bubblewrap, which may be setuid or
//! have its own AppArmor profile, and proot, which needs no kernel support and is slow.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// A helper that works here, tested by starting `probe` (a program with one argument) in it: its name, and the command
/// line to which the program to run is appended. `None` if none is installed or works.
pub fn helper(real_store: &Path, store_dir: &Path, probe: &Path) -> Option<(&'static str, Vec<OsString>)> {
    let view: [(&str, Vec<OsString>); 2] =
        [("bwrap", bubblewrap(real_store, store_dir)), ("proot", proot(real_store, store_dir))];
    view.into_iter().find(|(name, arguments)| {
        let mut command = Command::new(name);
        command.args(arguments).arg(probe).arg("--version");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // An error means that the program does not exist.
        command.status().is_ok_and(|status| status.success())
    })
}

fn bubblewrap(real_store: &Path, store_dir: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |words: [&Path; 3]| arguments.extend(words.map(OsString::from));
    if store_dir.is_dir() {
        add(["--dev-bind".as_ref(), "/".as_ref(), "/".as_ref()]);
    } else {
        // A root in which the folder can be created: everything of the old one, and the store.
        for entry in fs::read_dir("/").into_iter().flatten().flatten() {
            match (entry.path(), entry.path().read_link()) {
                (path, Ok(target)) => add(["--symlink".as_ref(), &target, &path]),
                (path, Err(_)) if path.is_dir() => add(["--dev-bind".as_ref(), &path, &path]),
                _ => {}
            }
        }
    }
    add(["--bind".as_ref(), real_store, store_dir]);
    arguments.push("--".into());
    arguments
}

fn proot(real_store: &Path, store_dir: &Path) -> Vec<OsString> {
    let mut binding = OsString::from(real_store);
    binding.push(":");
    binding.push(store_dir);
    vec!["-b".into(), binding]
}
