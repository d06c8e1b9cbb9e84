//! Servers whose NARs are in a bucket of a real object store, with the index in SQLite and in PostgreSQL.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::lab::{Lab, Nar};
use crate::postgres::PostgresServer;
use crate::s3::S3Server;
use crate::s3::proxy::{Fault, Proxy};
use crate::support::{NARVAL, Nix, Server, Store, hash_part, noise};

/// An object store, and what a server over it needs.
pub struct Place {
    pub s3: S3Server,
    pub postgres: Option<PostgresServer>,
    pub url: String,
    pub database: Option<String>,
}

impl Place {
    pub fn new(on_postgres: bool) -> Option<Self> {
        Self::over(S3Server::chosen()?, on_postgres)
    }

    pub fn over(s3: S3Server, on_postgres: bool) -> Option<Self> {
        let postgres = if on_postgres { Some(PostgresServer::new()?) } else { None };
        let database = postgres.as_ref().map(PostgresServer::database);
        let url = s3.bucket("the-cache").replace("the-cache", "the-cache/a/prefix");
        Some(Self { s3, postgres, url, database })
    }

    /// The options that say where the cache is. `node` has a folder of its own.
    pub fn options(&self, store: &Store, node: &str) -> Vec<String> {
        let folder = store.path(node).display().to_string();
        let mut options = vec!["--data".to_owned(), self.url.clone(), "--cache-dir".to_owned(), folder];
        if let Some(database) = &self.database {
            options.extend(["--database".to_owned(), database.clone()]);
        }
        options
    }

    pub fn environment(&self) -> Vec<(String, String)> {
        let mut environment = self.s3.environment();
        environment.push(("AWS_EC2_METADATA_DISABLED".to_owned(), "true".to_owned()));
        environment.push(("NO_PROXY".to_owned(), "127.0.0.1".to_owned()));
        environment
    }

    pub fn serve(&self, store: &Store, node: &str) -> Server {
        self.serve_with(store, node, &[])
    }

    fn serve_with(&self, store: &Store, node: &str, more: &[&str]) -> Server {
        let mut command = Command::new(NARVAL);
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--cache-size", "1G"])
            .args(self.options(store, node))
            .args(more);
        let environment = self.environment();
        let environment: Vec<_> = environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        Server::start(command, &environment)
    }

    /// From now on, all requests go through a proxy.
    pub fn put_proxy(&mut self) -> Proxy {
        let proxy = Proxy::to(self.s3.port);
        self.url = self.url.replace(&self.s3.port.to_string(), &proxy.port.to_string());
        proxy
    }

    /// Ends the server, and starts another over the same folder, with these options.
    fn restart(&self, lab: Lab, more: &[&str]) -> Lab {
        let Lab { store, server } = lab;
        server.end("-TERM");
        let server = self.serve_with(&store, "node", more);
        Lab { store, server }
    }

    pub fn lab(&self) -> Lab {
        let store = Store::new();
        let server = self.serve(&store, "node");
        Lab { store, server }
    }

    fn run(&self, lab: &Lab, args: &[&str]) -> Output {
        let mut command = Command::new(NARVAL);
        command.args(args).args(self.options(&lab.store, "node")).envs(self.environment()).output().unwrap()
    }

    /// What a command of administration prints.
    pub fn narval(&self, lab: &Lab, args: &[&str]) -> String {
        let output = self.run(lab, args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }
}

fn a_push_is_read_back_with_the_server_and_without(place: Option<Place>) {
    let Some(place) = place else { return };
    let mut lab = place.lab();
    let token = place.narval(&lab, &["token", "create", "--push", "--pull", "ci"]);
    let mut paths = Vec::new();
    for (at, nix) in [Nix::Newest, Nix::Old].into_iter().enumerate() {
        let tree = lab.store.add_tree(&format!("tree-{at}"));
        lab.push(nix, &token, "", &tree).unwrap();
        lab.pull(nix, &tree);
        // From the disk cache, and by the other one.
        lab.pull(Nix::Newest, &tree);
        paths.push(tree);
    }
    // Killed in the middle of an upload: nothing of it is visible, and the repetition completes.
    let large = lab.store.add_file("large", noise(1, 60 << 20));
    let pid = lab.server.pid();
    std::thread::scope(|scope| {
        let pushed = scope.spawn(|| lab.push(Nix::Newest, &token, "compression=none", &large));
        std::thread::sleep(Duration::from_millis(700));
        assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
        pushed.join().unwrap().ok();
    });
    let new = place.serve(&lab.store, "node");
    let old = std::mem::replace(&mut lab.server, new);
    old.end("-KILL");
    lab.push(Nix::Newest, &token, "compression=none", &large).unwrap();
    lab.pull(Nix::Newest, &large);
    paths.push(large);
    assert_eq!(place.narval(&lab, &["cache", "fsck", "--contents"]), "");
    assert_eq!(place.narval(&lab, &["cache", "list"]).lines().count(), 3);
    place.narval(&lab, &["pin", "add", "release", &paths[0]]);
    assert!(place.narval(&lab, &["cache", "why", &paths[0]]).contains("release"));
    // Without any server: by narval, and by Nix, which reads what everybody may read.
    let Lab { store, server } = lab;
    server.end("-TERM");
    let root = store.path("installed");
    let mut install = Command::new(NARVAL);
    install.arg("install").args(&paths).args(["--from", &place.url, "--no-check-sigs", "--store"]).arg(&root);
    let output = install.envs(place.environment()).env("HOME", store.dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for path in &paths {
        let mut diff = Command::new("diff");
        diff.args(["-r", "--no-dereference"]).args([store.real(path), root.join(&path[1..])]);
        assert!(diff.status().unwrap().success(), "{path} differs");
    }
    place.s3.make_public("the-cache");
    let copied = store.path("copied");
    let mut copy = vec!["copy", "--from", &place.url, "--to", copied.to_str().unwrap()];
    copy.extend(["--option", "require-sigs", "false"]);
    copy.extend(paths.iter().map(String::as_str));
    let output = Nix::Newest.nix(store.dir.path(), &copy);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Both trees have the same NAR. The index is made again from the bucket alone, in another folder and another database.
    let mut rebuild = Command::new(NARVAL);
    rebuild.args(["cache", "fsck", "--rebuild", "--data", &place.url, "--cache-dir"]).arg(store.path("node-2"));
    if let Some(postgres) = &place.postgres {
        rebuild.args(["--database", &postgres.database()]);
    }
    let output = rebuild.envs(place.environment()).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && message.contains("3 paths, 2 NARs, 0 problems"), "{message}");
}

#[test]
fn a_push_is_read_back_with_the_server_and_without_it() {
    a_push_is_read_back_with_the_server_and_without(Place::new(false));
}

#[test]
fn a_push_is_read_back_with_the_server_and_without_it_on_postgres() {
    a_push_is_read_back_with_the_server_and_without(Place::new(true));
}

#[test]
fn a_push_is_read_back_with_the_server_and_without_it_over_seaweedfs() {
    let Some(s3) = S3Server::seaweedfs() else { return };
    a_push_is_read_back_with_the_server_and_without(Place::over(s3, false));
}

#[test]
fn two_nodes_share_a_bucket() {
    let Some(place) = Place::new(true) else { return };
    let one = place.lab();
    let other = Lab { server: place.serve(&one.store, "other-node"), store: Store::new() };
    let token = place.narval(&one, &["token", "create", "--push", "--pull", "ci"]);
    let path = one.store.add_tree("tree");
    let narinfo = format!("/{}.narinfo", hash_part(&path));
    assert_eq!(other.get(&narinfo).status, 404);
    one.push(Nix::Newest, &token, "", &path).unwrap();
    assert_eq!(other.get(&narinfo).status, 200, "the next request to another node sees it");
    one.pull_from(&other.server, Nix::Newest, &path);
    place.narval(&one, &["cache", "delete", &path]);
    assert_eq!((one.get(&narinfo).status, other.get(&narinfo).status), (404, 404));
    one.push(Nix::Newest, &token, "", &path).unwrap();
    one.pull_from(&other.server, Nix::Newest, &path);
}

#[test]
fn the_object_store_goes_away_and_comes_back() {
    let Some(mut place) = Place::new(false) else { return };
    let lab = place.lab();
    let token = place.narval(&lab, &["token", "create", "--push", "--pull", "ci"]);
    let (known, unread) = (lab.store.add_tree("known"), lab.store.add_file("unread", noise(1, 50_000)));
    for path in [&known, &unread] {
        lab.push(Nix::Newest, &token, "", path).unwrap();
    }
    lab.pull(Nix::Newest, &known);
    let nar_of = |path: &str| {
        let narinfo = lab.get(&format!("/{}.narinfo", hash_part(path)));
        format!("/{}", crate::support::value(narinfo.text(), "URL").unwrap())
    };
    let (known_nar, unread_nar) = (nar_of(&known), nar_of(&unread));
    place.s3.stop();
    // What this node has, it serves.
    lab.pull(Nix::Newest, &known);
    assert_eq!(lab.get(&known_nar).status, 200);
    // What it does not have is not said to be absent, and an upload is not half done.
    let answer = lab.get(&unread_nar);
    assert_eq!((answer.status, answer.field("Retry-After").is_some()), (503, true));
    let nar = Nar::of(b"sent while the object store is away");
    let answer = lab.put(&nar.url(), &token, &nar.bytes);
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(answer.text().contains("object store cannot be reached"), "{}", answer.text());
    // What is not recorded is not there.
    assert_eq!(lab.server.ask("HEAD", &nar.url(), &[]).status, 404);
    place.s3.start_again();
    let begun = Instant::now();
    while lab.get(&unread_nar).status != 200 {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not come back");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(matches!(lab.put(&nar.url(), &token, &nar.bytes).status, 200 | 201));
    lab.pull(Nix::Newest, &unread);
}

/// How often the object store and the database are asked, for a push and for reads that are the first or later ones.
#[test]
fn a_push_and_reads_ask_the_object_store_and_the_database_seldom() {
    const PATHS: usize = 30;
    let Some(mut place) = Place::new(true) else { return };
    let proxy = place.put_proxy();
    let lab = place.lab();
    let token = place.narval(&lab, &["token", "create", "--push", "--pull", "ci"]);
    let contents = |number: usize| [&number.to_le_bytes()[..], &noise(1, 3000)].concat();
    let paths: Vec<String> = (0..PATHS).map(|at| lab.store.add_file(&format!("file-{at}"), contents(at))).collect();
    let postgres = place.postgres.as_ref().unwrap();
    postgres.log_statements();
    let push = || {
        let begun = postgres.log_len();
        proxy.take_requests();
        narval_push(&lab, &lab.server.url(), &token, &paths);
        (proxy.take_requests(), postgres.asked_since(begun))
    };
    let (requests, asked) = push();
    eprintln!(
        "push of {PATHS} paths: {} requests, {} transactions, {} statements",
        requests.len(),
        asked.transactions.len(),
        asked.statements.len()
    );
    assert!(requests.len() <= 2 * PATHS + 5, "{requests:?}");
    // Leases of the paths that are there, names of NARs before they are stored, the commit, and that the narinfos are written.
    assert!(asked.transactions.len() <= 5, "{:?}", asked.transactions);
    assert!(asked.statements.len() <= 2 * PATHS + 10, "{:?}", asked.statements);
    let (requests, asked) = push();
    assert_eq!(requests, Vec::<String>::new(), "nothing is missing");
    assert!(asked.transactions.len() <= 2 && asked.statements.len() <= 10, "{asked:?}");

    // A node that has just started: what is asked for the first time, and again.
    let other = Lab { server: place.serve(&lab.store, "other-node"), store: Store::new() };
    // What its start asks the object store for is not counted.
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let requests = proxy.take_requests();
        if requests.is_empty() {
            break;
        }
        assert!(Instant::now() < until, "{requests:?}");
        eprintln!("asked for at the start: {requests:?}");
        std::thread::sleep(Duration::from_millis(500));
    }
    let narinfos: Vec<String> = paths.iter().map(|path| format!("/{}.narinfo", hash_part(path))).collect();
    let read = |targets: &[String]| {
        let begun = postgres.log_len();
        proxy.take_requests();
        let answers: Vec<_> = targets.iter().map(|target| other.get(target)).collect();
        assert!(answers.iter().all(|answer| answer.status == 200));
        let asked = postgres.asked_since(begun);
        assert_eq!(asked.transactions, Vec::<Vec<String>>::new());
        let url = |answer: &crate::support::Answer| {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            crate::support::value(&text, "URL").map(|url| format!("/{url}"))
        };
        let urls = answers.iter().filter_map(url);
        let is_of_reading = |text: &&String| text.contains("narval.paths") || text.contains("narval.nars");
        let statements = asked.statements.iter().filter(is_of_reading).count();
        (proxy.take_requests().len(), statements, urls.collect::<Vec<String>>())
    };
    let (requests, statements, nars) = read(&narinfos);
    assert_eq!((requests, nars.len()), (0, PATHS));
    assert!(statements <= PATHS + 2, "{statements}");
    let (requests, statements, _) = read(&narinfos);
    assert_eq!((requests, statements), (0, 0), "remembered");
    let (requests, statements, _) = read(&nars);
    assert_eq!(requests, PATHS, "one for each NAR");
    assert!(statements <= 2 * PATHS, "{statements}");
    let (requests, statements, _) = read(&nars);
    assert_eq!((requests, statements), (0, 0), "in the disk cache");
}

/// Pushes paths with `narval push`. Returns the requests that the object store got, and what the database was asked, if there is one.
fn push_and_count(
    place: &Place,
    lab: &Lab,
    token: &str,
    proxy: &Proxy,
    paths: &[String],
) -> (Vec<String>, Vec<Vec<String>>) {
    let begun = place.postgres.as_ref().map(|postgres| postgres.log_len());
    proxy.take_requests();
    narval_push(lab, &lab.server.url(), token, paths);
    let transactions =
        place.postgres.as_ref().zip(begun).map(|(postgres, begun)| postgres.asked_since(begun).transactions);
    (proxy.take_requests(), transactions.unwrap_or_default())
}

/// Pushes paths to a server with `narval push`.
fn narval_push(lab: &Lab, url: &str, token: &str, paths: &[String]) {
    let mut command = Command::new(NARVAL);
    command.args(["push", "--store", &lab.store.uri(), "--to", url, "--netrc-file"]).arg(lab.netrc(token)).args(paths);
    let output = command.env("HOME", lab.store.dir.path()).env("NO_PROXY", "127.0.0.1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// NARs of all sizes: none costs a transaction of its own.
fn a_push_of_large_nars_asks_seldom(place: Option<Place>) {
    const SMALL: usize = 20;
    let Some(mut place) = place else { return };
    let proxy = place.put_proxy();
    let lab = place.lab();
    let token = place.narval(&lab, &["token", "create", "--push", "--pull", "ci"]);
    if let Some(postgres) = &place.postgres {
        postgres.log_statements();
    }
    let contents = |number: usize, len: usize| [&number.to_le_bytes()[..], &noise(1, len)].concat();
    let mut lens = vec![3_000; SMALL];
    lens.extend([
        600_000, 700_000, 900_000, 1_200_000, 2_000_000, 3_000_000, 5_000_000, 8_000_000, 12_000_000, 20_000_000,
    ]);
    let paths = |from: usize| -> Vec<String> {
        let add =
            |(at, len): (usize, &usize)| lab.store.add_file(&format!("file-{}", from + at), contents(from + at, *len));
        lens.iter().enumerate().map(add).collect()
    };
    for round in 0..2 {
        let paths = paths(round * lens.len());
        let (requests, transactions) = push_and_count(&place, &lab, &token, &proxy, &paths);
        let large = lens.len() - SMALL;
        eprintln!(
            "push of {} paths, {large} of them with more than 512 KiB: {} requests, {} transactions",
            paths.len(),
            requests.len(),
            transactions.len()
        );
        assert!(requests.len() <= 2 * paths.len() + 5, "{requests:?}");
        // Leases of the paths that are there, in the first round that this server stores NARs, the commit, and that the narinfos are written. NARs are
        // recorded by single statements.
        assert!(transactions.len() <= 5 - round, "{transactions:?}");
        for path in &paths {
            lab.pull(Nix::Newest, path);
        }
    }
    assert_eq!(place.narval(&lab, &["cache", "fsck", "--contents"]), "");
}

#[test]
fn a_push_of_large_nars_asks_the_object_store_and_the_database_seldom() {
    a_push_of_large_nars_asks_seldom(Place::new(true));
}

#[test]
fn a_push_of_large_nars_asks_the_object_store_seldom_with_sqlite() {
    a_push_of_large_nars_asks_seldom(Place::new(false));
}

/// One process collects at a time: `cache gc` says which one does, and waits as long as it is told.
#[test]
fn gc_waits_for_a_collection_by_another_node() {
    let Some(place) = Place::new(true) else { return };
    let lab = place.lab();
    place.narval(&lab, &["token", "create", "--push", "ci"]);
    let postgres = place.postgres.as_ref().unwrap();
    let database = place.database.as_deref().unwrap().split(['/', '?']).nth(3).unwrap();
    let lease = |until: &str| {
        let set = format!(
            "insert into narval.work values ('collection', 'process 7 on another-node', 1, {until}) \
             on conflict (name) do update set owner = excluded.owner, until = excluded.until"
        );
        postgres.sql(database, &set).unwrap();
    };
    lease("extract(epoch from now())::bigint + 3600");
    let output = place.run(&lab, &["cache", "gc", "--wait", "0s"]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        (output.status.code(), message.contains("process 7 on another-node is collecting")),
        (Some(1), true),
        "{message}"
    );
    let mut gc = Command::new(NARVAL);
    gc.args(["cache", "gc"]).args(place.options(&lab.store, "node")).envs(place.environment());
    let mut gc = gc.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut message = std::io::BufReader::new(gc.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("process 7 on another-node is collecting") {
        assert!(std::io::BufRead::read_line(&mut message, &mut line).unwrap() > 0, "{line}");
    }
    assert!(gc.try_wait().unwrap().is_none(), "it waits");
    lease("0");
    std::io::Read::read_to_string(&mut message, &mut line).unwrap();
    assert!(gc.wait().unwrap().success() && line.contains("removed 0 paths"), "{line}");
}

/// What was done through any node, and on the command line.
#[test]
fn the_audit_log_is_that_of_all_nodes() {
    let Some(place) = Place::new(true) else { return };
    let lab = place.lab();
    let other = Lab { server: place.serve(&lab.store, "other-node"), store: Store::new() };
    let token = place.narval(&lab, &["token", "create", "--push", "ci-of-the-team"]);
    let nars = [Nar::of(b"at one node"), Nar::of(b"at the other node")];
    for (lab, nar) in [&lab, &other].into_iter().zip(&nars) {
        assert_eq!(lab.put(&nar.url(), &token, &nar.bytes).status, 201);
    }
    let begun = Instant::now();
    let mut log = String::new();
    while !nars.iter().all(|nar| log.contains(nar.url().trim_start_matches("/nar/"))) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{log}");
        log = place.narval(&lab, &["cache", "audit", "--json", "--since", "1h"]);
    }
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |action: &str, label: &str| {
        let is_it = |line: &&serde_json::Value| {
            line["action"] == action && line["result"] == "ok" && line["label"].as_str().unwrap().starts_with(label)
        };
        lines.iter().filter(is_it).count()
    };
    assert_eq!((count("nar", "ci-of-the-team"), count("create token", "user ")), (2, 1), "{log}");
    let text = place.narval(&lab, &["cache", "audit"]);
    assert!(text.contains("ci-of-the-team (") && text.contains(", 127.0.0.1") && text.contains("nar "), "{text}");
}

/// The disk cache may have more bytes than its disk has room for: what was not needed for longest is removed.
#[test]
fn a_disk_smaller_than_the_disk_cache() {
    let may_mount = Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    if !may_mount.is_ok_and(|output| output.status.success()) {
        eprintln!("note: skipped: a file system of the test's own can't be mounted");
        return;
    }
    // The index is elsewhere.
    let Some(place) = Place::new(true) else { return };
    let store = Store::new();
    let small = store.path("small");
    std::fs::create_dir(&small).unwrap();
    let script = "mount -t tmpfs -o size=24m none \"$0\" && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, small.to_str().unwrap(), NARVAL, "serve", "--listen", "127.0.0.1:0"]);
    command.args(["--cache-size", "1G"]).args(place.options(&store, "small/node"));
    let environment = place.environment();
    let environment: Vec<_> = environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let server = Server::start(command, &environment);
    let lab = Lab { store, server };
    let token = place.narval(&lab, &["token", "create", "--push", "ci"]);
    let nars: Vec<Nar> = (0..20_u8).map(|number| Nar::of(&[&[number][..], &noise(1, 2 << 20)].concat())).collect();
    for nar in &nars {
        assert_eq!(lab.put(&nar.url(), &token, &nar.bytes).status, 201);
    }
    // 40 MiB, twice: the second time, some have been removed.
    for _ in 0..2 {
        for nar in &nars {
            let answer = lab.get(&nar.url());
            assert!(answer.status == 200 && answer.body == nar.bytes, "{}: {}", answer.status, lab.server.log());
        }
    }
    assert!(!lab.server.log().contains("cannot be written"), "{}", lab.server.log());
    // A push has its file on that disk until it is verified.
    let orphans: Vec<String> = nars.iter().map(Nar::url).collect();
    for number in 0..10_u8 {
        let pushed = Nar::of(&[&[number, 1][..], &noise(1, 3 << 20)].concat());
        let query = ["", "?offset=0&last=1"][usize::from(number % 2)];
        let url = format!("/_narval/v1/nar/{}.nar{query}", pushed.hash.to_nix32());
        let answer = lab.put(&url, &token, &pushed.bytes);
        assert_eq!(answer.status, 201, "{number}: {} {}", answer.text(), lab.server.log());
        // The disk cache is full again.
        for nar in nars.iter().take(12) {
            assert_eq!(lab.get(&nar.url()).status, 200);
        }
    }
    // Objects take no space there.
    assert!(!lab.server.log().contains("out of space: deleted"), "{}", lab.server.log());
    assert!(orphans.iter().all(|nar| lab.get(nar).status == 200));
}

/// The path of a path's NAR at the server.
fn nar_of(server: &Server, path: &str) -> String {
    let narinfo = server.get(&format!("/{}.narinfo", hash_part(path)));
    format!("/{}", crate::support::value(narinfo.text(), "URL").unwrap())
}

pub fn metric(server: &Server, name: &str) -> u64 {
    let metrics = server.get("/metrics");
    metrics.figure(name).unwrap_or_else(|| panic!("no {name} in {}", metrics.text()))
}

#[test]
fn large_nars_are_read_from_the_object_store_itself() {
    let Some(mut place) = Place::new(false) else { return };
    let proxy = place.put_proxy();
    let lab = place.lab();
    let token = place.narval(&lab, &["token", "create", "--push", "--pull", "ci"]);
    let (large, small) =
        (lab.store.add_file("large", noise(1, 12 << 20)), lab.store.add_file("small", noise(1, 100_000)));
    for path in [&large, &small] {
        lab.push(Nix::Newest, &token, "compression=none", path).unwrap();
    }
    let (nar, small_nar) = (nar_of(&lab.server, &large), nar_of(&lab.server, &small));
    let redirected = |lab: &Lab| metric(&lab.server, "narval_nars_redirected_total");

    // The first one is sent away; the second one fetches it for those who come later.
    let lab = place.restart(lab, &["--redirect", "auto"]);
    assert_eq!([(); 3].map(|()| lab.get(&nar).status), [307, 200, 200]);
    assert_eq!(redirected(&lab), 1);

    let log = lab.store.path("access.log");
    let lab = place.restart(lab, &["--redirect", "on", "--access-log", log.to_str().unwrap()]);
    let answer = lab.get(&nar);
    let location = answer.field("Location").unwrap().to_owned();
    assert_eq!((answer.status, answer.field("Cache-Control")), (307, Some("no-store")));
    assert!(location.starts_with(&format!("http://127.0.0.1:{}/the-cache/a/prefix/nar/", proxy.port)), "{location}");
    assert!(location.contains("X-Amz-Expires=300&") && location.contains("X-Amz-Signature="), "{location}");
    assert!(!location.contains(crate::s3::SECRET), "{location}");
    // All else is answered here.
    assert_eq!(lab.get(&small_nar).status, 200);
    let head = lab.server.ask("HEAD", &nar, &[]);
    let tag = head.field("ETag").unwrap();
    let ask = |fields: &[&str]| lab.server.ask("GET", &nar, fields).status;
    assert_eq!((head.status, ask(&["Range: bytes=5-9"])), (200, 206));
    assert_eq!(ask(&[&format!("If-None-Match: {tag}")]), 304);
    assert_eq!(ask(&["Range: bytes=5-9", &format!("If-Range: {tag}")]), 206);
    assert_eq!(ask(&["Range: bytes=5-9", "If-Range: \"other\""]), 307);
    assert_eq!(redirected(&lab), 2);
    for nix in [Nix::Newest, Nix::Old] {
        lab.pull(nix, &large);
    }
    assert_eq!(redirected(&lab), 4);
    // The rest of a NAR whose connection broke comes from the store, too.
    let mut reads = 0;
    proxy.take_requests();
    proxy.set(move |method, target| {
        reads += usize::from(method == "GET" && target.contains("/nar/"));
        if reads == 1 { Fault::Cut } else { Fault::None }
    });
    let root = lab.store.path("installed");
    let mut install = Command::new(NARVAL);
    install.args(["install", &large, "--from", &lab.server.url(), "--no-check-sigs", "--store"]).arg(&root);
    let output = install.env("HOME", lab.store.dir.path()).env("NO_PROXY", "127.0.0.1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::fs::read(root.join(&large[1..])).unwrap() == noise(1, 12 << 20));
    assert_eq!(proxy.take_requests().iter().filter(|request| request.contains("/nar/")).count(), 2);
    let counted = metric(&lab.server, "narval_requests_total{route=\"nar\",status=\"307\"}");
    assert_eq!((counted, redirected(&lab)), (6, 6));
    assert_eq!(std::fs::read_to_string(&log).unwrap().matches(" 307 ").count(), 6);
}

#[test]
fn redirects_of_a_private_cache_need_its_token() {
    let Some(place) = Place::new(false) else { return };
    let lab = place.lab();
    let token = place.narval(&lab, &["token", "create", "--push", "--pull", "ci"]);
    let large = lab.store.add_file("large", noise(1, 9 << 20));
    lab.push(Nix::Newest, &token, "compression=none", &large).unwrap();
    let nar = nar_of(&lab.server, &large);
    let lab = place.restart(lab, &["--redirect", "on", "--private"]);
    assert_eq!(lab.get(&nar).status, 401);
    assert_eq!(lab.send("GET", &nar, &token, &[], b"").status, 307);
    for nix in [Nix::Newest, Nix::Old] {
        let to = tempfile::tempdir().unwrap();
        let copy = ["copy", "--refresh", "--from", &lab.server.url(), "--to", to.path().to_str().unwrap(), &large];
        lab.nix(nix, &token, &[&copy[..], &["--option", "require-sigs", "false"]].concat()).unwrap();
        assert!(std::fs::read(to.path().join(&large[1..])).unwrap() == noise(1, 9 << 20));
        Command::new("chmod").args(["-R", "u+w"]).arg(to.path()).status().unwrap();
    }
    let output = Command::new(NARVAL).args(["serve", "--data", "/nowhere", "--redirect", "on"]).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2) && message.contains("option --redirect: needs --data in a bucket"),
        "{message}"
    );
}

/// Answers the first requests for NARs in these ways, and the others well.
fn at_first(proxy: &Proxy, faults: Vec<Fault>) {
    let mut faults = faults.into_iter();
    proxy.set(move |method, target| {
        let fault = if method == "GET" && target.contains("/nar/") { faults.next() } else { None };
        fault.unwrap_or(Fault::None)
    });
}

#[test]
fn an_object_store_that_refuses_or_damages_is_not_believed() {
    let Some(mut place) = Place::new(false) else { return };
    let proxy = place.put_proxy();
    let lab = place.restart(place.lab(), &["--redirect", "on"]);
    let token = place.narval(&lab, &["token", "create", "--push", "--pull", "ci"]);
    let (kept, large) = (lab.store.add_tree("kept"), lab.store.add_file("large", noise(1, 9 << 20)));
    let add = |name: &str| lab.store.add_file(name, [name.as_bytes(), &noise(1, 300_000)].concat());
    let [slow, once, damaged, cut] = ["slow", "once", "damaged", "cut"].map(add);
    for path in [&kept, &large, &slow, &once, &damaged, &cut] {
        lab.push(Nix::Newest, &token, "compression=none", path).unwrap();
    }
    lab.pull(Nix::Newest, &kept);
    let large_nar = nar_of(&lab.server, &large);
    assert_eq!(
        lab.server.ask("GET", &large_nar, &["Range: bytes=0-9"]).status,
        206,
        "it is fetched into the disk cache"
    );
    assert_eq!(lab.get(&large_nar).status, 307);
    // A refusal or a broken connection is hardly noticed.
    at_first(&proxy, vec![Fault::SlowDown, Fault::SlowDown]);
    lab.pull(Nix::Newest, &slow);
    at_first(&proxy, vec![Fault::Cut, Fault::Cut]);
    lab.pull(Nix::Newest, &cut);
    // What does not have its hash is never sent to its end. It is fetched once more, and if it is damaged again, no longer.
    let complete = |path: &str| {
        let answer = lab.get(&nar_of(&lab.server, path));
        answer.status == 200 && answer.complete
    };
    proxy.take_requests();
    at_first(&proxy, vec![Fault::Damaged]);
    let tried = (0..600).position(|_| {
        std::thread::sleep(Duration::from_millis(100));
        complete(&once)
    });
    assert!(tried.is_some_and(|tried| tried > 0), "{tried:?}: the damaged one is not sent, the other one is");
    at_first(&proxy, vec![Fault::Damaged; 100]);
    for _ in 0..5 {
        assert!(!complete(&damaged));
    }
    assert_eq!(proxy.take_requests().iter().filter(|request| request.contains("/nar/")).count(), 4);
    assert!(lab.server.log().contains("is damaged: its SHA-256 is"), "{}", lab.server.log());
    assert!(complete(&kept));
    // Uploads end with an error while the store refuses. Nothing of them is visible, and what is here is served.
    proxy.set(|_, _| Fault::SlowDown);
    let new = Nar::of(&noise(1, 20_000));
    let name = "00000000000000000000000000000001-new";
    for _ in 0..3 {
        let answer = lab.put(&new.url(), &token, &new.bytes);
        assert!(answer.status == 503 && answer.field("Retry-After").is_some(), "{}", answer.text());
        assert!(answer.text().contains("object store"), "{}", answer.text());
        let narinfo = lab.put(&format!("/{}.narinfo", hash_part(name)), &token, new.narinfo(name, &[]).as_bytes());
        assert!(narinfo.status >= 400, "{}", narinfo.status);
    }
    assert_eq!(lab.get(&format!("/{}.narinfo", hash_part(name))).status, 404);
    assert_eq!(lab.get(&large_nar).status, 200, "nobody is sent to a store that fails");
    lab.pull(Nix::Newest, &kept);
    // And are complete when they are repeated.
    proxy.set(|_, _| Fault::None);
    let begun = Instant::now();
    while !matches!(lab.put(&new.url(), &token, &new.bytes).status, 200 | 201) {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not recover");
        std::thread::sleep(Duration::from_millis(500));
    }
    let narinfo = lab.put(&format!("/{}.narinfo", hash_part(name)), &token, new.narinfo(name, &[]).as_bytes());
    assert!(matches!(narinfo.status, 200 | 201), "{}", narinfo.text());
    assert!(lab.get(&new.url()).body == new.bytes);
    // The objects are good: another process reads them, and a check finds nothing.
    let lab = place.restart(lab, &[]);
    lab.pull(Nix::Newest, &damaged);
    assert_eq!(place.narval(&lab, &["cache", "fsck", "--contents"]), "");
}
