//! Every kind of job, over both databases, with servers that are killed at random while they do it: what comes of each is right. `tools/kill-loop-jobs` does so
//! many times.

use std::collections::{BTreeMap, HashSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use narval_codec::decode::Decoder;
use narval_files::Work;
use narval_http::Method;
use narval_keep::{
    Cache, CacheName, Data, DataOptions, Destination, FsckOptions, Grant, Job, JobKind, JobState, PinFor,
};
use narval_nix::{Compression, NarInfo, Sha256, StoreDir, StorePath, TrustedKeys};
use narval_serve::{ApiRequest, ask_api};
use serde_json::{Value, json};

use crate::lab::Nar;
use crate::postgres::PostgresServer;
use crate::support::{NARVAL, Server, Store};

/// Kills for each kind, unless NARVAL_JOB_KILLS says how many.
const KILLS: usize = 1;
/// Kills of one job: what it does in one step may take longer than the next one leaves it.
const KILLS_OF_ONE_MAX: usize = 3;
/// Paths of a cache, and the bytes of each.
const PATHS: usize = 60;
const NAR_BYTES: usize = 100_000;
/// How long a job may take without an end, kills included.
const PATIENCE: Duration = Duration::from_secs(400);
/// Keys that a cache gets before another one is used.
const ROTATIONS_MAX: usize = 50;

fn admin() -> Grant {
    Grant::administrator("kills")
}

/// Random numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end.max(1)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        // Half of it can be compressed.
        (0..len / 16).flat_map(|_| [self.below(u64::MAX).to_le_bytes(), [b'x'; 8]]).flatten().collect()
    }
}

/// Servers of the same data.
struct Cluster {
    store: Store,
    data: Data,
    database: Option<String>,
    servers: Vec<Server>,
    random: Random,
    paths: usize,
}

/// A kind of job, and the one of it that is under way.
struct Round {
    kind: JobKind,
    cache: CacheName,
    job: Option<Job>,
    begun: Instant,
    /// Paths of the cache.
    paths: Vec<(StorePath, Sha256)>,
    kills: usize,
    /// Those of the job that is under way.
    kills_of_it: usize,
    done: usize,
    /// How long after its beginning it is killed, at most.
    spread: Duration,
}

fn serve(store: &Store, database: Option<&str>) -> Server {
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(store.path("narval.toml"));
    if let Some(database) = database {
        command.args(["--database", database]);
    }
    Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())])
}

impl Cluster {
    fn new(servers: usize, database: Option<String>, seed: u64) -> Self {
        let store = Store::new();
        let (mirror, there) = (store.path("mirror"), store.path("there"));
        let text = format!(
            "data = 'data'\n[[destination]]\nname = 'mirror'\nurl = 'file://{}'\n[[destination]]\nname = 'there'\ndata = '{}'\n",
            mirror.display(),
            there.display()
        );
        std::fs::write(store.path("narval.toml"), text).unwrap();
        let servers = (0..servers).map(|_| serve(&store, database.as_deref())).collect();
        let options = DataOptions {
            must_exist: true,
            database: database.as_ref().map(|database| database.parse().unwrap()),
            ..DataOptions::default()
        };
        let data = Data::open(&store.path("data"), options).unwrap();
        let destinations = [
            ("mirror", Destination::Export(format!("file://{}", mirror.display()).parse().unwrap())),
            ("there", Destination::Migrate { place: there.as_path().into(), database: None }),
        ];
        data.set_destinations(destinations.map(|(name, to)| (name.to_owned(), to)).into());
        Self { store, data, database, servers, random: Random(seed | 1), paths: 0 }
    }

    fn ask(&self, method: &Method, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let asked = ApiRequest { method, path, query: None, body: body.as_bytes(), key: None };
        ask_api(&self.data, &admin(), &asked).unwrap_or_else(|refusal| panic!("{method} {path}: {refusal}"))
    }

    fn cache(&self, name: &CacheName) -> Cache {
        self.data.cache(name).unwrap().unwrap()
    }

    /// The number of the server with this process, if it lives.
    fn server_of(&self, job: &Job) -> Option<usize> {
        let who = job.server.as_ref()?;
        self.servers.iter().position(|server| who.starts_with(&format!("process {} ", server.pid())))
    }

    fn kill(&mut self, at: usize) {
        let pid = self.servers[at].pid().to_string();
        assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
        self.servers[at] = serve(&self.store, self.database.as_deref());
    }

    /// Pushes new paths, uncompressed and signed by the cache's keys.
    fn fill(&mut self, cache: &Cache, count: usize) -> Vec<(StorePath, Sha256)> {
        cache.set_sign_keys(self.data.signing_keys().unwrap().remove(cache.name()).unwrap_or_default());
        let mut pushed: Vec<(StorePath, Sha256)> = Vec::new();
        for _ in 0..count {
            self.paths += 1;
            let name = format!("{:032}-p{}", self.paths, self.paths);
            let nar = Nar::of(&self.random.bytes(NAR_BYTES));
            let reference = pushed.last().map(|(path, _)| path.base_name().to_owned());
            let file = nar.url().trim_start_matches("/nar/").to_owned();
            let narval_keep::Begin::Receive(upload) =
                cache.begin_nar(&file, Some(nar.bytes.len() as u64), &admin()).unwrap()
            else {
                panic!("it is new");
            };
            upload.receive(&mut &nar.bytes[..]).unwrap();
            let narinfo = nar.narinfo(&name, &reference.iter().map(String::as_str).collect::<Vec<_>>());
            let path = StorePath::parse(&name).unwrap();
            cache.commit_narinfos(&[(path.hash_part(), narinfo.into_bytes())], &admin()).unwrap();
            pushed.push((path, nar.hash));
        }
        pushed
    }

    /// Makes the cache ready, and asks for the job.
    fn start(&mut self, round: &mut Round) {
        let kind = round.kind;
        let rotations = round.done % ROTATIONS_MAX;
        let is_new = round.done == 0 || kind == JobKind::Delete || (kind == JobKind::Rotate && rotations == 0);
        if is_new {
            let number = if kind == JobKind::Delete { 0 } else { round.done };
            round.cache = format!("{kind}-{number}").parse().unwrap();
            self.ask(&Method::PUT, &format!("caches/{}", round.cache), &json!({}));
        }
        let cache = self.cache(&round.cache);
        let options = match kind {
            JobKind::Fsck => json!({"contents": true}),
            JobKind::Migrate => json!({"to": "there"}),
            JobKind::Export => json!({"to": "mirror"}),
            JobKind::Rotate => json!({"overlapSeconds": 0}),
            _ => json!({}),
        };
        if kind == JobKind::Gc {
            // Servers collect by themselves what is too large.
            self.ask(&Method::PATCH, &format!("caches/{}", round.cache), &json!({"sizeMax": null}));
            std::thread::sleep(Duration::from_secs(1));
        }
        if is_new || kind == JobKind::Recompress || kind == JobKind::Gc {
            let paths = self.fill(&cache, PATHS);
            if kind == JobKind::Gc {
                round.paths.truncate(1);
                round.paths.extend(paths);
                let pinned = round.paths[0].0.hash_part();
                cache.pin("one", &pinned, PinFor { keep: None, until: None }, &admin()).unwrap();
                self.ask(&Method::PATCH, &format!("caches/{}", round.cache), &json!({"sizeMax": 1}));
            } else if is_new {
                round.paths = paths;
            } else {
                round.paths.extend(paths);
            }
        }
        for folder in [JobKind::Export, JobKind::Migrate].into_iter().filter(|of| *of == kind) {
            let folder = if folder == JobKind::Export { "mirror" } else { "there" };
            std::fs::remove_dir_all(self.store.path(folder)).ok();
        }
        round.job = Some(match kind {
            JobKind::Delete => {
                let job = self.ask(&Method::DELETE, &format!("caches/{}", round.cache), &Value::Null);
                cache.job(job["id"].as_str().unwrap()).unwrap().unwrap()
            }
            kind => cache.start_job(kind, &options, None, &admin()).unwrap().0,
        });
        (round.begun, round.kills_of_it) = (Instant::now(), 0);
    }

    /// Whether what came of a job is right.
    fn check(&self, round: &Round, job: &Job) {
        let what = format!("{} of '{}': {job:?}", round.kind, round.cache);
        assert_eq!(job.state, JobState::Done, "{what}");
        let cache = self.cache(&round.cache);
        let all: HashSet<&str> = round.paths.iter().map(|(path, _)| path.base_name()).collect();
        let read = |cache: &Cache, expected: &[(StorePath, Sha256)]| -> Vec<NarInfo> {
            let read = |(path, hash): &(StorePath, Sha256)| {
                let text = cache.narinfo(&path.hash_part()).unwrap().unwrap_or_else(|| panic!("{path}: {what}"));
                let info = NarInfo::parse(&text, &StoreDir::default()).unwrap();
                let file = cache.nar_file(info.url.strip_prefix("nar/").unwrap()).unwrap();
                let file = file.unwrap_or_else(|| panic!("{path}: {what}")).file;
                assert_eq!((hash_of(&info.compression, file), info.nar_hash), (*hash, *hash), "{path}: {what}");
                info
            };
            expected.iter().map(read).collect()
        };
        let kept = if round.kind == JobKind::Gc { &round.paths[..1] } else { &round.paths[..] };
        match round.kind {
            JobKind::Delete => {
                assert!(cache.settings().deleted && cache.list().unwrap().is_empty(), "{what}");
                let nars = self.store.path("data/caches").join(round.cache.as_str()).join("nar");
                assert_eq!(std::fs::read_dir(nars).map_or(0, Iterator::count), 0, "{what}");
                assert!(cache.keys().unwrap().is_empty(), "{what}");
                return;
            }
            JobKind::Fsck => {
                let result = (&job.result["paths"], &job.result["found"]);
                assert_eq!(result, (&all.len().into(), &0.into()), "{what}");
            }
            JobKind::Recompress => {
                let infos = read(&cache, kept);
                assert!(infos.iter().all(|info| info.compression == Compression::Zstd), "{what}");
                assert_eq!(job.result["failed"], 0, "{what}");
            }
            JobKind::Rotate => {
                let keys = cache.keys().unwrap();
                // One with the cache, and one for each job.
                assert_eq!(keys.len(), round.done % ROTATIONS_MAX + 2, "{what}");
                let newest = keys.last().unwrap().public_key.clone();
                assert_eq!(job.result["publicKey"], newest.to_string(), "{what}");
                let newest: TrustedKeys = std::iter::once(newest).collect();
                for info in read(&cache, kept) {
                    let fingerprint = info.fingerprint(&StoreDir::default());
                    assert!(newest.find_valid(fingerprint.as_bytes(), &info.signatures).is_some(), "{what}");
                }
            }
            JobKind::Export => {
                assert_eq!(exported(&self.store.path("mirror").join(round.cache.as_str())), all, "{what}")
            }
            JobKind::Migrate => {
                let there = Data::open(&self.store.path("there"), DataOptions::default()).unwrap();
                let copied = there.cache(&round.cache).unwrap().unwrap();
                read(&copied, kept);
                let report = copied.fsck(FsckOptions { contents: true, repair: false }, Work::unwatched()).unwrap();
                assert_eq!((report.paths, report.problems), (all.len(), Vec::new()), "{what}");
            }
            JobKind::Gc => {}
        }
        // Nothing is lost, and of what was to go nothing is left.
        read(&cache, kept);
        assert_eq!(cache.list().unwrap().len(), kept.len(), "{what}");
    }

    /// Kills servers until each of these kinds was met by so many kills, and all jobs have ended.
    fn run(&mut self, kinds: Vec<JobKind>, kills: usize) -> BTreeMap<&'static str, (usize, usize)> {
        let round = |kind: JobKind| Round {
            kind,
            cache: CacheName::default(),
            job: None,
            begun: Instant::now(),
            paths: Vec::new(),
            kills: 0,
            kills_of_it: 0,
            done: 0,
            spread: Duration::from_millis(300),
        };
        let mut rounds: Vec<Round> = kinds.into_iter().map(round).collect();
        loop {
            for round in &mut rounds {
                let Some(before) = &round.job else {
                    if round.kills < kills {
                        self.start(round);
                    }
                    continue;
                };
                let job = self.cache(&round.cache).job(&before.id).unwrap().unwrap();
                if job.ended.is_some() {
                    self.check(round, &job);
                    eprintln!("{} is right, after {} kills in all", round.kind, round.kills);
                    (round.job, round.done) = (None, round.done + 1);
                } else {
                    assert!(round.begun.elapsed() < PATIENCE, "it does not end: {job:?}");
                    round.job = Some(job);
                }
            }
            if rounds.iter().all(|round| round.job.is_none() && round.kills >= kills) {
                return rounds.iter().map(|round| (round.kind.name(), (round.kills, round.done))).collect();
            }
            let running =
                |round: &Round| round.job.as_ref().and_then(|job| self.server_of(job)).map(|at| (round.kind, at));
            let met: Vec<_> = rounds
                .iter()
                .filter(|round| round.kills < kills && round.kills_of_it < KILLS_OF_ONE_MAX)
                .filter_map(running)
                .collect();
            if met.is_empty() {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            let (kind, at) = met[usize::try_from(self.random.below(met.len() as u64)).unwrap()];
            let spread = rounds.iter().find(|round| round.kind == kind).unwrap().spread;
            std::thread::sleep(Duration::from_micros(self.random.below(u64::try_from(spread.as_micros()).unwrap())));
            let pid = self.servers[at].pid();
            assert!(Command::new("kill").args(["-STOP", &pid.to_string()]).status().unwrap().success());
            for round in &mut rounds {
                let Some(before) = &round.job else { continue };
                let job = self.cache(&round.cache).job(&before.id).unwrap().unwrap();
                let is_met = job.ended.is_none() && self.server_of(&job) == Some(at);
                if is_met {
                    round.kills += 1;
                    round.kills_of_it += 1;
                }
                if round.kind == kind {
                    // Neither always at its beginning, nor when it has ended.
                    round.spread = if is_met { round.spread * 5 / 4 } else { round.spread / 2 };
                    round.spread = round.spread.clamp(Duration::from_millis(5), Duration::from_secs(5));
                }
            }
            self.kill(at);
        }
    }
}

fn hash_of(compression: &Compression, file: impl Read) -> Sha256 {
    let mut nar = Vec::new();
    Decoder::new(compression, std::io::BufReader::new(file), 1).unwrap().read_to_end(&mut nar).unwrap();
    Sha256::of(&nar)
}

/// The paths of a plain binary cache, as a reader without an index finds them: each with its NAR, and with its references.
fn exported(folder: &Path) -> HashSet<&'static str> {
    let mut found = HashSet::new();
    let mut references = Vec::new();
    let files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.iter().all(|file| !file.file_name().unwrap().to_str().unwrap().starts_with(".tmp-")), "{files:?}");
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "narinfo")) {
        let info = NarInfo::parse(&std::fs::read(file).unwrap(), &StoreDir::default()).unwrap();
        let nar = std::fs::File::open(folder.join(&info.url)).unwrap();
        assert_eq!(info.nar_hash, hash_of(&info.compression, nar), "{file:?}");
        references.extend(info.references.iter().map(|path| path.base_name().to_owned()));
        found.insert(&*info.path.base_name().to_owned().leak());
    }
    assert!(references.iter().all(|path| found.contains(&**path)));
    found
}

fn kills_of_each() -> usize {
    std::env::var("NARVAL_JOB_KILLS").map_or(KILLS, |text| text.parse().expect("NARVAL_JOB_KILLS is a number"))
}

/// The kinds that NARVAL_JOB_KINDS names, or else these.
fn kinds_or(default: &[JobKind]) -> Vec<JobKind> {
    let Ok(names) = std::env::var("NARVAL_JOB_KINDS") else { return default.to_vec() };
    names.split(',').map(|name| name.parse().expect("NARVAL_JOB_KINDS are kinds of jobs")).collect()
}

fn kill_at_random(servers: usize, database: Option<String>, kinds: &[JobKind]) {
    let seed = u64::from(std::process::id()) << 20
        | u64::from(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_micros());
    let where_to = if database.is_some() { "PostgreSQL" } else { "SQLite" };
    eprintln!("{where_to}, {servers} servers, seed {seed}");
    let begun = Instant::now();
    let done = Cluster::new(servers, database, seed).run(kinds_or(kinds), kills_of_each());
    for (kind, (kills, jobs)) in &done {
        println!("{where_to}: {kind}: {kills} kills, {jobs} jobs, all of them right");
    }
    println!("{where_to}: {} s", begun.elapsed().as_secs());
}

#[test]
fn jobs_whose_server_is_killed_end_right() {
    kill_at_random(1, None, &JobKind::ALL);
}

#[test]
fn jobs_whose_node_is_killed_end_right_at_another_one() {
    let Some(postgres) = PostgresServer::new() else { return };
    // After a kill, nobody collects for two minutes: those kinds are for the long form.
    let collects = |kind: &JobKind| matches!(kind, JobKind::Gc | JobKind::Delete);
    let kinds: Vec<JobKind> = JobKind::ALL.into_iter().filter(|kind| !collects(kind)).collect();
    kill_at_random(2, Some(postgres.database()), &kinds);
}

/// A node that is killed, and one that is paused and continues: another one ends the job, and the paused one changes nothing any more.
#[test]
fn a_node_that_was_paused_for_longer_than_its_lease_changes_nothing() {
    let Some(postgres) = PostgresServer::new() else { return };
    let mut cluster = Cluster::new(2, Some(postgres.database()), 7);
    let name: CacheName = "team".parse().unwrap();
    cluster.ask(&Method::PUT, "caches/team", &json!({}));
    let cache = cluster.cache(&name);
    let paths = cluster.fill(&cache, 3 * PATHS);
    let id = cache.start_job(JobKind::Recompress, &json!({}), None, &admin()).unwrap().0.id;
    let job = || cache.job(&id).unwrap().unwrap();
    let wait = |what: &str, is: &dyn Fn(&Job) -> bool| {
        let begun = Instant::now();
        while !is(&job()) {
            assert!(begun.elapsed() < PATIENCE, "{what}: {:?}", job());
            std::thread::sleep(Duration::from_millis(2));
        }
        begun.elapsed()
    };
    let is_zstd = |part: &StorePath| {
        let text = cache.narinfo(&part.hash_part()).unwrap().unwrap();
        NarInfo::parse(&text, &StoreDir::default()).unwrap().compression == Compression::Zstd
    };
    // In the middle of it.
    wait("it begins", &|job| job.server.is_some() && is_zstd(&paths[0].0));
    let paused = cluster.server_of(&job()).unwrap();
    let signal = |name: &str, pid: u32| {
        assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
    };
    signal("-STOP", cluster.servers[paused].pid());
    assert!(job().ended.is_none(), "it was too fast for this test: {:?}", job());
    let taken = wait("another node takes over", &|job| cluster.server_of(job) == Some(1 - paused));
    assert!(taken < Duration::from_secs(30), "{taken:?}");
    wait("it ends there", &|job| job.ended.is_some());
    let seen = || {
        let mut narinfos: Vec<_> =
            paths.iter().map(|(path, _)| cache.narinfo(&path.hash_part()).unwrap().unwrap().to_vec()).collect();
        let files = std::fs::read_dir(cluster.store.path("data/caches/team/nar")).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().file_name().into_encoded_bytes()).collect();
        files.sort();
        narinfos.extend(files);
        (narinfos, job())
    };
    let before = seen();
    assert_eq!(before.1.state, JobState::Done, "{:?}", before.1);
    assert!(paths.iter().all(|(path, _)| is_zstd(path)));
    signal("-CONT", cluster.servers[paused].pid());
    let log = |server: &Server| server.log();
    let until = Instant::now() + PATIENCE;
    while !log(&cluster.servers[paused]).contains("another server") {
        assert!(Instant::now() < until, "it does not notice: {}", log(&cluster.servers[paused]));
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(seen(), before);
    // And one that is killed.
    let keys = cache.keys().unwrap().len();
    let id = cache.start_job(JobKind::Rotate, &json!({}), None, &admin()).unwrap().0.id;
    let job = || cache.job(&id).unwrap().unwrap();
    let until = Instant::now() + PATIENCE;
    while job().server.is_none() {
        assert!(Instant::now() < until, "{:?}", job());
        std::thread::sleep(Duration::from_millis(1));
    }
    if let Some(at) = cluster.server_of(&job()) {
        signal("-KILL", cluster.servers[at].pid());
    }
    while job().ended.is_none() {
        assert!(Instant::now() < until, "{:?}", job());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((job().state, cache.keys().unwrap().len()), (JobState::Done, keys + 1), "{:?}", job());
}
