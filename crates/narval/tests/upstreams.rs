//! A cache that pulls what it lacks from upstreams: two real servers, and real Nix as the client.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::Duration;

use support::{Answer, NARVAL, Nix, Server, Store, hash_part, value};

/// A live store served with a key, and a cache that has it as its upstream.
struct Lab {
    store: Store,
    upstream: Option<Server>,
    key: String,
    cache: Server,
}

impl Lab {
    fn new() -> Self {
        let store = Store::new();
        let (file, key) = store.key("upstream-1");
        let log = store.path("upstream.log");
        let args = ["--sign-key", file.to_str().unwrap(), "--access-log", log.to_str().unwrap()];
        let upstream = Server::narval(&store, &args);
        let cache = serve(&store, &["--upstream", &upstream.url(), "--upstream-key", &key]);
        Self { store, upstream: Some(upstream), key, cache }
    }

    /// How often the upstream was asked for what begins so.
    fn asked(&self, request: &str) -> usize {
        let log = std::fs::read_to_string(self.store.path("upstream.log")).unwrap_or_default();
        log.matches(&format!("\"{request}")).count()
    }

    fn narinfo(&self, path: &str) -> String {
        let answer = self.cache.get(&format!("/{}.narinfo", hash_part(path)));
        assert_eq!(answer.status, 200, "{}", self.cache.log());
        answer.text().to_owned()
    }

    /// `nix copy --from` the cache into a new store, with signatures of the upstream's key asked for.
    fn pull(&self, nix: Nix, path: &str) {
        let fresh = tempfile::tempdir().unwrap();
        let to = fresh.path().to_str().unwrap();
        let args = ["copy", "--refresh", "--from", &self.cache.url(), "--to", to];
        let args = [&args[..], &["--option", "trusted-public-keys", &self.key, path]].concat();
        let output = nix.nix(fresh.path(), &args);
        assert!(output.status.success(), "{} {}", String::from_utf8_lossy(&output.stderr), self.cache.log());
        let copied = fresh.path().join(&path[1..]);
        let same =
            Command::new("diff").args(["-r", "--no-dereference"]).args([&self.store.real(path), &copied]).status();
        assert!(same.unwrap().success(), "{path} differs");
        // Nix's store paths are read-only: the folder could not be removed.
        Command::new("chmod").args(["-R", "u+w", to]).status().unwrap();
    }
}

/// A cache that is written beside a store, with these options.
fn serve(store: &Store, args: &[&str]) -> Server {
    let mut command = Command::new(NARVAL);
    let data = store.path("data");
    command.args(["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()]).args(args);
    Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())])
}

#[test]
fn nix_pulls_through_and_what_was_pulled_stays_when_the_upstream_goes() {
    let mut lab = Lab::new();
    let (tree, file) = (lab.store.add_tree("tree"), lab.store.add_file("file", vec![7; 300_000]));
    for nix in Nix::BOTH {
        lab.pull(nix, &tree);
        lab.pull(nix, &file);
    }
    assert_eq!(lab.asked("GET /nar/"), 2, "each NAR came once");
    let other = lab.store.add_file("other", "not asked for");
    let url = lab.upstream.as_ref().unwrap().url();
    drop(lab.upstream.take());
    for nix in Nix::BOTH {
        lab.pull(nix, &tree);
    }
    // ncps#259, #298, #631: an upstream that is down is no 500.
    let rest = lab.cache.get(&format!("/{}.narinfo", hash_part(&other)));
    assert_eq!((rest.status, rest.field("cache-control")), (404, Some("no-store")), "{rest:?}");
    // A server that starts now serves what is kept, too; this one tells clients that the upstream is away.
    drop(std::mem::replace(&mut lab.cache, Server::narval(&lab.store, &[])));
    lab.cache =
        serve(&lab.store, &["--upstream", &url, "--upstream-key", &lab.key, "--upstream-when-down", "unavailable"]);
    let rest = lab.cache.get(&format!("/{}.narinfo", hash_part(&other)));
    assert_eq!((rest.status, rest.field("cache-control")), (503, Some("no-store")), "{rest:?}");
    assert!(rest.field("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    lab.pull(Nix::Newest, &tree);
    // What came from an upstream that is none any more is not served.
    drop(std::mem::replace(&mut lab.cache, Server::narval(&lab.store, &[])));
    lab.cache = serve(&lab.store, &["--upstream", "http://127.0.0.1:1", "--upstream-key", &lab.key]);
    assert_eq!(lab.cache.get("/nix-cache-info").status, 200);
    assert_eq!(lab.cache.get(&format!("/{}.narinfo", hash_part(&tree))).status, 404);
}

#[test]
fn ranges_head_listings_and_conditions() {
    let lab = Lab::new();
    let tree = lab.store.add_tree("tree");
    let narinfo = lab.narinfo(&tree);
    let url = format!("/{}", value(&narinfo, "URL").unwrap());
    let nar = lab.store.dump(&tree);
    let head = lab.cache.ask("HEAD", &url, &[]);
    assert_eq!((head.status, head.field("content-length")), (200, Some(nar.len().to_string().as_str())));
    assert_eq!(lab.asked("GET /nar/"), 0, "HEAD fetches nothing");
    // A range of a NAR that is not here yet, and of one that is.
    for _ in 0..3 {
        let part = lab.cache.ask("GET", &url, &["Range: bytes=1000-1999"]);
        assert_eq!((part.status, &part.body[..]), (206, &nar[1000..2000]));
        let end = lab.cache.ask("GET", &url, &["Range: bytes=-10"]);
        assert_eq!((end.status, &end.body[..]), (206, &nar[nar.len() - 10..]));
    }
    let whole = lab.cache.get(&url);
    assert!(whole.status == 200 && whole.body == nar);
    let etag = whole.field("etag").unwrap();
    assert_eq!(lab.cache.ask("GET", &url, &[&format!("If-None-Match: {etag}")]).status, 304);
    assert_eq!(lab.asked("GET /nar/"), 1);
    // The tree has names that are not UTF-8, and so no listing.
    let file = lab.store.add_file("file", "contents");
    let listing = lab.cache.get(&format!("/{}.ls", hash_part(&file)));
    assert!(listing.status == 200 && listing.text().contains("\"regular\""), "{listing:?}");
    let absent = lab.cache.get("/00000000000000000000000000000000.narinfo");
    assert_eq!(absent.status, 404);
    assert_eq!(lab.cache.get("/00000000000000000000000000000000.ls").status, 404);
    assert_eq!(lab.cache.get(&url.replace(".nar", ".nar.xz")).status, 404);
}

#[test]
fn sixty_four_clients_make_one_request_of_the_upstream() {
    let lab = Lab::new();
    let noise: Vec<u8> = (0..8_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let path = lab.store.add_file("large", noise);
    let nar = lab.store.dump(&path);
    let at = format!("/{}.narinfo", hash_part(&path));
    thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                let narinfo = lab.cache.get(&at);
                let url = format!("/{}", value(narinfo.text(), "URL").unwrap());
                let answer = lab.cache.get(&url);
                assert!(answer.complete && answer.body == nar, "{} of {}", answer.body.len(), nar.len());
            });
        }
    });
    assert_eq!((lab.asked(&format!("GET {at}")), lab.asked("GET /nar/")), (1, 1));
}

/// An upstream with a right narinfo and a wrong NAR: the client's connection is aborted before its end, and nothing is kept.
#[test]
fn an_upstream_that_lies_is_named_and_nothing_of_it_is_kept() {
    let store = Store::new();
    let (file, key) = store.key("liar-1");
    let path = store.add_file("lied-about", vec![1; 600_000]);
    let narinfo = {
        let honest = Server::narval(&store, &["--sign-key", file.to_str().unwrap()]);
        honest.get(&format!("/{}.narinfo", hash_part(&path))).body
    };
    let mut nar = store.dump(&path);
    nar[400_000] ^= 1;
    let liar = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", liar.local_addr().unwrap());
    thread::spawn(move || {
        for socket in liar.incoming() {
            let (mut socket, narinfo, nar) = (socket.unwrap(), narinfo.clone(), nar.clone());
            thread::spawn(move || {
                let mut request = [0; 4096];
                let len = socket.read(&mut request).unwrap_or(0);
                let body = if request[..len].starts_with(b"GET /nar/") { nar } else { narinfo };
                let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
                drop(socket.write_all(&[head.as_bytes(), &body].concat()));
            });
        }
    });
    let mut cache = serve(&store, &["--upstream", &url, "--upstream-key", &key]);
    let narinfo = cache.get(&format!("/{}.narinfo", hash_part(&path)));
    let at = format!("/{}", value(narinfo.text(), "URL").unwrap());
    let raw = cache.send(format!("GET {at} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").as_bytes());
    let answer = Answer::parse(&raw);
    assert!(answer.is_none_or(|answer| answer.status != 200 || !answer.complete), "the wrong NAR came whole");
    cache.wait_for(|log| log.contains(&format!("upstream {url}")).then_some(()));
    assert!(cache.log().contains("does not match its narinfo: NarHash is sha256:"), "{}", cache.log());
    assert_eq!(std::fs::read_dir(store.path("data/upstreams/default/nar")).unwrap().count(), 0);
    // Nor is its narinfo served on, which leads nowhere.
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while cache.get(&format!("/{}.narinfo", hash_part(&path))).status != 404 {
        assert!(std::time::Instant::now() < until, "{}", cache.log());
        thread::sleep(Duration::from_millis(5));
    }
    // Nix sees an error, and no path.
    let fresh = tempfile::tempdir().unwrap();
    let args = ["copy", "--from", &cache.url(), "--to", fresh.path().to_str().unwrap(), &path];
    assert!(!Nix::Newest.nix(fresh.path(), &args).status.success());
}

/// Slow upstreams do not delay paths that are present.
#[test]
fn a_stalled_upstream_does_not_delay_present_paths() {
    let store = Store::new();
    let (_, key) = store.key("upstream-1");
    let here = store.add_file("here", "contents");
    // It accepts connections and never responds.
    let stalling = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", stalling.local_addr().unwrap());
    let root = store.uri();
    let cache = serve(&store, &["--store", &root, "--upstream", &url, "--upstream-key", &key]);
    thread::scope(|scope| {
        for number in 0..100 {
            let cache = &cache;
            scope.spawn(move || {
                // 503 at once where too many wait, and an absence at last for those that do.
                let answer = cache.get(&format!("/{number:032}.narinfo"));
                assert!([404, 503].contains(&answer.status), "{answer:?}");
            });
        }
        for _ in 0..200 {
            assert_eq!(cache.get(&format!("/{}.narinfo", hash_part(&here))).status, 200);
            assert_eq!(cache.get("/nix-cache-info").status, 200);
        }
    });
}

/// An upstream that answers a path with these bytes and everything else with 404, as often as it is asked.
fn answering(at: &'static str, body: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let body: std::sync::Arc<[u8]> = body.into();
    thread::spawn(move || {
        for socket in listener.incoming() {
            let (mut socket, body) = (socket.unwrap(), std::sync::Arc::clone(&body));
            thread::spawn(move || {
                let mut request = [0; 4096];
                let len = socket.read(&mut request).unwrap_or(0);
                let is_asked = request[..len].starts_with(format!("GET {at} ").as_bytes());
                let (status, body) = if is_asked { ("200 OK", &body[..]) } else { ("404 Not Found", &b""[..]) };
                let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
                drop(socket.write_all(&[head.as_bytes(), body].concat()));
            });
        }
    });
    url
}

/// A build log of an upstream may be long. Clients that read it slowly hold none of it in memory.
#[test]
fn slow_readers_of_a_long_log_hold_no_memory() {
    const LOG: &str = "/log/00bgd045z0d4icpbc2yyz4gx48ak44la-long.drv";
    const LEN: usize = 16 << 20;
    let store = Store::new();
    let (_, key) = store.key("upstream-1");
    let url = answering(LOG, (0..LEN).map(|at| (at % 251) as u8).collect());
    let cache = serve(&store, &["--upstream", &url, "--upstream-key", &key]);
    let mut readers: Vec<_> = (0..16)
        .map(|_| {
            let mut reader = cache.connect();
            let request = format!("GET {LOG} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
            reader.write_all(request.as_bytes()).unwrap();
            // Its answer has begun.
            reader.read_exact(&mut [0; 16 * 1024]).unwrap();
            reader
        })
        .collect();
    let status = std::fs::read_to_string(format!("/proc/{}/status", cache.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kib: usize = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kib < 6 * LEN / 1024, "{peak_kib} KiB for {} readers of {} KiB", readers.len(), LEN / 1024);
    let mut rest = Vec::new();
    readers.pop().unwrap().read_to_end(&mut rest).unwrap();
    let end: Vec<u8> = (LEN - 1000..LEN).map(|at| (at % 251) as u8).collect();
    assert!(rest.ends_with(&end), "the log came whole");
}

#[test]
fn a_private_cache_asks_its_upstreams_for_nobody_without_a_token() {
    let lab = Lab::new();
    let (own, path) = (Store::new(), lab.store.add_file("secret", "contents"));
    let url = lab.upstream.as_ref().unwrap().url();
    let private = serve(&own, &["--private", "--upstream", &url, "--upstream-key", &lab.key]);
    for at in [format!("/{}.narinfo", hash_part(&path)), format!("/{}.ls", hash_part(&path))] {
        assert_eq!(private.get(&at).status, 401);
    }
    assert_eq!(lab.asked("GET /"), 0);
}

/// nix#15249, ncps#907: the check for presence before a push made a cache fetch NARs. Below /push/ it sees what was pushed, and nothing else.
#[test]
fn a_push_fetches_from_no_upstream_and_uploads_what_only_an_upstream_has() {
    let lab = Lab::new();
    let path = lab.store.add_file("pushed", "contents");
    let narinfo = format!("{}.narinfo", hash_part(&path));
    assert_eq!(lab.cache.get(&format!("/push/{narinfo}")).status, 404);
    assert_eq!(lab.asked("GET /"), 0);
    let made = Command::new(NARVAL)
        .args(["token", "create", "--push", "test", "--data"])
        .arg(lab.store.path("data"))
        .output()
        .unwrap();
    let token = support::stdout(made);
    let netrc = lab.store.path("netrc");
    std::fs::write(&netrc, format!("machine 127.0.0.1 login any password {token}\n")).unwrap();
    let (to, from) = (format!("{}/push", lab.cache.url()), lab.store.uri());
    let args = ["copy", "--to", &to, "--from", &from, "--option", "netrc-file", netrc.to_str().unwrap(), &path];
    support::stdout(Nix::Newest.nix(lab.store.dir.path(), &args));
    // This token may not have the cache sign: its path must not hide another of the same name that an upstream has. A narinfo says that.
    assert_eq!((lab.asked("GET /"), lab.asked(&format!("GET /{narinfo}"))), (1, 1));
    assert_eq!(lab.cache.get(&format!("/push/{narinfo}")).status, 200);
    assert_eq!(lab.cache.get(&format!("/{narinfo}")).status, 200);
}

#[test]
fn invalid_options_are_refused() {
    let store = Store::new();
    let data = store.path("data");
    let run = |args: &[&str]| {
        let output = Command::new(NARVAL).args(["serve", "--listen", "127.0.0.1:0"]).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let without_data = run(&["--upstream", "https://cache.nixos.org"]);
    assert!(
        without_data.contains(
            "option --upstream: 'https://cache.nixos.org' needs a data folder for its files: give --data DIR"
        ),
        "{without_data}"
    );
    let without_key = run(&["--data", data.to_str().unwrap(), "--upstream", "https://cache.example.org"]);
    assert!(without_key.contains("give its public key with --upstream-key"), "{without_key}");
    let file = store.path("narval.toml");
    std::fs::write(&file, "data = 'data'\n[[upstream]]\nurl = 'https://cache.example.org'\n").unwrap();
    let in_file = run(&["--config", file.to_str().unwrap()]);
    assert!(
        in_file.contains("narval.toml:2: upstream: 'https://cache.example.org' needs its public keys"),
        "{in_file}"
    );
    std::fs::write(&file, "[[upstream]]\nurl = 'cache.example.org'\nkeys = 'nonsense'\npriority = -1\n").unwrap();
    let output = Command::new(NARVAL).args(["config", "check"]).arg(&file).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.lines().count() == 3 && message.contains(".toml:2: upstream.url = 'cache.example.org': "),
        "{message}"
    );
}

/// An HTTP server that answers every request with these bytes; how many connections it took.
fn answers(answer: String) -> (std::net::SocketAddr, std::sync::Arc<std::sync::atomic::AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let connections = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&connections);
    thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let mut request = [0; 4096];
            let _ = socket.read(&mut request);
            let _ = socket.write_all(answer.as_bytes());
        }
    });
    (address, connections)
}

fn body(text: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{text}", text.len())
}

/// The paths of small files.
const SMALL: [&str; 5] = [
    "/log/00bgd045z0d4icpbc2yyz4gx48ak44la-x.drv",
    "/00bgd045z0d4icpbc2yyz4gx48ak44la.ls",
    "/00bgd045z0d4icpbc2yyz4gx48ak44la.narinfo",
    "/realisations/sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad!out.doi",
    "/build-trace-v2/00bgd045z0d4icpbc2yyz4gx48ak44la-x.drv/out.doi",
];

#[test]
fn an_upstream_leads_to_no_other_server_and_shows_none_to_anybody() {
    let (secret, asked) = answers(body(r#"{"AccessKeyId":"secret"}"#));
    let redirect =
        |to: &str| format!("HTTP/1.1 302 Found\r\nConnection: close\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
    let port = secret.port();
    for to in [
        format!("http://127.0.0.1:{port}/latest/meta-data/secret"),
        format!("http://localhost:{port}/latest/meta-data/secret"),
        format!("http://0.0.0.0:{port}/x"),
        format!("http://[::ffff:127.0.0.1]:{port}/x"),
        format!("//127.0.0.1:{port}/x"),
    ] {
        let (upstream, _) = answers(redirect(&to));
        let store = Store::new();
        let (_, key) = store.key("upstream-1");
        let mut cache = serve(&store, &["--upstream", &format!("http://{upstream}"), "--upstream-key", &key]);
        for path in SMALL {
            let answer = cache.get(path);
            assert_eq!(answer.status, 404, "{path} {to}: {}", answer.text());
        }
        cache.wait_for(|log| log.contains("it is another server").then_some(()));
        assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 0, "{to}");
    }
    // What it answers itself is not shown either, unless it is what was asked for.
    let (upstream, _) = answers(body("AccessKeyId=secret"));
    let store = Store::new();
    let (_, key) = store.key("upstream-1");
    let upstream = format!("http://{upstream}");
    let told = ["--upstream-when-down", "unavailable"];
    let cache = serve(&store, &[&["--upstream", &upstream, "--upstream-key", &key], &told[..]].concat());
    for path in &SMALL[1..] {
        let answer = cache.get(path);
        assert_eq!((answer.status, answer.text().contains("secret")), (503, false), "{path}: it is no absence");
    }
    let log = cache.get(SMALL[0]);
    assert_eq!(
        (log.status, log.field("content-type"), log.field("x-content-type-options")),
        (200, Some("text/plain"), Some("nosniff"))
    );
    // A host that the operator has named. Like the upstream, it is on this machine.
    let (upstream, _) = answers(redirect(&format!("http://127.0.0.1:{port}/log")));
    let store = Store::new();
    let config = format!(
        "listen = '127.0.0.1:0'\ndata = 'data'\nupstream-absent-after = '1m'\n\n[[upstream]]\nurl = 'http://{upstream}'\nrequire-signatures = false\n\
         redirect-hosts = ['127.0.0.1:{port}']\n"
    );
    std::fs::write(store.path("narval.toml"), config).unwrap();
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--config"]).arg(store.path("narval.toml"));
    let cache = Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())]);
    let log = cache.get(SMALL[0]);
    assert_eq!((log.status, log.text()), (200, r#"{"AccessKeyId":"secret"}"#), "{}", cache.log());
}

/// One client waits for an upstream as often as it may. Another one is answered.
#[test]
fn one_client_does_not_take_the_upstreams_from_the_others() {
    let stalled = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", stalled.local_addr().unwrap());
    let store = Store::new();
    let config = format!(
        "listen = '127.0.0.1:0'\ndata = 'data'\nupstream-absent-after = '1m'\n\n[[upstream]]\nurl = '{url}'\n\
         require-signatures = false\ntimeout = '10m'\n"
    );
    std::fs::write(store.path("narval.toml"), config).unwrap();
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--config"]).arg(store.path("narval.toml"));
    let cache = Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())]);
    let path = |number: usize| format!("/{number:032}.narinfo");
    let ask = |from: [u8; 4], number: usize| {
        use rustix::net::{AddressFamily, SocketType};
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &std::net::SocketAddr::from((from, 0))).unwrap();
        rustix::net::connect(&socket, &cache.address).unwrap();
        let mut stream = std::net::TcpStream::from(socket);
        write!(stream, "GET {} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n", path(number)).unwrap();
        stream
    };
    let waiting: Vec<_> = (0..300).map(|number| ask([127, 0, 0, 1], number)).collect();
    // Those beyond its share are told so at once.
    let mut refused = 0;
    for stream in &waiting {
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    }
    for mut stream in waiting.iter().rev() {
        let mut start = [0; 12];
        refused += usize::from(refused == 0 && stream.read_exact(&mut start).is_ok() && &start[9..] == b"503");
    }
    assert!(refused > 0);
    // The share of the first is taken; the other waits for the upstream, and is not refused.
    let other = ask([127, 0, 0, 2], 1000);
    other.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut start = [0; 12];
    let got = (&other).read(&mut start);
    assert!(got.is_err(), "{:?}", String::from_utf8_lossy(&start));
}
