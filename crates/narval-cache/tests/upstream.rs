//! Upstreams, against caches that run here: one fetch for many, what is kept, what is refused, who is away.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use narval_cache::upstream::{Lookup, NarAnswer, Small, UpstreamOptions};
use narval_client::Netrc;
use narval_nix::realisation::{BuildTraceKey, DrvOutput};
use narval_nix::{NarInfo, SecretKey, Sha256, StoreDir, StorePath, StorePathName, TrustedKeys};
use support::*;

#[test]
fn paths_of_an_upstream_are_served_and_kept_across_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let mut upstream = Upstream::start("up-1");
    let own = SecretKey::generate("own-1").unwrap();
    let paths = [TestPath::new("plain", &noise(300_000), false), TestPath::new("packed", &noise(300_000), true)];
    let start =
        |upstream: &Upstream| open_with(folder.path(), vec![upstream.options()], 1 << 30, vec![own.clone()]).unwrap();
    let upstreams = start(&upstream);
    for path in &paths {
        let theirs = upstream.offer(path);
        let info = found(upstreams.narinfo(&path.hash_part()).unwrap());
        // As it came, but for the name of the NAR and our signature.
        let fingerprint = info.fingerprint(&StoreDir::default());
        for key in [&upstream.key, &own] {
            let keys = TrustedKeys::from_iter([key.public_key()]);
            assert!(keys.find_valid(fingerprint.as_bytes(), &info.signatures).is_some());
        }
        assert_eq!((info.file_hash, info.file_size), (theirs.file_hash, theirs.file_size));
        assert_ne!(info.url, theirs.url);
        let name = name(&upstreams, path);
        assert_eq!(upstreams.nar_length(&name).unwrap(), Some(theirs.file_size));
        assert_eq!(upstream.asked(&format!("/{}", theirs.url)), 0, "asking for the length fetches nothing");
        assert!(read(upstreams.nar(&name).unwrap().unwrap()).unwrap() == path.file);
        until_kept(&upstreams, &name);
        assert!(matches!(upstreams.remembered(&path.hash_part()), Some(Lookup::Found(_))));
        assert!(upstreams.nar(&format!("x{name}")).unwrap().is_none());
    }
    // The upstream goes away, and this server starts again.
    let before = upstream.asked_in_all();
    let names: Vec<_> = paths.iter().map(|path| name(&upstreams, path)).collect();
    drop(upstreams);
    upstream.stop();
    let upstreams = start(&upstream);
    for (path, name) in paths.iter().zip(&names) {
        assert!(upstreams.remembered(&path.hash_part()).is_none() && upstreams.stored(&path.hash_part()).is_some());
        assert!(read(upstreams.nar(name).unwrap().unwrap()).unwrap() == path.file);
    }
    assert_eq!(upstream.asked_in_all(), before);
    // The rest can't be had now.
    let missing = upstreams.narinfo(&TestPath::new("other", b"", false).hash_part()).unwrap_err();
    assert!(missing.retry_after >= Duration::from_secs(1), "{missing}");
}

/// ncps#20: a NAR was fetched whole before its first byte. And one request of the upstream, however many ask.
#[test]
fn sixty_four_clients_one_fetch_and_the_first_byte_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start("up-1");
    let path = TestPath::new("large", &noise(2_000_000), true);
    let info = upstream.offer(&path);
    let (open_gate, gate): (Sender<()>, _) = channel();
    upstream.put(&format!("/{}", info.url), File::Gated(path.file.clone(), 600_000, Arc::new(Mutex::new(gate))));
    let upstreams = open(folder.path(), vec![upstream.options()]);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..64)
            .map(|_| {
                scope.spawn(|| {
                    let name = name(&upstreams, &path);
                    let Some(NarAnswer::Growing(fill, length)) = upstreams.nar(&name).unwrap() else {
                        panic!("it is kept")
                    };
                    assert_eq!(length, Some(path.file.len() as u64));
                    // The upstream has not sent the rest yet.
                    let (sender, receiver) = channel();
                    fill.when_beyond(100_000, move || sender.send(()).unwrap_or_default());
                    receiver.recv_timeout(PATIENCE).unwrap();
                    assert!(fill.progress().readable > 100_000 && fill.progress().end.is_none(), "{fill:?}");
                    fill
                })
            })
            .collect();
        let fills: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        open_gate.send(()).unwrap();
        for fill in fills {
            let path = &path;
            scope.spawn(move || assert!(follow(&fill).unwrap() == path.file));
        }
    });
    assert_eq!(upstream.asked(&format!("/{}.narinfo", path.hash_part())), 1);
    assert_eq!(upstream.asked(&format!("/{}", info.url)), 1);
}

/// What comes is not what the narinfo says. If that is known before the first byte, another upstream is asked at once; otherwise the last
/// byte is never given out, nothing is kept, and another upstream is asked next.
#[test]
fn an_upstream_that_lies() {
    let path = TestPath::new("lied-about", &noise(500_000), false);
    let mut flipped = path.file.clone();
    flipped[250_000] ^= 1;
    let other = TestPath::new("lied-about", b"another NAR", false);
    let longer = [&path.file[..], b"more"].concat();
    let shorter = path.file[..400_000].to_vec();
    for (what, lie) in [("NarHash", flipped), ("FileSize", other.file), ("FileSize", longer), ("FileSize", shorter)] {
        let folder = tempfile::tempdir().unwrap();
        let (liar, honest) = (Upstream::start("liar-1"), Upstream::start("honest-1"));
        let info = liar.offer(&path);
        liar.put(&format!("/{}", info.url), File::Bytes(lie));
        honest.offer(&path);
        let second = UpstreamOptions { priority: 60, ..honest.options() };
        let upstreams = open(folder.path(), vec![second, liar.options()]);
        let name = name(&upstreams, &path);
        if what == "FileSize" {
            assert!(read(upstreams.nar(&name).unwrap().unwrap()).unwrap() == path.file);
            continue;
        }
        match upstreams.nar(&name) {
            Ok(Some(NarAnswer::Growing(fill, length))) => {
                let reason = follow(&fill).unwrap_err();
                assert!(reason.contains(what), "{what}: {reason}");
                assert!(fill.progress().readable < length.unwrap(), "{what}");
            }
            // It was known before the first byte.
            Ok(None) | Err(_) => {}
            Ok(Some(NarAnswer::File(..))) => panic!("{what}: it is kept"),
        }
        let until = Instant::now() + PATIENCE;
        while upstreams.kept_bytes() > 0 {
            assert!(Instant::now() < until, "{what}: something is kept");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(std::fs::read_dir(folder.path().join("nar")).unwrap().count(), 0);
        // The other one has it.
        let name = self::name(&upstreams, &path);
        assert!(read(upstreams.nar(&name).unwrap().unwrap()).unwrap() == path.file);
        assert!(honest.asked(&format!("/{}.narinfo", path.hash_part())) == 1, "{what}");
    }
}

/// A key counts for its own upstream only.
#[test]
fn narinfos_are_verified_against_the_keys_of_their_upstream() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (Upstream::start("one-1"), Upstream::start("two-1"));
    let path = TestPath::new("signed", b"contents", false);
    // Signed by the key of the other one, by nobody, under a name that is trusted, and that of another path.
    let text = |info: &NarInfo| File::Bytes(info.render(&StoreDir::default()).into_bytes());
    let at = format!("/{}.narinfo", path.hash_part());
    let mut unsigned = path.narinfo(&one.key);
    unsigned.signatures.clear();
    let impostor = SecretKey::generate("one-1").unwrap();
    let mut moved = TestPath::new("moved", b"contents", false).narinfo(&one.key);
    moved.path = path.path.clone();
    for (what, info) in [
        ("the other's key", path.narinfo(&two.key)),
        ("no signature", unsigned.clone()),
        ("an impostor", path.narinfo(&impostor)),
        ("another path", moved),
    ] {
        let folder = tempfile::tempdir().unwrap();
        one.put(&at, text(&info));
        let upstreams = open(folder.path(), vec![one.options(), two.options()]);
        assert!(matches!(upstreams.narinfo(&path.hash_part()).unwrap(), Lookup::Absent), "{what}");
        assert_eq!(upstreams.kept_bytes(), 0, "{what}");
    }
    // Where signatures are not asked for, ours is not added: it would make trusted what nobody has vouched for.
    one.put(&at, text(&unsigned));
    let own = SecretKey::generate("own-1").unwrap();
    let trusting = UpstreamOptions { keys: None, ..one.options() };
    let upstreams = open_with(folder.path(), vec![trusting], 1 << 30, vec![own]).unwrap();
    assert!(found(upstreams.narinfo(&path.hash_part()).unwrap()).signatures.is_empty());
    drop(upstreams);
    // And what was kept then is not served once they are asked for.
    let upstreams = open(folder.path(), vec![one.options()]);
    assert!(upstreams.stored(&path.hash_part()).is_none());
}

/// ncps#259, #298, #631: an upstream that is down stops nothing else. A timeout is no absence.
#[test]
fn upstreams_that_are_unreachable_stalled_or_failing() {
    let folder = tempfile::tempdir().unwrap();
    let (mut away, stalling, broken, working) =
        (Upstream::start("a-1"), Upstream::start("b-1"), Upstream::start("c-1"), Upstream::start("d-1"));
    away.stop();
    let (there, missing) = (TestPath::new("there", b"contents", false), TestPath::new("missing", b"", false));
    for path in [&there, &missing] {
        let at = format!("/{}.narinfo", path.hash_part());
        stalling.put(&at, File::Silence);
        broken.put(&at, File::Status(500));
    }
    working.offer(&there);
    let impatient = || UpstreamOptions { timeout: Duration::from_millis(500), ..stalling.options() };
    let all = || vec![away.options(), impatient(), broken.options(), working.options()];
    let upstreams = open(folder.path(), all());
    let name = name(&upstreams, &there);
    assert_eq!(read(upstreams.nar(&name).unwrap().unwrap()).unwrap(), there.file);
    let unavailable = upstreams.narinfo(&missing.hash_part()).unwrap_err();
    assert!(unavailable.to_string().contains("try again in"), "{unavailable}");
    assert!(upstreams.remembered(&missing.hash_part()).is_none(), "a timeout is no absence");
    // The stalling one, asked often enough, is asked no more but by probes.
    for _ in 0..2 {
        upstreams.narinfo(&missing.hash_part()).unwrap_err();
    }
    let stats = upstreams.stats().upstreams;
    let is_up = |upstream: &Upstream| stats.iter().find(|one| one.url == upstream.url().to_string()).unwrap().is_up;
    assert!(!is_up(&stalling) && !is_up(&broken) && is_up(&working), "{stats:?}");
    assert_eq!(read(upstreams.nar(&name).unwrap().unwrap()).unwrap(), there.file);
}

#[test]
fn absences_are_cached_once_all_upstreams_agree() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (Upstream::start("one-1"), Upstream::start("two-1"));
    let upstreams = open(folder.path(), vec![one.options(), two.options()]);
    let path = TestPath::new("missing", b"contents", false);
    let at = format!("/{}.narinfo", path.hash_part());
    for _ in 0..3 {
        assert!(matches!(upstreams.narinfo(&path.hash_part()).unwrap(), Lookup::Absent));
        assert!(matches!(upstreams.remembered(&path.hash_part()), Some(Lookup::Absent)));
    }
    assert_eq!((one.asked(&at), two.asked(&at)), (1, 1));
}

/// Neither a page of a proxy nor expired credentials mean that a path is absent: nothing is remembered, and both are temporary.
#[test]
fn refusals_and_pages_are_no_absences() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start("one-1");
    let credentials = Netrc::parse("machine 127.0.0.1 login me password expired");
    let upstreams = open(folder.path(), vec![UpstreamOptions { credentials, ..upstream.options() }]);
    let path = TestPath::new("there", b"contents", false);
    let (at, listing) = (format!("/{}.narinfo", path.hash_part()), Small::Listing(path.hash_part()));
    let page = || File::Bytes(b"<!DOCTYPE html>\n<title>Welcome</title>\n".to_vec());
    let answers = [File::Status(403), page(), File::Bytes(b"StorePath: x\n".to_vec()), File::Bytes(Vec::new())];
    for (file, expected) in answers.into_iter().zip(["answered 403", "HTML page", "narinfo", "narinfo"]) {
        upstream.put(&at, file.clone());
        upstream.put(&format!("/{}.ls", path.hash_part()), file);
        for _ in 0..4 {
            let unavailable = upstreams.narinfo(&path.hash_part()).unwrap_err();
            assert!(unavailable.to_string().contains(expected), "{unavailable}");
            upstreams.small(&listing).unwrap_err();
        }
        assert!(upstreams.remembered(&path.hash_part()).is_none());
    }
    assert_eq!(upstreams.available(), (1, 1), "it has answered");
    upstream.offer(&path);
    assert_eq!(found(upstreams.narinfo(&path.hash_part()).unwrap()).path, path.path);
    // Without credentials, 403 is the answer of an object store whose folders may not be listed.
    let public = TestPath::new("missing", b"contents", false);
    upstream.put(&format!("/{}.narinfo", public.hash_part()), File::Status(403));
    let upstreams = open(tempfile::tempdir().unwrap().path(), vec![upstream.options()]);
    assert!(matches!(upstreams.narinfo(&public.hash_part()).unwrap(), Lookup::Absent));
}

/// nix#15249, ncps#907: the presence check before a push made a cache fetch from its upstream.
#[test]
fn reading_cached_paths_asks_no_upstream() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start("up-1");
    let path = TestPath::new("there", b"contents", false);
    upstream.offer(&path);
    let upstreams = open(folder.path(), vec![upstream.options()]);
    assert!(upstreams.stored(&path.hash_part()).is_none() && upstreams.remembered(&path.hash_part()).is_none());
    assert_eq!(upstream.asked_in_all(), 0);
}

#[test]
fn the_first_by_priority_is_asked_and_credentials_go_to_their_upstream_only() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (Upstream::start("first-1"), Upstream::start("second-1"));
    let path = TestPath::new("there", b"contents", false);
    first.offer(&path);
    second.offer(&path);
    let netrc = || Netrc::parse("machine 127.0.0.1 login me password secret");
    let options = vec![
        UpstreamOptions { priority: 50, ..second.options() },
        UpstreamOptions { priority: 40, credentials: netrc(), ..first.options() },
    ];
    let upstreams = open(folder.path(), options);
    read(upstreams.nar(&name(&upstreams, &path)).unwrap().unwrap()).unwrap();
    // But whether it has a filter.
    assert_eq!(second.asked(&format!("/{}.narinfo", path.hash_part())), 0);
    assert_eq!(first.state.lock().unwrap().authorization.as_deref(), Some("Basic bWU6c2VjcmV0"));
    let only_second = TestPath::new("only-second", b"contents", false);
    second.offer(&only_second);
    name(&upstreams, &only_second);
    assert_eq!(second.state.lock().unwrap().authorization, None);
}

/// ncps#470: shared NARs were miscounted.
#[test]
fn the_budget_counts_a_shared_nar_once_and_evicts_the_least_recently_used() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start("up-1");
    let contents = noise(100_000);
    let paths = [TestPath::new("same-a", &contents, false), TestPath::new("same-b", &contents, false)];
    let later = TestPath::new("later", &noise(120_000), false);
    paths.iter().chain([&later]).for_each(|path| drop(upstream.offer(path)));
    // Room for one NAR and some narinfos.
    let upstreams = open_with(folder.path(), vec![upstream.options()], 150_000, Vec::new()).unwrap();
    let names: Vec<_> = paths.iter().map(|path| name(&upstreams, path)).collect();
    for name in &names {
        read(upstreams.nar(name).unwrap().unwrap()).unwrap();
        until_kept(&upstreams, name);
    }
    let count = || std::fs::read_dir(folder.path().join("nar")).unwrap().count();
    assert_eq!(count(), 1);
    assert!(upstreams.kept_bytes() < 130_000, "{}", upstreams.kept_bytes());
    let later_name = name(&upstreams, &later);
    read(upstreams.nar(&later_name).unwrap().unwrap()).unwrap();
    until_kept(&upstreams, &later_name);
    assert!(count() == 1 && upstreams.kept_bytes() <= 150_000);
    // What went is fetched again.
    assert_eq!(read(upstreams.nar(&names[0]).unwrap().unwrap()).unwrap(), paths[0].file);
}

/// ncps#50: a narinfo that is there with a NAR that is not.
#[test]
fn a_narinfo_without_its_nar_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start("up-1");
    let path = TestPath::new("gone", b"contents", false);
    let info = upstream.offer(&path);
    upstream.put(&format!("/{}", info.url), File::Status(404));
    let upstreams = open(folder.path(), vec![upstream.options()]);
    let name = name(&upstreams, &path);
    assert!(upstreams.nar(&name).unwrap().is_none());
    let until = Instant::now() + PATIENCE;
    while upstreams.stored(&path.hash_part()).is_some() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(matches!(upstreams.narinfo(&path.hash_part()).unwrap(), Lookup::Absent));
}

#[test]
fn listings_logs_and_other_small_files() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start("up-1");
    let path = TestPath::new("there", b"contents", false);
    let log = Small::Log(StorePath::parse(&format!("{}-there.drv", path.hash_part())).unwrap());
    let listing = Small::Listing(path.hash_part());
    upstream.put(&format!("/{}.ls", path.hash_part()), File::Bytes(b"{}".to_vec()));
    let upstreams = open(folder.path(), vec![upstream.options()]);
    let read = |small: &Small| {
        upstreams.small(small).unwrap().map(|(file, length)| {
            let mut bytes = vec![0; length as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        })
    };
    for _ in 0..3 {
        assert_eq!(read(&listing).as_deref(), Some(&b"{}"[..]));
        assert_eq!(read(&log), None);
    }
    assert_eq!(upstream.asked_in_all(), 2);
    let trace = BuildTraceKey {
        drv_path: StorePath::parse(&format!("{}-there.drv", path.hash_part())).unwrap(),
        output_name: StorePathName::parse("out").unwrap(),
    };
    let id: DrvOutput = format!("sha256:{}!out", "0".repeat(64)).parse().unwrap();
    let others = [
        (format!("/{}", trace.cache_path()), Small::BuildTrace(trace)),
        (format!("/{}", id.cache_path()), Small::Realisation(id)),
        ("/debuginfo/abcd.debug".to_owned(), Small::debug_info("abcd.debug").unwrap()),
    ];
    let contents = |url: &str| format!("{{\"of\": \"{url}\"}}").into_bytes();
    for (url, small) in &others {
        upstream.put(url, File::Bytes(contents(url)));
        assert_eq!(read(small), Some(contents(url)));
    }
    // What is no JSON object is neither shown nor kept, and is no absence.
    for (number, text) in ["secret", "[]", "{\"a\": 1", "{} more", "\"secret\"", ""].into_iter().enumerate() {
        let other: DrvOutput = format!("sha256:{number:064}!other").parse().unwrap();
        upstream.put(&format!("/{}", other.cache_path()), File::Bytes(text.as_bytes().to_vec()));
        upstreams.small(&Small::Realisation(other)).expect_err(text);
    }
    assert_eq!(["", "a", "../x", "ab/c", "AB"].map(Small::debug_info), [const { None }; 5]);
    drop(upstream);
    assert!(read(&listing).is_some());
    for (url, small) in &others {
        assert_eq!(read(small), Some(contents(url)));
    }
}

/// A client that requests a path requests its references next.
#[test]
fn narinfos_of_a_closure_are_fetched_ahead() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start("up-1");
    let mut paths: Vec<_> = (0..20).map(|at| TestPath::new(&format!("chain-{at}"), b"contents", false)).collect();
    for at in 0..19 {
        paths[at].references = vec![paths[at + 1].path.clone()];
    }
    paths.iter().for_each(|path| drop(upstream.offer(path)));
    let upstreams = open(folder.path(), vec![upstream.options()]);
    name(&upstreams, &paths[0]);
    let until = Instant::now() + PATIENCE;
    while upstreams.remembered(&paths[19].hash_part()).is_none() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(2));
    }
    let narinfos = || paths.iter().map(|path| upstream.asked(&format!("/{}.narinfo", path.hash_part()))).sum::<usize>();
    let before = narinfos();
    paths.iter().for_each(|path| drop(name(&upstreams, path)));
    assert_eq!(narinfos(), before);
}

/// A client that asks for a path and then for what it refers to walks a closure, whose NARs it fetches next.
#[test]
fn nars_of_a_closure_that_is_walked_are_fetched_ahead() {
    let mut paths: Vec<_> = (0..6).map(|at| TestPath::new(&format!("p-{at}"), &noise(5_000 + at), false)).collect();
    for at in 0..4 {
        paths[at].references = vec![paths[at + 1].path.clone()];
    }
    let start = |bytes_max: u64| {
        let upstream = Upstream::start("up-1");
        paths.iter().for_each(|path| drop(upstream.offer(path)));
        let folder = tempfile::tempdir().unwrap();
        let upstreams = open_with(folder.path(), vec![upstream.options()], bytes_max, Vec::new()).unwrap();
        (upstream, folder, upstreams)
    };
    let url = |path: &TestPath| format!("/nar/{}.nar", Sha256::of(&path.file).to_nix32());
    let fetched = |upstream: &Upstream| paths.iter().map(|path| upstream.asked(&url(path))).collect::<Vec<_>>();
    let (upstream, _folder, upstreams) = start(1 << 30);
    // Asking for single paths is no walk, and the one that nobody asks for is not fetched.
    name(&upstreams, &paths[5]);
    name(&upstreams, &paths[0]);
    name(&upstreams, &paths[0]);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(fetched(&upstream), [0; 6]);
    (1..4).for_each(|at| drop(name(&upstreams, &paths[at])));
    let until = Instant::now() + PATIENCE;
    while fetched(&upstream) != [1, 1, 1, 1, 0, 0] {
        assert!(Instant::now() < until, "{:?}", fetched(&upstream));
        std::thread::sleep(Duration::from_millis(2));
    }
    for path in &paths[..4] {
        until_kept(&upstreams, &name(&upstreams, path));
        assert_eq!(read(upstreams.nar(&name(&upstreams, path)).unwrap().unwrap()).unwrap(), path.nar);
    }
    assert_eq!(fetched(&upstream), [1, 1, 1, 1, 0, 0]);
    // A quarter of the budget is less than two of them.
    let (upstream, _folder, upstreams) = start(4 * 9_000);
    (0..5).for_each(|at| drop(name(&upstreams, &paths[at])));
    std::thread::sleep(Duration::from_millis(500));
    assert!(fetched(&upstream).iter().sum::<usize>() <= 1, "{:?}", fetched(&upstream));
}

/// A reload may lower the budget below what is being fetched ahead. That is then not kept: it would take the place of what clients use.
#[test]
fn a_lower_budget_holds_for_what_is_being_fetched_ahead() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start("up-1");
    let mut paths: Vec<_> = (0..4).map(|at| TestPath::new(&format!("p-{at}"), &noise(40_000 + at), false)).collect();
    for at in 0..3 {
        paths[at].references = vec![paths[at + 1].path.clone()];
    }
    let used = TestPath::new("used", &noise(20_000), false);
    let url = |path: &TestPath| format!("/nar/{}.nar", Sha256::of(&path.file).to_nix32());
    let mut gates = Vec::new();
    for path in &paths {
        upstream.offer(path);
        let (open, gate) = channel();
        upstream.put(&url(path), File::Gated(path.file.clone(), 1_000, Arc::new(Mutex::new(gate))));
        gates.push(open);
    }
    upstream.offer(&used);
    let upstreams = open_with(folder.path(), vec![upstream.options()], 1 << 30, Vec::new()).unwrap();
    let used_name = name(&upstreams, &used);
    read(upstreams.nar(&used_name).unwrap().unwrap()).unwrap();
    until_kept(&upstreams, &used_name);
    paths[..3].iter().for_each(|path| drop(name(&upstreams, path)));
    let until = Instant::now() + PATIENCE;
    while paths[..3].iter().any(|path| upstream.asked(&url(path)) == 0) {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(2));
    }
    // Each of them fits, and all three are far more than a quarter.
    upstreams.replace(vec![upstream.options()], DEADLINE, 100_000);
    gates.iter().for_each(|gate| gate.send(()).unwrap());
    let incoming = || {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("incoming-")).count()
    };
    // Four empty files are there for the next NARs.
    while incoming() > 4 {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(upstreams.kept_bytes() <= 100_000, "{}", upstreams.kept_bytes());
    assert_eq!(std::fs::read_dir(folder.path().join("nar")).unwrap().count(), 1, "none of them is kept");
    read(upstreams.nar(&used_name).unwrap().unwrap()).unwrap();
    assert_eq!(upstream.asked(&url(&used)), 1, "what a client uses has stayed");
    // A client that requests one of them gets it, and then it is cached.
    upstream.put(&url(&paths[0]), File::Bytes(paths[0].file.clone()));
    let first = name(&upstreams, &paths[0]);
    assert_eq!(read(upstreams.nar(&first).unwrap().unwrap()).unwrap(), paths[0].nar);
    until_kept(&upstreams, &first);
    // Nothing fits, and then everything does again.
    upstreams.replace(vec![upstream.options()], DEADLINE, 1);
    assert_eq!(upstreams.kept_bytes(), 0);
    upstreams.replace(vec![upstream.options()], DEADLINE, 1 << 30);
    read(upstreams.nar(&name(&upstreams, &used)).unwrap().unwrap()).unwrap();
    until_kept(&upstreams, &used_name);
}

#[test]
fn one_process_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let upstreams = open(folder.path(), Vec::new());
    let second = open_with(folder.path(), Vec::new(), 1, Vec::new()).unwrap_err();
    assert!(second.to_string().ends_with("another process uses it"), "{second}");
    drop(upstreams);
    open(folder.path(), Vec::new());
}
