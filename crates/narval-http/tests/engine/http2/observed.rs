//! The counters of HTTP/2.

use super::client::*;
use super::server::Site;
use crate::harness::{TestServer, eventually, on_each_driver, unhurried};

/// Waits until a counter has this value: responses are counted once they are sent, which the client may see earlier.
fn counts(server: &TestServer, what: &str, expected: u64, count: impl Fn(&narval_http::Snapshot) -> u64) {
    eventually(&format!("{what}: {expected}"), || count(&server.handle.counters()) == expected);
}

#[test]
fn connections_and_responses_are_counted_by_version() {
    on_each_driver(|driver| {
        let (_site, server) = Site::start(driver, unhurried());
        let mut clients = [Client::start(server.address), Client::start(server.address)];
        for client in &mut clients {
            for (path, status) in [("/", 200), ("/none", 404), ("/", 200)] {
                let stream = client.get(path);
                assert_eq!(client.response(stream).status, status);
            }
        }
        counts(&server, "connections", 2, |counters| counters.connections_http2);
        counts(&server, "responses", 6, |counters| counters.answers_http2);
        counts(&server, "requests", 6, |counters| counters.requests());
        let counters = server.handle.counters();
        assert_eq!(counters.statuses, [(200, 4), (404, 2)]);
        assert_eq!((counters.rejected, counters.aborts, counters.timeouts), (0, 0, 0));
        for line in ["narval_http_connections_http2_total 2\n", "narval_http_answers_http2_total 6\n"] {
            assert!(counters.openmetrics().contains(line), "{line}{}", counters.openmetrics());
        }
    });
}

#[test]
fn resets_and_malformed_requests_are_counted_once() {
    on_each_driver(|driver| {
        let (_site, server) = Site::start(driver, unhurried());
        let mut client = Client::start(server.address);
        let stream = client.get("/endless");
        client.until(|frame| frame.kind == DATA && frame.stream == stream);
        client.send(frame(RST_STREAM, 0, stream, code::CANCEL.to_be_bytes()));
        counts(&server, "aborted responses", 1, |counters| counters.aborts);
        let malformed = [get("/").as_slice(), &[("connection", "close")]].concat();
        let stream = client.open(&malformed, true);
        assert_eq!(client.outcome(stream), Outcome::Reset(code::PROTOCOL_ERROR));
        counts(&server, "malformed requests", 1, |counters| counters.rejected);
        client.still_serves();
        let counters = server.handle.counters();
        assert_eq!((counters.aborts, counters.rejected, counters.panics), (1, 1, 0));
    });
}

/// A connection that is closed for exceeding a limit counts as one rejected request.
#[test]
fn floods_are_counted() {
    on_each_driver(|driver| {
        let (_site, server) = Site::start(driver, unhurried());
        let mut client = Client::start(server.address);
        let code = client.until_goaway(4000, |_| frame(PING, 0, 0, [0; 8]));
        assert_eq!(code, code::ENHANCE_YOUR_CALM);
        counts(&server, "floods", 1, |counters| counters.rejected);
        counts(&server, "responses", 0, |counters| counters.answers_http2);
        eventually("the connection is closed", || server.handle.counters().connections_open == 0);
    });
}

/// An answer that comes after its connection has closed is counted, and so logged, as one that was aborted.
#[test]
fn answers_for_connections_that_have_closed_are_counted() {
    on_each_driver(|driver| {
        let (site, server) = Site::start(driver, unhurried());
        let mut client = Client::start(server.address);
        client.get("/wait");
        counts(&server, "requests", 1, narval_http::Snapshot::requests);
        drop(client);
        eventually("the connection is closed", || server.handle.counters().connections_open == 0);
        site.open_gate();
        counts(&server, "aborted responses", 1, |counters| counters.aborts);
        counts(&server, "responses", 1, |counters| counters.answers_http2);
    });
}
