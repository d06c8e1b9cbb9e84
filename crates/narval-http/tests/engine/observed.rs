//! Observability: histograms, OpenMetrics, the access log.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use narval_http::{AccessEntry, AccessLog, Handler, HeadRef, LogFormat, LogWriter, Request, Response, StatusCode};

use crate::harness::{TestServer, eventually, on_each_driver, unhurried};

/// Answers `/inline` inline.
struct Both;

impl Handler for Both {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        (head.path() == "/inline").then(|| Response::new(StatusCode::NO_CONTENT))
    }

    fn handle(&self, _: Request) -> Response {
        Response::text(StatusCode::OK, "worker")
    }
}

/// An in-memory file that a test can read.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn histograms_have_a_sample_of_every_kind() {
    on_each_driver(|driver| {
        let server = TestServer::with(driver, Both, unhurried(), |builder| builder.shards(1));
        let source = server.handle.counter_source();
        let mut client = server.connect();
        for _ in 0..64 {
            assert_eq!(client.get("/inline").status, 204);
            assert_eq!(client.get("/worker").status, 200);
        }
        let counters = || server.handle.counters();
        eventually("the last job has ended", || counters().job_time.count() == 64);
        // The shard records it after it has dispatched the job.
        eventually("the last depth is told", || counters().queue_depths.count() == 4);
        let snapshot = source();
        assert_eq!((snapshot.workers, snapshot.requests()), (4, 128));
        // Each request is also asked about inline.
        assert_eq!(snapshot.inline_time.count(), 2);
        assert_eq!((snapshot.request_time.count(), snapshot.queue_depths.count()), (4, 4));
        assert_eq!(snapshot.queue_depths.sum(), 4.0, "one at a time");
        assert!(snapshot.job_time.sum() > 0.0 && snapshot.completions > 0 && snapshot.polls > 0);
        let text = snapshot.openmetrics();
        for line in [
            "# TYPE narval_http_job_seconds histogram\n",
            "narval_http_job_seconds_bucket{le=\"+Inf\"} 64\n",
            "narval_http_job_seconds_count 64\n",
            "narval_http_request_seconds_count 4\n",
            "narval_http_inline_seconds_count 2\n",
            "narval_http_queue_depths_bucket{le=\"1\"} 4\n",
        ] {
            assert!(text.contains(line), "no {line} in {text}");
        }
    });
}

#[test]
fn with_a_log_every_request_is_measured_and_has_its_line() {
    on_each_driver(|driver| {
        let page = Page::default();
        let log = LogWriter::new(LogFormat::Json, page.clone());
        let server = TestServer::with(driver, Both, unhurried(), |builder| builder.access_log(log));
        let mut client = server.connect();
        for _ in 0..5 {
            client.get("/worker?a=\"b\"");
            client.get("/inline");
        }
        let lines = || String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
        eventually("every line is written", || lines().lines().count() == 10);
        for line in lines().lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let (request, status) = (line["request"].as_str().unwrap(), line["status"].as_u64().unwrap());
            let expected = [("GET /worker?a=\"b\" HTTP/1.1", 200), ("GET /inline HTTP/1.1", 204)];
            assert!(expected.contains(&(request, status)), "{line}");
            assert_eq!(line["client"], "127.0.0.1");
        }
        assert_eq!(server.handle.counters().request_time.count(), 5);
    });
}

/// Blocks until it is released.
struct Stuck(Receiver<()>);

impl AccessLog for Stuck {
    fn write(&mut self, _: &AccessEntry) {
        // An error means that the test is over, which is fine as well.
        let _ = self.0.recv();
    }
}

#[test]
fn a_stalled_log_drops_lines_and_does_not_block() {
    on_each_driver(|driver| {
        let (go_on, stuck) = channel();
        let log = Stuck(stuck);
        let server = TestServer::with(driver, Both, unhurried(), |builder| builder.access_log(log));
        let mut client = server.connect();
        let batch = "GET /inline HTTP/1.1\r\nHost: t\r\n\r\n".repeat(500);
        let mut sent = 0;
        while server.handle.counters().log_lines_dropped == 0 {
            client.send(&batch);
            for _ in 0..500 {
                assert!(client.head().starts_with("HTTP/1.1 204"));
            }
            sent += 500;
            assert!(sent < 100_000, "the queue has a limit");
        }
        let text = server.handle.counters().openmetrics();
        assert!(!text.contains("narval_http_log_lines_dropped_total 0\n"), "{text}");
        drop(go_on);
    });
}
