use std::sync::Arc;

use super::Shard;
use crate::http1::head_parts::HeadRef;
use crate::io::clock::Clock;
use crate::io::driver::sim::SimDriver;
use crate::io::sim::{Network, Speaks};
use crate::io::socket::Socket;
use crate::limits::Limits;
use crate::message::handler::Handler;
use crate::message::request::Request;
use crate::message::response::Response;
use crate::run::connection::Connection;
use crate::run::mailbox::Mailbox;
use crate::run::server::state::ServerState;
use http::StatusCode;

struct Hello;

impl Handler for Hello {
    fn inline(&self, _: &HeadRef<'_>) -> Option<Response> {
        Some(Response::text(StatusCode::OK, "hello"))
    }

    fn handle(&self, _: Request) -> Response {
        Response::new(StatusCode::NOT_FOUND)
    }
}

/// A shard on a simulated network.
fn shard(network: &Network) -> Shard<SimDriver<Connection>> {
    let clock = Clock::Simulated(network.time());
    let server = Arc::new(ServerState::new(Arc::new(Hello), Limits::default(), clock));
    let mailbox = Mailbox::simulated();
    let mut shard = Shard::new(server, SimDriver::new(network.clone()), mailbox.clone(), vec![mailbox]);
    shard.listen(vec![Arc::new(Socket::Sim(crate::io::sim::SimSocket::listener()))]).unwrap();
    shard
}

/// Each head has an earlier deadline than the idle time before it.
#[test]
fn a_connection_has_one_entry_in_the_timer_wheel_whatever_it_does() {
    let network = Network::new(1);
    let mut shard = shard(&network);
    let wire = network.connect(Speaks::Http1);
    network.lock().wires[wire].window = usize::MAX / 2;
    let mut most = 0;
    for second in 0..9600 {
        for half in ["GET / HTTP/1.1\r\n", "Host: a\r\n\r\n"] {
            network.lock().wires[wire].to_server.extend(half.bytes());
            for _ in 0..30 {
                shard.turn().unwrap();
            }
            network.pass(500);
        }
        most = most.max(shard.wheel.len());
        assert_eq!(shard.slots.len(), 1, "the connection was closed in second {second}");
    }
    let answered = shard.local.server.counters.snapshot().requests();
    assert!(answered > 9500 && most <= 1, "{answered} answers, {most} entries");
}
