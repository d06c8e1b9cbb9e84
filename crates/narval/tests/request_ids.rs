//! The id of a request: the same in the access log, in the log's lines about it, in what upstreams are asked, and in the
//! answer that says that the server failed; and the trace that a request is part of.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{NARVAL, Server, Store, hash_part};

/// The entries of a JSON access log for requests that begin so, once there are some.
fn entries(file: &Path, request: &str) -> Vec<Value> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let log = std::fs::read_to_string(file).unwrap_or_default();
        let entries = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let found: Vec<_> = entries.filter(|entry| entry["request"].as_str().unwrap().starts_with(request)).collect();
        if !found.is_empty() {
            return found;
        }
        assert!(Instant::now() < until, "{request} is not in {log:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn id(entry: &Value) -> &str {
    entry["request_id"].as_str().unwrap()
}

fn logs_to(file: &Path) -> [&str; 4] {
    ["--access-log", file.to_str().unwrap(), "--access-log-format", "json"]
}

#[test]
fn an_upstream_is_asked_with_the_id_of_the_request() {
    let store = Store::new();
    let path = store.add_file("file", "contents");
    let (key, public) = store.key("upstream-1");
    let (behind, front) = (store.path("behind.log"), store.path("front.log"));
    let args = [&["--sign-key", key.to_str().unwrap(), "--trust-request-ids"][..], &logs_to(&behind)].concat();
    let upstream = Server::narval(&store, &args);
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data", store.path("data").to_str().unwrap()]);
    command.args(["--upstream", &upstream.url(), "--upstream-key", &public]).args(logs_to(&front));
    let cache = Server::start(command, &[]);

    let narinfo = format!("/{}.narinfo", hash_part(&path));
    let answer = cache.ask("GET", &narinfo, &["X-Request-Id: mine"]);
    assert_eq!(answer.status, 200, "{}", cache.log());
    assert_eq!(answer.field("x-request-id"), None, "only failures tell it");
    let request = format!("GET {narinfo}");
    let (asked, asks) = (entries(&front, &request), entries(&behind, &request));
    assert_eq!(id(&asked[0]), id(&asks[0]));
    // The cache trusts nobody, and the upstream trusts the cache.
    assert_eq!(id(&asked[0]).len(), 16, "{asked:?}");

    // A thread of its own fetches the NAR.
    let url = answer.text().lines().find_map(|line| line.strip_prefix("URL: ")).unwrap();
    assert_eq!(cache.get(&format!("/{url}")).status, 200);
    let (asked, asks) = (entries(&front, "GET /nar/"), entries(&behind, "GET /nar/"));
    assert!(asks.iter().any(|entry| id(entry) == id(&asked[0])), "{asked:?} {asks:?}");
}

#[test]
fn a_failure_is_found_in_the_log_by_the_id_of_its_answer() {
    for (format, expected) in [
        ("json", "\"level\":\"error\",\"request_id\":\"from-proxy_1\""),
        ("logfmt", " request_id=from-proxy_1 "),
        ("text", " request_id=from-proxy_1\n"),
    ] {
        let store = Store::new();
        let path = store.add_file("file", "contents");
        let access = store.path("access.log");
        let mut command = Command::new(NARVAL);
        command.args(["serve", "--listen", "127.0.0.1:0", "--store", &store.uri(), "--trust-request-ids"]);
        command.args(logs_to(&access));
        let folder = store.path("cache");
        let mut server =
            Server::start(command, &[("NARVAL_LOG_FORMAT", format), ("XDG_CACHE_HOME", folder.to_str().unwrap())]);
        // The database is there, but is none.
        std::fs::write(store.real("/nix/var/nix/db/db.sqlite"), "no database").unwrap();
        let narinfo = format!("/{}.narinfo", hash_part(&path));
        let answer = server.ask("GET", &narinfo, &["X-Request-Id: from-proxy_1"]);
        assert_eq!((answer.status, answer.field("x-request-id")), (500, Some("from-proxy_1")), "{}", server.log());
        let log = server.wait_for(|log| log.contains(expected).then(|| log.to_owned()));
        let line = log.lines().find(|line| line.contains("from-proxy_1")).unwrap();
        match format {
            "json" => assert_eq!(serde_json::from_str::<Value>(line).unwrap()["level"], "error"),
            "logfmt" => assert!(line.starts_with("time=") && line.contains(" level=error "), "{line}"),
            _ => assert!(line.contains("ERROR"), "{line}"),
        }
        assert_eq!(id(&entries(&access, &format!("GET {narinfo}"))[0]), "from-proxy_1");
        // Answers from memory have one, too; an id that is none is not taken.
        let answer = server.ask("GET", "/nix-cache-info", &["X-Request-Id: a b"]);
        assert_eq!((answer.status, answer.field("x-request-id")), (200, None));
        assert_eq!(id(&entries(&access, "GET /nix-cache-info")[0]).len(), 16);
    }
}

#[test]
fn nix_serve_answers_without_an_id() {
    let store = Store::new();
    let path = store.add_file("file", "contents");
    let server = Server::nix_serve(&store, &[], &[]);
    std::fs::write(store.real("/nix/var/nix/db/db.sqlite"), "no database").unwrap();
    let answer = server.get(&format!("/{}.narinfo", hash_part(&path)));
    assert_eq!((answer.status, answer.field("x-request-id")), (500, None));
}

#[test]
fn an_unknown_format_of_the_log_is_refused() {
    let output =
        Command::new(NARVAL).args(["serve", "--listen", "127.0.0.1:0"]).env("NARVAL_LOG_FORMAT", "xml").output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "narval: NARVAL_LOG_FORMAT is 'xml'; set it to text, logfmt or json\n"
    );
}

/// A collector of OpenTelemetry, as far as it is asked: it keeps what is posted to it.
struct Collector {
    address: SocketAddr,
    bodies: Arc<Mutex<Vec<Value>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, bodies) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let kept = Arc::clone(&bodies);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || Self::serve(stream.unwrap(), &kept));
            }
        });
        Self { address, bodies }
    }

    fn serve(mut stream: TcpStream, kept: &Mutex<Vec<Value>>) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        loop {
            let (mut head, mut line) = (String::new(), String::new());
            while reader.read_line(&mut line).unwrap_or(0) > 2 {
                head.push_str(&std::mem::take(&mut line));
            }
            let Some(len) = head.to_lowercase().split("content-length: ").nth(1).map(str::to_owned) else { return };
            assert!(head.starts_with("POST /v1/traces ") && head.contains("application/json"), "{head}");
            let mut body = vec![0; len.split("\r\n").next().unwrap().parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            kept.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
                .unwrap();
        }
    }

    /// The spans of a trace so far, with the names of their services.
    fn spans(&self, trace: &str) -> Vec<(String, Value)> {
        let bodies = self.bodies.lock().unwrap();
        let resources = bodies.iter().flat_map(|body| body["resourceSpans"].as_array().unwrap());
        let of_resource = |resource: &Value| -> Vec<(String, Value)> {
            let attributes = resource["resource"]["attributes"].as_array().unwrap();
            let service = attributes.iter().find(|one| one["key"] == "service.name").unwrap();
            let service = service["value"]["stringValue"].as_str().unwrap().to_owned();
            let spans = resource["scopeSpans"][0]["spans"].as_array().unwrap();
            spans.iter().map(|span| (service.clone(), span.clone())).collect()
        };
        resources.flat_map(of_resource).filter(|(_, span)| span["traceId"] == trace).collect()
    }

    /// Waits until these are among the spans of a trace.
    fn wait_for(&self, trace: &str, is_complete: impl Fn(&[(String, Value)]) -> bool) -> Vec<(String, Value)> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let spans = self.spans(trace);
            if is_complete(&spans) {
                return spans;
            }
            assert!(Instant::now() < until, "{spans:#?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A request of a client with a trace, from its first server to the database of the second.
#[test]
fn a_trace_goes_through_servers_to_upstreams_and_databases() {
    let (store, collector) = (Store::new(), Collector::start());
    let path = store.add_file("file", "contents");
    let (key, public) = store.key("upstream-1");
    let otlp = format!("http://{}", collector.address);
    let traced = ["--otlp", &otlp, "--otlp-share", "0"];
    let mut behind = Command::new(NARVAL);
    behind.args(["serve", "--listen", "127.0.0.1:0", "--store", &store.uri(), "--sign-key", key.to_str().unwrap()]);
    let folder = store.path("cache");
    let env = ("XDG_CACHE_HOME", folder.to_str().unwrap());
    behind.args(traced);
    let upstream = Server::start(behind, &[env, ("OTEL_SERVICE_NAME", "behind")]);
    let mut front = Command::new(NARVAL);
    front.args(["serve", "--listen", "127.0.0.1:0", "--data", store.path("data").to_str().unwrap()]);
    front.args(["--upstream", &upstream.url(), "--upstream-key", &public]).args(traced);
    let cache = Server::start(front, &[env, ("OTEL_SERVICE_NAME", "front")]);
    let narinfo = format!("/{}.narinfo", hash_part(&path));
    let (trace, other) = ("4bf92f3577b34da6a3ce929d0e0e4736", "5bf92f3577b34da6a3ce929d0e0e4736");
    // Not sampled: nothing is sent of it.
    let field = |trace: &str, flags: &str| format!("traceparent: 00-{trace}-00f067aa0ba902b7-{flags}");
    assert_eq!(cache.ask("GET", &format!("/{}.narinfo", "0".repeat(32)), &[&field(other, "00")]).status, 404);
    assert_eq!(cache.ask("GET", &narinfo, &[&field(trace, "01")]).status, 200, "{}", cache.log());
    let is = |span: &Value, kind: u8, name: &str| span["kind"] == kind && span["name"].as_str().unwrap().contains(name);
    let has = |spans: &[(String, Value)], service: &str, kind: u8, name: &str| {
        spans.iter().find(|(of, span)| of == service && is(span, kind, name)).map(|(_, span)| span.clone())
    };
    let spans = collector.wait_for(trace, |spans| {
        has(spans, "front", 2, "GET narinfo").is_some()
            && has(spans, "behind", 1, "path info").is_some()
            && has(spans, "front", 1, "read").is_some()
    });
    let request = has(&spans, "front", 2, "GET narinfo").unwrap();
    assert_eq!(request["parentSpanId"], "00f067aa0ba902b7");
    assert!(request.to_string().contains("http.response.status_code"), "{request}");
    // What the second server was asked is a part of the request to it, and its read one of its answer.
    let answer = has(&spans, "behind", 2, "GET narinfo").unwrap();
    let asked = spans.iter().find(|(_, span)| span["spanId"] == answer["parentSpanId"]).unwrap();
    assert!(asked.0 == "front" && is(&asked.1, 3, "GET 127.0.0.1"), "{spans:#?}");
    assert_eq!(has(&spans, "behind", 1, "path info").unwrap()["parentSpanId"], answer["spanId"]);
    let took = |span: &Value| {
        let time = |name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
        time("endTimeUnixNano") - time("startTimeUnixNano")
    };
    assert!(took(&request) >= took(&asked.1) && took(&answer) > 0);
    // From memory, on the shard.
    assert_eq!(upstream.ask("GET", &narinfo, &[&field(trace, "01")]).status, 200);
    collector.wait_for(trace, |spans| has(spans, "behind", 2, "GET from memory").is_some());
    assert_eq!(collector.spans(other), []);
    let metrics = cache.get("/metrics");
    assert!(metrics.figure("narval_database_seconds_count{kind=\"read\"").unwrap() > 0, "{}", metrics.text());
    assert_eq!(metrics.figure("narval_trace_spans_dropped_total"), Some(0));
}

#[test]
fn a_log_line_says_which_trace_it_is_of_and_a_silent_collector_holds_nobody_up() {
    let store = Store::new();
    let path = store.add_file("file", "contents");
    // It takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let otlp = format!("http://{}", silent.local_addr().unwrap());
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--store", &store.uri(), "--otlp", &otlp, "--otlp-share", "1"]);
    let folder = store.path("cache");
    let env = [("NARVAL_LOG_FORMAT", "json"), ("XDG_CACHE_HOME", folder.to_str().unwrap())];
    let mut server = Server::start(command, &env);
    let begun = Instant::now();
    // More than the queue has room for.
    for _ in 0..100 {
        assert_eq!(server.get("/nix-cache-info").status, 200);
    }
    assert!(begun.elapsed() < Duration::from_secs(30));
    std::fs::write(store.real("/nix/var/nix/db/db.sqlite"), "no database").unwrap();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let narinfo = format!("/{}.narinfo", hash_part(&path));
    let answer = server.ask("GET", &narinfo, &[&format!("traceparent: 00-{trace}-00f067aa0ba902b7-01")]);
    assert_eq!(answer.status, 500);
    let line = server.wait_for(|log| log.lines().find(|line| line.contains(trace)).map(str::to_owned));
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["level"], line["trace_id"].as_str()), (&Value::from("error"), Some(trace)));
    assert_eq!(line["span_id"].as_str().unwrap().len(), 16);
    drop(silent);
}
