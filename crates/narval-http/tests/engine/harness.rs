//! A server for one test, and a client that writes and reads bytes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use narval_http::{Builder, DriverChoice, Handler, Limits, Listen, ListenAddress, Server, ServerHandle};

/// No step of a test takes longer; a server that hangs fails the test instead of stopping it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Deadlines that no test reaches: those which a test is about are set shorter, so no other one can have taken effect in its place,
/// and none takes effect because the machine is slow.
pub(crate) fn unhurried() -> Limits {
    let hour = Duration::from_secs(3600);
    Limits {
        head_timeout: hour,
        handshake_timeout: hour,
        keep_alive_timeout: hour,
        body_stall_timeout: hour,
        body_busy_timeout: hour,
        write_stall_timeout: hour,
        ..Limits::default()
    }
}

/// The drivers to test.
pub(crate) fn drivers() -> Vec<DriverChoice> {
    match std::env::var("NARVAL_DRIVER") {
        Ok(name) => vec![name.parse().expect("NARVAL_DRIVER names a driver")],
        Err(_) => DriverChoice::working(),
    }
}

/// Runs `test` once per driver.
pub(crate) fn on_each_driver(test: impl Fn(DriverChoice)) {
    for driver in drivers() {
        println!("driver: {driver:?}");
        test(driver);
    }
}

/// A server on a free port, stopped at the end of the test.
pub(crate) struct TestServer {
    pub(crate) handle: ServerHandle,
    pub(crate) address: SocketAddr,
}

impl TestServer {
    pub(crate) fn start(driver: DriverChoice, handler: impl Handler) -> Self {
        Self::with(driver, handler, unhurried(), |builder| builder)
    }

    pub(crate) fn with(
        driver: DriverChoice,
        handler: impl Handler,
        limits: Limits,
        set: impl FnOnce(Builder) -> Builder,
    ) -> Self {
        let builder = Server::builder(handler)
            .listen(Listen::Tcp((Ipv4Addr::LOCALHOST, 0).into()))
            .driver(driver)
            .limits(limits)
            .workers(4);
        let handle = set(builder).build().expect("builds").spawn().expect("starts");
        let Some(ListenAddress::Tcp(address)) = handle.addresses().first().cloned() else { panic!("listens on TCP") };
        Self { handle, address }
    }

    pub(crate) fn connect(&self) -> Client {
        Client::new(TcpStream::connect(self.address).expect("connects"))
    }

    /// Sends one request on a connection of its own.
    pub(crate) fn get(&self, path: &str) -> Answer {
        let mut client = self.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"));
        client.answer()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.handle.shutdown(Duration::from_millis(200));
    }
}

/// An HTTP/1.1 response as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (have, value) = line.split_once(": ")?;
            have.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("timeout");
        stream.set_nodelay(true).expect("nodelay");
        Self { stream, received: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the server takes it");
    }

    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"));
        self.answer()
    }

    fn fill(&mut self) -> std::io::Result<usize> {
        let mut buffer = [0; 64 * 1024];
        let n = self.stream.read(&mut buffer)?;
        self.received.extend_from_slice(&buffer[..n]);
        Ok(n)
    }

    /// The head of the next response, 1xx included, as text.
    pub(crate) fn head(&mut self) -> String {
        loop {
            if let Some(end) = self.received.windows(4).position(|window| window == b"\r\n\r\n") {
                let rest = self.received.split_off(end + 4);
                let head = std::mem::replace(&mut self.received, rest);
                return String::from_utf8(head).expect("heads are ASCII");
            }
            assert!(self.fill().expect("a response") > 0, "closed before a head: {:?}", self.received);
        }
    }

    /// Drops received bytes that were not asked for; returns their number.
    pub(crate) fn take_received(&mut self) -> usize {
        std::mem::take(&mut self.received).len()
    }

    /// The next response to a GET or POST.
    pub(crate) fn answer(&mut self) -> Answer {
        self.try_answer(false).expect("a whole response")
    }

    /// The next response to a HEAD.
    pub(crate) fn answer_to_head(&mut self) -> Answer {
        self.try_answer(true).expect("a whole response")
    }

    /// The next response; an error if its body is truncated.
    pub(crate) fn try_answer(&mut self, is_head: bool) -> std::io::Result<Answer> {
        let head = self.head();
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status line");
        let mut answer = Answer { status, head, body: Vec::new() };
        if is_head || status == 304 || status == 204 || status < 200 {
            return Ok(answer);
        }
        if let Some(length) = answer.header("content-length") {
            let length: usize = length.parse().expect("a number");
            self.need(length)?;
            let rest = self.received.split_off(length);
            answer.body = std::mem::replace(&mut self.received, rest);
        } else if answer.header("transfer-encoding") == Some("chunked") {
            answer.body = self.chunks()?;
        } else {
            while self.fill()? > 0 {}
            answer.body = std::mem::take(&mut self.received);
        }
        Ok(answer)
    }

    /// Everything up to and including `end`, as sent.
    pub(crate) fn until(&mut self, end: &str) -> String {
        let mut from = 0;
        loop {
            let rest = &self.received[from..];
            if let Some(at) = rest.windows(end.len()).position(|window| window == end.as_bytes()) {
                let behind = self.received.split_off(from + at + end.len());
                let all = std::mem::replace(&mut self.received, behind);
                return String::from_utf8(all).expect("text");
            }
            from = self.received.len().saturating_sub(end.len());
            assert!(self.fill().expect("comes in time") > 0, "ended before {end:?}");
        }
    }

    fn need(&mut self, bytes: usize) -> std::io::Result<()> {
        while self.received.len() < bytes {
            if self.fill()? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    fn chunks(&mut self) -> std::io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = loop {
                if let Some(end) = self.received.windows(2).position(|window| window == b"\r\n") {
                    let rest = self.received.split_off(end + 2);
                    break std::mem::replace(&mut self.received, rest);
                }
                let have = self.received.len();
                self.need(have + 1)?;
            };
            let size = std::str::from_utf8(&line).expect("ASCII").trim();
            let size = usize::from_str_radix(size, 16).expect("a chunk size");
            self.need(size + 2)?;
            let rest = self.received.split_off(size + 2);
            let mut chunk = std::mem::replace(&mut self.received, rest);
            assert_eq!(&chunk[size..], b"\r\n");
            chunk.truncate(size);
            if size == 0 {
                return Ok(body);
            }
            body.append(&mut chunk);
        }
    }

    /// Waits until the server closes cleanly; returns what came before. Panics on a reset.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        while self.fill().expect("a clean end") > 0 {}
        std::mem::take(&mut self.received)
    }

    /// Waits until the connection ends in any way.
    pub(crate) fn wait_for_end(&mut self) {
        loop {
            match self.fill() {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("never closed"),
                Err(_) => return,
            }
        }
    }
}

/// Waits until `condition` holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
