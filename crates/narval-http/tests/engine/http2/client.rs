//! A client that writes and reads frames (RFC 9113 §4) over TLS.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::server::certificate;
use crate::harness::PATIENCE;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const ACK: u8 = 0x1;
pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;
pub(crate) const PADDED: u8 = 0x8;

pub(crate) const INITIAL_WINDOW_SIZE: u16 = 0x4;
pub(crate) const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;

/// RFC 9113 §7.
pub(crate) mod code {
    pub(crate) const PROTOCOL_ERROR: u32 = 0x1;
    pub(crate) const FLOW_CONTROL_ERROR: u32 = 0x3;
    pub(crate) const STREAM_CLOSED: u32 = 0x5;
    pub(crate) const REFUSED_STREAM: u32 = 0x7;
    pub(crate) const CANCEL: u32 = 0x8;
    pub(crate) const COMPRESSION_ERROR: u32 = 0x9;
    pub(crate) const ENHANCE_YOUR_CALM: u32 = 0xb;
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// The error code of RST_STREAM or GOAWAY.
    pub(crate) fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

/// What was received on a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Response(Response),
    /// RST_STREAM, with its code.
    Reset(u32),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let payload = payload.as_ref();
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// A header block of literals without indexing, in plain octets.
pub(crate) fn block<N: AsRef<[u8]>, V: AsRef<[u8]>>(fields: &[(N, V)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        string(name.as_ref(), &mut out);
        string(value.as_ref(), &mut out);
    }
    out
}

fn string(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text.len();
    if rest < 127 {
        out.push(rest as u8);
    } else {
        out.push(127);
        rest -= 127;
        while rest >= 128 {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }
    out.extend_from_slice(text);
}

/// The pseudo-fields of a GET.
pub(crate) fn get(path: &str) -> Vec<(&str, &str)> {
    vec![(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", path)]
}

/// The pseudo-fields of a POST.
pub(crate) fn post(path: &str) -> Vec<(&str, &str)> {
    vec![(":method", "POST"), (":scheme", "https"), (":authority", "localhost"), (":path", path)]
}

/// Increments of a window from this size are not counted as small by the server.
const NO_SMALL_INCREMENT: u32 = 256;

/// A connection.
pub(crate) struct Client {
    tls: StreamOwned<ClientConnection, TcpStream>,
    received: Vec<u8>,
    hpack: loona_hpack::Decoder<'static>,
    next_stream: u32,
    /// SETTINGS_INITIAL_WINDOW_SIZE of the server.
    pub(super) initial_window: u32,
    /// SETTINGS_ENABLE_CONNECT_PROTOCOL of the server.
    pub(super) offers_websockets: bool,
    /// By stream, what was received and not yet given back to its window; 0 is the connection.
    owed: HashMap<u32, u32>,
    /// How much of that is given back at once.
    owed_max: u32,
}

impl Client {
    /// A TLS connection on which nothing has been sent yet.
    pub(crate) fn silent(address: SocketAddr) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(certificate().der.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        let connection = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap();
        let mut tls = StreamOwned::new(connection, socket);
        while tls.conn.is_handshaking() {
            tls.conn.complete_io(&mut tls.sock).unwrap();
        }
        assert_eq!(tls.conn.alpn_protocol(), Some(&b"h2"[..]));
        Self {
            tls,
            received: Vec::new(),
            hpack: loona_hpack::Decoder::new(),
            next_stream: 1,
            initial_window: 65_535,
            offers_websockets: false,
            owed: HashMap::new(),
            owed_max: 1,
        }
    }

    /// Its socket.
    pub(crate) fn socket(&self) -> &TcpStream {
        &self.tls.sock
    }

    /// A connection with the default settings.
    pub(crate) fn start(address: SocketAddr) -> Self {
        Self::with_settings(address, &[])
    }

    pub(crate) fn with_settings(address: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let mut client = Self::silent(address);
        let window =
            settings.iter().find(|(name, _)| *name == INITIAL_WINDOW_SIZE).map_or(65_535, |(_, window)| *window);
        client.owed_max = (window / 2).clamp(1, NO_SMALL_INCREMENT);
        client.send([PREFACE, &frame(SETTINGS, 0, 0, parameters(settings))].concat());
        let first = client.frame();
        assert_eq!((first.kind, first.flags & ACK, first.stream), (SETTINGS, 0, 0), "the server's preface");
        for parameter in first.payload.chunks(6) {
            let value = u32::from_be_bytes(parameter[2..].try_into().unwrap());
            match u16::from_be_bytes(parameter[..2].try_into().unwrap()) {
                INITIAL_WINDOW_SIZE => client.initial_window = value,
                ENABLE_CONNECT_PROTOCOL => client.offers_websockets = value == 1,
                _ => {}
            }
        }
        client.send(frame(SETTINGS, ACK, 0, []));
        client
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).expect("the server takes it");
    }

    /// Fails if the server has closed the connection.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.tls.write_all(bytes.as_ref())?;
        self.tls.flush()
    }

    /// Sends bytes and, in the same write, a record that cannot be decrypted. Returns how the connection ends.
    pub(crate) fn send_with_a_bad_record(&mut self, bytes: &[u8]) -> io::Error {
        self.tls.conn.writer().write_all(bytes).unwrap();
        let mut records = Vec::new();
        self.tls.conn.write_tls(&mut records).unwrap();
        records.extend([&[23, 3, 3, 1, 0][..], &[7; 256]].concat());
        self.tls.sock.write_all(&records).unwrap();
        self.tls.read_to_end(&mut Vec::new()).expect_err("the connection ends with an alert")
    }

    /// The identifier of the next stream to open.
    pub(crate) fn stream(&mut self) -> u32 {
        let stream = self.next_stream;
        self.next_stream += 2;
        stream
    }

    /// Opens a stream with these fields.
    pub(crate) fn open<N: AsRef<[u8]>, V: AsRef<[u8]>>(&mut self, fields: &[(N, V)], is_last: bool) -> u32 {
        let stream = self.stream();
        let flags = END_HEADERS | if is_last { END_STREAM } else { 0 };
        self.send(frame(HEADERS, flags, stream, block(fields)));
        stream
    }

    pub(crate) fn get(&mut self, path: &str) -> u32 {
        self.open(&get(path), true)
    }

    /// Gives back what was received. A server may answer small increments with frames as small, so clients that send many are refused.
    fn give_back(&mut self, stream: u32, length: u32) {
        let owed = self.owed.entry(stream).or_default();
        *owed += length;
        if *owed >= self.owed_max {
            let by = std::mem::take(owed);
            self.window(stream, by);
        }
    }

    pub(crate) fn window(&mut self, stream: u32, by: u32) {
        self.send(frame(WINDOW_UPDATE, 0, stream, by.to_be_bytes()));
    }

    /// The next frame of any kind; `None` once the server has closed the connection.
    pub(crate) fn try_frame(&mut self) -> Option<Frame> {
        while !self.has_frame() {
            let mut buffer = [0; 32 * 1024];
            match self.tls.read(&mut buffer) {
                Ok(0) => return None,
                Ok(n) => self.received.extend_from_slice(&buffer[..n]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    panic!("the server neither answers nor closes")
                }
                Err(_) => return None,
            }
        }
        let rest = self.received.split_off(9 + self.payload_len());
        let whole = std::mem::replace(&mut self.received, rest);
        let stream = u32::from_be_bytes(whole[5..9].try_into().unwrap());
        Some(Frame { kind: whole[3], flags: whole[4], stream, payload: whole[9..].to_vec() })
    }

    fn payload_len(&self) -> usize {
        u32::from_be_bytes([0, self.received[0], self.received[1], self.received[2]]) as usize
    }

    fn has_frame(&self) -> bool {
        self.received.len() >= 9 && self.received.len() >= 9 + self.payload_len()
    }

    pub(crate) fn frame(&mut self) -> Frame {
        self.try_frame().expect("a frame, and not the end")
    }

    /// The next frame for which `wanted` holds. Others are dropped, but their header blocks are decoded.
    pub(crate) fn until(&mut self, wanted: impl Fn(&Frame) -> bool) -> Frame {
        loop {
            let next = self.frame();
            if wanted(&next) {
                return next;
            }
            if next.kind == HEADERS {
                self.fields(&next);
            }
        }
    }

    /// The fields of a HEADERS frame, which is a whole block.
    pub(crate) fn fields(&mut self, headers: &Frame) -> Vec<(String, String)> {
        assert_ne!(headers.flags & END_HEADERS, 0, "the server's blocks fit into one frame");
        let fields = self.hpack.decode(&headers.payload).expect("a valid block");
        let text = |octets: Vec<u8>| String::from_utf8(octets).expect("text");
        fields.into_iter().map(|(name, value)| (text(name), text(value))).collect()
    }

    /// Everything received on a stream up to its end. The windows are opened again; frames of other streams are dropped.
    pub(crate) fn outcome(&mut self, stream: u32) -> Outcome {
        let mut response = Response { status: 0, fields: Vec::new(), body: Vec::new() };
        loop {
            let next = self.frame();
            match (next.kind, next.stream) {
                (HEADERS, of) => {
                    let fields = self.fields(&next);
                    if of != stream {
                        continue;
                    }
                    if let Some((_, status)) = fields.first().filter(|(name, _)| name == ":status") {
                        response.status = status.parse().unwrap();
                    }
                    response.fields = fields;
                }
                (DATA, of) => {
                    let length = next.payload.len() as u32;
                    if length > 0 {
                        self.give_back(0, length);
                        if next.flags & END_STREAM == 0 {
                            self.give_back(of, length);
                        }
                    }
                    if of != stream {
                        continue;
                    }
                    response.body.extend_from_slice(&next.payload);
                }
                (RST_STREAM, of) if of == stream => return Outcome::Reset(next.code()),
                (GOAWAY, _) => panic!("the connection ends: {next:?}"),
                _ => continue,
            }
            if next.flags & END_STREAM != 0 {
                return Outcome::Response(response);
            }
        }
    }

    pub(crate) fn response(&mut self, stream: u32) -> Response {
        match self.outcome(stream) {
            Outcome::Response(response) => response,
            Outcome::Reset(code) => panic!("stream {stream} was reset: {code:#x}"),
        }
    }

    /// Sends `more`, at most `times` times, until the server ends the connection. Returns the error code of its GOAWAY.
    pub(crate) fn until_goaway(&mut self, times: usize, mut more: impl FnMut(&mut Self) -> Vec<u8>) -> u32 {
        let started = Instant::now();
        for time in 0..times {
            let bytes = more(self);
            if self.try_send(bytes).is_err() || (time % 64 == 63 && self.look_for_goaway()) {
                break;
            }
            assert!(started.elapsed() < 3 * PATIENCE, "the server takes it for ever");
        }
        self.goaway()
    }

    /// Whether the server has ended the connection or a stream by now. Reads what is available.
    pub(super) fn ended_meanwhile(&mut self) -> bool {
        self.read_what_is_there() || self.frames_received().iter().any(|kind| matches!(*kind, GOAWAY | RST_STREAM))
    }

    fn look_for_goaway(&mut self) -> bool {
        self.read_what_is_there() || self.frames_received().contains(&GOAWAY)
    }

    /// True at the end.
    fn read_what_is_there(&mut self) -> bool {
        self.tls.sock.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut buffer = [0; 32 * 1024];
        let ended = loop {
            match self.tls.read(&mut buffer) {
                Ok(0) => break true,
                Ok(n) => self.received.extend_from_slice(&buffer[..n]),
                Err(error) => break !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            }
        };
        self.tls.sock.set_read_timeout(Some(PATIENCE)).unwrap();
        ended
    }

    fn frames_received(&self) -> Vec<u8> {
        let (mut rest, mut kinds) = (self.received.as_slice(), Vec::new());
        while let [l0, l1, l2, kind, ..] = rest {
            kinds.push(*kind);
            rest = rest.get(9 + u32::from_be_bytes([0, *l0, *l1, *l2]) as usize..).unwrap_or_default();
        }
        kinds
    }

    /// The error code of the next GOAWAY, after which the connection is closed.
    pub(crate) fn goaway(&mut self) -> u32 {
        let goaway = self.until(|frame| frame.kind == GOAWAY);
        while self.try_frame().is_some() {}
        goaway.code()
    }

    /// Waits until the server closes the connection.
    pub(crate) fn wait_for_end(&mut self) {
        while self.try_frame().is_some() {}
    }

    /// Asserts that the connection still works: another request is answered.
    pub(crate) fn still_serves(&mut self) {
        let stream = self.get("/");
        assert_eq!(self.response(stream).text(), "hello\n");
    }
}

/// Payload of a SETTINGS frame.
pub(crate) fn parameters(settings: &[(u16, u32)]) -> Vec<u8> {
    settings.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect()
}
