//! Clients that send arbitrary bytes. The server keeps its promises all the same: its own invariants (`run/shard/invariants.rs`) hold, and
//! nothing is left at the end.

use std::io;

use super::client::Client;
use super::handler::Served;
use super::run::{Report, Simulation};
use crate::http1::head::{Framing, parse_head};
use crate::http2::frame::{self, FrameHeader, HEADER_LENGTH, Kind, PAYLOAD_MAX, PREFACE};
use crate::io::sim::{Random, Speaks};
use crate::limits::Limits;
use crate::run::intake::incoming_body::IncomingBody;

/// Feeds arbitrary bytes to the server over several connections. Panics only if the server violates one of its
/// invariants.
///
/// # Errors
/// A temporary file cannot be created.
pub fn garbage(seed: u64, input: &[u8]) -> io::Result<Report> {
    let mut random = Random::new(seed ^ 0xbad);
    let mut simulation = Simulation::new(seed)?;
    let size = 1 + random.below(input.len() + 1);
    let mut clients: Vec<Client> = input
        .chunks(size)
        .take(16)
        .map(|chunk| Client::any_bytes(&simulation.network, Speaks::Http1, chunk.to_vec()))
        .collect();
    let stop_at = random.one_in(4).then(|| random.below(50));
    let steps = simulation.play(&mut clients, 100, stop_at, &mut random)?;
    Ok(simulation.report(steps))
}

/// Feeds arbitrary bytes to one HTTP/1 connection. Panics if handlers get other requests than those that the bytes consist of, or get
/// them in another order.
///
/// # Errors
/// A temporary file cannot be created.
pub fn http1_connection(seed: u64, input: &[u8]) -> io::Result<Report> {
    let mut simulation = Simulation::new(seed)?;
    let sent = requests(input, &simulation.server.limits);
    let report = run_one(&mut simulation, seed, Speaks::Http1, input.to_vec())?;
    let served = simulation.served();
    assert!(served.len() <= sent.len(), "{} requests were served, and {} sent", served.len(), sent.len());
    for (at, (served, sent)) in served.iter().zip(&sent).enumerate() {
        assert_eq!(served.target, sent.target, "request {at}");
        assert!(served.body.is_none() || served.body == sent.body, "the body of request {at}");
    }
    Ok(report)
}

/// Feeds arbitrary bytes to one HTTP/2 connection, after the client's preface. Panics if what the server sends does not consist of frames
/// that it may send.
///
/// # Errors
/// A temporary file cannot be created.
pub fn http2_connection(seed: u64, input: &[u8]) -> io::Result<Report> {
    let mut simulation = Simulation::new(seed)?;
    let mut script = PREFACE.to_vec();
    frame::push_settings(&mut script, &[]);
    script.extend_from_slice(input);
    let report = run_one(&mut simulation, seed, Speaks::Http2, script)?;
    for wire in &simulation.network.lock().wires {
        let mut sent = &wire.to_client[..];
        while let Some(header) = FrameHeader::read(sent) {
            let is_known = header.kind != Kind::Unknown && header.kind != Kind::PushPromise;
            assert!(is_known && header.length <= PAYLOAD_MAX, "{header:?}");
            sent = sent.get(HEADER_LENGTH + header.length..).unwrap_or_default();
        }
    }
    Ok(report)
}

fn run_one(simulation: &mut Simulation, seed: u64, speaks: Speaks, script: Vec<u8>) -> io::Result<Report> {
    let mut random = Random::new(seed ^ 0x1bad);
    let mut clients = [Client::any_bytes(&simulation.network, speaks, script)];
    let stop_at = random.one_in(8).then(|| random.below(50));
    let steps = simulation.play(&mut clients, 200, stop_at, &mut random)?;
    Ok(simulation.report(steps))
}

/// The requests that `input` consists of, without those that the engine answers itself.
fn requests(mut input: &[u8], limits: &Limits) -> Vec<Served> {
    let mut requests = Vec::new();
    while let Ok(Some(head)) = parse_head(input, &limits.head) {
        let target = head.parts.target.of(input).to_vec();
        input = input.get(head.head_len..).unwrap_or_default();
        let (mut body, mut is_over) = (Vec::new(), false);
        if head.framing != Framing::None {
            let fed = IncomingBody::new(head.framing, 0).feed(input, limits, |data| body.extend_from_slice(data));
            is_over = !matches!(&fed, Ok(fed) if fed.done);
            input = input.get(fed.map_or(0, |fed| fed.consumed)..).unwrap_or_default();
        }
        if target != b"*" {
            requests.push(Served { target, body: Some(body) });
        }
        if is_over {
            break;
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn garbage_over_many_seeds() {
        let words: &[&[u8]] = &[
            b"GET ",
            b"POST ",
            b"/inline/9 ",
            b"/bytes/70000 ",
            b"/mixed/200000 ",
            b"/echo/9 ",
            b"/early/9 ",
            b"/pushed/70000 ",
            b"/socket/9 ",
            b"Connection: upgrade\r\nUpgrade: websocket\r\n",
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
            b"\x81\x82\0\0\0\0hi",
            b"HTTP/1.1\r\n",
            b"HTTP/1.0\r\n",
            b"Host: a\r\n",
            b"\r\n",
            b"Content-Length: 10\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"5\r\nhello\r\n",
            b"0\r\n\r\n",
            b"\0",
            b"Expect: 100-continue\r\n",
            b"Connection: close\r\n",
            b"\n",
            b"x",
        ];
        for seed in 0..200 {
            println!("seed {seed}");
            let mut random = Random::new(seed);
            let input: Vec<u8> =
                (0..random.below(60)).flat_map(|_| words[random.below(words.len())].to_vec()).collect();
            garbage(seed, &input).unwrap();
        }
    }

    #[test]
    fn frames_of_all_kinds_over_many_seeds() {
        for seed in 0..300 {
            println!("seed {seed}");
            let mut random = Random::new(seed);
            let mut input = Vec::new();
            for _ in 0..random.below(200) {
                // Frames with mostly valid headers and arbitrary contents.
                let length = if random.one_in(10) { random.below(9000) } else { random.below(40) };
                let kind = random.below(11) as u8;
                let stream = if random.one_in(3) { 0 } else { random.below(12) as u32 };
                input.extend_from_slice(&(length as u32).to_be_bytes()[1..]);
                input.extend_from_slice(&[kind, random.next() as u8]);
                input.extend_from_slice(&stream.to_be_bytes());
                input.extend((0..length).map(|_| if random.one_in(2) { 0x82 } else { random.next() as u8 }));
            }
            http2_connection(seed, &input).unwrap();
        }
    }

    /// Pieces of requests, valid and invalid.
    fn piece() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            6 => "(GET|HEAD) /(inline|at-once|bytes|file|mixed|waits|x)/[0-9]{1,5} HTTP/1\\.1\r\nHost: a\r\n\r\n".prop_map(String::into_bytes),
            2 => (0usize..9000).prop_map(|n| {
                let mut request = format!("POST /echo/{n} HTTP/1.1\r\nHost: a\r\nContent-Length: {n}\r\n\r\n").into_bytes();
                request.extend((0..n).map(|at| at as u8));
                request
            }),
            2 => prop::collection::vec(1usize..3000, 0..6).prop_map(|chunks| {
                let mut request = b"PUT /post/0 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
                for n in chunks {
                    request.extend(format!("{n:x}\r\n").bytes());
                    request.extend((0..n).map(|at| at as u8));
                    request.extend(b"\r\n");
                }
                request.extend(b"0\r\n\r\n");
                request
            }),
            1 => Just(b"POST /early/3 HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc".to_vec()),
            1 => Just(b"GET /bytes/9 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_vec()),
            1 => Just(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
            1 => Just(b"POST /post/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\nx".to_vec()),
            1 => prop::collection::vec(any::<u8>(), 0..40),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

        #[test]
        fn handlers_get_the_requests_that_a_client_sends(
            seed in any::<u64>(),
            pieces in prop::collection::vec(piece(), 0..12),
        ) {
            http1_connection(seed, &pieces.concat()).unwrap();
        }
    }
}
