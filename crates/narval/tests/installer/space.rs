//! Installs on small disks: what is fetched counts once, and nothing is requested that does not fit.

use std::path::Path;
use std::process::Command;

use crate::disks::{may_mount, script};
use crate::lab::Lab;
use crate::support::{NARVAL, Server, hash_part, noise, stdout};

const MIB: usize = 1 << 20;

/// Adds files of so many MiB that do not compress, and refers to them all by one. The paths, that one last.
fn add_closure(lab: &Lab, sizes: &[usize]) -> Vec<String> {
    let mut paths: Vec<String> = Vec::new();
    for (number, size) in sizes.iter().enumerate() {
        let contents = noise(1 + number as u64, size * MIB);
        paths.push(lab.store.add_file(&format!("part-{number}-{}", lab.store.name()), contents));
    }
    lab.done(
        &[&["copy", "--quiet", "--store", &lab.store.uri(), "--to", &lab.cache_url()], &strs(&paths)[..]].concat(),
    );
    paths
}

fn strs(paths: &[String]) -> Vec<&str> {
    paths.iter().map(String::as_str).collect()
}

/// A run that is interrupted leaves completed paths, whose space is taken already.
#[test]
fn completed_paths_do_not_count_again() {
    if !may_mount() {
        return;
    }
    let lab = Lab::new();
    let paths = add_closure(&lab, &[8, 7, 6, 5, 4, 3]).join(" ");
    let root = lab.folder("mine");
    std::fs::create_dir(&root).unwrap();
    // 33 MiB and a sixteenth fit, but not twice their larger half: the first run is killed once it has completed some.
    let output = script(
        &lab,
        &root,
        &format!(
            "mount -t tmpfs -o size=44m none $S
             $narval install --quiet --store $S --from $cache {paths} & pid=$!
             while [ $(ls $S/nix/store 2>/dev/null | grep -v 'lock$' | grep -v narval-tmp | grep -c -- -part- || :) -lt 3 ] &&
               kill -0 $pid 2>/dev/null; do :; done
             kill -KILL $pid 2>/dev/null || :
             wait $pid || :
             $narval install --quiet --store $S --from $cache {paths}
             $narval verify --no-check-sigs --store $S"
        ),
    );
    assert!(stdout(output).ends_with("6 paths checked, 0 faulty, 0 repaired"));
}

/// If not everything fits, no NAR is requested, and the message has the whole need.
#[test]
fn what_does_not_fit_is_not_begun() {
    if !may_mount() {
        return;
    }
    let lab = Lab::new();
    let paths = add_closure(&lab, &[8, 7, 6, 5, 4, 3]);
    let log = lab.folder("access.log");
    let root = lab.folder("small");
    std::fs::create_dir(&root).unwrap();
    let mut command = Command::new(NARVAL);
    command.args(["static", &lab.folder("cache"), "--listen", "127.0.0.1:0", "--access-log", &log]);
    let server = Server::start(command, &[]);
    let wanted = paths.join(" ");
    let output = script(
        &lab,
        &root,
        &format!(
            "mount -t tmpfs -o size=30m none $S
             $narval install --dry-run --store $S --from {url} {wanted}
             $narval install --store $S --from {url} {wanted} || echo code $?
             $narval install --quiet --store $S --from {url} {first}
             : >$S/nix/store/{part}
             $narval install --store $S --from {url} {wanted} || echo code $?",
            url = server.url(),
            first = paths[5],
            part = Path::new(&paths[4]).file_name().unwrap().to_str().unwrap(),
        ),
    );
    let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
    let printed = stdout(output);
    assert_eq!(printed.matches("code 6").count(), 2, "{printed} {output_text}");
    // 33 MiB and a sixteenth.
    assert!(
        output_text.contains("not enough space in ") && output_text.contains(": 37 MB are needed and "),
        "{output_text}"
    );
    let lines: Vec<&str> = output_text.lines().filter(|line| line.contains("not enough space")).collect();
    assert!(lines[0].ends_with("run 'narval gc', or use another --store"), "{output_text}");
    // An earlier run has left something: it would be deleted.
    assert!(!lines[1].contains("gc"), "{output_text}");
    let requests = std::fs::read_to_string(&log).unwrap();
    let nars: Vec<&str> = requests.lines().filter(|line| line.contains("/nar/")).collect();
    assert_eq!(nars.len(), 1, "only that of the path that fits: {requests}");
}

/// Two paths that refer to each other cannot become valid; neither is requested.
#[test]
fn a_cycle_is_found_before_anything_is_fetched() {
    if !may_mount() {
        return;
    }
    let lab = Lab::new();
    let root = lab.folder("mine");
    std::fs::create_dir(&root).unwrap();
    // `tree` refers to `top`, too.
    let narinfo = lab.cache().join(format!("{}.narinfo", hash_part(&lab.tree)));
    let text = std::fs::read_to_string(&narinfo).unwrap();
    let line = text.lines().find(|line| line.starts_with("References:")).unwrap();
    let top = Path::new(&lab.top).file_name().unwrap().to_str().unwrap();
    let ca = text.lines().find(|line| line.starts_with("CA: ")).map_or_else(String::new, |line| format!("{line}\n"));
    std::fs::write(&narinfo, text.replace(line, &format!("References: {top}")).replace(&ca, "")).unwrap();
    let log = lab.folder("access.log");
    let mut command = Command::new(NARVAL);
    command.args(["static", &lab.folder("cache"), "--listen", "127.0.0.1:0", "--access-log", &log]);
    let server = Server::start(command, &[]);
    let output = script(
        &lab,
        &root,
        &format!(
            "mount -t tmpfs -o size=64m none $S
             $narval install --no-check-sigs --store $S --from {url} $top || echo code $?",
            url = server.url(),
        ),
    );
    let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(stdout(output), "code 4", "{output_text}");
    for what in [&server.url(), &lab.top, &lab.tree] {
        assert!(output_text.contains(Path::new(what).file_name().unwrap().to_str().unwrap()), "{output_text}");
    }
    assert!(output_text.contains("refer to each other"), "{output_text}");
    assert!(!std::fs::read_to_string(&log).unwrap().contains("/nar/"), "{output_text}");
}
