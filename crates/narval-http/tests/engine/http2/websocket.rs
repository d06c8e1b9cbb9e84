//! WebSockets over HTTP/2 (RFC 8441): the same handlers as over HTTP/1.1, on a stream.

use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use narval_http::codecs::ws::deflate;
use narval_http::ws::{CloseCode, Message, Options, SendStatus, Upgrade, WebSocket, WsError, WsEvent};
use narval_http::{Handler, Request, Response, StatusCode, Version};

use super::client::*;
use super::server::{Site, serve};
use crate::harness::{PATIENCE, TestServer, on_each_driver, unhurried};
use crate::websocket::{Events, closed, recorded};

/// A server with WebSockets at `/socket`, and `hello` at `/`.
struct Fixture {
    server: TestServer,
    events: Events,
}

impl Fixture {
    fn with(
        driver: narval_http::DriverChoice,
        options: Options,
        on_event: impl Fn(&WebSocket, &WsEvent) + Send + Sync + Clone + 'static,
    ) -> Self {
        let (sockets, events) = recorded(options, on_event);
        let handler = move |request: Request| match request.path() {
            "/" => Response::text(StatusCode::OK, "hello\n"),
            "/forbidden" => Response::text(StatusCode::FORBIDDEN, "no\n"),
            _ => {
                assert_eq!(request.version(), Version::HTTP_2);
                sockets.handle(request)
            }
        };
        Self { server: serve(driver, unhurried(), handler), events }
    }

    fn echo(driver: narval_http::DriverChoice, options: Options) -> Self {
        Self::with(driver, options, |socket, event| {
            if let WsEvent::Message(message) = event {
                assert!(socket.send(message.clone()).is_accepted());
            }
        })
    }

    fn client(&self) -> Client {
        Client::start(self.server.address)
    }

    fn next(&self) -> WsEvent {
        self.events.recv_timeout(PATIENCE).expect("an event").1
    }

    fn opened(&self) -> WebSocket {
        let (socket, event) = self.events.recv_timeout(PATIENCE).expect("an event");
        assert_eq!(event, WsEvent::Open);
        socket
    }
}

/// The fields of an extended CONNECT.
fn connect(path: &str) -> Vec<(&str, &str)> {
    vec![
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", path),
        ("sec-websocket-version", "13"),
        ("origin", "https://localhost"),
    ]
}

/// The client's side of an accepted WebSocket.
struct Socket {
    stream: u32,
    fields: Vec<(String, String)>,
    received: Vec<u8>,
    /// The server has ended its side.
    has_ended: bool,
}

impl Socket {
    fn open(client: &mut Client, fields: &[(&str, &str)]) -> Self {
        let stream = client.open(fields, false);
        Self::accepted(client, stream)
    }

    fn accepted(client: &mut Client, stream: u32) -> Self {
        let head = client.until(|frame| frame.kind == HEADERS && frame.stream == stream);
        let fields = client.fields(&head);
        assert_eq!(fields[0], (":status".to_owned(), "200".to_owned()));
        assert_eq!(head.flags & END_STREAM, 0);
        let is_of_http1 =
            |name: &str| matches!(name, "content-length" | "upgrade" | "connection" | "sec-websocket-accept");
        assert!(!fields.iter().any(|(name, _)| is_of_http1(name)), "{fields:?}");
        Self { stream, fields, received: Vec::new(), has_ended: false }
    }

    /// The next frame: its first octet, and its payload. Windows are opened again by what is received.
    fn frame(&mut self, client: &mut Client) -> (u8, Vec<u8>) {
        loop {
            if let Some((head, length)) = self.head()
                && self.received.len() >= head + length
            {
                let rest = self.received.split_off(head + length);
                let mut whole = std::mem::replace(&mut self.received, rest);
                return (whole[0], whole.split_off(head));
            }
            let stream = self.stream;
            let data = client.until(|frame| frame.kind == DATA && frame.stream == stream);
            if !data.payload.is_empty() {
                client.window(0, data.payload.len() as u32);
                client.window(stream, data.payload.len() as u32);
            }
            self.received.extend_from_slice(&data.payload);
            self.has_ended |= data.flags & END_STREAM != 0;
            assert!(!self.has_ended || !self.received.is_empty(), "ended without another frame");
        }
    }

    /// Bytes of the next frame's header, and of its payload.
    fn head(&self) -> Option<(usize, usize)> {
        let &[_, length, ..] = self.received.as_slice() else { return None };
        assert_eq!(length & 0x80, 0, "a server does not mask");
        let be = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        match length {
            127 => Some((10, be(self.received.get(2..10)?))),
            126 => Some((4, be(self.received.get(2..4)?))),
            length => Some((2, length.into())),
        }
    }

    fn text(&mut self, client: &mut Client) -> String {
        let (first, payload) = self.frame(client);
        assert_eq!(first, 0x81, "{payload:?}");
        String::from_utf8(payload).unwrap()
    }

    fn close_code(&mut self, client: &mut Client) -> u16 {
        let (first, payload) = self.frame(client);
        assert_eq!(first, 0x88, "{payload:?}");
        u16::from_be_bytes([payload[0], payload[1]])
    }

    /// The server ends the stream cleanly.
    fn ends(&mut self, client: &mut Client) {
        let stream = self.stream;
        if !self.has_ended {
            let last = client.until(|frame| matches!(frame.kind, DATA | RST_STREAM) && frame.stream == stream);
            assert_eq!((last.kind, last.flags & END_STREAM, last.payload.len()), (DATA, END_STREAM, 0));
        }
    }

    /// The error code of the server's RST_STREAM.
    fn is_reset(&mut self, client: &mut Client) -> u32 {
        let stream = self.stream;
        client.until(|frame| frame.kind == RST_STREAM && frame.stream == stream).code()
    }

    fn send(&self, client: &mut Client, frames: impl AsRef<[u8]>) {
        for piece in frames.as_ref().chunks(16_384) {
            client.send(frame(DATA, 0, self.stream, piece));
        }
    }

    fn end(&self, client: &mut Client) {
        client.send(frame(DATA, END_STREAM, self.stream, []));
    }
}

/// A frame as clients send it, with a mask of zeros.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = payload.len();
    let mut out = vec![first];
    match length {
        0..126 => out.push(0x80 | length as u8),
        126..65_536 => {
            out.push(0x80 | 126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            out.push(0x80 | 127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(payload);
    out
}

#[test]
fn messages_in_both_directions_alongside_requests() {
    on_each_driver(|driver| {
        let fixture = Fixture::echo(driver, Options::default());
        let mut client = fixture.client();
        assert!(client.offers_websockets);
        let mut sockets: Vec<Socket> = (0..5).map(|_| Socket::open(&mut client, &connect("/socket"))).collect();
        for _ in &sockets {
            fixture.opened();
        }
        for (at, socket) in sockets.iter().enumerate() {
            socket.send(&mut client, masked(0x81, format!("hällo {at}").as_bytes()));
        }
        client.still_serves();
        // This client drops frames of other streams while it waits, so it makes one request at a time.
        let socket = sockets.last_mut().unwrap();
        socket.send(&mut client, masked(0x81, b"again"));
        while socket.text(&mut client) != "again" {}
        let large = vec![7; 100_000];
        socket.send(&mut client, masked(0x82, &large));
        assert_eq!(socket.frame(&mut client), (0x82, large));
        socket.send(&mut client, masked(0x89, b"!"));
        assert_eq!(socket.frame(&mut client), (0x8a, b"!".to_vec()));
        socket.send(&mut client, masked(0x88, &1001u16.to_be_bytes()));
        assert_eq!(socket.close_code(&mut client), 1001);
        socket.ends(&mut client);
        socket.end(&mut client);
        client.still_serves();
        while fixture.next() != closed(1001, "", true) {}
    });
}

#[test]
fn messages_sent_before_the_handshake_response_follow_it() {
    on_each_driver(|driver| {
        let server = serve(driver, unhurried(), |request: Request| {
            let upgrade = Upgrade::new(&request).unwrap();
            let (response, socket) = upgrade.accept_with_handle(|_: &WebSocket, _: WsEvent| {});
            assert_eq!(socket.send("first"), SendStatus::Queued);
            assert_eq!(socket.send(vec![1; 10_000]), SendStatus::Queued);
            socket.close(CloseCode::NORMAL, "that was it");
            assert_eq!(socket.send("late"), SendStatus::Closed);
            response
        });
        let mut client = Client::start(server.address);
        let mut socket = Socket::open(&mut client, &connect("/"));
        assert_eq!(socket.text(&mut client), "first");
        assert_eq!(socket.frame(&mut client), (0x82, vec![1; 10_000]));
        assert_eq!(socket.close_code(&mut client), 1000);
    });
}

#[test]
fn invalid_handshakes_are_refused() {
    let without = |name: &str| -> Vec<_> { connect("/socket").into_iter().filter(|field| field.0 != name).collect() };
    let with = |name: &str, value: &'static str| {
        let mut fields = connect("/socket");
        fields.iter_mut().filter(|field| field.0 == name).for_each(|field| field.1 = value);
        fields
    };
    let and = |name: &'static str, value: &'static str| [connect("/socket"), vec![(name, value)]].concat();
    let malformed = [
        ("a protocol with GET", with(":method", "GET")),
        ("no path", without(":path")),
        ("no scheme", without(":scheme")),
        ("no authority", without(":authority")),
        ("an empty path", with(":path", "")),
        ("a length", and("content-length", "0")),
        ("upgrade", and("upgrade", "websocket")),
        ("connection", and("connection", "upgrade")),
        ("a protocol twice", [vec![(":protocol", "websocket")], connect("/socket")].concat()),
    ];
    let answered = [
        ("an unknown protocol", 501, with(":protocol", "connect-udp")),
        ("the protocol of another case", 501, with(":protocol", "WebSocket")),
        ("CONNECT to another server", 501, vec![(":method", "CONNECT"), (":authority", "localhost:80")]),
        ("no version", 426, without("sec-websocket-version")),
        ("another version", 426, with("sec-websocket-version", "8")),
        ("malformed extensions", 400, and("sec-websocket-extensions", ",")),
        ("a resource that is no WebSocket", 501, connect("/")),
        ("a resource that is forbidden", 403, connect("/forbidden")),
        ("a GET of a WebSocket", 426, get("/socket")),
    ];
    on_each_driver(|driver| {
        let fixture = Fixture::echo(driver, Options::default());
        let mut client = fixture.client();
        for (what, fields) in &malformed {
            let stream = client.open(fields, false);
            assert_eq!(client.outcome(stream), Outcome::Reset(code::PROTOCOL_ERROR), "{what}");
        }
        for (what, status, fields) in &answered {
            let is_last = fields[0].1 == "GET";
            let stream = client.open(fields, is_last);
            assert_eq!(client.response(stream).status, *status, "{what}");
            if !is_last {
                client.send(frame(DATA, END_STREAM, stream, []));
            }
        }
        client.still_serves();
        assert!(fixture.events.try_recv().is_err(), "no handler had an event");
    });
}

#[test]
fn websockets_are_not_advertised_without_a_handler_for_them() {
    struct Without;

    impl Handler for Without {
        fn handle(&self, _: Request) -> Response {
            Response::text(StatusCode::OK, "hello\n")
        }

        fn accepts_websockets(&self) -> bool {
            false
        }
    }

    on_each_driver(|driver| {
        let server = serve(driver, unhurried(), Without);
        let mut client = Client::start(server.address);
        assert!(!client.offers_websockets);
        let stream = client.open(&connect("/"), false);
        assert_eq!(client.outcome(stream), Outcome::Reset(code::PROTOCOL_ERROR));
        client.still_serves();
    });
}

#[test]
fn dropping_the_response_closes_the_socket() {
    on_each_driver(|driver| {
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let (waits, handles) = (gate.clone(), Arc::new(Mutex::new(Vec::new())));
        let kept = handles.clone();
        let server = serve(driver, unhurried(), move |request: Request| {
            let upgrade = Upgrade::new(&request).unwrap();
            let (response, socket) = upgrade.accept_with_handle(|_: &WebSocket, event: WsEvent| panic!("{event:?}"));
            kept.lock().unwrap().push(socket);
            let closed = waits.0.lock().unwrap();
            drop(waits.1.wait_timeout_while(closed, PATIENCE, |is_open| !*is_open).unwrap());
            response
        });
        let mut client = Client::start(server.address);
        let stream = client.open(&connect("/"), false);
        let started = Instant::now();
        while handles.lock().unwrap().is_empty() {
            assert!(started.elapsed() < PATIENCE);
            thread::yield_now();
        }
        // The client resets the stream before it has the answer.
        client.send(frame(RST_STREAM, 0, stream, code::CANCEL.to_be_bytes()));
        client.send(frame(PING, 0, 0, *b"ordered?"));
        client.until(|frame| frame.kind == PING);
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        let socket = handles.lock().unwrap().remove(0);
        while socket.is_open() {
            assert!(started.elapsed() < PATIENCE, "never closed");
            thread::yield_now();
        }
        assert_eq!(socket.send("x"), SendStatus::Closed);
    });
}

#[test]
fn frames_sent_before_the_handshake_is_answered() {
    on_each_driver(|driver| {
        let fixture = Fixture::echo(driver, Options::default());
        let mut client = fixture.client();
        let stream = client.stream();
        let head = frame(HEADERS, END_HEADERS, stream, block(&connect("/socket")));
        client.send([head, frame(DATA, 0, stream, masked(0x81, b"early"))].concat());
        let mut socket = Socket::accepted(&mut client, stream);
        assert_eq!(socket.text(&mut client), "early");

        // More than one frame is refused before the handler has answered.
        let (site, server) = Site::start(driver, unhurried());
        let mut client = Client::start(server.address);
        let stream = client.open(&connect("/wait"), false);
        client.send(frame(DATA, 0, stream, vec![0; 16_384]));
        client.send(frame(DATA, 0, stream, [0]));
        assert_eq!(client.outcome(stream), Outcome::Reset(code::ENHANCE_YOUR_CALM));
        site.open_gate();
        client.still_serves();
    });
}

#[test]
fn rfc_7692_compressed_messages() {
    on_each_driver(|driver| {
        let fixture = Fixture::echo(driver, Options::default());
        let mut client = fixture.client();
        let fields = [connect("/socket"), vec![("sec-websocket-extensions", "permessage-deflate")]].concat();
        let mut socket = Socket::open(&mut client, &fields);
        let agreed = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
        assert!(socket.fields.contains(&("sec-websocket-extensions".to_owned(), agreed.to_owned())));
        fixture.opened();
        socket.send(&mut client, masked(0xc1, b"\xf2\x48\xcd\xc9\xc9\x07\x00"));
        assert_eq!(fixture.next(), WsEvent::Message(Message::from("Hello")));
        assert_eq!(socket.text(&mut client), "Hello", "too small to be compressed");
        let long = "abc".repeat(200);
        socket.send(&mut client, masked(0x81, long.as_bytes()));
        let (first, payload) = socket.frame(&mut client);
        assert_eq!(first, 0xc1);
        assert_eq!(deflate::decompress(&payload, 600).unwrap(), long.as_bytes());
    });
}

#[test]
fn a_client_that_opens_no_window_reaches_the_watermarks_and_blocks_nobody() {
    on_each_driver(|driver| {
        let options = Options { send_soft_bytes: 100_000, send_hard_bytes: 300_000, ..Options::default() };
        let fixture = Fixture::with(driver, options, |_, _| {});
        let mut client = Client::with_settings(fixture.server.address, &[(INITIAL_WINDOW_SIZE, 1000)]);
        let mut socket = Socket::open(&mut client, &connect("/socket"));
        let ours = fixture.opened();
        let (mut accepted, mut pressed) = (0, false);
        loop {
            match ours.send(vec![3; 50_000]) {
                SendStatus::Queued => assert!(!pressed),
                SendStatus::Backpressure => pressed = true,
                SendStatus::Dropped => break,
                SendStatus::Closed => panic!("closed"),
            }
            accepted += 1;
            assert!(ours.queued_bytes() <= 300_000);
        }
        assert!(pressed);
        client.still_serves();
        client.window(socket.stream, 10_000_000);
        // A thousand bytes of the first arrived earlier, and were dropped while the client waited for the answer.
        let mut left = accepted * 50_010 - 1000;
        while left > 0 {
            let stream = socket.stream;
            let data = client.until(|frame| frame.kind == DATA && frame.stream == stream);
            client.window(0, data.payload.len() as u32);
            left -= data.payload.len().min(left);
            if ours.queued_bytes() == 0 {
                break;
            }
        }
        assert_eq!(fixture.next(), WsEvent::Drained);
        assert_eq!(ours.send("again"), SendStatus::Queued);
        let again = b"\x81\x05again";
        while !socket.received.ends_with(again) {
            let stream = socket.stream;
            let data = client.until(|frame| frame.kind == DATA && frame.stream == stream);
            socket.received.extend_from_slice(&data.payload);
        }
    });
}

#[test]
fn a_slow_handler_closes_only_the_window_of_its_stream() {
    on_each_driver(|driver| {
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let waits = gate.clone();
        let options = Options { receive_queue_bytes: 50_000, ..Options::default() };
        let fixture = Fixture::with(driver, options, move |_, event| {
            if let WsEvent::Message(_) = event {
                let closed = waits.0.lock().unwrap();
                drop(waits.1.wait_timeout_while(closed, PATIENCE, |is_open| !*is_open).unwrap());
            }
        });
        let mut client = fixture.client();
        let socket = Socket::open(&mut client, &connect("/socket"));
        fixture.opened();
        let message = masked(0x82, &[5; 10_000]);
        let window = client.initial_window as usize;
        let (mut sent, mut widened) = (0, 0);
        // As much as the window allows: it is opened again until the handler's queue is full.
        loop {
            while sent + message.len() <= window + widened {
                socket.send(&mut client, &message);
                sent += message.len();
            }
            client.send(frame(PING, 0, 0, *b"anymore?"));
            let before = widened;
            loop {
                let next = client.frame();
                match next.kind {
                    WINDOW_UPDATE if next.stream == socket.stream => {
                        widened += u32::from_be_bytes(next.payload.try_into().unwrap()) as usize;
                    }
                    PING => break,
                    _ => {}
                }
            }
            if widened == before {
                break;
            }
        }
        // The window of an open socket is 256 KiB.
        assert!(
            sent <= (256 << 10) + 50_000 + 2 * message.len(),
            "{sent} bytes were taken of a client whose handler waits"
        );
        client.still_serves();
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        let stream = socket.stream;
        client.until(|frame| frame.kind == WINDOW_UPDATE && frame.stream == stream);
        for _ in 0..sent / message.len() {
            assert_eq!(fixture.next(), WsEvent::Message(Message::from(vec![5; 10_000])));
        }
    });
}

#[test]
fn an_aborted_stream_ends_with_error_and_close_and_the_connection_stays() {
    on_each_driver(|driver| {
        let fixture = Fixture::echo(driver, Options::default());
        let mut client = fixture.client();
        for how in ["a reset", "an end without a Close frame"] {
            let mut socket = Socket::open(&mut client, &connect("/socket"));
            let ours = fixture.opened();
            if how == "a reset" {
                client.send(frame(RST_STREAM, 0, socket.stream, code::CANCEL.to_be_bytes()));
            } else {
                socket.end(&mut client);
                assert_eq!(socket.is_reset(&mut client), code::CANCEL);
            }
            assert_eq!(fixture.next(), WsEvent::Error(WsError::Lost), "{how}");
            assert_eq!(fixture.next(), closed(1006, "the connection was lost", false));
            assert_eq!(ours.send("x"), SendStatus::Closed);
            client.still_serves();
        }
        // Trailers are not allowed on a WebSocket's stream (RFC 9113 section 8.5).
        let mut socket = Socket::open(&mut client, &connect("/socket"));
        fixture.opened();
        client.send(frame(HEADERS, END_HEADERS | END_STREAM, socket.stream, block(&[("x-a", "b")])));
        assert_eq!(socket.is_reset(&mut client), code::PROTOCOL_ERROR);
        assert_eq!(fixture.next(), WsEvent::Error(WsError::Lost));
        assert!(matches!(fixture.next(), WsEvent::Close(_)));
        // And so is the end of the connection.
        Socket::open(&mut client, &connect("/socket"));
        fixture.opened();
        drop(client);
        assert_eq!(fixture.next(), WsEvent::Error(WsError::Lost));
    });
}

#[test]
fn rfc_6455_7_1_7_a_violation_is_answered_with_a_close_frame() {
    on_each_driver(|driver| {
        let fixture = Fixture::echo(driver, Options::default());
        let mut client = fixture.client();
        let mut socket = Socket::open(&mut client, &connect("/socket"));
        fixture.opened();
        // A whole message, a frame that is not masked, and more.
        socket.send(&mut client, b"\x81\x82\0\0\0\0hi\x81\x02no");
        socket.send(&mut client, vec![0x55; 40_000]);
        assert_eq!(socket.text(&mut client), "hi");
        assert_eq!(socket.close_code(&mut client), 1002);
        socket.ends(&mut client);
        assert_eq!(fixture.next(), WsEvent::Message(Message::from("hi")));
        assert!(matches!(fixture.next(), WsEvent::Error(WsError::Protocol(_))));
        assert_eq!(fixture.next(), closed(1002, "the client violated the protocol: frame is not masked", false));
        client.still_serves();
    });
}

#[test]
fn a_panicking_handler_closes_only_its_stream() {
    on_each_driver(|driver| {
        let fixture = Fixture::with(driver, Options::default(), |socket, event| match event {
            WsEvent::Message(Message::Text(text)) if text == "panic" => panic!("as asked"),
            WsEvent::Message(message) => drop(socket.send(message.clone())),
            _ => {}
        });
        let mut client = fixture.client();
        let mut other = Socket::open(&mut client, &connect("/socket"));
        let mut socket = Socket::open(&mut client, &connect("/socket"));
        socket.send(&mut client, masked(0x81, b"panic"));
        assert_eq!(socket.close_code(&mut client), 1011);
        socket.ends(&mut client);
        other.send(&mut client, masked(0x81, b"still here"));
        assert_eq!(other.text(&mut client), "still here");
    });
}

#[test]
fn deadlines() {
    on_each_driver(|driver| {
        // A client must have answered a Ping within this time.
        let interval = Duration::from_secs(2);
        let pings = Options { ping_interval: Some(interval), ..Options::default() };
        let fixture = Fixture::echo(driver, pings);
        let mut client = fixture.client();
        let started = Instant::now();
        let mut socket = Socket::open(&mut client, &connect("/socket"));
        fixture.opened();
        assert_eq!(socket.frame(&mut client), (0x89, Vec::new()));
        socket.send(&mut client, masked(0x8a, b""));
        assert!(matches!(fixture.next(), WsEvent::Pong(_)), "a client that answers stays");
        assert_eq!(socket.frame(&mut client), (0x89, Vec::new()));
        assert_eq!(socket.is_reset(&mut client), code::CANCEL);
        assert_eq!(fixture.next(), WsEvent::Error(WsError::PingTimeout));
        // By default, the first Ping is sent after 30 s.
        assert!(started.elapsed() >= 3 * interval && started.elapsed() < 13 * interval, "{:?}", started.elapsed());
        client.still_serves();

        let moment = Duration::from_millis(300);
        let close = Options { close_timeout: moment, ..Options::default() };
        let fixture = Fixture::echo(driver, close);
        let mut client = fixture.client();
        let mut socket = Socket::open(&mut client, &connect("/socket"));
        fixture.opened().close(CloseCode::NORMAL, "");
        assert_eq!(socket.is_reset(&mut client), code::CANCEL);
        assert_eq!(fixture.next(), WsEvent::Error(WsError::CloseTimeout));

        let write = Options { write_timeout: moment, ..Options::default() };
        let fixture = Fixture::echo(driver, write);
        let mut client = Client::with_settings(fixture.server.address, &[(INITIAL_WINDOW_SIZE, 1000)]);
        let mut socket = Socket::open(&mut client, &connect("/socket"));
        let ours = fixture.opened();
        while ours.send(vec![0; 100_000]).is_accepted() {}
        assert_eq!(socket.is_reset(&mut client), code::CANCEL);
        assert_eq!(fixture.next(), WsEvent::Error(WsError::WriteTimeout));
        client.still_serves();
    });
}

#[test]
fn a_stopping_server_sends_close_frames() {
    on_each_driver(|driver| {
        let fixture = Fixture::echo(driver, Options::default());
        let mut client = fixture.client();
        let mut socket = Socket::open(&mut client, &connect("/socket"));
        fixture.opened();
        let handle = &fixture.server.handle;
        thread::scope(|scope| {
            let stopped = scope.spawn(|| handle.shutdown(PATIENCE));
            assert_eq!(socket.close_code(&mut client), 1001);
            socket.send(&mut client, masked(0x88, &1001u16.to_be_bytes()));
            socket.ends(&mut client);
            socket.end(&mut client);
            client.until(|frame| frame.kind == GOAWAY);
            assert!(stopped.join().unwrap(), "everything finished");
        });
        assert!(matches!(fixture.next(), WsEvent::Close(reason) if reason.is_clean));
    });
}

#[test]
fn any_thread_may_send() {
    on_each_driver(|driver| {
        let fixture = Fixture::with(driver, Options { send_hard_bytes: 16 << 20, ..Options::default() }, |_, _| {});
        let mut client = fixture.client();
        let mut socket = Socket::open(&mut client, &connect("/socket"));
        let ours = fixture.opened();
        thread::scope(|scope| {
            for sender in 0..4u8 {
                let ours = ours.clone();
                scope.spawn(move || {
                    for number in 0..500u16 {
                        let message = [&[sender], number.to_be_bytes().as_slice(), &[0; 3000]].concat();
                        assert!(ours.send(message).is_accepted());
                    }
                });
            }
            let mut next = [0u16; 4];
            for _ in 0..2000 {
                let (_, message) = socket.frame(&mut client);
                let sender = usize::from(message[0]);
                assert_eq!(u16::from_be_bytes([message[1], message[2]]), next[sender], "in the order of its sender");
                next[sender] += 1;
            }
        });
    });
}
