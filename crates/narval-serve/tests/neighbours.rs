//! Near caches on one machine, each at an address of its own, that take NARs from each other.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

#[path = "../../narval-cache/tests/support/mod.rs"]
mod support;

use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use narval_cache::upstream::{Deadline, NarAnswer, UpstreamOptions, Upstreams, UpstreamsOptions, Waiting, Waits};
use narval_http::{Listen, ListenAddress, Server, ServerHandle};
use narval_nix::StoreDir;
use narval_serve::{ForNeighbours, NeighbourLimits};
use support::*;

/// How long one that has promised a NAR may be silent, unless it has kept a promise before.
const ABSENT_AFTER: Duration = Duration::from_secs(3);
/// How long neighbours may take to answer, on a busy machine.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

struct Machine {
    upstreams: Upstreams,
    address: SocketAddr,
    _server: ServerHandle,
    _folder: tempfile::TempDir,
}

/// Machines that know each other, in front of one upstream.
fn machines(count: u8, upstream: &Upstream) -> Vec<Machine> {
    let all: Vec<_> = (1..=count).map(|at| machine(at, upstream)).collect();
    for (at, machine) in all.iter().enumerate() {
        let others: Vec<_> =
            all.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, other)| other.address).collect();
        machine.upstreams.set_neighbours(at as u64 + 1, ANSWERS_WITHIN, &others);
    }
    all
}

fn machine(at: u8, upstream: &Upstream) -> Machine {
    let folder = tempfile::tempdir().unwrap();
    let options = UpstreamsOptions {
        folder: folder.path().to_owned(),
        bytes_max: 1 << 30,
        upstreams: vec![UpstreamOptions { offered: true, stall_timeout: PATIENCE, ..upstream.options() }],
        deadline: Deadline { absent_after: ABSENT_AFTER, ..Deadline::default() },
        store_dir: StoreDir::default(),
        waiting: Waiting::default(),
    };
    let upstreams = Upstreams::open(options).unwrap();
    let limits = NeighbourLimits { rate_max: 1 << 30, nars_max: 64 };
    let handler = ForNeighbours::new(upstreams.clone(), &StoreDir::default(), limits, |from| from.is_loopback());
    let address = SocketAddr::new(IpAddr::from([127, 0, 0, 10 + at]), 0);
    let server = Server::builder(handler).workers(8).listen(Listen::Tcp(address)).build().unwrap();
    let ListenAddress::Tcp(address) = server.addresses()[0].clone() else { panic!("no TCP") };
    Machine { upstreams, address, _server: server.spawn().unwrap(), _folder: folder }
}

/// The narinfo is known to all of them: NARs are what is shared.
fn names(machines: &[Machine], path: &TestPath) -> String {
    let names: Vec<_> = machines.iter().map(|machine| name(&machine.upstreams, path)).collect();
    names[0].clone()
}

fn begin(machine: &Machine, name: &str) -> Waits {
    let upstreams = machine.upstreams.clone();
    match upstreams.nar(name).unwrap().unwrap() {
        NarAnswer::Growing(waits, _) => waits,
        NarAnswer::File(..) => panic!("it is here already"),
    }
}

/// Begins to fetch a NAR on a thread: from a neighbour, its beginning is not passed on before its end has been verified.
fn fetch(machine: &Machine, name: &str) -> thread::JoinHandle<Vec<u8>> {
    let (upstreams, name) = (machine.upstreams.clone(), name.to_owned());
    thread::spawn(move || read(upstreams.nar(&name).unwrap().unwrap()).unwrap())
}

/// A NAR that the upstream does not send before it is told to.
fn held(upstream: &Upstream, path: &TestPath) -> (String, Sender<()>) {
    let url = format!("/{}", upstream.offer(path).url);
    let (sender, gate) = channel();
    upstream.put(&url, File::Gated(path.file.clone(), 0, Arc::new(Mutex::new(gate))));
    (url, sender)
}

fn until_asked(upstream: &Upstream, url: &str) {
    let until = Instant::now() + PATIENCE;
    while upstream.asked(url) == 0 {
        assert!(Instant::now() < until, "{url}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// What comes to one of them through a line that is silent for a while crosses the line once, if it has kept its promises.
#[test]
fn who_has_kept_a_promise_is_waited_for() {
    let upstream = Upstream::start("up-1");
    let all = machines(3, &upstream);
    for (at, machine) in all.iter().enumerate().skip(1) {
        let small = TestPath::new(&format!("small-{at}"), &[at as u8], true);
        upstream.offer(&small);
        let first = names(&all, &small);
        read(all[0].upstreams.nar(&first).unwrap().unwrap()).unwrap();
        until_kept(&all[0].upstreams, &first);
        assert!(read(machine.upstreams.nar(&first).unwrap().unwrap()).unwrap() == small.file);
    }
    let large = TestPath::new("large", &noise(1_000_000), true);
    let (url, gate) = held(&upstream, &large);
    let second = names(&all, &large);
    let _leads = begin(&all[0], &second);
    until_asked(&upstream, &url);
    let others: Vec<_> = all[1..].iter().map(|machine| fetch(machine, &second)).collect();
    thread::sleep(ABSENT_AFTER * 5 / 2);
    gate.send(()).unwrap();
    for other in others {
        assert!(other.join().unwrap() == large.file);
    }
    assert_eq!(upstream.asked(&url), 1);
}

/// While the upstream is silent, a narinfo comes from a neighbour, and the upstream is waited for once.
#[test]
fn a_silent_upstream_is_waited_for_once() {
    let upstream = Upstream::start("up-1");
    let all = machines(2, &upstream);
    let path = TestPath::new("large", &noise(1_000_000), true);
    upstream.offer(&path);
    name(&all[0].upstreams, &path);
    for file in [format!("/{}.narinfo", path.hash_part()), "/nix-cache-info".to_owned()] {
        upstream.put(&file, File::Silence);
    }
    let began = Instant::now();
    name(&all[1].upstreams, &path);
    assert!(began.elapsed() < ABSENT_AFTER * 9 / 5, "{:?}", began.elapsed());
}

/// An upstream that keeps failing is not asked, but who has a NAR is.
#[test]
fn a_nar_comes_from_a_neighbour_while_the_upstream_is_down() {
    let upstream = Upstream::start("up-1");
    let all = machines(2, &upstream);
    let path = TestPath::new("large", &noise(1_000_000), true);
    let url = format!("/{}", upstream.offer(&path).url);
    let name = names(&all, &path);
    read(all[0].upstreams.nar(&name).unwrap().unwrap()).unwrap();
    until_kept(&all[0].upstreams, &name);
    let other = TestPath::new("other", b"other", true);
    upstream.put(&format!("/{}.narinfo", other.hash_part()), File::Status(503));
    let until = Instant::now() + PATIENCE;
    while all[1].upstreams.available() != (0, 1) {
        assert!(Instant::now() < until);
        drop(all[1].upstreams.narinfo(&other.hash_part()));
    }
    assert!(read(all[1].upstreams.nar(&name).unwrap().unwrap()).unwrap() == path.file);
    assert_eq!(upstream.asked(&url), 1);
}

/// A NAR that takes long to come through the line of one machine is passed on by those that follow it while it comes: their clients would give up.
#[test]
fn a_nar_that_takes_long_is_passed_on_meanwhile() {
    let upstream = Upstream::start("up-1");
    let all = machines(2, &upstream);
    let [small, large] =
        [("small", 10), ("large", 1_000_000)].map(|(name, len)| TestPath::new(name, &noise(len), true));
    upstream.offer(&small);
    let first = names(&all, &small);
    read(all[0].upstreams.nar(&first).unwrap().unwrap()).unwrap();
    until_kept(&all[0].upstreams, &first);
    read(all[1].upstreams.nar(&first).unwrap().unwrap()).unwrap();
    let url = format!("/{}", upstream.offer(&large).url);
    upstream.put(&url, File::Trickling(large.file.clone(), 500_000));
    let name = names(&all, &large);
    let leads = begin(&all[0], &name);
    until_asked(&upstream, &url);
    let follows = begin(&all[1], &name);
    let until = Instant::now() + PATIENCE;
    while follows.progress().readable < 400_000 {
        assert!(Instant::now() < until && follows.progress().end.is_none(), "{:?}", follows.progress());
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(leads.progress().end, None);
    assert_eq!(upstream.asked(&url), 1);
}

/// Those that follow one of which nothing is known, and from which nothing comes, do not all turn to the line: one of them does.
#[test]
fn who_leaves_one_that_is_silent_asks_the_others_again() {
    let upstream = Upstream::start("up-1");
    let all = machines(4, &upstream);
    let path = TestPath::new("large", &noise(1_000_000), true);
    let (url, gate) = held(&upstream, &path);
    let name = names(&all, &path);
    let leads = begin(&all[0], &name);
    until_asked(&upstream, &url);
    upstream.put(&url, File::Bytes(path.file.clone()));
    let others: Vec<_> = all[1..].iter().map(|machine| fetch(machine, &name)).collect();
    for other in others {
        assert!(other.join().unwrap() == path.file);
    }
    assert_eq!(upstream.asked(&url), 2);
    gate.send(()).unwrap();
    assert!(follow(&leads).unwrap() == path.file);
}
