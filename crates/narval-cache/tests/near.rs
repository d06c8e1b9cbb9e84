//! Several upstreams, of which some do not do what they should: nobody waits for them, and nothing wrong is served.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use narval_cache::upstream::{
    Deadline, Lookup, Small, UpstreamOptions, Upstreams, UpstreamsOptions, Waiting, WhenDown,
};
use narval_client::Url;
use narval_nix::{HashPart, SecretKey, StoreDir, StorePath, TrustedKeys};
use support::*;

/// Far less than the timeout of each request, which is [`TIMEOUT`].
const ABSENT_AFTER: Duration = Duration::from_secs(10);

const TIMEOUT: Duration = Duration::from_secs(600);

fn open_near(upstreams: Vec<UpstreamOptions>, absent_after: Duration) -> (tempfile::TempDir, Upstreams) {
    let folder = tempfile::tempdir().unwrap();
    let options = UpstreamsOptions {
        folder: folder.path().to_owned(),
        bytes_max: 1 << 30,
        upstreams,
        deadline: Deadline { absent_after, ..Deadline::default() },
        store_dir: StoreDir::default(),
        waiting: Waiting::default(),
    };
    let upstreams = Upstreams::open(options).unwrap();
    (folder, upstreams)
}

fn options_of(url: &str) -> UpstreamOptions {
    let keys = TrustedKeys::from_iter([SecretKey::generate("bad-1").unwrap().public_key()]);
    UpstreamOptions { timeout: TIMEOUT, ..UpstreamOptions::new(Url::parse(url).unwrap(), Some(keys)) }
}

/// What a bad upstream does with each connection.
type Fault = fn(TcpStream);

/// A bad upstream; runs as long as the tests do.
fn bad(scheme: &str, fault: Fault) -> UpstreamOptions {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("{scheme}://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for socket in listener.incoming() {
            let socket = socket.unwrap();
            thread::spawn(move || fault(socket));
        }
    });
    options_of(&url)
}

/// Answers each request on a connection with these bytes.
fn answers(mut socket: TcpStream, answer: &str) {
    let mut request = [0; 4096];
    while socket.read(&mut request).is_ok_and(|len| len > 0) {
        if socket.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn trickles(mut socket: TcpStream) {
    let mut request = [0; 4096];
    if socket.read(&mut request).is_err() {
        return;
    }
    for byte in "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n".bytes().chain(std::iter::repeat(b'x')) {
        if socket.write_all(&[byte]).is_err() {
            return;
        }
        thread::sleep(Duration::from_secs(1));
    }
}

/// An upstream whose queue of connections is full: the kernel drops what asks for more.
fn black_hole() -> (UpstreamOptions, TcpListener, Vec<TcpStream>) {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    let mut held = Vec::new();
    while let Ok(socket) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        held.push(socket);
    }
    (options_of(&format!("http://{address}")), listener, held)
}

fn faults() -> Vec<(&'static str, UpstreamOptions)> {
    let refusing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    vec![
        ("503", bad("http", |socket| answers(socket, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"))),
        ("hangs before the head", bad("http", |socket| drop((thread::sleep(TIMEOUT), socket)))),
        ("1 byte/s", bad("http", trickles)),
        (
            "resets in the middle",
            bad("http", |mut socket| {
                drop(socket.read(&mut [0; 4096]));
                drop(socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nStorePath: /nix"));
            }),
        ),
        ("refuses", options_of(&format!("http://{refusing}"))),
        ("TLS error", bad("https", |socket| answers(socket, "HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n"))),
        (
            "HTML",
            bad("http", |socket| {
                answers(socket, "HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n<!doctype html><p>Log in first");
            }),
        ),
        ("DNS fails", options_of("http://there-is-no-such-host.invalid")),
    ]
}

/// Paths that differ.
fn paths(name: &str, count: usize) -> Vec<TestPath> {
    (0..count).map(|at| TestPath::new(&format!("{name}-{at}"), format!("contents of {at}").as_bytes(), false)).collect()
}

/// Fetches all of them as a client does, several at a time: narinfos, then NARs. Returns how long that took.
fn fetch(upstreams: &Upstreams, paths: &[TestPath], what: &str) -> Duration {
    let begun = Instant::now();
    thread::scope(|scope| {
        for part in paths.chunks(paths.len().div_ceil(10)) {
            scope.spawn(move || {
                for path in part {
                    let Lookup::Found(_) = upstreams.narinfo_to_look_at(&path.hash_part()).unwrap() else {
                        panic!("{what}: {} is absent", path.path)
                    };
                    let name = name(upstreams, path);
                    assert!(read(upstreams.nar(&name).unwrap().unwrap()).unwrap() == path.file, "{what}");
                }
            });
        }
    });
    begun.elapsed()
}

/// Each kind of bad upstream, before and after a good one, of the same priority and of a better one: a closure comes whole,
/// right, and without waiting for the time-outs of the bad one.
#[test]
fn a_bad_upstream_costs_nothing_beside_a_good_one() {
    let good = Upstream::start("good-1");
    let paths = paths("there", 20);
    for path in &paths {
        good.offer(path);
    }
    // Another cache's paths under the same names, by a key that is not trusted for it.
    let liar = Upstream::start("liar-1");
    for path in &paths {
        let info = TestPath::new("other", b"other", false).narinfo(&liar.key);
        let narinfo = info.render(&StoreDir::default()).into_bytes();
        liar.put(&format!("/{}.narinfo", path.hash_part()), File::Bytes(narinfo));
    }
    let (hole, _listener, _held) = black_hole();
    let alone = fetch(&open_near(vec![good.options()], ABSENT_AFTER).1, &paths, "alone");
    let mut all = faults();
    all.push(("wrong keys", options_of(&liar.url().to_string())));
    all.push(("black hole", hole));
    for (what, bad) in all {
        for (better, is_first) in [(0, true), (0, false), (10, false)] {
            let priority = bad.priority - better;
            let bad = UpstreamOptions { keys: bad.keys.clone(), priority, ..options_of(&bad.url.to_string()) };
            let list = if is_first { vec![bad, good.options()] } else { vec![good.options(), bad] };
            let (_folder, upstreams) = open_near(list, ABSENT_AFTER);
            let took = fetch(&upstreams, &paths, what);
            assert!(took < PATIENCE, "{what}: {took:?}, and {alone:?} without it");
        }
    }
}

/// With every upstream dead, what is here is served, and the rest is absent at once; nobody remembers that.
#[test]
fn dead_upstreams_are_absent_until_they_come_back() {
    let mut upstream = Upstream::start("up-1");
    let (here, elsewhere) = (paths("here", 10), paths("elsewhere", 100));
    for path in here.iter().chain(&elsewhere) {
        upstream.offer(path);
    }
    let (hole, _listener, _held) = black_hole();
    let hanging = bad("http", |socket| drop((thread::sleep(TIMEOUT), socket)));
    let (_folder, upstreams) = open_near(vec![upstream.options(), hole, hanging], ABSENT_AFTER);
    fetch(&upstreams, &here, "here");
    let (address, key) = (upstream.address, upstream.key.clone());
    upstream.stop();
    let begun = Instant::now();
    for path in &elsewhere {
        assert!(matches!(upstreams.narinfo(&path.hash_part()).unwrap(), Lookup::Absent));
        assert!(upstreams.remembered(&path.hash_part()).is_none(), "this is no absence");
    }
    for path in &here {
        name(&upstreams, path);
    }
    // Two requests are late, and none after them.
    assert!(begun.elapsed() < 6 * ABSENT_AFTER, "{:?}", begun.elapsed());
    assert!(upstreams.stats().counted_absent >= 100 && upstreams.available().0 == 0);
    let back = Upstream::start_at(address, key);
    for path in &elsewhere {
        back.offer(path);
    }
    let begun = Instant::now();
    while upstreams.available().0 == 0 {
        assert!(begun.elapsed() < PATIENCE, "it is not noticed");
        thread::sleep(Duration::from_millis(5));
    }
    assert!(begun.elapsed() < Duration::from_secs(5) * 3, "{:?}", begun.elapsed());
    for path in &elsewhere {
        name(&upstreams, path);
    }
}

/// Those who ask at one time wait once for upstreams that say nothing, and who asks after them waits no more: nobody is asked.
#[test]
fn silent_upstreams_are_waited_for_once() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    const CLIENTS: usize = 20;
    let (hole, _listener, _held) = black_hole();
    let hanging = bad("http", |socket| {
        ASKED.fetch_add(1, Ordering::Relaxed);
        drop((thread::sleep(TIMEOUT), socket));
    });
    let absent_after = ABSENT_AFTER / 2;
    let (_folder, upstreams) = open_near(vec![hole, hanging], absent_after);
    let paths = paths("elsewhere", 400);
    thread::scope(|scope| {
        for part in paths.chunks(paths.len() / CLIENTS) {
            let upstreams = &upstreams;
            scope.spawn(move || {
                for path in part {
                    assert!(matches!(upstreams.narinfo(&path.hash_part()).unwrap(), Lookup::Absent));
                    assert!(upstreams.remembered(&path.hash_part()).is_none(), "this is no absence");
                }
            });
        }
    });
    // Each client once, and now and then somebody who looks whether it answers again.
    let asked = ASKED.load(Ordering::Relaxed);
    assert!(asked > 0 && asked <= 2 * CLIENTS, "{asked}");
}

/// Which variant of a path is served is decided by priority, however slow its upstream is; time decides between equals.
#[test]
fn priority_decides_between_different_answers_and_time_between_equals() {
    let (slow, fast) = (Upstream::start("slow-1"), Upstream::start("fast-1"));
    let path = |name: &str| TestPath::new(name, b"contents", false);
    let (ordered, equal, gone) = (path("ordered"), path("equal"), path("gone"));
    for path in [&ordered, &equal, &gone] {
        fast.offer(path);
        slow.offer(path);
    }
    let lag = Duration::from_millis(1500);
    for path in [&ordered, &equal] {
        let at = format!("/{}.narinfo", path.hash_part());
        let text = path.narinfo(&slow.key).render(&StoreDir::default()).into_bytes();
        slow.put(&at, File::Late(text, lag));
    }
    slow.put(&format!("/{}.narinfo", gone.hash_part()), File::Silence);
    let signer = |upstreams: &Upstreams, path: &TestPath| {
        let info = found(upstreams.narinfo(&path.hash_part()).unwrap());
        info.signatures[0].key_name().to_owned()
    };
    let after = 4 * lag;
    let (_folder, upstreams) =
        open_near(vec![UpstreamOptions { priority: 40, ..slow.options() }, fast.options()], after);
    assert_eq!(signer(&upstreams, &ordered), "slow-1");
    assert!(fast.asked(&format!("/{}.narinfo", ordered.hash_part())) == 1, "it was asked meanwhile");
    // Who says nothing in time does not count.
    assert_eq!(signer(&upstreams, &gone), "fast-1");
    // And what was served stays.
    assert_eq!(signer(&upstreams, &ordered), "slow-1");
    let (_folder, upstreams) = open_near(vec![slow.options(), fast.options()], after);
    assert_eq!(signer(&upstreams, &equal), "fast-1");
}

/// A push waits for a slow upstream, where a client is told that the path is absent; operators may have clients told the truth.
#[test]
fn a_push_is_not_told_what_a_client_is() {
    let upstream = Upstream::start("slow-1");
    let path = TestPath::new("there", b"contents", false);
    let text = upstream.offer(&path).render(&StoreDir::default()).into_bytes();
    upstream.put(&format!("/{}.narinfo", path.hash_part()), File::Late(text, Duration::from_secs(2)));
    let (_folder, upstreams) = open_near(vec![upstream.options()], Duration::from_millis(200));
    assert!(matches!(upstreams.narinfo(&path.hash_part()).unwrap(), Lookup::Absent));
    upstreams.narinfo_to_look_at(&path.hash_part()).unwrap_err();
    assert_eq!(upstreams.have(&[&path.path]), [true]);
    let (absent_after, when_down) = (Duration::from_millis(200), WhenDown::Unavailable);
    let telling = Deadline { absent_after, when_down, ..Deadline::default() };
    let other = TestPath::new("other", b"contents", false);
    upstream.put(&format!("/{}.narinfo", other.hash_part()), File::Silence);
    upstreams.replace(vec![upstream.options()], telling, 1 << 30);
    upstreams.narinfo(&other.hash_part()).unwrap_err();
}

/// An upstream is not asked for a path whose name is known and must not leave the house, and what it says of one is not used.
#[test]
fn names_that_are_skipped_are_not_asked_for() {
    let (upstream, other) = (Upstream::start("up-1"), Upstream::start("other-1"));
    let [secret, kept, open] =
        ["mycorp-lib-1.0", "mycorp-kept", "zlib-1.3"].map(|name| TestPath::new(name, name.as_bytes(), false));
    let mut app = TestPath::new("app", b"app", false);
    app.references = vec![secret.path.clone(), open.path.clone()];
    for path in [&secret, &kept, &app, &open] {
        upstream.offer(path);
        other.offer(path);
    }
    let log = |name: &str| {
        let drv = StorePath::parse(&format!("{}-{name}.drv", HashPart::from_digest(&[7; 20]))).unwrap();
        let url = format!("/log/{}", drv.base_name());
        upstream.put(&url, File::Bytes(b"log".to_vec()));
        (Small::Log(drv), url)
    };
    let (secret_log, secret_url) = log("mycorp-lib-1.0");
    let (open_log, _) = log("zlib-1.3");
    let (_folder, upstreams) = open_near(vec![upstream.options()], ABSENT_AFTER);
    // From before there was a pattern.
    found(upstreams.narinfo(&kept.hash_part()).unwrap());
    let skip = vec!["mycorp-*".parse().unwrap()];
    let skipping = UpstreamOptions { skip, ..upstream.options() };
    upstreams.replace(
        vec![skipping, UpstreamOptions { priority: 60, ..other.options() }],
        Deadline { absent_after: ABSENT_AFTER, ..Deadline::default() },
        1 << 30,
    );
    upstream.state.lock().unwrap().asked.clear();
    // A push knows names, and so does who has seen the narinfo that refers to a path.
    assert_eq!(upstreams.have(&[&secret.path, &open.path]), [true, true]);
    found(upstreams.narinfo(&app.hash_part()).unwrap());
    for path in [&secret, &kept] {
        let signature = found(upstreams.narinfo(&path.hash_part()).unwrap()).signatures.remove(0);
        assert_eq!(signature.key_name(), "other-1");
    }
    assert!(upstreams.small(&secret_log).unwrap().is_none() && upstreams.small(&open_log).unwrap().is_some());
    let state = upstream.state.lock().unwrap();
    let asked = |text: &str| state.asked.keys().any(|path| path.contains(text));
    assert!(!asked(secret.hash_part().as_str()) && !asked("mycorp") && !asked(&secret_url), "{:?}", state.asked);
    assert!(asked(open.hash_part().as_str()) && asked(app.hash_part().as_str()), "{:?}", state.asked);
}

/// A list of the paths of a channel says who is asked first; what is not in it is asked for all the same.
#[test]
fn a_list_of_store_paths_says_who_is_asked_first() {
    let (own, public) = (Upstream::start("own-1"), Upstream::start("public-1"));
    let (listed, unlisted) = (paths("listed", 300), paths("unlisted", 5));
    let mut list = String::new();
    for path in &listed {
        own.offer(path);
        public.offer(path);
        writeln!(list, "/nix/store/{}", path.path.base_name()).unwrap();
    }
    for path in &unlisted {
        own.offer(path);
    }
    public.put("/store-paths.zst", File::Bytes(zstd::encode_all(list.as_bytes(), 1).unwrap()));
    let store_paths = vec![Url::parse(&format!("{}/store-paths.zst", public.options().url)).unwrap()];
    let with_list = UpstreamOptions { store_paths, ..public.options() };
    let (_folder, upstreams) = open_near(vec![own.options(), with_list], ABSENT_AFTER);
    let asks_own = |path: &TestPath| {
        found(upstreams.narinfo(&path.hash_part()).unwrap());
        own.asked(&format!("/{}.narinfo", path.hash_part())) > 0
    };
    // The first question has it fetched.
    let mut rest = listed.iter();
    while asks_own(rest.next().expect("the list is used before all paths are asked for")) {
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(public.asked("/store-paths.zst"), 1);
    let rest: Vec<_> = rest.take(40).collect();
    let asked = rest.iter().filter(|path| asks_own(path)).count();
    // A hedge now and then.
    assert!(asked <= rest.len() / 10, "{asked} of {} were asked for there, too", rest.len());
    assert!(unlisted.iter().all(asks_own));
}

/// An upstream that is slow now and then is asked twice, but not for more than one request in twenty.
#[test]
fn hedges_are_few() {
    let (one, two) = (Upstream::start("one-1"), Upstream::start("two-1"));
    let all = paths("there", 400);
    for (at, path) in all.iter().enumerate() {
        for upstream in [&one, &two] {
            let text = upstream.offer(path).render(&StoreDir::default()).into_bytes();
            if at % 8 == 7 {
                let late = File::Late(text, Duration::from_millis(150));
                upstream.put(&format!("/{}.narinfo", path.hash_part()), late);
            }
        }
    }
    let (_folder, upstreams) = open_near(vec![one.options(), two.options()], ABSENT_AFTER);
    for path in &all {
        name(&upstreams, path);
    }
    let stats = upstreams.stats().upstreams;
    let hedges: u64 = stats.iter().map(|one| one.hedges).sum();
    assert!((1..=400 / 20 + 10).contains(&hedges), "{stats:?}");
    assert_eq!(stats.iter().map(|one| one.used).sum::<u64>(), 400);
}
