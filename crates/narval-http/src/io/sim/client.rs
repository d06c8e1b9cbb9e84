use super::Random;
use super::network::Network;

/// A simulated client: what it will send, what must come back, and its moods.
pub(crate) struct Client {
    wire: usize,
    /// Not yet sent.
    script: Vec<u8>,
    sent: usize,
    /// The answers to be had, in order, without their heads' `date`.
    pub(crate) expected: Vec<Expected>,
    /// It breaks off at some time.
    pub(crate) is_faulty: bool,
}

/// What an answer must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    pub(crate) is_head: bool,
}

impl Client {
    pub(crate) fn connect(network: &Network, script: Vec<u8>, expected: Vec<Expected>, is_faulty: bool) -> Self {
        Self { wire: network.connect(), script, sent: 0, expected, is_faulty }
    }

    /// Sends something, reads something, or breaks off.
    pub(crate) fn act(&mut self, network: &Network) {
        let mut state = network.lock();
        let super::network::State { wires, random, .. } = &mut *state;
        let Some(wire) = wires.get_mut(self.wire) else { return };
        match random.below(4) {
            0 => wire.window += random.below(100_000),
            1 => wire.window += random.below(500),
            2 => {
                let left = self.script.len() - self.sent;
                let n = if random.one_in(2) { left } else { random.below(left + 1).min(400) };
                wire.to_server.extend(self.script.iter().skip(self.sent).take(n));
                self.sent += n;
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
    }

    /// Sends all that is left, and takes so many bytes more. The server's socket does not count as writable for them.
    pub(crate) fn trickle(&mut self, network: &Network, bytes: usize) {
        let mut state = network.lock();
        let Some(wire) = state.wires.get_mut(self.wire) else { return };
        wire.unwritable_up_to = usize::MAX;
        wire.window += bytes;
        wire.to_server.extend(self.script.iter().skip(self.sent));
        self.sent = self.script.len();
    }

    /// Sends this much.
    #[cfg(test)]
    pub(crate) fn send(&mut self, network: &Network, bytes: usize) {
        let mut state = network.lock();
        let Some(wire) = state.wires.get_mut(self.wire) else { return };
        wire.to_server.extend(self.script.iter().skip(self.sent).take(bytes));
        self.sent += bytes;
    }

    /// Sends all that is left and takes all that comes.
    pub(crate) fn hurry(&mut self, network: &Network) {
        let mut state = network.lock();
        let Some(wire) = state.wires.get_mut(self.wire) else { return };
        wire.window = usize::MAX / 2;
        wire.unwritable_up_to = 0;
        wire.to_server.extend(self.script.iter().skip(self.sent));
        self.sent = self.script.len();
    }

    /// Compares what came with what was expected; panics where they differ. A server that was stopped early has not answered everything,
    /// but what it began it finished.
    pub(crate) fn check(&self, network: &Network, stopped: bool) {
        let state = network.lock();
        let Some(wire) = state.wires.get(self.wire) else { return };
        let mut rest = wire.to_client.as_slice();
        for (at, expected) in self.expected.iter().enumerate() {
            match take_answer(&mut rest, expected.is_head) {
                Some(answer) => assert!(
                    answer == *expected,
                    "answer {at}: {} of {} bytes instead of {} of {}",
                    answer.status,
                    answer.body.len(),
                    expected.status,
                    expected.body.len()
                ),
                None => {
                    let start = String::from_utf8_lossy(rest.get(..rest.len().min(200)).unwrap_or_default());
                    assert!(
                        self.is_faulty || wire.server_aborts || (stopped && rest.is_empty()),
                        "answer {at} of {} is missing: {} bytes came, starting {start:?}; the server closed: {}, did not read {}",
                        self.expected.len(),
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
}

/// Takes a whole answer off `input`.
fn take_answer(input: &mut &[u8], is_head: bool) -> Option<Expected> {
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

/// The handlers in `run`.
const KINDS: [&str; 10] =
    ["inline", "at-once", "bytes", "file", "length", "chunked", "mixed", "waits", "post", "chunks"];

/// A conversation of `count` requests, and its answers; see the handler in `run`.
pub(crate) fn conversation(random: &mut Random, count: usize) -> (Vec<u8>, Vec<Expected>) {
    let (mut script, mut expected) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let length = if random.one_in(4) { random.below(300_000) } else { random.below(1000) };
        let kind = KINDS[random.below(KINDS.len())];
        let path = format!("/{kind}/{length}");
        let body = super::pattern(length);
        match kind {
            "post" => {
                let sent = vec![b'p'; length];
                script.extend_from_slice(
                    format!("POST {path} HTTP/1.1\r\nHost: s\r\nContent-Length: {length}\r\n\r\n").as_bytes(),
                );
                script.extend_from_slice(&sent);
                expected.push(Expected { status: 200, body: length.to_string().into_bytes(), is_head: false });
            }
            "chunks" => {
                script.extend_from_slice(
                    format!("POST {path} HTTP/1.1\r\nHost: s\r\nTransfer-Encoding: chunked\r\n\r\n").as_bytes(),
                );
                for chunk in vec![b'c'; length].chunks(1 + random.below(5000)) {
                    crate::http1::chunked::encode_chunk(chunk, &mut script);
                }
                crate::http1::chunked::encode_end(&[], &mut script);
                expected.push(Expected { status: 200, body: length.to_string().into_bytes(), is_head: false });
            }
            _ => {
                let is_head = random.one_in(8);
                let method = if is_head { "HEAD" } else { "GET" };
                script.extend_from_slice(format!("{method} {path} HTTP/1.1\r\nHost: s\r\n\r\n").as_bytes());
                expected.push(Expected { status: 200, body: if is_head { Vec::new() } else { body }, is_head });
            }
        }
    }
    (script, expected)
}
