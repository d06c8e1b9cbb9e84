//! Two installs at once into one store, from caches that do not agree on what a path is.

use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use narval_install::{Destination, verify};
use narval_store::StoreConfig;

use crate::support::{Act, Server, file_nar, install_from, names_in};

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A path `shared` with these contents, and a path that refers to it, whose NAR comes when the barrier opens.
fn cache(contents: &[u8], top: &str) -> (Server, String, Arc<Barrier>) {
    let (server, gate) = (Server::start(), Arc::new(Barrier::new(2)));
    let shared = server.add("shared", &file_nar(contents), &[], |narinfo| narinfo);
    let path = server.add(top, &file_nar(shared.as_bytes()), &[&shared], |narinfo| narinfo);
    server.script(&format!("/nar/{top}.nar"), &[Act::Meet(Arc::clone(&gate))]);
    (server, path, gate)
}

#[test]
fn a_path_exchanged_by_another_install_is_not_registered() {
    let root = tempfile::tempdir().unwrap();
    let (first, first_top, first_gate) = cache(b"one", "first");
    let (second, second_top, second_gate) = cache(b"other", "second");
    let shared = |root: &Path| {
        let name = names_in(root).into_iter().find(|name| name.ends_with("-shared"))?;
        std::fs::read_to_string(root.join("nix/store").join(name)).ok()
    };
    std::thread::scope(|scope| {
        let one = scope.spawn(|| install_from(&[&first.url], root.path(), &[&first_top]));
        wait_until("the first one is unpacked", || shared(root.path()).as_deref() == Some("one"));
        let two = scope.spawn(|| install_from(&[&second.url], root.path(), &[&second_top]));
        wait_until("the second one has taken its place", || shared(root.path()).as_deref() == Some("other"));
        // The first install finds that its path is another one, and fetches it again; the second one finds it valid.
        first_gate.wait();
        one.join().unwrap().unwrap();
        second_gate.wait();
        two.join().unwrap().unwrap();
    });
    let destination = Destination::new(StoreConfig::for_root(root.path()).unwrap());
    let paths = destination.store().all_valid_paths().unwrap();
    assert_eq!(paths.len(), 3);
    assert!(verify(&destination, &paths, None, 1, narval_files::Work::unwatched()).unwrap().is_empty());
    assert_eq!(shared(root.path()).as_deref(), Some("one"));
    assert_eq!(first.requests_for("/nar/shared.nar"), 2);
}
