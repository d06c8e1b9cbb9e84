use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::{Duration, Instant};

use narval_http::{Body, BodySource, Fill, Handler, HeadRef, Limits, Request, Response, SegmentBuf, StatusCode};

use crate::harness::{Client, TestServer, eventually, on_each_driver, unhurried};

/// Handlers wait until the gate opens.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<(bool, usize)>, Condvar)>);

impl Gate {
    fn pass(&self) {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        state.1 += 1;
        changed.notify_all();
        drop(changed.wait_while(state, |state| !state.0).unwrap());
    }

    fn open(&self) {
        self.0.0.lock().unwrap().0 = true;
        self.0.1.notify_all();
    }

    fn waiting(&self) -> usize {
        self.0.0.lock().unwrap().1
    }
}

impl Handler for Gate {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        (head.path() == "/inline").then(|| Response::text(StatusCode::OK, "inline"))
    }

    fn handle(&self, request: Request) -> Response {
        if request.path() == "/gate" {
            self.pass();
        }
        Response::text(StatusCode::OK, "passed")
    }
}

#[test]
fn checks_are_answered_while_all_workers_are_busy_and_the_queue_is_full() {
    on_each_driver(|driver| {
        let gate = Gate::default();
        let limits = Limits { queue_max: 1, ..unhurried() };
        let server = TestServer::with(driver, gate.clone(), limits, |builder| builder.workers(1).checks(["/check"]));
        let mut busy = [server.connect(), server.connect()];
        busy[0].send("GET /gate HTTP/1.1\r\nHost: t\r\n\r\n");
        eventually("it runs", || gate.waiting() == 1);
        busy[1].send("GET /gate HTTP/1.1\r\nHost: t\r\n\r\n");
        eventually("it waits", || server.handle.counters().queue_depth == 1);
        let mut client = server.connect();
        assert_eq!(client.get("/other").status, 503);
        for path in ["/check", "/check?now"] {
            assert_eq!((client.get(path).status, gate.waiting()), (200, 1), "{path}");
        }
        gate.open();
        for client in &mut busy {
            assert_eq!(client.answer().text(), "passed");
        }
    });
}

#[test]
fn a_full_queue_is_answered_503_and_the_connection_stays_open() {
    on_each_driver(|driver| {
        let gate = Gate::default();
        let limits = Limits { queue_max: 2, ..unhurried() };
        let server = TestServer::with(driver, gate.clone(), limits, |builder| builder.workers(1));
        let mut waiting: Vec<_> = (0..3).map(|_| server.connect()).collect();
        for client in &mut waiting {
            client.send("GET /gate HTTP/1.1\r\nHost: t\r\n\r\n");
            eventually("one runs", || gate.waiting() == 1);
        }
        eventually("two wait", || server.handle.counters().queue_depth == 2);
        let before = server.handle.counters();
        eventually("a worker that waits in its first job is busy", || {
            server.handle.counters().worker_busy > before.worker_busy + Duration::from_millis(20)
        });
        assert_eq!(server.handle.counters().job_time.count(), 0);
        let mut client = server.connect();
        for _ in 0..3 {
            let answer = client.get("/more");
            assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
            assert_eq!(client.get("/inline").text(), "inline", "memory still answers");
        }
        gate.open();
        for client in &mut waiting {
            assert_eq!(client.answer().text(), "passed");
        }
        assert_eq!(client.get("/gate").text(), "passed");
        assert_eq!(server.handle.counters().overloaded, 3);
    });
}

#[test]
fn a_request_pipelined_after_a_refused_body_is_answered() {
    on_each_driver(|driver| {
        let gate = Gate::default();
        let limits = Limits { queue_max: 1, ..unhurried() };
        let server = TestServer::with(driver, gate.clone(), limits, |builder| builder.workers(1));
        let mut waiting = [server.connect(), server.connect()];
        for client in &mut waiting {
            client.send("GET /gate HTTP/1.1\r\nHost: t\r\n\r\n");
            eventually("one runs", || gate.waiting() == 1);
        }
        eventually("one waits", || server.handle.counters().queue_depth == 1);
        for post in [
            "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello",
            "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ] {
            let behind = "GET /inline HTTP/1.1\r\nHost: t\r\n\r\n";
            // In one piece, and with a pause in the body.
            for pause in [0, 60] {
                let mut client = server.connect();
                client.send(&post[..post.len() - pause.min(8)]);
                if pause > 0 {
                    std::thread::sleep(Duration::from_millis(pause as u64));
                }
                client.send([&post[post.len() - pause.min(8)..], post, behind, behind].concat());
                for status in [503, 503, 200, 200] {
                    assert_eq!(client.answer().status, status);
                }
            }
        }
        gate.open();
        for client in &mut waiting {
            assert_eq!(client.answer().text(), "passed");
        }
    });
}

#[test]
fn connections_over_the_limit_are_refused() {
    on_each_driver(|driver| {
        for limits in
            [Limits { connections_max: 3, ..unhurried() }, Limits { connections_per_ip_max: Some(3), ..unhurried() }]
        {
            let gate = Gate::default();
            let server = TestServer::with(driver, gate.clone(), limits, |builder| builder);
            let mut clients: Vec<_> = (0..3).map(|_| server.connect()).collect();
            for client in &mut clients {
                client.send("GET /gate HTTP/1.1\r\nHost: t\r\n\r\n");
            }
            eventually("all are busy", || gate.waiting() == 3);
            let mut refused = server.connect();
            let answer = refused.answer();
            assert_eq!((answer.status, answer.header("connection")), (503, Some("close")));
            gate.open();
            for client in &mut clients {
                assert_eq!(client.answer().text(), "passed");
            }
            clients.pop();
            eventually("there is room again", || server.handle.counters().connections_open == 2);
            assert_eq!(server.get("/inline").status, 200);
            assert_eq!(server.handle.counters().connections_refused, 1);
        }
    });
}

#[test]
fn idle_connections_make_room_for_others() {
    on_each_driver(|driver| {
        let gate = Gate::default();
        let limits = Limits { connections_max: 3, ..unhurried() };
        let server = TestServer::with(driver, gate.clone(), limits, |builder| builder.shards(1));
        let mut busy = server.connect();
        busy.send("GET /gate HTTP/1.1\r\nHost: t\r\n\r\n");
        eventually("it is busy", || gate.waiting() == 1);
        // One that has been answered by a worker, and one that has sent nothing.
        let mut idle = [server.connect(), server.connect()];
        assert_eq!(idle[0].get("/other").status, 200);
        let mut others = Vec::new();
        for given_up in 1..=2 {
            eventually("an idle connection gives way", || {
                let mut other = server.connect();
                let is_served = other.get("/inline").status == 200;
                others.push(other);
                is_served
            });
            let counters = server.handle.counters();
            assert!(counters.connections_given_up >= given_up && counters.connections_open <= 3, "{counters:?}");
        }
        gate.open();
        assert_eq!(busy.answer().text(), "passed");
    });
}

/// A client that a proxy names, and its request.
fn from(server: &TestServer, address: &str, path: &str) -> Client {
    let kind = if address.contains(':') { "TCP6" } else { "TCP4" };
    let own = if address.contains(':') { "::1" } else { "127.0.0.1" };
    let mut client = server.connect();
    client.send(format!("PROXY {kind} {address} {own} 4000 443\r\nGET {path} HTTP/1.1\r\nHost: t\r\n\r\n"));
    client
}

#[test]
fn a_client_with_all_connections_that_it_may_have_leaves_room_for_others() {
    on_each_driver(|driver| {
        // An eighth of these for one client.
        let limits = Limits { connections_max: 256, ..unhurried() };
        let server = TestServer::with(driver, Gate::default(), limits, |builder| {
            builder.trusted_proxies(["127.0.0.1"]).proxy_protocol(true)
        });
        for (addresses, other) in [
            (["192.0.2.1", "::ffff:192.0.2.1"], "192.0.2.2"),
            (["2001:db8::1", "2001:db8::ffff:1:2:3"], "2001:db8:0:1::1"),
        ] {
            let mut clients = Vec::new();
            for at in 0..32 {
                let mut client = from(&server, addresses[at % 2], "/inline");
                assert_eq!(client.answer().status, 200);
                clients.push(client);
            }
            for address in addresses {
                assert_eq!(from(&server, address, "/inline").answer().status, 503, "{address}");
            }
            // And it is served as if it were alone, whatever the machine is busy with.
            let mut times: Vec<Duration> = (0..20)
                .map(|_| {
                    let begun = Instant::now();
                    assert_eq!(from(&server, other, "/inline").answer().status, 200);
                    begun.elapsed()
                })
                .collect();
            times.sort_unstable();
            assert!(times[5] < Duration::from_millis(100), "{times:?}");
        }
    });
}

#[test]
fn a_client_with_many_queued_requests_leaves_places_and_turns_to_others() {
    on_each_driver(|driver| {
        let gate = Gate::default();
        let order = Arc::new(Mutex::new(Vec::new()));
        let (handled, passes) = (order.clone(), gate.clone());
        let handler = move |request: Request| {
            passes.pass();
            handled.lock().unwrap().push(request.client_ip().unwrap().to_string());
            Response::text(StatusCode::OK, "passed")
        };
        let limits = Limits { queue_max: 64, ..unhurried() };
        let server = TestServer::with(driver, handler, limits, |builder| {
            builder.workers(1).trusted_proxies(["127.0.0.1"]).proxy_protocol(true)
        });
        let mut greedy = vec![from(&server, "192.0.2.1", "/")];
        eventually("it runs", || gate.waiting() == 1);
        for waiting in 1..=32 {
            greedy.push(from(&server, "192.0.2.1", "/"));
            eventually("it waits", || server.handle.counters().queue_depth == waiting);
        }
        assert_eq!(from(&server, "192.0.2.1", "/").answer().status, 503);
        let mut other = from(&server, "192.0.2.2", "/");
        eventually("it waits", || server.handle.counters().queue_depth == 33);
        gate.open();
        for client in greedy.iter_mut().chain([&mut other]) {
            assert_eq!(client.answer().text(), "passed");
        }
        let at = order.lock().unwrap().iter().position(|client| client == "192.0.2.2");
        assert!(at.is_some_and(|at| at <= 2), "{at:?}: it waited for all the others");
    });
}

/// An endless answer, whose pieces wait at a gate once it is closed.
struct Endless {
    gate: Gate,
    closed: Arc<AtomicBool>,
    made: Arc<AtomicUsize>,
}

impl BodySource for Endless {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        if self.closed.load(Ordering::SeqCst) {
            self.gate.pass();
        }
        let length = out.room();
        self.made.fetch_add(length, Ordering::SeqCst);
        out.memory().resize(length, 0);
        Ok(Fill::More)
    }
}

#[test]
fn a_large_answer_gives_its_worker_to_a_request_that_waits() {
    on_each_driver(|driver| {
        let (gate, closed, made) = (Gate::default(), Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let site = (gate.clone(), closed.clone(), made.clone());
        let handler = move |request: Request| match request.path() {
            "/small" => Response::text(StatusCode::OK, site.2.load(Ordering::SeqCst).to_string()),
            _ => {
                let (gate, closed, made) = site.clone();
                Response::new(StatusCode::OK).body(Body::source(Endless { gate, closed, made }, None))
            }
        };
        let server = TestServer::with(driver, handler, unhurried(), |builder| builder.workers(1).shards(1));
        let mut large = server.connect();
        large.send("GET /large HTTP/1.1\r\nHost: t\r\n\r\n");
        let reads = large.stream.try_clone().unwrap();
        let reading = std::thread::spawn(move || io::copy(&mut &reads, &mut io::sink()));
        eventually("it is sent", || made.load(Ordering::SeqCst) > 32 << 20);
        // The worker stands still in the middle of it.
        closed.store(true, Ordering::SeqCst);
        eventually("it waits for the gate", || gate.waiting() == 1);
        let mut other = server.connect();
        other.send("GET /small HTTP/1.1\r\nHost: t\r\n\r\n");
        eventually("it waits for the worker", || server.handle.counters().queue_depth == 1);
        let before = made.load(Ordering::SeqCst);
        gate.open();
        let after: usize = other.answer().text().parse().unwrap();
        // New requests and continued answers take turns: at most two turns of an answer, and the piece that it is making.
        assert!(after - before <= 5 << 20, "{} bytes went before it", after - before);
        large.stream.shutdown(std::net::Shutdown::Both).unwrap();
        // The end of a connection that was cut off is an error or none.
        let _ = reading.join().unwrap();
    });
}

/// Each handler waits until a hundred of them run: if fewer ran side by side, none would be answered.
#[test]
fn a_hundred_workers_wait_at_once() {
    on_each_driver(|driver| {
        let all = Arc::new(Barrier::new(100));
        let server = TestServer::with(
            driver,
            move |_: Request| {
                all.wait();
                Response::new(StatusCode::NO_CONTENT)
            },
            unhurried(),
            |builder| builder.workers(100),
        );
        let mut clients: Vec<_> = (0..100).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        }
        for client in &mut clients {
            assert_eq!(client.answer().status, 204);
        }
    });
}
