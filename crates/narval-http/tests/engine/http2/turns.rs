//! Many connections of one shard: none waits for all the others.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use narval_http::{Body, BodySource, Fill, Handler, HeadRef, Request, Response, SegmentBuf, StatusCode};

use super::client::*;
use super::server::serve_with;
use crate::harness::{TestServer, eventually, on_each_driver, unhurried};

/// Connections that download.
const CONNECTIONS: usize = 64;

/// What may be produced in a turn: what is sent, and the next piece of a body.
const PER_TURN_MAX: usize = (4 << 20) + (1 << 20);

#[derive(Clone, Default)]
struct Site(Arc<State>);

#[derive(Default)]
struct State {
    server: OnceLock<Arc<TestServer>>,
    /// Bytes of bodies, by the turn of the shard that produced them.
    produced: Mutex<HashMap<u64, usize>>,
    /// Bytes that the clients have read.
    read: AtomicUsize,
    /// The shard is in an inline answer, until the gate opens.
    is_held: AtomicBool,
    is_open: AtomicBool,
}

impl Handler for Site {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        if head.path() == "/hold" {
            self.0.is_held.store(true, Ordering::SeqCst);
            eventually("the gate opens", || self.0.is_open.load(Ordering::SeqCst));
            self.0.produced.lock().unwrap().clear();
        }
        (head.path() != "/download").then(|| Response::text(StatusCode::OK, "small"))
    }

    fn handle(&self, _: Request) -> Response {
        Response::new(StatusCode::OK).body(Body::source(Download(self.clone()), None))
    }
}

struct Download(Site);

impl BodySource for Download {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let Some(server) = self.0.0.server.get() else { return Ok(Fill::Done) };
        let length = out.room();
        *self.0.0.produced.lock().unwrap().entry(server.handle.counters().polls).or_default() += length;
        out.memory().resize(length, 0);
        Ok(Fill::More)
    }

    fn never_blocks(&self) -> bool {
        true
    }
}

#[test]
fn a_turn_sends_no_more_on_many_connections_than_on_one() {
    on_each_driver(|driver| {
        let site = Site::default();
        let server = Arc::new(serve_with(driver, unhurried(), site.clone(), |builder| builder.shards(1)));
        assert!(site.0.server.set(server.clone()).is_ok());
        let mut downloads = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut client = Client::with_settings(server.address, &[(INITIAL_WINDOW_SIZE, 1 << 30)]);
            client.window(0, 1 << 30);
            client.get("/download");
            client.until(|frame| frame.kind == DATA);
            let site = site.clone();
            downloads.push(thread::spawn(move || {
                while let Some(frame) = client.try_frame() {
                    site.0.read.fetch_add(frame.payload.len(), Ordering::Relaxed);
                }
            }));
        }
        let mut other = Client::start(server.address);
        let held = other.get("/hold");
        eventually("the shard stands still", || site.0.is_held.load(Ordering::SeqCst));
        // Until every client has read what was sent, so that all sockets have room at once.
        let read = || site.0.read.load(Ordering::Relaxed);
        let mut before = 0;
        while before != read() {
            before = read();
            thread::sleep(Duration::from_millis(300));
        }
        site.0.is_open.store(true, Ordering::SeqCst);
        assert_eq!(other.response(held).text(), "small");
        eventually("all go on", || read() > before + CONNECTIONS * (1 << 20));
        for _ in 0..10 {
            let small = other.get("/small");
            assert_eq!(other.response(small).text(), "small");
        }
        let most = site.0.produced.lock().unwrap().values().max().copied();
        assert!(most.is_some_and(|most| most <= PER_TURN_MAX), "{most:?} bytes in one turn");
        server.handle.shutdown(Duration::ZERO);
        downloads.into_iter().for_each(|download| download.join().unwrap());
    });
}
