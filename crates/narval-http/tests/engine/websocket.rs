//! WebSockets over real sockets: a server of ours, and tungstenite or raw bytes as the client.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use narval_http::ws::{
    CloseCode, CloseReason, Message, Options, SendStatus, SharedMessage, Upgrade, UpgradeError, WebSocket,
    WsCompression, WsError, WsEvent,
};
use narval_http::{Bytes, DriverChoice, Handler, Listen, ListenAddress, Request, Response, Server, ServerHandle};
use tungstenite::protocol::frame::coding::CloseCode as ClientCode;

use crate::harness::{PATIENCE, TestServer, on_each_driver, unhurried};

type Client = tungstenite::WebSocket<TcpStream>;
pub(crate) type Events = Receiver<(WebSocket, WsEvent)>;

const GRACE: Duration = Duration::from_secs(5);

/// A server whose sockets' events come out of a channel.
struct Fixture {
    handle: ServerHandle,
    events: Events,
}

impl Fixture {
    fn new(driver: DriverChoice, options: Options) -> Self {
        Self::with(driver, options, |_, _| {})
    }

    /// `on_event` runs first, on the worker.
    fn with(
        driver: DriverChoice,
        options: Options,
        on_event: impl Fn(&WebSocket, &WsEvent) + Send + Sync + Clone + 'static,
    ) -> Self {
        let (handler, events) = recorded(options, on_event);
        Self { handle: serve(driver, handler), events }
    }

    fn connect(&self) -> Client {
        let stream = connect(&self.handle);
        tungstenite::client("ws://localhost/", stream).unwrap().0
    }

    fn next(&self) -> WsEvent {
        self.events.recv_timeout(PATIENCE).expect("an event").1
    }

    fn open(&self) -> WebSocket {
        let (socket, event) = self.events.recv_timeout(PATIENCE).expect("an event");
        assert_eq!(event, WsEvent::Open);
        socket
    }
}

/// A handler of WebSockets whose events come out of a channel. `on_event` runs first, on the worker.
pub(crate) fn recorded(
    options: Options,
    on_event: impl Fn(&WebSocket, &WsEvent) + Send + Sync + Clone + 'static,
) -> (impl Handler, Events) {
    let (sender, events) = channel();
    let sender: Mutex<Sender<(WebSocket, WsEvent)>> = Mutex::new(sender);
    let handler = move |request: Request| {
        let upgrade = Upgrade::new(&request)?.compress(WsCompression::default())?.options(options);
        let (on_event, sender) = (on_event.clone(), sender.lock().unwrap().clone());
        let handler = move |socket: &WebSocket, event: WsEvent| {
            on_event(socket, &event);
            // The test may be over.
            drop(sender.send((socket.clone(), event)));
        };
        Ok::<_, UpgradeError>(upgrade.accept(handler))
    };
    (handler, events)
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.handle.shutdown(GRACE);
    }
}

fn serve(driver: DriverChoice, handler: impl Handler) -> ServerHandle {
    let server = Server::builder(handler).listen(Listen::Tcp("127.0.0.1:0".parse().unwrap())).driver(driver).workers(4);
    server.build().unwrap().spawn().unwrap()
}

fn connect(handle: &ServerHandle) -> TcpStream {
    let [ListenAddress::Tcp(address)] = handle.addresses() else { panic!("one TCP address") };
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

const HANDSHAKE: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";

/// Reads up to the end of a head.
fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap().to_ascii_lowercase()
}

fn text(text: &str) -> tungstenite::Message {
    tungstenite::Message::text(text)
}

pub(crate) fn closed(code: u16, reason: &str, is_clean: bool) -> WsEvent {
    WsEvent::Close(CloseReason { code, reason: reason.to_owned(), is_clean })
}

fn echo(driver: DriverChoice) -> Fixture {
    Fixture::with(driver, Options::default(), |socket, event| {
        if let WsEvent::Message(message) = event {
            assert_eq!(socket.send(message.clone()), SendStatus::Queued);
        }
    })
}

#[test]
fn messages_in_both_directions_and_events_in_order() {
    on_each_driver(|driver| {
        let fixture = echo(driver);
        let mut client = fixture.connect();
        fixture.open();
        client.send(text("hällo")).unwrap();
        assert_eq!(client.read().unwrap(), text("hällo"));
        client.send(tungstenite::Message::binary(vec![7; 100_000])).unwrap();
        assert_eq!(client.read().unwrap(), tungstenite::Message::binary(vec![7; 100_000]));
        client.send(tungstenite::Message::Ping(Bytes::from_static(b"!"))).unwrap();
        assert_eq!(client.read().unwrap(), tungstenite::Message::Pong(Bytes::from_static(b"!")));
        client.close(Some(tungstenite::protocol::CloseFrame { code: ClientCode::Away, reason: "bye".into() })).unwrap();
        let Ok(tungstenite::Message::Close(Some(frame))) = client.read() else { panic!("a Close frame") };
        assert_eq!(u16::from(frame.code), 1001);
        assert!(matches!(client.read(), Err(tungstenite::Error::ConnectionClosed)), "the server ends the connection");
        assert_eq!(fixture.next(), WsEvent::Message(Message::from("hällo")));
        assert_eq!(fixture.next(), WsEvent::Message(Message::from(vec![7; 100_000])));
        assert_eq!(fixture.next(), WsEvent::Ping(Bytes::from_static(b"!")));
        assert_eq!(fixture.next(), closed(1001, "bye", true));
    });
}

#[test]
fn messages_sent_before_the_handshake_response_follow_it() {
    on_each_driver(|driver| {
        let handle = serve(driver, |request| {
            let upgrade = Upgrade::new(&request).unwrap();
            let (response, socket) = upgrade.accept_with_handle(|_: &WebSocket, _: WsEvent| {});
            assert_eq!(socket.send("first"), SendStatus::Queued);
            assert_eq!(socket.send(vec![1; 10_000]), SendStatus::Queued);
            socket.close(CloseCode::NORMAL, "that was it");
            assert_eq!(socket.send("late"), SendStatus::Closed);
            response
        });
        let mut client = tungstenite::client("ws://localhost/", connect(&handle)).unwrap().0;
        assert_eq!(client.read().unwrap(), text("first"));
        assert_eq!(client.read().unwrap(), tungstenite::Message::binary(vec![1; 10_000]));
        assert!(client.read().unwrap().is_close());
        handle.shutdown(GRACE);
    });
}

#[test]
fn frames_sent_with_the_handshake_are_read() {
    on_each_driver(|driver| {
        let fixture = echo(driver);
        let mut stream = connect(&fixture.handle);
        let request = [HANDSHAKE.as_bytes(), b"\r\n", b"\x81\x82\0\0\0\0hi"].concat();
        stream.write_all(&request).unwrap();
        assert!(read_head(&mut stream).starts_with("http/1.1 101 "));
        let mut frame = [0; 4];
        stream.read_exact(&mut frame).unwrap();
        assert_eq!(&frame, b"\x81\x02hi");
    });
}

#[test]
fn dropping_the_response_closes_the_socket() {
    on_each_driver(|driver| {
        let (sender, sockets) = channel();
        let sender = Mutex::new(sender);
        let handle = serve(driver, move |request| {
            let upgrade = Upgrade::new(&request).unwrap();
            let (_response, socket) = upgrade.accept_with_handle(|_: &WebSocket, event: WsEvent| panic!("{event:?}"));
            sender.lock().unwrap().send(socket).unwrap();
            Response::text(http::StatusCode::FORBIDDEN, "no")
        });
        let mut stream = connect(&handle);
        stream.write_all(format!("{HANDSHAKE}\r\n").as_bytes()).unwrap();
        assert!(read_head(&mut stream).starts_with("http/1.1 403 "));
        let socket = sockets.recv().unwrap();
        assert_eq!((socket.is_open(), socket.send("x")), (false, SendStatus::Closed));
        handle.shutdown(GRACE);
    });
}

#[test]
fn rfc_6455_4_2_2_invalid_handshakes_are_answered() {
    on_each_driver(|driver| {
        let fixture = echo(driver);
        for (head, status) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "426"),
            (format!("{}\r\n", HANDSHAKE.replace("13", "8")), "426"),
            (format!("{}\r\n", HANDSHAKE.replace("dGhl", "")), "400"),
            (format!("{HANDSHAKE}Sec-WebSocket-Extensions: ,\r\n\r\n"), "400"),
        ] {
            let mut stream = connect(&fixture.handle);
            stream.write_all(head.as_bytes()).unwrap();
            let answer = read_head(&mut stream);
            assert!(answer.starts_with(&format!("http/1.1 {status} ")), "{head}: {answer}");
            assert_eq!(status == "426", answer.contains("sec-websocket-version: 13"));
        }
    });
}

#[test]
fn rfc_7692_compressed_messages() {
    on_each_driver(|driver| {
        let fixture = echo(driver);
        let mut stream = connect(&fixture.handle);
        stream
            .write_all(format!("{HANDSHAKE}Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n").as_bytes())
            .unwrap();
        let head = read_head(&mut stream);
        assert!(head.contains(
            "sec-websocket-extensions: permessage-deflate; server_no_context_takeover; client_no_context_takeover\r\n"
        ));
        stream.write_all(b"\xc1\x87\0\0\0\0\xf2\x48\xcd\xc9\xc9\x07\x00").unwrap();
        assert!(matches!(fixture.next(), WsEvent::Open));
        assert_eq!(fixture.next(), WsEvent::Message(Message::from("Hello")));
        let mut frame = [0; 7];
        stream.read_exact(&mut frame).unwrap();
        assert_eq!(&frame, b"\x81\x05Hello", "too small to be compressed");
        let long = "abc".repeat(200);
        stream.write_all(&[b"\x81\xfe\x02\x58\0\0\0\0".as_slice(), long.as_bytes()].concat()).unwrap();
        let mut head = [0; 2];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(head[0], 0xc1);
        let mut payload = vec![0; usize::from(head[1])];
        stream.read_exact(&mut payload).unwrap();
        assert_eq!(narval_http::codecs::ws::deflate::decompress(&payload, 600).unwrap(), long.as_bytes());
    });
}

#[test]
fn a_bomb_closes_with_1009() {
    on_each_driver(|driver| {
        let fixture = Fixture::new(driver, Options::default());
        let mut stream = connect(&fixture.handle);
        stream
            .write_all(format!("{HANDSHAKE}Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n").as_bytes())
            .unwrap();
        read_head(&mut stream);
        fixture.open();
        let settings = narval_http::codecs::ws::deflate::Settings { level: 9, window_bits: 15 };
        let bomb = narval_http::codecs::ws::deflate::compress(settings, &vec![0; 2 << 20]);
        let length = u16::try_from(bomb.len()).unwrap().to_be_bytes();
        stream.write_all(&[b"\xc2\xfe", length.as_slice(), b"\0\0\0\0", &bomb].concat()).unwrap();
        assert_eq!(fixture.next(), WsEvent::Error(WsError::Protocol(narval_http::ws::ProtocolError::MessageTooBig)));
        let WsEvent::Close(reason) = fixture.next() else { panic!("a close") };
        assert_eq!((reason.code, reason.is_clean), (1009, false));
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer.get(2..4), Some(1009u16.to_be_bytes().as_slice()));
    });
}

#[test]
fn rfc_6455_7_1_7_a_violation_is_answered_with_a_close_frame() {
    on_each_driver(|driver| {
        let fixture = echo(driver);
        let mut stream = connect(&fixture.handle);
        stream.write_all(format!("{HANDSHAKE}\r\n").as_bytes()).unwrap();
        read_head(&mut stream);
        fixture.open();
        // A whole message, a frame that is not masked, and more: what comes before the breach counts, what follows does not,
        // and the Close frame is not lost to a reset although it was never read.
        stream.write_all(b"\x81\x82\0\0\0\0hi\x81\x02no").unwrap();
        stream.write_all(&vec![0x55; 40_000]).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"\x81\x02hi\x88"), "{answer:?}");
        assert_eq!(answer.get(6..8), Some(1002u16.to_be_bytes().as_slice()));
        assert_eq!(fixture.next(), WsEvent::Message(Message::from("hi")));
        assert!(matches!(fixture.next(), WsEvent::Error(WsError::Protocol(_))));
        assert_eq!(fixture.next(), closed(1002, "the client violated the protocol: frame is not masked", false));
    });
}

#[test]
fn a_lost_connection_is_an_error_and_a_close() {
    on_each_driver(|driver| {
        let fixture = Fixture::new(driver, Options::default());
        let client = fixture.connect();
        let socket = fixture.open();
        drop(client);
        assert_eq!(fixture.next(), WsEvent::Error(WsError::Lost));
        assert_eq!(fixture.next(), closed(1006, "the connection was lost", false));
        assert_eq!(socket.send("x"), SendStatus::Closed, "from the event on");
    });
}

#[test]
fn a_panicking_handler_closes_only_its_connection() {
    on_each_driver(|driver| {
        let fixture = Fixture::with(driver, Options::default(), |socket, event| match event {
            WsEvent::Message(Message::Text(text)) if text == "panic" => panic!("as asked"),
            WsEvent::Message(message) => drop(socket.send(message.clone())),
            _ => {}
        });
        let mut other = fixture.connect();
        fixture.open();
        let mut client = fixture.connect();
        fixture.open();
        client.send(text("panic")).unwrap();
        let Ok(tungstenite::Message::Close(Some(frame))) = client.read() else { panic!("a Close frame") };
        assert_eq!(u16::from(frame.code), 1011);
        assert_eq!(fixture.next(), WsEvent::Error(WsError::Panicked));
        assert!(matches!(fixture.next(), WsEvent::Close(_)));
        other.send(text("still here")).unwrap();
        assert_eq!(other.read().unwrap(), text("still here"));
    });
}

#[test]
fn events_of_one_socket_are_serial() {
    on_each_driver(|driver| {
        let running = Arc::new(Mutex::new(()));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let fixture = {
            let (running, seen) = (running, seen.clone());
            Fixture::with(driver, Options::default(), move |_, event| {
                let _only = running.try_lock().expect("two events at once");
                thread::sleep(Duration::from_micros(300));
                if let WsEvent::Message(message) = event {
                    seen.lock().unwrap().push(message.as_text().unwrap().to_owned());
                }
            })
        };
        let mut client = fixture.connect();
        let sent: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        for number in &sent {
            client.send(text(number)).unwrap();
        }
        client.close(None).unwrap();
        while !matches!(fixture.next(), WsEvent::Close(_)) {}
        assert_eq!(*seen.lock().unwrap(), sent, "more than may wait at a time, and none lost");
    });
}

#[test]
fn a_client_that_does_not_read_reaches_the_watermarks() {
    on_each_driver(|driver| {
        let options = Options { send_soft_bytes: 100_000, send_hard_bytes: 300_000, ..Options::default() };
        let fixture = Fixture::new(driver, options);
        let mut client = fixture.connect();
        let socket = fixture.open();
        let message = SharedMessage::new(vec![3; 50_000]);
        let (mut accepted, mut pressed) = (0, false);
        loop {
            match socket.send_shared(&message) {
                SendStatus::Queued => assert!(!pressed),
                SendStatus::Backpressure => pressed = true,
                SendStatus::Dropped => break,
                SendStatus::Closed => panic!("closed"),
            }
            accepted += 1;
            assert!(socket.queued_bytes() <= 300_000);
        }
        assert!(pressed);
        for _ in 0..accepted {
            assert_eq!(client.read().unwrap().len(), 50_000);
        }
        assert_eq!(fixture.next(), WsEvent::Drained);
        assert_eq!(socket.queued_bytes(), 0);
        assert_eq!(socket.send("again"), SendStatus::Queued);
        assert_eq!(client.read().unwrap(), text("again"));
    });
}

#[test]
fn deadlines() {
    on_each_driver(|driver| {
        // A client must have answered a Ping within this time.
        let interval = Duration::from_secs(2);
        let pings = Options { ping_interval: Some(interval), ..Options::default() };
        let fixture = Fixture::new(driver, pings);
        let started = Instant::now();
        let mut answers = fixture.connect();
        fixture.open();
        let silent = fixture.connect();
        fixture.open();
        // A client that reads answers the Ping, and stays.
        assert!(answers.read().unwrap().is_ping());
        answers.flush().unwrap();
        assert_eq!(fixture.next(), WsEvent::Pong(Bytes::new()));
        assert_eq!(fixture.next(), WsEvent::Error(WsError::PingTimeout));
        assert!(matches!(fixture.next(), WsEvent::Close(_)));
        // By default, the first Ping is sent after 30 s.
        assert!(started.elapsed() >= 2 * interval && started.elapsed() < 13 * interval, "{:?}", started.elapsed());
        drop(silent);

        let moment = Duration::from_millis(300);
        let close = Options { close_timeout: moment, ..Options::default() };
        let fixture = Fixture::new(driver, close);
        let silent = fixture.connect();
        let socket = fixture.open();
        socket.close(CloseCode::NORMAL, "");
        assert_eq!(fixture.next(), WsEvent::Error(WsError::CloseTimeout));
        assert_eq!(fixture.next(), closed(1006, "the client did not complete the closing handshake", false));
        drop(silent);

        let write = Options { write_timeout: moment, ..Options::default() };
        let fixture = Fixture::new(driver, write);
        let silent = fixture.connect();
        let socket = fixture.open();
        while socket.send(vec![0; 100_000]).is_accepted() {}
        assert_eq!(fixture.next(), WsEvent::Error(WsError::WriteTimeout));
        assert!(matches!(fixture.next(), WsEvent::Close(_)));
        drop(silent);
    });
}

#[test]
fn a_stopping_server_sends_close_frames() {
    on_each_driver(|driver| {
        let fixture = Fixture::new(driver, Options::default());
        let mut client = fixture.connect();
        fixture.open();
        let handle = &fixture.handle;
        thread::scope(|scope| {
            let stopped = scope.spawn(|| handle.shutdown(GRACE));
            let Ok(tungstenite::Message::Close(Some(frame))) = client.read() else { panic!("a Close frame") };
            assert_eq!(u16::from(frame.code), 1001);
            assert!(client.read().is_err());
            assert!(stopped.join().unwrap(), "everything finished");
        });
        assert!(matches!(fixture.next(), WsEvent::Close(reason) if reason.is_clean));
    });
}

#[test]
fn any_thread_may_send() {
    on_each_driver(|driver| {
        let fixture = Fixture::new(driver, Options { send_hard_bytes: 16 << 20, ..Options::default() });
        let mut client = fixture.connect();
        let socket = fixture.open();
        thread::scope(|scope| {
            for sender in 0..4u8 {
                let socket = socket.clone();
                scope.spawn(move || {
                    for number in 0..500u16 {
                        let message = [&[sender], number.to_be_bytes().as_slice(), &[0; 3000]].concat();
                        assert!(socket.send(message).is_accepted());
                    }
                });
            }
            let mut next = [0u16; 4];
            for _ in 0..2000 {
                let message = client.read().unwrap().into_data();
                let sender = usize::from(message[0]);
                assert_eq!(u16::from_be_bytes([message[1], message[2]]), next[sender], "in the order of its sender");
                next[sender] += 1;
            }
        });
    });
}

#[test]
fn handles_are_compared_by_connection() {
    on_each_driver(|driver| {
        let fixture = Fixture::new(driver, Options::default());
        let _clients = (fixture.connect(), fixture.connect());
        let (first, second) = (fixture.open(), fixture.open());
        assert_eq!(first, first.clone());
        assert_ne!(first, second);
        #[allow(clippy::mutable_key_type, reason = "its hash and its equality are those of its identity")]
        let set: std::collections::HashSet<WebSocket> = [first.clone(), first, second].into();
        assert_eq!(set.len(), 2);
    });
}

/// A large message is compressed while its client sends Pings, which the shard answers: it does not wait for the
/// compressor, so another connection is answered meanwhile.
#[test]
fn a_message_that_is_compressed_delays_no_other_connection() {
    on_each_driver(|driver| {
        let compression = WsCompression { level: 9, bytes_min: 0, context_takeover: true };
        let options = Options { send_hard_bytes: 64 << 20, ..Options::default() };
        let (sender, opened) = channel();
        let sender = Mutex::new(sender);
        let handler = move |request: Request| {
            if request.path() != "/ws" {
                return Ok(Response::text(narval_http::StatusCode::OK, "hello\n"));
            }
            let sender = sender.lock().unwrap().clone();
            let upgrade = Upgrade::new(&request)?.compress(compression)?.options(options);
            Ok::<_, UpgradeError>(upgrade.accept(move |socket: &WebSocket, event: WsEvent| {
                if event == WsEvent::Open {
                    sender.send(socket.clone()).unwrap();
                }
            }))
        };
        let server = TestServer::with(driver, handler, unhurried(), |builder| builder.shards(1));
        let mut stream = TcpStream::connect(server.address).unwrap();
        let handshake = HANDSHAKE.replace("GET / ", "GET /ws ");
        write!(stream, "{handshake}Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n").unwrap();
        assert!(read_head(&mut stream).contains("permessage-deflate"));
        let socket = opened.recv_timeout(PATIENCE).unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let mut reader = stream.try_clone().unwrap();
            scope.spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // A Ping with an empty mask.
                    stream.write_all(&[0x89, 0x80, 0, 0, 0, 0]).unwrap();
                    thread::sleep(Duration::from_millis(1));
                }
                stream.shutdown(std::net::Shutdown::Both).unwrap();
            });
            let sending = scope.spawn(|| {
                // Words in no order take long to compress.
                let mut state = 1_u32;
                let mut next = || {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    b"etaoinsh"[(state >> 29) as usize]
                };
                let message: Vec<u8> = (0..4 << 20).map(|_| next()).collect();
                let started = Instant::now();
                assert!(socket.send(message).is_accepted());
                is_over.store(true, Ordering::Relaxed);
                started.elapsed()
            });
            let (mut client, mut slowest) = (server.connect(), Duration::ZERO);
            while !is_over.load(Ordering::Relaxed) {
                let started = Instant::now();
                assert_eq!(client.get("/").text(), "hello\n");
                slowest = slowest.max(started.elapsed());
            }
            let took = sending.join().unwrap();
            println!("answered in {slowest:?} at most while a message was compressed in {took:?}");
            assert!(slowest < took / 4, "{slowest:?} of {took:?}");
        });
    });
}
