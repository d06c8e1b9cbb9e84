//! `narval ls` and `narval cat`: paths of a cache, without installing them.

use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use narval_nix::Sha256;
use narval_nix::nar::wire;

use crate::lab::Lab;
use crate::support::hash_part;

const MANY: &str = "0000000000000000000000000000000a-many";

/// A cache with one path: a folder of so many empty files.
fn cache_of_many(folder: &Path, count: usize) {
    let mut nar = [&wire::HEAD[..], &wire::DIRECTORY].concat();
    for number in 0..count {
        wire::push_entry_head(&mut nar, format!("a-file-with-a-name-{number:08}").as_bytes());
        wire::push_regular_head(&mut nar, false, 0);
        nar.extend(wire::CLOSE_ENTRY);
    }
    nar.extend(wire::CLOSE);
    let narinfo = format!(
        "StorePath: /nix/store/{MANY}\nURL: nar/many.nar\nCompression: none\nNarHash: {}\nNarSize: {}\nReferences: \n",
        Sha256::of(&nar),
        nar.len()
    );
    std::fs::create_dir_all(folder.join("nar")).unwrap();
    std::fs::write(folder.join("nar/many.nar"), nar).unwrap();
    std::fs::write(folder.join(format!("{}.narinfo", &MANY[..32])), narinfo).unwrap();
}

#[test]
fn a_listing_takes_memory_for_its_names_and_little_more() {
    let lab = Lab::new();
    cache_of_many(&lab.store.path("many"), 150_000);
    let from = format!("file://{}", lab.folder("many"));
    let mut command = lab.command(&["ls", "-r", "--no-check-sigs", "--from", &from, MANY]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    // It prints when it has all of it, and waits for a reader then.
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0]).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(rest.lines().count(), 150_000);
    assert!(peak_kib < 120 * 1024, "{peak_kib} KiB for 150,000 names");
}

#[test]
fn listings_are_the_same_with_the_caches_own_and_without() {
    let lab = Lab::new();
    let (with, plain) = (lab.folder("with-listings"), lab.folder("plain"));
    // Nix writes no listing of a NAR with names that are not UTF-8.
    for (to, more) in [(&with, "?write-nar-listing=true&compression=none"), (&plain, "")] {
        let to = format!("file://{to}{more}");
        crate::support::stdout(
            crate::support::Nix::Newest
                .nix(lab.store.dir.path(), &["copy", "--from", &lab.store.uri(), "--to", &to, &lab.hello]),
        );
    }
    assert!(Path::new(&with).join(format!("{}.ls", hash_part(&lab.hello))).exists());
    let ask = |command: &[&str], cache: &str| lab.done(&[command, &["--from", &format!("file://{cache}")]].concat());
    let program = format!("{}/bin/hello", lab.hello);
    for command in [&["ls", "-r", &lab.hello][..], &["ls", "--json", &lab.hello], &["ls", &program], &["cat", &program]]
    {
        assert_eq!(ask(command, &with), ask(command, &plain), "{command:?}");
    }
    assert!(ask(&["ls", "-r", &lab.hello], &plain).contains("bin/hello"));
    let contents = std::fs::read_to_string(lab.store.real(&program)).unwrap();
    assert_eq!(ask(&["cat", &program], &plain), contents.trim());
    lab.fails(3, &["ls", "--from", &format!("file://{plain}"), &format!("{}/none", lab.hello)]);
    // A NAR that is not the one that its name wants.
    let nar = std::fs::read_dir(format!("{with}/nar")).unwrap().next().unwrap().unwrap().path();
    let changed = String::from_utf8_lossy(&std::fs::read(&nar).unwrap()).replace("echo", "ECHO");
    std::fs::write(&nar, changed).unwrap();
    std::fs::remove_file(format!("{with}/{}.ls", hash_part(&lab.hello))).unwrap();
    lab.fails(4, &["cat", "--from", &format!("file://{with}"), &program]);
}
