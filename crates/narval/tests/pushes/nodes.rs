//! Servers over one bucket that share their disk caches.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use narval_nix::Sha256;

use crate::in_bucket::{Place, metric};
use crate::lab::{Lab, Nar, object_of};
use crate::ports::free_port;
use crate::s3::proxy::{Fault, Proxy};
use crate::support::{Answer, NARVAL, Nix, Server, Store, noise};

const PATIENCE: Duration = Duration::from_secs(60);

/// Nodes with these ids, as if they had been started before.
const IDS: [&str; 3] =
    ["00000000000000000000000000000001", "00000000000000000000000000000002", "00000000000000000000000000000003"];

/// The nodes of a bucket.
struct Nodes {
    place: Place,
    /// Before the object store.
    bucket: Proxy,
    lab: Lab,
    others: Vec<Server>,
    token: String,
}

impl Nodes {
    /// So many nodes that know each other. The first one is that of the lab.
    fn start(count: usize, more: &[&str]) -> Option<Self> {
        let mut place = Place::new(true)?;
        let bucket = place.put_proxy();
        let store = Store::new();
        let mut servers: Vec<Server> = (0..count).map(|at| start(&place, &store, at, more)).collect();
        let lab = Lab { server: servers.remove(0), store };
        let token = {
            let mut create = Command::new(NARVAL);
            create.args(["token", "create", "--push", "--pull", "ci"]).args(place.options(&lab.store, "commands"));
            crate::support::stdout(create.envs(place.environment()).output().unwrap()).trim().to_owned()
        };
        let nodes = Self { place, bucket, lab, others: servers, token };
        nodes.all().for_each(|server| nodes.wait_for_nodes(server, count));
        Some(nodes)
    }

    fn all(&self) -> impl Iterator<Item = &Server> {
        std::iter::once(&self.lab.server).chain(&self.others)
    }

    fn node(&self, at: usize) -> &Server {
        self.all().nth(at).unwrap()
    }

    fn wait_for_nodes(&self, server: &Server, count: usize) {
        let figure = || self.metric(server, "narval_peer_nodes");
        wait(|| figure() == count as u64);
    }

    /// A figure of a node, whose cache may be private.
    fn metric(&self, server: &Server, name: &str) -> u64 {
        match server.get("/metrics").status {
            200 => metric(server, name),
            _ => {
                let answer = server.ask("GET", "/metrics", &[&format!("Authorization: Bearer {}", self.token)]);
                answer.figure(name).unwrap_or_else(|| panic!("no {name}: {}", answer.text()))
            }
        }
    }

    fn sum(&self, name: &str) -> u64 {
        self.all().map(|server| self.metric(server, name)).sum()
    }

    fn push(&self, nar: &Nar) {
        let answer = self.lab.put(&nar.url(), &self.token, &nar.bytes);
        assert_eq!(answer.status, 201, "{}", answer.text());
    }

    /// What the bucket was asked for NARs since the last time.
    fn reads_of_bucket(&self) -> Vec<String> {
        let requests = self.bucket.take_requests();
        requests.into_iter().filter(|request| request.starts_with("GET") && request.contains("/nar/")).collect()
    }

    /// The nodes that have a NAR on their disks.
    fn kept_by(&self, nar: &Nar) -> Vec<usize> {
        (0..=self.others.len()).filter(|at| self.kept(*at, nar).exists()).collect()
    }

    /// The place of a NAR of the cache at `/` in a node's disk cache.
    fn kept(&self, at: usize, nar: &Nar) -> PathBuf {
        let own = object_of(&self.place.s3.root().join("the-cache/a/prefix"), &nar.url());
        self.folder(at).join(format!("nar/default.{}", own.file_name().unwrap().to_str().unwrap()))
    }

    fn folder(&self, at: usize) -> PathBuf {
        self.lab.store.path(&format!("node-{at}"))
    }

    fn sql(&self, statement: &str) -> String {
        let database = self.place.database.as_deref().unwrap().split(['/', '?']).nth(3).unwrap();
        self.place.postgres.as_ref().unwrap().sql(database, statement).unwrap()
    }
}

/// Starts a node, whose address is known to the others before it listens.
fn start(place: &Place, store: &Store, at: usize, more: &[&str]) -> Server {
    let (folder, port) = (format!("node-{at}"), free_port());
    std::fs::create_dir_all(store.path(&folder)).unwrap();
    std::fs::write(store.path(&folder).join("node.id"), IDS[at]).unwrap();
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--cache-size", "1G", "--listen", &format!("127.0.0.1:{port}")]);
    command.args(["--peer-url", &format!("http://127.0.0.1:{port}")]).args(place.options(store, &folder)).args(more);
    let environment = place.environment();
    let environment: Vec<_> = environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    Server::start(command, &environment)
}

fn wait(mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "it does not happen");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn score(id: &str, nar: &Nar) -> u64 {
    let hash = Sha256::of(&[id.as_bytes(), nar.hash.as_bytes()].concat());
    u64::from_be_bytes(hash.as_bytes()[..8].try_into().unwrap())
}

/// The nodes by who keeps a NAR first.
fn ranked(nar: &Nar, count: usize) -> Vec<usize> {
    let mut ranked: Vec<usize> = (0..count).collect();
    ranked.sort_by_key(|at| std::cmp::Reverse(score(IDS[*at], nar)));
    ranked
}

/// A NAR that this node keeps, of this size.
fn nar_kept_by(node: usize, count: usize, len: usize) -> Nar {
    let mut nars = (0_u32..).map(|number| Nar::of(&[&number.to_le_bytes()[..], &noise(1, len)].concat()));
    nars.find(|nar| ranked(nar, count)[0] == node).unwrap()
}

fn assert_is(answer: &Answer, nar: &Nar) {
    assert!(answer.status == 200 && answer.complete && answer.body == nar.bytes, "{}", answer.head);
}

#[test]
fn a_nar_is_read_from_the_bucket_once_and_kept_by_one_of_three_nodes() {
    const LEN: usize = 200_000;
    let Some(nodes) = Nodes::start(3, &[]) else { return };
    let nars: Vec<Nar> = (0..12_u8).map(|number| Nar::of(&[&[number][..], &noise(1, LEN)].concat())).collect();
    nars.iter().for_each(|nar| nodes.push(nar));
    let tree = nodes.lab.store.add_tree("tree");
    nodes.lab.push(Nix::Newest, &nodes.token, "compression=none", &tree).unwrap();
    nodes.reads_of_bucket();
    for nar in &nars {
        for server in nodes.all() {
            assert_is(&server.get(&nar.url()), nar);
        }
        // The length is known without the NAR.
        for server in nodes.all() {
            assert_eq!(
                server.ask("HEAD", &nar.url(), &[]).field("Content-Length"),
                Some(nar.bytes.len().to_string().as_str())
            );
        }
    }
    let reads = nodes.reads_of_bucket();
    assert_eq!(reads.len(), nars.len(), "{reads:?}");
    for nar in &nars {
        let holder = ranked(nar, 3)[0];
        wait(|| nodes.kept_by(nar).contains(&holder));
        assert_eq!(nodes.kept_by(nar), [holder]);
    }
    for node in 0..3 {
        assert!(nars.iter().any(|nar| ranked(nar, 3)[0] == node), "node {node} keeps none: choose other NARs");
    }
    let received = nodes.sum("narval_peer_received_bytes_total");
    assert_eq!(received, 2 * nars.iter().map(|nar| nar.bytes.len() as u64).sum::<u64>());
    assert_eq!(nodes.sum("narval_peer_sent_bytes_total"), received);
    assert_eq!(nodes.sum("narval_peer_fallbacks_total"), 0);

    // A range of it, and the whole at the same time by many: once over the wire.
    let nar = nar_kept_by(1, 3, 3 << 20);
    nodes.push(&nar);
    let answer = nodes.node(0).ask("GET", &nar.url(), &["Range: bytes=1000000-1000999"]);
    assert!(answer.status == 206 && answer.body == nar.bytes[1_000_000..1_001_000], "{}", answer.head);
    let server = nodes.node(2);
    std::thread::scope(|scope| {
        let gets: Vec<_> = (0..8).map(|_| scope.spawn(|| server.get(&nar.url()))).collect();
        gets.into_iter().for_each(|get| assert_is(&get.join().unwrap(), &nar));
    });
    assert_eq!(nodes.reads_of_bucket().len(), 1);
    // Real Nix, from each.
    for server in nodes.all() {
        nodes.lab.pull_from(server, Nix::Newest, &tree);
    }
    assert_eq!(nodes.reads_of_bucket().len(), 1);

    // A popular one is kept by a second node, and by no third one.
    let nar = &nars[0];
    let mut two = ranked(nar, 3);
    two.truncate(2);
    two.sort_unstable();
    for _ in 0..4 {
        for server in nodes.all() {
            assert_is(&server.get(&nar.url()), nar);
        }
    }
    wait(|| nodes.kept_by(nar) == two);
    assert_eq!(nodes.reads_of_bucket(), Vec::<String>::new());
}

#[test]
fn the_node_that_keeps_a_nar_is_killed() {
    const LEN: usize = 12 << 20;
    let Some(mut nodes) = Nodes::start(3, &[]) else { return };
    let (under_way, kept, later) = (nar_kept_by(1, 3, LEN), nar_kept_by(1, 3, 300_000), nar_kept_by(1, 3, 400_000));
    for nar in [&under_way, &kept, &later] {
        nodes.push(nar);
    }
    // All of them can tell what the name of the other one means, without the database.
    assert_is(&nodes.node(0).get(&kept.url()), &kept);
    // The bucket sends half of it to the one that keeps it, which passes that on.
    let mut reads = 0;
    nodes.bucket.set(move |method, target| {
        reads += usize::from(method == "GET" && target.contains("/nar/"));
        if reads == 1 && method == "GET" && target.contains("/nar/") { Fault::Stalled } else { Fault::None }
    });
    let mut client = nodes.node(2).connect();
    write!(client, "GET {} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n", under_way.url()).unwrap();
    let mut answer = vec![0; LEN / 4];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(nodes.metric(nodes.node(2), "narval_peer_fallbacks_total"), 0, "it comes from the other node");
    let killed = nodes.others.remove(0);
    killed.end("-KILL");
    client.read_to_end(&mut answer).unwrap();
    assert_is(&Answer::parse(&answer).unwrap(), &under_way);
    let survivor = &nodes.others[0];
    assert_eq!(nodes.metric(survivor, "narval_peer_fallbacks_total"), 1);
    // The others serve what it has kept, and what it would have kept.
    for server in nodes.all() {
        for nar in [&kept, &later, &under_way] {
            assert_is(&server.get(&nar.url()), nar);
        }
    }
    // Another one keeps it from now on.
    assert_eq!(nodes.sql(&format!("select count(*) from narval.nodes where id = '{}'", IDS[1])), "1");
    nodes.sql(&format!("update narval.nodes set seen = now() - interval '31 seconds' where id = '{}'", IDS[1]));
    nodes.all().for_each(|server| nodes.wait_for_nodes(server, 2));
    let next = ranked(&later, 3)[1];
    for _ in 0..2 {
        nodes.all().for_each(|server| assert_is(&server.get(&later.url()), &later));
    }
    wait(|| nodes.kept(next, &later).exists());
    // Started again, it is the same node, and has what it had.
    let again = start(&nodes.place, &nodes.lab.store, 1, &[]);
    nodes.all().for_each(|server| nodes.wait_for_nodes(server, 3));
    nodes.reads_of_bucket();
    assert_is(&again.get(&kept.url()), &kept);
    assert_eq!(nodes.reads_of_bucket(), Vec::<String>::new());
    // One that is told to end says so.
    again.end("-TERM");
    nodes.all().for_each(|server| nodes.wait_for_nodes(server, 2));
}

/// A node that answers each request in a way of the test's, and tells what it was asked.
struct Impostor {
    port: u16,
    asked: Receiver<Vec<String>>,
}

impl Impostor {
    fn start(answer: impl Fn(&str) -> Vec<u8> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tell, asked) = channel();
        std::thread::spawn(move || {
            for mut client in listener.incoming().map_while(Result::ok) {
                let lines: Vec<String> =
                    BufReader::new(&client).lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
                let target = lines.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
                // The test may have ended.
                let _ = tell.send(lines);
                let _ = client.write_all(&answer(&target));
            }
        });
        Self { port, asked }
    }
}

fn response(head: &str, body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n").as_bytes(), body].concat()
}

#[test]
fn a_node_that_answers_wrongly_is_not_believed() {
    const LEN: usize = 100_000;
    let Some(nodes) = Nodes::start(1, &[]) else { return };
    let server = nodes.node(0);
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    let other =
        format!("307 Temporary Redirect\r\nLocation: http://{}/\r\nContent-Length: 0", elsewhere.local_addr().unwrap());
    let nar = |number: u8| Nar::of(&[&[number][..], &noise(1, LEN)].concat());
    let len = nar(0).bytes.len();
    type Wrong = (&'static str, Box<dyn Fn(&Nar) -> Vec<u8>>, bool);
    let wrong: [Wrong; 8] = [
        ("another length", Box::new(|nar| response("200 OK\r\nContent-Length: 7", &nar.bytes[..7])), true),
        ("no length", Box::new(|nar| response("200 OK", &nar.bytes)), true),
        ("not HTTP", Box::new(|_| b"\0\0\0\0rubbish".to_vec()), true),
        ("nothing", Box::new(|_| Vec::new()), true),
        ("refused", Box::new(|_| response("401 Unauthorized\r\nContent-Length: 0", b"")), true),
        ("sent elsewhere", Box::new(move |_| response(&other, b"")), true),
        (
            "half",
            Box::new(move |nar| response(&format!("200 OK\r\nContent-Length: {len}"), &nar.bytes[..LEN / 2])),
            true,
        ),
        (
            "another NAR",
            Box::new(move |_| response(&format!("200 OK\r\nContent-Length: {len}"), &vec![b'x'; len])),
            false,
        ),
    ];
    for (at, (what, answer, is_repaired)) in wrong.into_iter().enumerate() {
        let nar = nar(u8::try_from(at).unwrap());
        nodes.push(&nar);
        let id = (0..)
            .map(|number| format!("impostor-{at}-{number}"))
            .find(|id| score(id, &nar) > score(IDS[0], &nar))
            .unwrap();
        let answer = answer(&nar);
        let impostor = Impostor::start(move |_| answer.clone());
        let url = format!("http://127.0.0.1:{}/below", impostor.port);
        nodes.sql(&format!(
            "insert into narval.nodes (id, url, weight, seen) select '{id}', '{url}', max(weight), now() + interval '1 hour' from narval.nodes"
        ));
        nodes.wait_for_nodes(server, 2);
        let before = metric(server, "narval_peer_fallbacks_total");
        let got = server.get(&nar.url());
        if is_repaired {
            assert_is(&got, &nar);
        } else {
            assert!(!got.complete, "{what}: it ends as if it were right");
        }
        let asked = impostor.asked.recv_timeout(PATIENCE).unwrap();
        let of_node = format!("GET /below/_narval/peer/default/nar/{}-", nar.hash.to_nix32());
        assert!(asked[0].starts_with(&of_node), "{what}: {asked:?}");
        assert!(asked.iter().any(|line| line.to_ascii_lowercase().starts_with("authorization: bearer ")), "{asked:?}");
        wait(|| server.get(&nar.url()).complete);
        assert_is(&server.get(&nar.url()), &nar);
        assert!(metric(server, "narval_peer_fallbacks_total") > before, "{what}");
        nodes.sql(&format!("delete from narval.nodes where id = '{id}'"));
        nodes.wait_for_nodes(server, 1);
    }
    elsewhere.set_nonblocking(true).unwrap();
    assert!(elsewhere.accept().is_err(), "the secret is sent to nobody else");
    let secret = nodes.sql("select value from narval.meta where key = 'peer secret'");
    assert!(secret.len() == 52 && !server.log().contains(&secret));
    assert!(server.log().contains("is wrong: its SHA-256 is"), "{}", server.log());
    assert!(!server.log().contains("is damaged"), "{}", server.log());
}

#[test]
fn another_node_is_asked_with_the_id_of_the_request() {
    let folder = tempfile::tempdir().unwrap();
    // Of both nodes.
    let log = folder.path().join("access.log");
    let logs = ["--access-log", log.to_str().unwrap(), "--access-log-format", "json", "--trust-request-ids"];
    let Some(nodes) = Nodes::start(2, &logs) else { return };
    let nar = nar_kept_by(1, 2, 50_000);
    nodes.push(&nar);
    assert_is(&nodes.node(0).ask("GET", &nar.url(), &["X-Request-Id: from-client_1"]), &nar);
    let of_node = format!("GET /_narval/peer/default/nar/{}-", nar.hash.to_nix32());
    let requests = || -> Vec<String> {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let entries = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let with_id = entries.filter(|entry| entry["request_id"] == "from-client_1");
        with_id.map(|entry| entry["request"].as_str().unwrap().to_owned()).collect()
    };
    wait(|| requests().len() == 2);
    assert!(requests().iter().any(|request| request.starts_with(&of_node)), "{:?}", requests());
    // Without one, the node makes one for both.
    let other = nar_kept_by(1, 2, 60_000);
    nodes.push(&other);
    assert_is(&nodes.node(0).get(&other.url()), &other);
    let ids = || -> Vec<String> {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let about = text.lines().filter(|line| line.contains("\"GET ") && line.contains(&other.hash.to_nix32()));
        let entries = about.filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        entries.map(|entry| entry["request_id"].as_str().unwrap().to_owned()).collect()
    };
    wait(|| ids().len() == 2);
    assert_eq!(ids()[0], ids()[1]);
}

/// A node that accepts connections and says nothing, as one that is paused.
#[test]
fn a_node_that_says_nothing_is_not_waited_for() {
    let Some(nodes) = Nodes::start(1, &[]) else { return };
    let server = nodes.node(0);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let nars: Vec<Nar> = (0..4_u8).map(|number| Nar::of(&[&[number][..], &noise(1, 9_000)].concat())).collect();
    nars.iter().for_each(|nar| nodes.push(nar));
    let is_first = |id: &String| nars.iter().all(|nar| score(id, nar) > score(IDS[0], nar));
    let id = (0..).map(|number| format!("silent-{number}")).find(is_first).unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    nodes.sql(&format!(
        "insert into narval.nodes (id, url, weight, seen) select '{id}', '{url}', max(weight), now() + interval '1 hour' from narval.nodes"
    ));
    nodes.wait_for_nodes(server, 2);
    for nar in &nars {
        assert_is(&server.get(&nar.url()), nar);
    }
    // A request that knows that it is gone does not ask it.
    silent.set_nonblocking(true).unwrap();
    let accepted = std::iter::from_fn(|| silent.accept().ok()).count();
    assert!(accepted > 0);
    assert_eq!(metric(server, "narval_peer_fallbacks_total"), accepted as u64);
    assert!(server.log().contains("comes from the bucket, not from the node at"), "{}", server.log());
}

#[test]
fn only_nodes_may_ask_as_nodes() {
    let Some(nodes) = Nodes::start(2, &["--private"]) else { return };
    let nar = nar_kept_by(1, 2, 50_000);
    nodes.push(&nar);
    let server = nodes.node(0);
    let target = format!("/_narval/peer/default{}", nar.url());
    let secret = nodes.sql("select value from narval.meta where key = 'peer secret'");
    let ask =
        |method: &str, target: &str, proof: &str| server.ask(method, target, &[&format!("Authorization: {proof}")]);
    let (right, wrong) = (format!("Bearer {secret}"), format!("Bearer {}0", &secret[..51]));
    let wrong = if wrong == right { format!("Bearer {}1", &secret[..51]) } else { wrong };
    for proof in [
        &wrong,
        "Bearer ",
        "Basic eDp5",
        &format!("Bearer {}", nodes.token),
        &right.to_lowercase().replace("bearer", "Digest"),
    ] {
        let answer = ask("GET", &target, proof);
        assert_eq!((answer.status, answer.field("WWW-Authenticate").is_some()), (401, true), "{proof}");
        assert!(!answer.text().contains("nar"), "{}", answer.text());
        // Nor does it help to ask for something that does not exist.
        assert_eq!(ask("GET", "/_narval/peer/nowhere/nar/x.nar", proof).body, answer.body);
    }
    assert_eq!(server.get(&target).status, 401);
    assert_eq!(server.get(&nar.url()).status, 401);
    // The secret is for this alone.
    assert_eq!(ask("GET", &nar.url(), &right).status, 401);
    nodes.reads_of_bucket();
    let sent_before = nodes.metric(nodes.node(1), "narval_peer_sent_bytes_total");
    // Whoever is asked by a node asks no third one.
    assert_is(&ask("GET", &target, &right), &nar);
    assert_eq!(nodes.reads_of_bucket().len(), 1);
    assert_eq!(nodes.metric(nodes.node(1), "narval_peer_sent_bytes_total"), sent_before);
    assert_eq!(ask("GET", &target, &right).status, 200);
    assert_eq!(
        server.ask("GET", &target, &[&format!("Authorization: {right}"), "Range: bytes=5-9"]).body,
        nar.bytes[5..10]
    );
    assert_eq!((ask("HEAD", &target, &right).status, ask("DELETE", &target, &right).status), (405, 405));
    for target in
        ["/_narval/peer/default/nar/../index.id", "/_narval/peer/nowhere/nar/x.nar", "/_narval/peer/default/nar/x"]
    {
        assert_eq!(ask("GET", target, &right).status, 404, "{target}");
    }
    // With a token, through the node that keeps it.
    let answer = nodes.node(0).ask("GET", &nar.url(), &[&format!("Authorization: Bearer {}", nodes.token)]);
    assert_is(&answer, &nar);
    assert!(nodes.all().all(|server| !server.log().contains(&secret)));
}

#[test]
fn options_that_do_not_fit() {
    let refused = |args: &[&str]| {
        let output = Command::new(NARVAL).arg("serve").args(args).env("HOME", "/nowhere").output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let url = ["--peer-url", "http://10.0.0.3:5000"];
    let needs = "option --peer-url: needs --data in a bucket (s3://…), and --database";
    let bucket = ["--data", "s3://bucket", "--cache-dir", "/nowhere"];
    for args in
        [&["--data", "/nowhere"][..], &bucket, &["--data", "/nowhere", "--database", "postgres://narval@127.0.0.1:1/x"]]
    {
        let message = refused(&[&url[..], args].concat());
        assert!(message.contains(needs), "{message}");
    }
    for url in ["s3://bucket", "file:///tmp", "http://user:secret-word@10.0.0.3:5000"] {
        let args = [&["--peer-url", url, "--database", "postgres://narval@127.0.0.1:1/x"][..], &bucket].concat();
        let message = refused(&args);
        assert!(
            message.contains("option --peer-url: give http://HOST:PORT") && !message.contains("secret-word"),
            "{message}"
        );
    }
}
