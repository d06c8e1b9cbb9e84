//! Backups, restored onto the other database and the other kind of storage.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use narval_files::Work;

use super::super::postgres::PostgresServer;
use super::super::*;
use super::migrating::{Server, address_of, all, other_kind};
use crate::location::Database;
use crate::upkeep::{BackedUp, BackupOptions};

/// Says to the test program what it saves or restores.
pub(super) const TOLD: &str = "NARVAL_TEST_BACKUP";

pub(super) const WHOLE: BackupOptions = BackupOptions { with_nars: true, with_keys: true, keep: None };

pub(super) fn administrator() -> Grant {
    Grant::administrator("test")
}

pub(super) fn backup(data: &Data, to: &StorageLocation) -> BackedUp {
    data.backup(to, WHOLE, Work::unwatched()).unwrap()
}

fn restore(from: &StorageLocation, to: &Destination) -> Result<Data, MigrateError> {
    Data::restore((from, None), &to.place, to.database.clone(), &administrator(), Work::unwatched())
        .map(|(data, _)| data)
}

/// An empty place of the other kind, with the index in the other kind of database.
pub(super) struct Destination {
    pub(super) place: StorageLocation,
    pub(super) database: Option<Database>,
    _folder: tempfile::TempDir,
    _server: (Server, Option<Arc<PostgresServer>>),
}

impl Destination {
    pub(super) fn new(source: &Place, name: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let (place, server) = other_kind(source, &folder.path().join("data"), name)?;
        let postgres = if place::is_on_postgres() { None } else { PostgresServer::shared() };
        let database = postgres.as_ref().map(|server| server.database().parse().unwrap());
        Some(Self { place, database, _folder: folder, _server: (server, postgres) })
    }

    fn open(&self) -> Result<Data, DataError> {
        Data::open(&self.place, DataOptions { database: self.database.clone(), ..DataOptions::default() })
    }
}

/// Every path, verified.
pub(super) fn whole(data: &Data) -> BTreeSet<HashPart> {
    let look = FsckOptions { contents: true, repair: false };
    assert_eq!(data.fsck(look, Work::unwatched()).unwrap().problems, Vec::<String>::new());
    let cache = data.cache(&CacheName::default()).unwrap().unwrap();
    let listed = cache.list().unwrap();
    for listed in &listed {
        let part = StorePath::parse(&listed.path).unwrap().hash_part();
        let info = NarInfo::parse(&cache.narinfo(&part).unwrap().unwrap(), &StoreDir::default()).unwrap();
        let file = cache.nar_file(info.url.strip_prefix("nar/").unwrap()).unwrap().unwrap();
        let source = std::io::BufReader::new(file.file);
        let mut decoder = narval_codec::decode::Decoder::new(&info.compression, source, 1).unwrap();
        assert_eq!(Sha256::of(&read_all(&mut decoder)), info.nar_hash);
    }
    listed.iter().map(|listed| StorePath::parse(&listed.path).unwrap().hash_part()).collect()
}

pub(super) fn path(name: &str) -> TestPath {
    TestPath::with_contents(name, &[], &name.repeat(2000).into_bytes())
}

/// Clients push, collections hide everything that is old and remove NARs without a grace period, and an operator deletes.
#[test]
fn what_was_answered_before_a_backup_is_in_it_whatever_happens_meanwhile() {
    let settings = CacheSettings { retention_days: Some(1), ..CacheSettings::default() };
    let fixture = Fixture::with(&settings);
    let Some(to) = Destination::new(&fixture.folder, "under-load") else { return };
    let backups = tempfile::tempdir().unwrap();
    let Some((place, _server)) = other_kind(&fixture.folder, &backups.path().join("b"), "backups") else { return };
    let answered = Mutex::new(BTreeSet::new());
    let deleted = Mutex::new(BTreeSet::new());
    let (is_done, collections, pushes) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let lasting: Vec<TestPath> = (0..300).map(|number| path(&format!("lasting-{number}"))).collect();
    lasting.iter().for_each(|path| drop(path.push(&fixture.cache).unwrap()));
    let before = std::thread::scope(|scope| {
        for client in 0..3 {
            let (cache, answered, is_done, pushes) = (&fixture.cache, &answered, &is_done, &pushes);
            scope.spawn(move || {
                for number in 0.. {
                    if is_done.load(Ordering::Relaxed) {
                        return;
                    }
                    let path = path(&format!("client-{client}-{number}"));
                    // One that a collection removes at this moment is refused.
                    if path.push(cache).is_ok() {
                        answered.lock().unwrap().insert(path.part());
                        pushes.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let (cache, is_done, collections) = (&fixture.cache, &is_done, &collections);
        let (lasting, deleted) = (&lasting, &deleted);
        while pushes.load(Ordering::Relaxed) < 20 {
            std::thread::sleep(Duration::from_millis(5));
        }
        scope.spawn(move || {
            // Deletes what the backup may be about to copy.
            for path in lasting.iter().step_by(10) {
                deleted.lock().unwrap().insert(path.part());
                let gone = cache.delete(&path.part(), true, &with_scopes("delete"));
                // A collection may have been faster.
                drop(gone);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        // Nothing is collected before: all of it counts.
        let before: BTreeSet<HashPart> = {
            let answered = answered.lock().unwrap();
            answered.iter().copied().chain(lasting.iter().map(TestPath::part)).collect()
        };
        scope.spawn(move || {
            while !is_done.load(Ordering::Relaxed) {
                let now = Some(cache.now() + 3 * 24 * 3600);
                let options = CollectOptions { now, grace: 0, ..CollectOptions::default() };
                if collections.load(Ordering::Relaxed) < 1 {
                    // After the moment that the backup is of: it holds what it needs from its beginning.
                    while cache.index().held_since().unwrap().is_none() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
                if cache.collect(&options, &administrator()).is_ok() {
                    collections.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let done = backup(&fixture.data, &place);
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(done.problems, Vec::<String>::new());
        before
    });
    eprintln!("{} collections, {} pushes", collections.load(Ordering::Relaxed), pushes.load(Ordering::Relaxed));
    let data = restore(&place, &to).unwrap();
    let restored = whole(&data);
    let deleted = deleted.into_inner().unwrap();
    let missing: Vec<_> = before.difference(&restored).filter(|part| !deleted.contains(part)).collect();
    assert_eq!(missing, Vec::<&HashPart>::new());
    assert!(restored.len() > 270);
    // The hold has ended: NARs go.
    assert_eq!(fixture.cache.index().held_since().unwrap(), None);
}

#[test]
fn a_backup_has_everything_and_the_next_one_writes_what_is_new() {
    let settings = CacheSettings { public: false, quota: Some(1 << 30), ..CacheSettings::default() };
    let fixture = Fixture::with(&settings);
    let (data, cache) = (&fixture.data, &fixture.cache);
    let Some(to) = Destination::new(&fixture.folder, "everything") else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some((place, _server)) = other_kind(&fixture.folder, &folder.path().join("b"), "incremental") else { return };
    let paths: Vec<TestPath> = (0..40).map(|number| path(&format!("path-{number}"))).collect();
    paths.iter().for_each(|path| drop(path.push(cache).unwrap()));
    let root = TestPath::new("root", &paths.iter().collect::<Vec<_>>());
    root.push(cache).unwrap();
    let team = data.create_cache(&"team".parse().unwrap(), &CacheSettings::default()).unwrap();
    paths[0].push(&team).unwrap();
    // A NAR has another name.
    let alias = zstd::encode_all(&paths[1].nar[..], 9).unwrap();
    let name = NarFileName::new(Sha256::of(&alias), Compression::Zstd).to_string();
    let Begin::Receive(upload) = cache.begin_nar(&name, Some(alias.len() as u64), &pusher()).unwrap() else { panic!() };
    upload.receive(&mut &alias[..]).unwrap();
    cache.pin("keep", &root.part(), PinFor { keep: None, until: None }, &administrator()).unwrap();
    let log = format!("{}-hello.drv", root.part());
    cache.put_small(SmallKind::Log, &log, &mut &b"log"[..], &pusher()).unwrap();
    let key = cache.rotate_key(0, &administrator()).unwrap();
    let new =
        NewToken { label: "ci".into(), scopes: "push".parse().unwrap(), caches: CachePatterns::all(), expires: None };
    let (_, secret) = data.tokens().create(&new).unwrap();

    let first = backup(data, &place);
    assert_eq!((first.backup.paths, first.nars, first.files), (42, 42, 1));
    let again = backup(data, &place);
    assert_eq!((again.nars, again.files, again.problems.len()), (0, 0, 0));
    assert!(again.rows <= 1, "only the audit log may have grown: {again:?}");
    let later = path("later");
    later.push(cache).unwrap();
    let third = backup(data, &place);
    assert_eq!((third.nars, third.backup.paths), (1, 43));

    let (before, saved, audit) = (all(data), exported(data), data.last_audit(0, 1000, |_| true).unwrap());
    let restored = restore(&place, &to).unwrap();
    whole(&restored);
    assert!(all(&restored) == before, "other contents");
    assert_eq!(exported(&restored), saved);
    let copy = restored.cache(&CacheName::default()).unwrap().unwrap();
    assert_eq!((copy.settings(), copy.keys().unwrap()), (cache.settings(), vec![key.clone()]));
    assert!(restored.tokens().verify(secret.as_bytes()).unwrap().is_some());
    assert_eq!(read_all(copy.small_file(SmallKind::Log, &log).unwrap().unwrap().0), b"log");
    let last = restored.last_audit(0, 1000, |line| line.action != "restore").unwrap();
    assert!(audit.iter().skip(audit.len() - last.len()).eq(&last) && !last.is_empty(), "{last:?}");
    drop((copy, restored));
    // Not over a cache.
    let error = restore(&place, &to).unwrap_err().to_string();
    assert!(error.contains("is not empty"), "{error}");
    assert_eq!(whole(&to.open().unwrap()).len(), 42);
    // The first one has neither the path nor, without being asked for, a key.
    let Some(older) = Destination::new(&fixture.folder, "older") else { return };
    let ids: Vec<String> = Data::backups(&place).unwrap().into_iter().map(|backup| backup.id).collect();
    assert_eq!(ids, [first.backup.id, again.backup.id, third.backup.id].map(|id| id).to_vec());
    let id = Some(&*ids[0]);
    let (old, _) =
        Data::restore((&place, id), &older.place, older.database.clone(), &administrator(), Work::unwatched()).unwrap();
    assert!(!whole(&old).contains(&later.part()));
    let without = data.backup(&place, BackupOptions { with_keys: false, ..WHOLE }, Work::unwatched()).unwrap();
    assert_eq!(without.keys_left_out, 1);
    let Some(keyless) = Destination::new(&fixture.folder, "keyless") else { return };
    let keyless = restore(&place, &keyless).unwrap();
    assert_eq!(keyless.cache(&CacheName::default()).unwrap().unwrap().keys().unwrap(), []);
}

/// The files are there, and the index is made from them, in whichever database.
#[test]
fn a_backup_without_nars_is_restored_beside_the_files() {
    let mut fixture = Fixture::new();
    let folder = tempfile::tempdir().unwrap();
    let place = StorageLocation::Folder(folder.path().join("b"));
    let root = path("root");
    root.push(&fixture.cache).unwrap();
    fixture.cache.pin("keep", &root.part(), PinFor { keep: None, until: None }, &administrator()).unwrap();
    let options = BackupOptions { with_nars: false, ..WHOLE };
    let done = fixture.data.backup(&place, options, Work::unwatched()).unwrap();
    assert_eq!((done.nars, done.backup.paths), (0, 1));
    let (before, saved) = (all(&fixture.data), exported(&fixture.data));
    drop((fixture.cache, fixture.data));
    fixture.folder.lose_index();
    let (to, database) = (fixture.folder.place(), fixture.folder.database());
    let (data, restored) = Data::restore((&place, None), &to, database, &administrator(), Work::unwatched()).unwrap();
    assert_eq!(restored.found.problems, Vec::<String>::new());
    assert!(all(&data) == before, "other contents");
    assert_eq!(exported(&data), saved);
}

#[test]
fn what_is_damaged_is_not_taken_for_a_backup() {
    let fixture = Fixture::new();
    let (one, other) = (path("one"), path("other"));
    one.push(&fixture.cache).unwrap();
    other.push(&fixture.cache).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let place = StorageLocation::Folder(folder.path().join("b"));
    let Some(to) = Destination::new(&fixture.folder, "damaged-backup") else { return };
    let error = restore(&place, &to).unwrap_err().to_string();
    assert!(error.contains("there are none"), "{error}");
    let id = backup(&fixture.data, &place).backup.id;
    let below = folder.path().join("b/caches/default");
    let flip = |file: &std::path::Path| {
        let mut bytes = std::fs::read(file).unwrap();
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        std::fs::write(file, bytes).unwrap();
    };
    let nar = below.join("nar").join(one.file_name(Compression::Zstd));
    let manifest = below.join(format!("_narval/backups/{id}.json"));
    let rows = std::fs::read_dir(below.join("_narval/rows")).unwrap().next().unwrap().unwrap().path();
    for file in [&manifest, &rows, &nar] {
        flip(file);
        let error = restore(&place, &to).unwrap_err().to_string();
        assert!(error.contains("damaged") || error.contains("hash"), "{}: {error}", file.display());
        // Nobody takes what is there for a cache.
        if file != &manifest {
            let error = to.open().unwrap_err().to_string();
            assert!(error.contains("a restore into it was interrupted"), "{error}");
        }
        flip(file);
    }
    assert_eq!(whole(&restore(&place, &to).unwrap()).len(), 2);
    // A backup of a cache that has lost one is made of the other, and says so.
    let file = object_of(&fixture.cache, &other.file_name(Compression::Zstd));
    flip(&file);
    std::fs::remove_dir_all(folder.path()).unwrap();
    let done = backup(&fixture.data, &place);
    assert_eq!(done.problems.len(), 1, "{done:?}");
    let Some(to) = Destination::new(&fixture.folder, "damaged-cache") else { return };
    assert_eq!(whole(&restore(&place, &to).unwrap()), [one.part()].into());
    // A cache is no place for backups.
    let error = fixture.data.backup(&fixture.folder.place(), WHOLE, Work::unwatched()).unwrap_err().to_string();
    assert!(error.contains("it has a cache"), "{error}");
}

/// Saves or restores until it is killed.
#[test]
#[ignore = "the process that is killed"]
fn saves_or_restores_until_it_is_killed() {
    let Ok(told) = std::env::var(TOLD) else { return };
    let [what, source, folder, url, to, to_url, database] = told.split('\n').collect::<Vec<_>>()[..] else {
        panic!("{told}")
    };
    let place = |folder: &str, url: &str| match url {
        "" => StorageLocation::Folder(folder.into()),
        url => StorageLocation::Bucket { url: url.parse().unwrap(), folder: folder.into(), cache_size: None },
    };
    let from = place(folder, url);
    match what {
        "save" => drop(Place::told(source.as_ref()).backup(&from, WHOLE, Work::unwatched()).unwrap()),
        "remove" => super::pruning::remove(&Place::told(source.as_ref()), &from),
        _ => {
            let database = Some(database).filter(|text| !text.is_empty()).map(|text| text.parse().unwrap());
            Data::restore((&from, None), &place(to, to_url), database, &administrator(), Work::unwatched()).unwrap();
        }
    }
}

/// Saves, restores or removes in a process of its own, which is killed after so many milliseconds. Returns whether it has ended by itself.
pub(super) fn run(
    fixture: &Fixture,
    what: &str,
    backups: &StorageLocation,
    to: Option<&Destination>,
    patience: Option<u64>,
) -> bool {
    let text = |place: &StorageLocation| match place {
        StorageLocation::Folder(folder) => format!("{}\n", folder.display()),
        StorageLocation::Bucket { folder, .. } => format!("{}\n{}", folder.display(), address_of(place)),
    };
    // The address of a database has a password, which only its own type knows.
    let address = to.and_then(|to| to.database.as_ref()).map(Database::address).unwrap_or_default().to_owned();
    let to = to.map_or_else(|| "\n".to_owned(), |to| text(&to.place));
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = format!("{}::saves_or_restores_until_it_is_killed", module_path!().split_once("::").unwrap().1);
    command.args(["--exact", &name, "--ignored", "--nocapture", "--test-threads=1"]).stdout(Stdio::null());
    if let Some(server) = s3::S3Server::shared() {
        command.envs(server.environment());
    }
    fixture.folder.tell(&mut command);
    let source = fixture.folder.path().display();
    command.env(TOLD, format!("{what}\n{source}\n{}\n{to}\n{address}", text(backups)));
    let mut child = command.spawn().unwrap();
    if let Some(patience) = patience {
        std::thread::sleep(Duration::from_millis(patience));
        child.kill().unwrap();
    }
    child.wait().unwrap().success()
}

#[test]
fn a_backup_and_a_restore_that_are_killed_are_whole_or_nothing() {
    let fixture = Fixture::new();
    let folder = tempfile::tempdir().unwrap();
    let Some((backups, _server)) = other_kind(&fixture.folder, &folder.path().join("b"), "killed-backup") else {
        return;
    };
    let Some(to) = Destination::new(&fixture.folder, "killed-restore") else { return };
    let paths: Vec<TestPath> = (0..150).map(|number| path(&format!("path-{number}"))).collect();
    paths.iter().for_each(|path| drop(path.push(&fixture.cache).unwrap()));
    let before = all(&fixture.data);
    let run = |what: &str, patience: Option<u64>| {
        // A bucket is another backup's for some time after that was killed.
        while patience.is_some() && fixture.cache.index().held_since().unwrap().is_some() {
            std::thread::sleep(Duration::from_millis(50));
        }
        run(&fixture, what, &backups, Some(&to), patience)
    };
    let begun = std::time::Instant::now();
    assert!(run("save", None));
    let took = u64::try_from(begun.elapsed().as_millis()).unwrap();
    let mut whole_ones = Data::backups(&backups).unwrap().len();
    for round in 0..6 {
        let later = path(&format!("later-{round}"));
        later.push(&fixture.cache).unwrap();
        let is_whole = run("save", Some(took * (round + 2) / 8));
        let now = Data::backups(&backups).unwrap().len();
        // Killed after it was complete, it may be there, too.
        assert!(now - whole_ones <= 1 && (!is_whole || now > whole_ones));
        whole_ones = now;
    }
    // Of a moment, whatever was killed.
    backup(&fixture.data, &backups);
    let marker = to.place.folder().join("restore.unfinished");
    let (mut interrupted, mut took) = (0, took);
    for round in 1..=6 {
        let begun = std::time::Instant::now();
        if run("restore", Some(took * round / 7)) {
            break;
        }
        took = took.max(u64::try_from(begun.elapsed().as_millis()).unwrap());
        // Before it has begun, the place is empty.
        if marker.exists() {
            let error = to.open().unwrap_err().to_string();
            assert!(error.contains("was interrupted"), "{error}");
            interrupted += 1;
        }
    }
    eprintln!("{interrupted} rounds ended in the middle");
    let data = match restore(&backups, &to) {
        Err(error) if error.to_string().contains("is not empty") => to.open().unwrap(),
        restored => restored.unwrap(),
    };
    assert_eq!(whole(&data).len(), 156);
    assert!(all(&data)[0].1.iter().filter(|path| before[0].1.contains(path)).count() == 150);
}
