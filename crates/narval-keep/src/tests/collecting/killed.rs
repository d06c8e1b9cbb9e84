//! Processes that are killed, and a disk that is full.

use narval_files::Work;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::super::*;
use crate::records::leases::collection_lease;

/// Rounds of killing; more by `NARVAL_KILL_ROUNDS=500`.
const ROUNDS: u32 = 40;

/// How much longer than a lease a push is tried.
const PATIENCE: Duration = Duration::from_secs(60);

/// Says to the test program that it is the one to be killed, and in which folder.
pub(in super::super) const VICTIM: &str = "NARVAL_TEST_VICTIM";

/// Runs one test of this program in a process of its own.
pub(in super::super) fn victim(test: &str, place: &Place) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let tests = module_path!().split_once("::").unwrap().1.trim_end_matches("killed");
    command.args(["--exact", &format!("{tests}{test}"), "--ignored", "--nocapture", "--test-threads=1"]);
    place.tell(&mut command);
    command.env(VICTIM, place.path()).stdout(Stdio::null());
    command
}

/// Libraries and programs, the same ones in each round: what a round leaves undone the next one completes.
fn closures(number: u64) -> Vec<TestPath> {
    let contents = |name: &str| name.repeat(30_000).into_bytes();
    let library = TestPath::with_contents(&format!("library-{number}"), &[], &contents(&format!("library-{number}")));
    let program =
        TestPath::with_contents(&format!("program-{number}"), &[&library], &contents(&format!("program-{number}")));
    vec![library, program]
}

/// Pushes, deletes and recompresses until it is killed.
#[test]
#[ignore = "the process that is killed"]
fn pushes_until_it_is_killed() {
    let Some(folder) = std::env::var_os(VICTIM) else { return };
    let data = Place::told(folder.as_ref());
    let cache = data.create_cache(&CacheName::default(), &CacheSettings::default()).unwrap();
    let next = AtomicU64::new(u64::from(std::process::id()));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (cache, next) = (&cache, &next);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed) % 12;
                    let paths = closures(number);
                    let compression = [Compression::None, Compression::Zstd, Compression::Xz][(number % 3) as usize];
                    for path in &paths {
                        // Another thread may be deleting it.
                        path.send(cache, compression).ok();
                    }
                    let batch: Vec<_> = paths.iter().map(|path| path.narinfo(compression)).collect();
                    cache.commit_narinfos(&batch, &pusher()).ok();
                    if thread == 1 {
                        // What others have pushed, in the middle of their work.
                        cache.recompress(Work::unwatched()).ok();
                    }
                    if thread == 0 {
                        cache.delete(&paths[0].part(), true, &with_scopes("delete")).ok();
                    }
                }
            });
        }
    });
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Whatever is visible is whole, and there is nothing besides: in a bucket only after a while, because a node may be about to finish it.
fn check(data: &Data) -> u64 {
    let mut report = data.fsck(FsckOptions { contents: true, repair: false }, Work::unwatched()).unwrap();
    if place::wants_bucket() {
        report.problems.retain(|problem| !problem.ends_with("is a file that the index does not have"));
    }
    assert_eq!(report.problems, Vec::<String>::new());
    let cache = data.cache(&CacheName::default()).unwrap().unwrap();
    super::retention::whole(&cache);
    for listed in cache.list().unwrap() {
        let part = StorePath::parse(&listed.path).unwrap().hash_part();
        let info = NarInfo::parse(&cache.narinfo(&part).unwrap().unwrap(), &StoreDir::default()).unwrap();
        let file = cache.nar_file(info.url.strip_prefix("nar/").unwrap()).unwrap().unwrap();
        let mut decoder =
            narval_codec::decode::Decoder::new(&info.compression, std::io::BufReader::new(file.file), 1).unwrap();
        assert_eq!(Sha256::of(&read_all(&mut decoder)), info.nar_hash);
    }
    cache.usage().unwrap().paths
}

/// What a collection was removing when it was killed can be pushed again once its lease has ended.
fn push_patiently(path: &TestPath, cache: &Cache) {
    let until = Instant::now() + collection_lease() + PATIENCE;
    loop {
        match path.push(cache) {
            Ok(_) => return,
            Err(rejection) if rejection.kind == RejectionKind::Unavailable && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(200));
            }
            Err(rejection) => panic!("{rejection}"),
        }
    }
}

#[test]
fn kill_9_at_any_moment() {
    let rounds = std::env::var("NARVAL_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS);
    let folder = Place::new();
    let mut seen = 0;
    for round in 0..rounds {
        let child = victim("killed::pushes_until_it_is_killed", &folder).spawn().unwrap();
        // From before the folder is open to the middle of its work.
        std::thread::sleep(Duration::from_millis(u64::from(round % 20) * 15));
        kill(child);
        let data = folder.open();
        let cache = data.create_cache(&CacheName::default(), &CacheSettings::default()).unwrap();
        seen += check(&data);
        let incoming = std::fs::read_dir(folder.path().join("incoming")).unwrap().count();
        assert_eq!(incoming, 0, "round {round}");
        if round % 8 == 7 {
            // Pushed again, all of it is there.
            (0..12).flat_map(closures).for_each(|path| push_patiently(&path, &cache));
            assert_eq!(check(&data), 24);
        }
    }
    assert!(seen > 0, "no process has come far enough");
}

/// Pushes on a small disk until it is full, makes room, and pushes again.
#[test]
#[ignore = "the process with a small disk"]
fn pushes_until_the_disk_is_full() {
    let Some(folder) = std::env::var_os(VICTIM) else { return };
    let folder = std::path::PathBuf::from(folder);
    let data = Place::told(&folder);
    let cache = data.create_cache(&CacheName::default(), &CacheSettings::default()).unwrap();
    let path = |number: u64| {
        // Nothing that a file system could make smaller.
        let mut contents = Vec::new();
        let mut digest = *Sha256::of(&number.to_le_bytes()).as_bytes();
        while contents.len() < 300_000 {
            digest = *Sha256::of(&digest).as_bytes();
            contents.extend_from_slice(&digest);
        }
        TestPath::with_contents(&format!("path-{number}"), &[], &contents)
    };
    let push = |number: u64| {
        path(number)
            .send(&cache, Compression::None)
            .and_then(|_| cache.commit_narinfos(&[path(number).narinfo(Compression::None)], &pusher()))
    };
    let (mut pushed, mut refused) = (Vec::new(), 0);
    for number in 0..60 {
        match push(number) {
            Ok(_) => pushed.push(number),
            Err(rejection) => {
                assert_eq!(rejection.kind, RejectionKind::NoSpace, "{rejection}");
                assert!(rejection.message.contains("disk is full"), "{rejection}");
                refused += 1;
            }
        }
    }
    assert!(pushed.len() > 5 && refused > 20, "{} pushed, {refused} refused", pushed.len());
    // Small ones fit for longer. Something is left nevertheless: otherwise nothing could be deleted.
    for number in 2000..2600 {
        let small = TestPath::new(&format!("small-{number}"), &[]);
        let sent = small.send(&cache, Compression::None);
        match sent.and_then(|_| cache.commit_narinfos(&[small.narinfo(Compression::None)], &pusher())) {
            Ok(_) => pushed.push(number),
            Err(rejection) => {
                assert_eq!(rejection.kind, RejectionKind::NoSpace, "{rejection}");
                break;
            }
        }
    }
    assert!(pushed.last() < Some(&2599), "it is full");
    // Nothing is half there, what was there is, and what was begun has given its space back.
    assert_eq!(std::fs::read_dir(folder.join("incoming")).unwrap().count(), 0);
    assert_eq!(check(&data), pushed.len() as u64);
    for number in &pushed[..3] {
        cache.delete(&path(*number).part(), false, &with_scopes("delete")).unwrap();
    }
    push(1000).unwrap();
    drop((cache, data));
    let data = Place::told(&folder);
    assert_eq!(check(&data), pushed.len() as u64 - 2);
    std::fs::write(folder.join("done"), "").unwrap();
}

#[test]
fn a_full_disk() {
    let place = Place::new();
    let folder = place.path();
    if place.is_in_bucket() {
        return;
    }
    let may_mount = Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    if !may_mount.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: a file system of the test's own can't be mounted");
        return;
    }
    let inner = victim("killed::pushes_until_the_disk_is_full", &place);
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs -o size=6m none \"$0\" && \"$@\" && test -e \"$0/done\"";
    command.args(["-m", "sh", "-c", script, folder.to_str().unwrap()]).arg(inner.get_program()).args(inner.get_args());
    place.tell(&mut command);
    command.env(VICTIM, folder);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
