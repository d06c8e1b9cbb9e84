//! Servers whose NARs are in a bucket of a real object store, with the index in SQLite and in PostgreSQL.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::lab::{Lab, Nar};
use crate::postgres::PostgresServer;
use crate::s3::S3Server;
use crate::support::{NARVAL, Nix, Server, Store, hash_part};

/// An object store, and what a server over it needs.
struct Place {
    s3: S3Server,
    postgres: Option<PostgresServer>,
    url: String,
    database: Option<String>,
}

impl Place {
    fn new(on_postgres: bool) -> Option<Self> {
        let s3 = S3Server::versitygw()?;
        let postgres = if on_postgres { Some(PostgresServer::new()?) } else { None };
        let database = postgres.as_ref().map(PostgresServer::database);
        let url = s3.bucket("the-cache").replace("the-cache", "the-cache/a/prefix");
        Some(Self { s3, postgres, url, database })
    }

    /// The options that say where the cache is. `node` has a folder of its own.
    fn options(&self, store: &Store, node: &str) -> Vec<String> {
        let folder = store.path(node).display().to_string();
        let mut options = vec!["--data".to_owned(), self.url.clone(), "--cache-dir".to_owned(), folder];
        if let Some(database) = &self.database {
            options.extend(["--database".to_owned(), database.clone()]);
        }
        options
    }

    fn environment(&self) -> Vec<(String, String)> {
        let mut environment = self.s3.environment();
        environment.push(("AWS_EC2_METADATA_DISABLED".to_owned(), "true".to_owned()));
        environment.push(("NO_PROXY".to_owned(), "127.0.0.1".to_owned()));
        environment
    }

    fn serve(&self, store: &Store, node: &str) -> Server {
        let mut command = Command::new(NARVAL);
        command.args(["serve", "--listen", "127.0.0.1:0", "--cache-size", "1G"]).args(self.options(store, node));
        let environment = self.environment();
        let environment: Vec<_> = environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        Server::start(command, &environment)
    }

    fn lab(&self) -> Lab {
        let store = Store::new();
        let server = self.serve(&store, "node");
        Lab { store, server }
    }

    fn run(&self, lab: &Lab, args: &[&str]) -> Output {
        let mut command = Command::new(NARVAL);
        command.args(args).args(self.options(&lab.store, "node")).envs(self.environment()).output().unwrap()
    }

    /// What a command of administration prints.
    fn narval(&self, lab: &Lab, args: &[&str]) -> String {
        let output = self.run(lab, args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }
}

/// Contents that do not compress.
fn noise(len: usize) -> Vec<u8> {
    let (mut contents, mut digest) = (Vec::new(), narval_nix::Sha256::of(b"noise"));
    while contents.len() < len {
        digest = narval_nix::Sha256::of(digest.as_bytes());
        contents.extend_from_slice(digest.as_bytes());
    }
    contents
}

fn a_push_is_read_back_with_the_server_and_without(on_postgres: bool) {
    let Some(place) = Place::new(on_postgres) else { return };
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
    let large = lab.store.add_file("large", noise(60 << 20));
    let pid = lab.server.pid();
    std::thread::scope(|scope| {
        let pushed = scope.spawn(|| lab.push(Nix::Newest, &token, "compression=none", &large));
        std::thread::sleep(Duration::from_millis(700));
        assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
        pushed.join().unwrap().ok();
    });
    let new = place.serve(&lab.store, "node");
    let old = std::mem::replace(&mut lab.server, new);
    old.end("KILL");
    lab.push(Nix::Newest, &token, "compression=none", &large).unwrap();
    lab.pull(Nix::Newest, &large);
    paths.push(large);
    assert_eq!(place.narval(&lab, &["cache", "fsck", "--contents"]), "");
    assert_eq!(place.narval(&lab, &["cache", "list"]).lines().count(), 3);
    place.narval(&lab, &["pin", "add", "release", &paths[0]]);
    assert!(place.narval(&lab, &["cache", "why", &paths[0]]).contains("release"));
    // Without any server: by narval, and by Nix, which reads what everybody may read.
    let Lab { store, server } = lab;
    server.end("TERM");
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
    // The index is made again from the bucket alone, in another folder and another database.
    let mut rebuild = Command::new(NARVAL);
    rebuild.args(["cache", "fsck", "--rebuild", "--data", &place.url, "--cache-dir"]).arg(store.path("node-2"));
    if let Some(postgres) = &place.postgres {
        rebuild.args(["--database", &postgres.database()]);
    }
    let output = rebuild.envs(place.environment()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("3 paths, 3 NARs, 0 problems"), "{said}");
}

#[test]
fn a_push_is_read_back_with_the_server_and_without_it() {
    a_push_is_read_back_with_the_server_and_without(false);
}

#[test]
fn a_push_is_read_back_with_the_server_and_without_it_on_postgres() {
    a_push_is_read_back_with_the_server_and_without(true);
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
    let (known, unread) = (lab.store.add_tree("known"), lab.store.add_tree("unread"));
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
