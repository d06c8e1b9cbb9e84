//! NARs of upstreams that do not send them to their end, and of clients that do not wait for it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use narval_cache::upstream::{Deadline, NarAnswer, UpstreamOptions, Upstreams, UpstreamsOptions, Waiting, Waits};
use narval_nix::StoreDir;
use support::*;

/// Far longer than any test takes: what is waited for so long is never left.
const NEVER: Duration = Duration::from_secs(600);

/// How long an upstream may be silent here.
const ABSENT_AFTER: Duration = Duration::from_secs(1);

fn open_near(upstreams: Vec<UpstreamOptions>) -> (tempfile::TempDir, Upstreams) {
    open_near_with(upstreams, ABSENT_AFTER)
}

fn open_near_with(upstreams: Vec<UpstreamOptions>, absent_after: Duration) -> (tempfile::TempDir, Upstreams) {
    let folder = tempfile::tempdir().unwrap();
    let patient = |one| UpstreamOptions { timeout: NEVER, stall_timeout: NEVER, ..one };
    let options = UpstreamsOptions {
        folder: folder.path().to_owned(),
        bytes_max: 1 << 30,
        upstreams: upstreams.into_iter().map(patient).collect(),
        deadline: Deadline { absent_after, ..Deadline::default() },
        store_dir: StoreDir::default(),
        waiting: Waiting::default(),
    };
    let upstreams = Upstreams::open(options).unwrap();
    (folder, upstreams)
}

/// A file that stops after its first bytes until the sender says something, or is gone.
fn gated(path: &TestPath, first: usize) -> (File, Sender<()>) {
    let (sender, gate) = channel();
    (File::Gated(path.file.clone(), first, Arc::new(Mutex::new(gate))), sender)
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Begins to fetch a NAR.
fn begin(upstreams: &Upstreams, name: &str) -> Waits {
    let NarAnswer::Growing(waits, _) = upstreams.nar(name).unwrap().unwrap() else { panic!("it is here already") };
    waits
}

/// How an upstream fails in the middle of a NAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Dies,
    FallsSilent,
    Trickles,
}

/// A NAR whose upstream dies, falls silent or trickles in the middle is finished from another one that has the same file, from where it
/// stopped.
#[test]
fn a_nar_is_finished_by_another_upstream() {
    let faults = [Fault::Dies, Fault::FallsSilent, Fault::Trickles];
    let parts = [10, 50, 90].into_iter().flat_map(|percent| [(percent, true), (percent, false)]);
    for (fault, (percent, compressed)) in
        faults.into_iter().flat_map(|fault| parts.clone().map(move |part| (fault, part)))
    {
        let (failing, other) = (Upstream::start("failing-1"), Upstream::start("other-1"));
        let path = TestPath::new("large", &noise(1_000_000), compressed);
        let at = format!("/{}", failing.offer(&path).url);
        other.offer(&path);
        other.put(&at, File::Ranged(path.file.clone()));
        let first = path.file.len() * percent / 100;
        let (file, kill) = gated(&path, first);
        failing.put(&at, if fault == Fault::Trickles { File::Trickling(path.file.clone(), first) } else { file });
        let preferred = UpstreamOptions { priority: 40, ..failing.options() };
        let (_folder, upstreams) = open_near(vec![other.options(), preferred]);
        let name = name(&upstreams, &path);
        let waits = begin(&upstreams, &name);
        until("the first part comes", || waits.progress().readable >= first as u64);
        let kill = if fault == Fault::Dies {
            drop(kill);
            None
        } else {
            Some(kill)
        };
        failing.put(&at, File::Status(503));
        assert!(follow(&waits).unwrap() == path.file, "{fault:?} at {percent} %");
        let again = other.state.lock().unwrap().sent;
        // What trickled came from the first one.
        assert!((path.file.len() - first - 100..=path.file.len() - first).contains(&again), "{fault:?}: {again}");
        until_kept(&upstreams, &name);
        drop(kill);
    }
}

/// NARs of one upstream that fall silent are left together, and not each of them after the whole time.
#[test]
fn nars_that_stall_together_are_left_together() {
    const ABSENT_AFTER: Duration = Duration::from_secs(4);
    let (failing, other) = (Upstream::start("failing-1"), Upstream::start("other-1"));
    let preferred = UpstreamOptions { priority: 40, ..failing.options() };
    let (_folder, upstreams) = open_near_with(vec![other.options(), preferred], ABSENT_AFTER);
    let fetches = [0, 1].map(|at| {
        let path = TestPath::new(&format!("large-{at}"), &noise(1_000_000 + at), true);
        let url = format!("/{}", failing.offer(&path).url);
        other.offer(&path);
        other.put(&url, File::Ranged(path.file.clone()));
        let (file, silent) = gated(&path, path.file.len() / 2);
        failing.put(&url, file);
        let waits = begin(&upstreams, &name(&upstreams, &path));
        thread::sleep(ABSENT_AFTER / 2);
        (path, waits, silent, Instant::now())
    });
    for (path, waits, ..) in &fetches {
        assert!(follow(waits).unwrap() == path.file);
    }
    let second = fetches[1].3.elapsed() + ABSENT_AFTER / 2;
    assert!(second < ABSENT_AFTER, "{second:?}");
}

/// Where the NAR itself is served, another upstream may have it compressed: what came already is decoded again, and skipped.
#[test]
fn a_nar_is_finished_from_another_file_of_it() {
    let (failing, other) = (Upstream::start("failing-1"), Upstream::start("other-1"));
    let contents = noise(1_000_000);
    let (path, compressed) = (TestPath::new("large", &contents, false), TestPath::new("large", &contents, true));
    let at = format!("/{}", failing.offer(&path).url);
    other.offer(&compressed);
    let first = path.file.len() / 2;
    let (file, _silent) = gated(&path, first);
    failing.put(&at, file);
    let preferred = UpstreamOptions { priority: 40, ..failing.options() };
    let (_folder, upstreams) = open_near(vec![other.options(), preferred]);
    let name = name(&upstreams, &path);
    assert!(read(upstreams.nar(&name).unwrap().unwrap()).unwrap() == path.file);
    until_kept(&upstreams, &name);
}

/// An upstream whose NARs do not begin is not asked for the next one while another has it.
#[test]
fn an_upstream_that_sends_no_nars_is_asked_last() {
    let (silent, other) = (Upstream::start("silent-1"), Upstream::start("other-1"));
    let paths: Vec<_> = (0..12).map(|at| TestPath::new(&format!("there-{at}"), &noise(1000 + at), false)).collect();
    for path in &paths {
        let at = format!("/{}", silent.offer(path).url);
        silent.put(&at, File::Silence);
        other.offer(path);
    }
    let preferred = UpstreamOptions { priority: 40, ..silent.options() };
    let (_folder, upstreams) = open_near(vec![other.options(), preferred]);
    for path in &paths {
        let name = name(&upstreams, path);
        assert!(read(upstreams.nar(&name).unwrap().unwrap()).unwrap() == path.file);
    }
    let asked = paths.iter().filter(|path| silent.asked(&format!("/{}", path.narinfo(&silent.key).url)) > 0).count();
    assert!(asked <= 3, "{asked}");
}

/// A slow line is no reason to stop where nobody else has the NAR.
#[test]
fn a_nar_that_only_one_upstream_has_is_waited_for() {
    let (slow, other) = (Upstream::start("slow-1"), Upstream::start("other-1"));
    let path = TestPath::new("large", &noise(200_000), true);
    let at = format!("/{}", slow.offer(&path).url);
    let (file, gate) = gated(&path, 100_000);
    slow.put(&at, file);
    let (_folder, upstreams) = open_near(vec![other.options(), slow.options()]);
    let name = name(&upstreams, &path);
    let waits = begin(&upstreams, &name);
    thread::sleep(ABSENT_AFTER * 2);
    gate.send(()).unwrap();
    assert!(follow(&waits).unwrap() == path.file);
    assert_eq!(slow.asked(&at), 1, "it is not asked again");
}

/// A fetch goes on while one client waits for it, and stops when none does: what it has taken is not kept, and the next client begins
/// anew.
#[test]
fn a_fetch_that_nobody_waits_for_stops() {
    let upstream = Upstream::start("up-1");
    let path = TestPath::new("large", &noise(1_000_000), true);
    let at = format!("/{}", upstream.offer(&path).url);
    let (file, gate) = gated(&path, 100_000);
    upstream.put(&at, file);
    let (_folder, upstreams) = open_near(vec![upstream.options()]);
    let name = name(&upstreams, &path);
    let (one, two) = (begin(&upstreams, &name), begin(&upstreams, &name));
    let fill = Arc::clone(&one);
    drop(one);
    thread::sleep(narval_files::ABANDONED_AFTER + Duration::from_secs(2));
    assert_eq!(fill.progress().end, None, "the other one waits");
    drop(two);
    until("it stops", || fill.progress().end.is_some());
    upstream.put(&at, File::Bytes(path.file.clone()));
    assert!(read(upstreams.nar(&name).unwrap().unwrap()).unwrap() == path.file);
    assert_eq!(upstream.asked(&at), 2);
    drop(gate);
}

/// An upstream that fails is not kept from recovering: one request in ten may be a retry, and ten from the start.
#[test]
fn retries_are_few() {
    const PATHS: usize = 40;
    let upstream = Upstream::start("up-1");
    let paths: Vec<_> = (0..PATHS).map(|at| TestPath::new(&format!("there-{at}"), &noise(1000 + at), true)).collect();
    for path in &paths {
        let at = format!("/{}", upstream.offer(path).url);
        upstream.put(&at, File::Status(500));
    }
    let (_folder, upstreams) = open_near(vec![upstream.options()]);
    let asked = |path: &TestPath| upstream.asked(&format!("/{}", path.narinfo(&upstream.key).url));
    for path in &paths {
        let name = name(&upstreams, path);
        upstreams.nar(&name).unwrap_err();
    }
    let nars: usize = paths.iter().map(asked).sum();
    let requests = upstream.asked_in_all();
    assert!(nars > PATHS && nars - PATHS <= 10 + requests / 10, "{nars} of {requests}");
}
