//! Every kind of job, over both databases, in a folder and in a bucket, with servers that are killed at random while they do it: what comes of each is right.
//! `tools/kill-loop-jobs` does so many times.

use std::collections::{BTreeMap, HashSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use narval_codec::decode::Decoder;
use narval_files::Work;
use narval_http::Method;
use narval_keep::{
    Cache, CacheName, Data, DataOptions, Destination, FsckOptions, Grant, Job, JobKind, JobState, PinFor, SmallKind,
    StorageLocation,
};
use narval_nix::{Compression, NarInfo, Sha256, StoreDir, StorePath, TrustedKeys};
use narval_serve::{ApiRequest, ask_api};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::lab::Nar;
use crate::postgres::PostgresServer;
use crate::s3::{KEY, S3Server, SECRET};
use crate::support::{NARVAL, Server, Store};

/// Kills for each kind, unless NARVAL_JOB_KILLS says how many.
const KILLS: usize = 1;
/// Kills of one job: what it does in one step may take longer than the next one leaves it.
const KILLS_OF_ONE_MAX: usize = 3;
/// Paths of a cache, and the bytes of each.
pub const PATHS: usize = 60;
const NAR_BYTES: usize = 100_000;
/// How long a job may take without an end, kills included.
pub const PATIENCE: Duration = Duration::from_secs(400);
/// How often it is looked who does a job: the shortest ones take a few milliseconds.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// A log of each cache, and what it says.
const LOG: &str = "00000000000000000000000000000000-p.drv";
/// The bucket with everything.
const BUCKET: &str = "jobs";
/// Keys that a cache gets before another one is used.
const ROTATIONS_MAX: usize = 50;

pub fn admin() -> Grant {
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

/// Where the data of servers is.
#[derive(Clone, Copy)]
pub struct Way {
    pub servers: usize,
    pub on_postgres: bool,
    pub in_bucket: bool,
}

/// Servers of the same data, and where jobs copy it to.
pub struct Cluster {
    way: Way,
    store: Store,
    postgres: Option<PostgresServer>,
    s3: Option<S3Server>,
    data: Data,
    pub servers: Vec<Server>,
    random: Random,
    paths: usize,
}

/// The address of something below the root.
fn address(store: &Store, s3: Option<&S3Server>, name: &str) -> String {
    match s3 {
        Some(s3) => s3.url(BUCKET).replacen(BUCKET, &format!("{BUCKET}/{name}"), 1),
        None => format!("file://{}", store.path(name).display()),
    }
}

/// The place of data, for one of its nodes.
fn place(store: &Store, s3: Option<&S3Server>, name: &str, node: usize) -> StorageLocation {
    match s3 {
        Some(_) => StorageLocation::Bucket {
            url: address(store, s3, name).parse().unwrap(),
            folder: store.path(&format!("{name}-{node}")),
            cache_size: None,
        },
        None => StorageLocation::Folder(store.path(name)),
    }
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

/// The databases of the data, and of the data that is copied to.
const DATABASES: [&str; 2] = ["data", "there"];

impl Cluster {
    /// `None`, and a note, where a server for it is not installed.
    pub fn new(way: Way, seed: u64) -> Option<Self> {
        let postgres = if way.on_postgres { Some(PostgresServer::new()?) } else { None };
        let s3 = if way.in_bucket { Some(S3Server::versitygw()?) } else { None };
        let store = Store::new();
        if let Some(s3) = &s3 {
            s3.bucket(BUCKET);
        }
        if let Some(postgres) = &postgres {
            for name in DATABASES {
                postgres.sql("postgres", &format!("create database {name}")).unwrap();
            }
        }
        let this = |name: &str, node: usize| place(&store, s3.as_ref(), name, node);
        let database = |name: &str| postgres.as_ref().map(|postgres| postgres.url(name).parse().unwrap());
        let options = DataOptions { database: database("data"), ..DataOptions::default() };
        let data = Data::open(this("data", if way.on_postgres { way.servers } else { 0 }), options).unwrap();
        let export = address(&store, s3.as_ref(), "mirror").parse().unwrap();
        let destinations = [
            ("mirror", Destination::Export(export)),
            ("there", Destination::Migrate { place: this("there", 0), database: database("there") }),
        ];
        data.set_destinations(destinations.map(|(name, to)| (name.to_owned(), to)).into());
        let mut cluster =
            Self { way, store, postgres, s3, data, servers: Vec::new(), random: Random(seed | 1), paths: 0 };
        cluster.servers = (0..way.servers).map(|node| cluster.serve(node)).collect();
        Some(cluster)
    }

    /// Starts a server.
    fn serve(&self, node: usize) -> Server {
        let place = |name: &str| {
            let database = self.postgres.as_ref().map(|postgres| format!("database = '{}'\n", postgres.url(name)));
            let place = match place(&self.store, self.s3.as_ref(), name, node) {
                StorageLocation::Folder(folder) => format!("data = '{}'\n", folder.display()),
                // As text, an address has no parameters.
                StorageLocation::Bucket { folder, .. } => {
                    let url = address(&self.store, self.s3.as_ref(), name);
                    format!("data = '{url}'\ncache-dir = '{}'\n", folder.display())
                }
            };
            place + &database.unwrap_or_default()
        };
        let text = format!(
            "{}[[destination]]\nname = 'mirror'\nurl = '{}'\n[[destination]]\nname = 'there'\n{}",
            place("data"),
            address(&self.store, self.s3.as_ref(), "mirror"),
            place("there")
        );
        let file = self.store.path(&format!("node-{node}.toml"));
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(NARVAL);
        command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(file).env("NO_PROXY", "127.0.0.1");
        command.envs(self.s3.iter().flat_map(S3Server::environment));
        Server::start(command, &[("XDG_CACHE_HOME", self.store.path("cache").to_str().unwrap())])
    }

    /// The folder with the files of a cache: in the data, or where it is copied to.
    pub fn files(&self, name: &str, cache: &CacheName) -> PathBuf {
        let below = if name == "mirror" || self.way.in_bucket { name.to_owned() } else { format!("{name}/caches") };
        let root = self.s3.as_ref().map_or_else(|| self.store.path(""), |s3| s3.root().join(BUCKET));
        root.join(below).join(cache.as_str())
    }

    /// Removes what was copied to a destination.
    pub fn clear(&self, name: &str) {
        let root = self.s3.as_ref().map_or_else(|| self.store.path(""), |s3| s3.root().join(BUCKET));
        std::fs::remove_dir_all(root.join(name)).ok();
        (0..self.way.servers)
            .for_each(|node| drop(std::fs::remove_dir_all(self.store.path(&format!("{name}-{node}")))));
        if let Some(postgres) = self.postgres.as_ref().filter(|_| name == "there") {
            postgres.sql("postgres", "drop database there with (force)").unwrap();
            postgres.sql("postgres", "create database there").unwrap();
        }
    }

    pub fn ask(&self, method: &Method, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let asked = ApiRequest { method, path, query: None, body: body.as_bytes(), key: None };
        ask_api(&self.data, &admin(), &asked).unwrap_or_else(|refusal| panic!("{method} {path}: {refusal}"))
    }

    pub fn cache(&self, name: &CacheName) -> Cache {
        self.data.cache(name).unwrap().unwrap()
    }

    /// The number of the server with this process, if it lives.
    pub fn server_of(&self, job: &Job) -> Option<usize> {
        let who = job.server.as_ref()?;
        self.servers.iter().position(|server| who.starts_with(&format!("process {} ", server.pid())))
    }

    /// Another one starts when it is gone: the folder of a bucket is for one process.
    fn kill(&mut self, at: usize) {
        self.servers.remove(at).end("-KILL");
        let started = self.serve(at);
        self.servers.insert(at, started);
    }

    /// Pushes new paths, uncompressed and signed by the cache's keys.
    pub fn fill(&mut self, cache: &Cache, count: usize) -> Vec<(StorePath, Sha256)> {
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

    /// Makes the cache ready. Returns the options of the job.
    fn prepare(&mut self, round: &mut Round) -> Value {
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
        if is_new {
            cache.put_small(SmallKind::Log, LOG, &mut LOG.as_bytes(), &admin()).unwrap();
        }
        if is_new || kind == JobKind::Recompress || kind == JobKind::Gc {
            let paths = self.fill(&cache, PATHS);
            if kind == JobKind::Gc {
                round.paths.truncate(1);
                round.paths.extend(paths);
                let pinned = round.paths[0].0.hash_part();
                cache.pin("one", &pinned, PinFor { keep: None, until: None }, &admin()).unwrap();
            } else if is_new {
                round.paths = paths;
            } else {
                round.paths.extend(paths);
            }
        }
        match kind {
            JobKind::Export => self.clear("mirror"),
            JobKind::Migrate => self.clear("there"),
            _ => {}
        }
        options
    }

    /// Asks for the job.
    fn start(&self, round: &mut Round, options: &Value) {
        let cache = self.cache(&round.cache);
        if round.kind == JobKind::Gc {
            self.ask(&Method::PATCH, &format!("caches/{}", round.cache), &json!({"sizeMax": 1}));
        }
        round.job = Some(match round.kind {
            JobKind::Delete => {
                let job = self.ask(&Method::DELETE, &format!("caches/{}", round.cache), &Value::Null);
                cache.job(job["id"].as_str().unwrap()).unwrap().unwrap()
            }
            kind => cache.start_job(kind, options, None, &admin()).unwrap().0,
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
                let nars = self.files("data", &round.cache).join("nar");
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
                let folder = self.files("mirror", &round.cache);
                assert_eq!(exported(&folder), all, "{what}");
                assert_eq!(std::fs::read_to_string(folder.join("log").join(LOG)).unwrap(), LOG, "{what}");
                assert_eq!(std::fs::read_dir(folder.join("log")).unwrap().count(), 1, "{what}");
            }
            JobKind::Migrate => {
                let database = self.postgres.as_ref().map(|postgres| postgres.url("there").parse().unwrap());
                let options = DataOptions { database, must_exist: true, ..DataOptions::default() };
                let there = Data::open(place(&self.store, self.s3.as_ref(), "there", 0), options).unwrap();
                let copied = there.cache(&round.cache).unwrap().unwrap();
                read(&copied, kept);
                let (_, len) = copied.small_file(SmallKind::Log, LOG).unwrap().unwrap();
                assert_eq!(len, LOG.len() as u64, "{what}");
                let report = copied.fsck(FsckOptions { contents: true, repair: false }, Work::unwatched()).unwrap();
                assert_eq!((report.paths, report.problems), (all.len(), Vec::new()), "{what}");
            }
            JobKind::Gc => {}
        }
        // Nothing is lost, and of what was to go nothing is left.
        read(&cache, kept);
        assert_eq!(cache.list().unwrap().len(), kept.len(), "{what}");
        let report = cache.fsck(FsckOptions { contents: true, repair: false }, Work::unwatched()).unwrap();
        assert_eq!((report.paths, report.problems), (kept.len(), Vec::new()), "{what}");
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
            spread: Duration::from_millis(20),
        };
        let mut rounds: Vec<Round> = kinds.into_iter().map(round).collect();
        loop {
            for round in &mut rounds {
                let Some(before) = &round.job else { continue };
                let job = self.cache(&round.cache).job(&before.id).unwrap().unwrap();
                assert!(job.ended.is_some() || round.begun.elapsed() < PATIENCE, "it does not end: {job:?}");
                round.job = Some(job);
            }
            let has_ended = |round: &Round| round.job.as_ref().is_some_and(|job| job.ended.is_some());
            let may_be_met = |round: &Round| round.kills < kills && round.job.is_some() && !has_ended(round);
            // Jobs are short beside a check, and beside what makes a cache ready: while one may still be met, nothing else is done.
            if !rounds.iter().any(may_be_met) {
                for round in rounds.iter_mut().filter(|round| has_ended(round)) {
                    self.check(round, round.job.as_ref().unwrap());
                    eprintln!("{} is right, after {} kills in all", round.kind, round.kills);
                    (round.job, round.done) = (None, round.done + 1);
                }
                let mut waiting: Vec<_> =
                    rounds.iter_mut().filter(|round| round.job.is_none() && round.kills < kills).collect();
                let options: Vec<Value> = waiting.iter_mut().map(|round| self.prepare(round)).collect();
                waiting.iter_mut().zip(&options).for_each(|(round, options)| self.start(round, options));
            }
            if rounds.iter().all(|round| round.job.is_none() && round.kills >= kills) {
                return rounds.iter().map(|round| (round.kind.name(), (round.kills, round.done))).collect();
            }
            let running =
                |round: &Round| round.job.as_ref().and_then(|job| self.server_of(job)).map(|at| (round.kind, at));
            let met: Vec<_> = rounds
                .iter()
                .filter(|round| may_be_met(round) && round.kills_of_it < KILLS_OF_ONE_MAX)
                .filter_map(running)
                .collect();
            if met.is_empty() {
                std::thread::sleep(LOOK_EVERY);
                continue;
            }
            let (kind, at) = met[usize::try_from(self.random.below(met.len() as u64)).unwrap()];
            let spread = rounds.iter().find(|round| round.kind == kind).unwrap().spread;
            std::thread::sleep(Duration::from_micros(self.random.below(u64::try_from(spread.as_micros()).unwrap())));
            let pid = Pid::from_raw(self.servers[at].pid().try_into().unwrap()).unwrap();
            kill_process(pid, Signal::STOP).unwrap();
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
                    round.spread = round.spread.clamp(Duration::from_millis(1), Duration::from_secs(5));
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
pub fn exported(folder: &Path) -> HashSet<&'static str> {
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

fn kill_at_random(way: Way, kinds: &[JobKind]) {
    let seed = u64::from(std::process::id()) << 20
        | u64::from(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_micros());
    let database = if way.on_postgres { "PostgreSQL" } else { "SQLite" };
    let storage = if way.in_bucket { "bucket" } else { "folder" };
    let Some(mut cluster) = Cluster::new(way, seed) else { return };
    eprintln!("{database}, {storage}, {} servers, seed {seed}", way.servers);
    let begun = Instant::now();
    let done = cluster.run(kinds_or(kinds), kills_of_each());
    for (kind, (kills, jobs)) in &done {
        println!(
            "{kind} | {database} | {storage} | {kills} kills | {jobs} jobs | 0 wrong | {} s",
            begun.elapsed().as_secs()
        );
    }
}

#[test]
fn jobs_whose_server_is_killed_end_right() {
    kill_at_random(Way { servers: 1, on_postgres: false, in_bucket: false }, &JobKind::ALL);
}

/// After a kill, nobody collects for two minutes: kinds that do are for the long form.
fn without_collections() -> Vec<JobKind> {
    JobKind::ALL.into_iter().filter(|kind| !matches!(kind, JobKind::Gc | JobKind::Delete)).collect()
}

/// Runs a test by itself, in a process whose variables have the credentials of its bucket: of a process that runs other tests, nobody can change them.
pub fn alone(test: &str, variables: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", test]);
    command.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET).envs(variables.iter().copied());
    assert!(command.status().unwrap().success());
}

#[test]
fn jobs_whose_node_is_killed_end_right_at_another_one() {
    // In a bucket.
    let kinds: Vec<&str> = without_collections().into_iter().map(JobKind::name).collect();
    alone(
        "job_kills::jobs_are_killed_in_this_way",
        &[("NARVAL_JOB_WAY", "postgresql bucket"), ("NARVAL_JOB_KINDS", &kinds.join(","))],
    );
}

/// In the way that `tools/kill-loop-jobs` tells.
#[test]
#[ignore = "the long form: tools/kill-loop-jobs"]
fn jobs_are_killed_in_this_way() {
    let told = std::env::var("NARVAL_JOB_WAY").unwrap_or_default();
    let is = |word: &str| told.split(' ').any(|told| told == word);
    let (on_postgres, in_bucket) = (is("postgresql"), is("bucket"));
    kill_at_random(Way { servers: if on_postgres { 2 } else { 1 }, on_postgres, in_bucket }, &JobKind::ALL);
}
