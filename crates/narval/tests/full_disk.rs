//! A disk that is full for a while: everything is answered, and keeping begins again when there is room.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use support::{NARVAL, Server, Store, hash_part};

/// Longer than the server's pause of 30 s.
const PATIENCE: Duration = Duration::from_secs(180);

fn metric(server: &Server, name: &str) -> u64 {
    let metrics = server.get("/metrics");
    metrics.figure(name).unwrap_or_else(|| panic!("no {name} in {}", metrics.text()))
}

#[test]
fn caching_resumes_when_there_is_room() {
    let may_mount = Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    if !may_mount.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: a file system of the test's own can't be mounted");
        return;
    }
    let store = Store::new();
    let trees: Vec<String> = (0..3)
        .map(|number| {
            let root = store.path(&format!("tree-{number}"));
            fs::create_dir(&root).unwrap();
            for file in 0..200 {
                fs::write(root.join(file.to_string()), format!("{number} {file}\n").repeat(20)).unwrap();
            }
            store.add(&root)
        })
        .collect();
    let small = store.path("small");
    fs::create_dir(&small).unwrap();
    let script = "mount -t tmpfs -o size=4m none \"$0\" && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, small.to_str().unwrap(), NARVAL, "serve", "--listen", "127.0.0.1:0"]);
    command.args(["--store", &store.uri(), "--nar-cache", small.to_str().unwrap()]);
    let server = Server::start(command, &[]);
    let filler = format!("/proc/{}/root{}/filler", server.pid(), small.display());
    // Until there is no room at all.
    let filled = fs::write(&filler, vec![0; 8 << 20]);
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    let get = |path: &String| {
        let url = format!("/nar/{}.nar", hash_part(path));
        let plain = server.get(&url);
        assert!(plain.status == 200 && plain.complete && plain.body == store.dump(path), "{}", server.log());
        let coded = server.ask("GET", &url, &["Accept-Encoding: zstd"]);
        assert!(coded.status == 200 && coded.complete, "{}", server.log());
        let is_coded = coded.field("content-encoding").is_some();
        let nar = if is_coded { zstd::decode_all(&coded.body[..]).unwrap() } else { coded.body };
        assert!(nar == store.dump(path));
    };
    for _ in 0..3 {
        trees.iter().for_each(get);
    }
    assert_eq!((metric(&server, "narval_flat_nar_hits_total"), metric(&server, "narval_nar_cache_hits_total")), (0, 0));
    assert!(server.log().contains("cannot write to"), "{}", server.log());
    fs::remove_file(&filler).unwrap();
    let until = Instant::now() + PATIENCE;
    while metric(&server, "narval_flat_nar_hits_total") == 0 || metric(&server, "narval_nar_cache_hits_total") == 0 {
        assert!(Instant::now() < until, "{}", server.log());
        trees.iter().for_each(get);
        std::thread::sleep(Duration::from_millis(500));
    }
}
