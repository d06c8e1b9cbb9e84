//! The server stops: clients get a GOAWAY, and requests that they have sent are still answered.

use std::time::Instant;

use super::client::*;
use super::server::Site;
use crate::harness::{PATIENCE, on_each_driver, unhurried};

/// The last stream that a GOAWAY names.
fn last_stream(goaway: &Frame) -> u32 {
    u32::from_be_bytes(goaway.payload[..4].try_into().unwrap())
}

#[test]
fn requests_sent_before_the_goaway_arrives_are_answered() {
    on_each_driver(|driver| {
        let (site, server) = Site::start(driver, unhurried());
        let mut client = Client::start(server.address);
        let first = client.get("/wait");
        // A handler has it before the server stops.
        let started = Instant::now();
        while site.handled() == 0 {
            assert!(started.elapsed() < PATIENCE, "the request got to no handler");
            std::thread::yield_now();
        }
        std::thread::scope(|scope| {
            let stopping = scope.spawn(|| server.handle.shutdown(PATIENCE));
            let warning = client.until(|frame| frame.kind == GOAWAY);
            assert_eq!((warning.code(), last_stream(&warning)), (0, (1 << 31) - 1));
            let ping = client.until(|frame| frame.kind == PING && frame.flags & ACK == 0);
            // The client sends this before it has read the GOAWAY.
            let second = client.get("/");
            assert_eq!(client.response(second).text(), "hello\n");
            client.send(frame(PING, ACK, 0, ping.payload));
            let goaway = client.until(|frame| frame.kind == GOAWAY);
            assert_eq!((goaway.code(), last_stream(&goaway)), (0, second));
            site.open_gate();
            assert_eq!(client.response(first).text(), "waited\n");
            assert!(stopping.join().unwrap(), "everything finished");
        });
    });
}

#[test]
fn a_client_that_ignores_pings_still_gets_a_goaway() {
    on_each_driver(|driver| {
        let (_, server) = Site::start(driver, unhurried());
        let mut client = Client::start(server.address);
        let first = client.get("/");
        assert_eq!(client.response(first).status, 200);
        assert!(server.handle.shutdown(PATIENCE), "an idle connection ends by itself");
        client.until(|frame| frame.kind == GOAWAY);
        let goaway = client.until(|frame| frame.kind == GOAWAY);
        assert_eq!(last_stream(&goaway), first);
    });
}
