use super::expected::Expected;
use super::http2_client::Http2Client;
use super::layer::Layer;
use super::pattern;
use super::websocket::{self, Came, Echoes};
use crate::io::sim::network::State;
use crate::io::sim::{Network, Random, Speaks, Wire};

/// A simulated client: what it sends, the responses it expects, and how it behaves.
pub(crate) struct Client {
    wire: usize,
    /// Its input to the server, and how much of that was sent.
    script: Vec<u8>,
    sent: usize,
    expected: Expectation,
    /// It disconnects at some point.
    is_faulty: bool,
    /// The layer between it and the network.
    layer: Option<Box<dyn Layer>>,
}

/// The expected responses.
pub(crate) enum Expectation {
    /// These responses, in order.
    Answers(Vec<Expected>),
    Echoes(Echoes),
    /// Those of requests over HTTP/2; the script is empty.
    Http2(Box<Http2Client>),
}

impl Client {
    /// A client that speaks HTTP/1.1.
    #[cfg(test)]
    pub(crate) fn connect(network: &Network, script: Vec<u8>, expected: Vec<Expected>, is_faulty: bool) -> Self {
        Self::with(network, script, Expectation::Answers(expected), is_faulty, None)
    }

    /// A client that sends arbitrary bytes.
    pub(super) fn any_bytes(network: &Network, speaks: Speaks, script: Vec<u8>) -> Self {
        let (wire, expected) = (network.connect(speaks), Expectation::Answers(Vec::new()));
        Self { wire, script, sent: 0, expected, is_faulty: true, layer: None }
    }

    /// A client of any kind, with its requests.
    pub(crate) fn any(network: &Network, random: &mut Random) -> Self {
        let count = 1 + random.below(12);
        if random.one_in(3) {
            let client = Http2Client::new(random, 2 * count);
            return Self::http2(network, random, client, true);
        }
        let (script, expected) = if random.one_in(4) {
            let (script, echoes) = websocket::conversation(random, count);
            (script, Expectation::Echoes(echoes))
        } else {
            let (script, answers) = conversation(random, count);
            (script, Expectation::Answers(answers))
        };
        let is_faulty = random.one_in(3);
        let (is_secure, is_old) = (random.one_in(3), random.one_in(4));
        Self::with(network, script, expected, is_faulty, secure(is_secure, is_old, false))
    }

    /// A client that uploads large bodies.
    #[cfg(test)]
    pub(crate) fn uploading(network: &Network, random: &mut Random, is_http2: bool) -> Self {
        if is_http2 {
            let client = Http2Client::uploading(random);
            return Self::http2(network, random, client, false);
        }
        let (mut script, mut expected) = (Vec::new(), Vec::new());
        for _ in 0..1 + random.below(2) {
            let length = random.below(300_000);
            post(random, &mut script, &format!("/post/{length}"), &pattern(length));
            let body = length.to_string().into_bytes();
            expected.push(Expected { status: 200, body, is_head: false });
        }
        let is_secure = random.one_in(3);
        Self::with(network, script, Expectation::Answers(expected), false, secure(is_secure, false, false))
    }

    /// A client that speaks HTTP/2, mostly over TLS.
    fn http2(network: &Network, random: &mut Random, client: Http2Client, may_be_faulty: bool) -> Self {
        let is_faulty = may_be_faulty && random.one_in(3);
        let (is_secure, is_old) = (!random.one_in(4), random.one_in(4));
        let layer = secure(is_secure, is_old, true);
        Self::with(network, Vec::new(), Expectation::Http2(Box::new(client)), is_faulty, layer)
    }

    fn with(
        network: &Network,
        script: Vec<u8>,
        expected: Expectation,
        is_faulty: bool,
        layer: Option<Box<dyn Layer>>,
    ) -> Self {
        let speaks = match &expected {
            _ if layer.is_some() => Speaks::Tls,
            Expectation::Http2(_) => Speaks::Http2,
            _ => Speaks::Http1,
        };
        Self { wire: network.connect(speaks), script, sent: 0, expected, is_faulty, layer }
    }

    /// Sends something, reads something, or disconnects.
    pub(crate) fn act(&mut self, network: &Network) {
        let mut state = network.lock();
        let State { wires, random, .. } = &mut *state;
        let Some(wire) = wires.get_mut(self.wire) else { return };
        match random.below(4) {
            0 => wire.window += random.below(100_000),
            1 => wire.window += random.below(500),
            2 => {
                let left = self.script.len() - self.sent;
                let n = if random.one_in(2) { left } else { random.below(left + 1).min(400) };
                self.say(wire, n);
                if self.sent == self.script.len() && self.is_faulty && random.one_in(10) {
                    wire.client_ended = true;
                }
            }
            _ => {
                if self.is_faulty && random.one_in(30) {
                    wire.client_reset = true;
                }
            }
        }
        self.exchange(wire);
        self.talk(wire, false);
    }

    /// Has a client of HTTP/2 send what it wants, and (`idles`) what it has to.
    fn talk(&mut self, wire: &mut Wire, idles: bool) {
        let Expectation::Http2(client) = &mut self.expected else { return };
        if wire.client_ended || wire.client_reset {
            return;
        }
        match &mut self.layer {
            Some(layer) => {
                let sent = client.act(layer.received(), idles);
                layer.send(&sent);
                layer.exchange(wire);
            }
            None => {
                let sent = client.act(&wire.to_client, idles);
                wire.to_server.extend(sent);
            }
        }
    }

    /// Sends the next bytes of its script.
    fn say(&mut self, wire: &mut Wire, bytes: usize) {
        let rest = self.script.get(self.sent..).unwrap_or_default();
        let now = rest.get(..bytes).unwrap_or(rest);
        match &mut self.layer {
            Some(layer) => layer.send(now),
            None => wire.to_server.extend(now),
        }
        self.sent += now.len();
    }

    fn exchange(&mut self, wire: &mut Wire) {
        if let Some(layer) = &mut self.layer
            && !wire.client_ended
            && !wire.client_reset
        {
            layer.exchange(wire);
        }
    }

    /// Drives its layer, and does nothing else.
    pub(crate) fn attend(&mut self, network: &Network) {
        let mut state = network.lock();
        if let Some(wire) = state.wires.get_mut(self.wire) {
            self.exchange(wire);
            self.talk(wire, true);
        }
    }

    /// Sends the rest, and accepts this many more bytes. They do not make the server's socket count as writable.
    #[cfg(test)]
    pub(crate) fn trickle(&mut self, network: &Network, bytes: usize) {
        let mut state = network.lock();
        let Some(wire) = state.wires.get_mut(self.wire) else { return };
        wire.unwritable_up_to = usize::MAX;
        wire.window += bytes;
        self.say(wire, usize::MAX);
    }

    /// Sends this much.
    #[cfg(test)]
    pub(crate) fn send(&mut self, network: &Network, bytes: usize) {
        let mut state = network.lock();
        if let Some(wire) = state.wires.get_mut(self.wire) {
            self.say(wire, bytes);
        }
    }

    /// Sends the rest and accepts everything.
    pub(crate) fn hurry(&mut self, network: &Network) {
        let mut state = network.lock();
        let Some(wire) = state.wires.get_mut(self.wire) else { return };
        wire.window = usize::MAX / 2;
        wire.unwritable_up_to = 0;
        self.say(wire, usize::MAX);
        self.exchange(wire);
        if let Expectation::Http2(client) = &mut self.expected {
            client.hurry();
        }
        self.talk(wire, false);
    }

    /// Compares the responses with the expected ones, and panics if they differ. A server that was stopped early has
    /// not answered every request, but has completed every response that it started.
    pub(crate) fn check(&mut self, network: &Network, stopped: bool) {
        let mut state = network.lock();
        let Some(wire) = state.wires.get_mut(self.wire) else { return };
        self.exchange(wire);
        let received = self.layer.as_ref().map_or(wire.to_client.as_slice(), |layer| layer.received());
        let may_be_cut = self.is_faulty || wire.server_aborts;
        match &mut self.expected {
            Expectation::Answers(expected) => check_answers(expected, received, wire, may_be_cut, stopped),
            Expectation::Echoes(echoes) => {
                let came = echoes.check(received, stopped);
                assert!(came == Came::All || may_be_cut || stopped, "a WebSocket was not served to its end");
            }
            Expectation::Http2(client) => {
                client.act(received, true);
                client.check(stopped, may_be_cut);
            }
        }
        // The server shuts down its side, if the socket accepts that.
        if let Some(layer) = &self.layer
            && wire.server_closed
            && !may_be_cut
            && !received.is_empty()
        {
            assert!(layer.has_ended() || wire.was_short, "a TLS connection ended without close_notify");
        }
    }
}

/// The layer of a client that speaks TLS. Only in this crate's own tests is there one.
fn secure(is_secure: bool, is_old: bool, speaks_http2: bool) -> Option<Box<dyn Layer>> {
    #[cfg(all(test, feature = "tls"))]
    return is_secure.then(|| Box::new(super::tls::TlsClient::new(is_old, speaks_http2)) as Box<dyn Layer>);
    #[cfg(not(all(test, feature = "tls")))]
    (is_secure && is_old && speaks_http2).then_some(None).flatten()
}

fn check_answers(expected: &[Expected], mut rest: &[u8], wire: &Wire, may_be_cut: bool, stopped: bool) {
    for (at, next) in expected.iter().enumerate() {
        match take_answer(&mut rest, next.is_head) {
            Some(answer) => assert!(
                answer == *next,
                "answer {at}: {} of {} bytes instead of {} of {}",
                answer.status,
                answer.body.len(),
                next.status,
                next.body.len()
            ),
            None => {
                let start = String::from_utf8_lossy(rest.get(..rest.len().min(200)).unwrap_or_default());
                assert!(
                    may_be_cut || (stopped && rest.is_empty()),
                    "answer {at} of {} is missing: {} bytes came, starting {start:?}; the server closed: {}, did not read {}",
                    expected.len(),
                    rest.len(),
                    wire.server_closed,
                    wire.to_server.len(),
                );
                return;
            }
        }
    }
    assert!(rest.is_empty(), "{} bytes after the last answer", rest.len());
}

/// Takes a complete response from `input`.
fn take_answer(input: &mut &[u8], is_head: bool) -> Option<Expected> {
    const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
    *input = input.strip_prefix(CONTINUE).unwrap_or(input);
    let end = input.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(input.get(..end)?).ok()?.to_owned();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let mut rest = input.get(end..)?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = Vec::new();
    if is_head {
    } else if let Some(length) = length {
        let length = length.parse().ok()?;
        body.extend_from_slice(rest.get(..length)?);
        rest = rest.get(length..)?;
    } else if head.contains("transfer-encoding: chunked") {
        let mut decoder = crate::http1::chunked::ChunkedDecoder::new();
        while !decoder.is_done() {
            let decoded = decoder.decode(rest).ok()?;
            body.extend_from_slice(decoded.data);
            let consumed = decoded.consumed;
            if consumed == 0 && !decoder.is_done() {
                return None;
            }
            rest = rest.get(consumed..)?;
        }
    }
    *input = rest;
    Some(Expected { status, body, is_head })
}

/// The response of `handler`.
const KINDS: [&str; 12] =
    ["inline", "at-once", "bytes", "file", "length", "chunked", "mixed", "waits", "pushed", "post", "chunks", "echo"];

/// A sequence of `count` requests and their responses; see `handler`.
pub(crate) fn conversation(random: &mut Random, count: usize) -> (Vec<u8>, Vec<Expected>) {
    let (mut script, mut expected) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let length = if random.one_in(4) { random.below(300_000) } else { random.below(1000) };
        let kind = KINDS[random.below(KINDS.len())];
        let path = format!("/{kind}/{length}");
        let body = pattern(length);
        match kind {
            "post" | "chunks" | "echo" => {
                post(random, &mut script, &path, &body);
                let answer = if kind == "echo" { body } else { length.to_string().into_bytes() };
                expected.push(Expected { status: 200, body: answer, is_head: false });
            }
            _ => {
                let is_head = random.one_in(8);
                let method = if is_head { "HEAD" } else { "GET" };
                script.extend_from_slice(format!("{method} {path} HTTP/1.1\r\nHost: s\r\n\r\n").as_bytes());
                expected.push(Expected { status: 200, body: if is_head { Vec::new() } else { body }, is_head });
            }
        }
    }
    if random.one_in(5) {
        // Its handler reads the start of the body and responds; the connection may or may not end there.
        post(random, &mut script, "/early/0", &pattern(100_000));
        expected.push(Expected { status: 200, body: Vec::new(), is_head: false });
    }
    (script, expected)
}

/// A request with a body, with a length or chunked, with or without `Expect: 100-continue`.
fn post(random: &mut Random, script: &mut Vec<u8>, path: &str, body: &[u8]) {
    let expect = if random.one_in(4) { "Expect: 100-continue\r\n" } else { "" };
    if random.one_in(2) {
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nHost: s\r\n{expect}Content-Length: {length}\r\n\r\n");
        script.extend_from_slice(head.as_bytes());
        script.extend_from_slice(body);
    } else {
        let head = format!("POST {path} HTTP/1.1\r\nHost: s\r\n{expect}Transfer-Encoding: chunked\r\n\r\n");
        script.extend_from_slice(head.as_bytes());
        for chunk in body.chunks(1 + random.below(5000)) {
            crate::http1::chunked::encode_chunk(chunk, script);
        }
        crate::http1::chunked::encode_end(&[], script);
    }
}
