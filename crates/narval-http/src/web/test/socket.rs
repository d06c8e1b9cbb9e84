use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::WAIT_MAX;
use crate::io::clock::Millis;
use crate::io::output_memory::{Holding, OutputMemory};
use crate::message::carrier::{Bell, Carrier};
use crate::ws::codec::frame::Opcode;
use crate::ws::codec::mask;
use crate::ws::{self, CloseCode, CloseFrame, Message, Runs, Shared, Told, Turn};

/// Bytes that may wait to be received.
const OUTPUT_MAX: usize = 256 << 20;

/// The client's end of a WebSocket, in a test; see [`Ask::socket`](super::Ask::socket).
///
/// ```
/// use narval_http::ws::{Message, Upgrade, UpgradeError, WebSocket, WsEvent};
/// use narval_http::{Request, Response, Router, test};
///
/// fn echo(request: Request) -> Result<Response, UpgradeError> {
///     Ok(Upgrade::new(&request)?.accept(|socket: &WebSocket, event: WsEvent| {
///         if let WsEvent::Message(message) = event {
///             let _ = socket.send(message);
///         }
///     }))
/// }
///
/// let app = test::client(Router::new().get("/echo", echo).build()?);
/// let mut socket = app.get("/echo").socket().unwrap();
/// socket.send("hello");
/// assert_eq!(socket.receive()?, Message::Text("hello".into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Socket {
    /// `None` once it is dropped.
    stream: Option<ws::Stream>,
    bell: Arc<Bell>,
    received: Vec<u8>,
    started: Instant,
}

/// A received frame: a message, or the end.
enum Frame {
    Message(Message),
    Close(Option<CloseFrame>),
    Other,
}

impl Socket {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let bell = Arc::<Bell>::default();
        let carrier = Carrier { address: bell.address(), link: None };
        ws::start(&shared, carrier, &Holding::new(&OutputMemory::new(OUTPUT_MAX)), None, &Here);
        let stream = ws::Stream::new(shared, 0);
        Self { stream: Some(stream), bell, received: Vec::new(), started: Instant::now() }
    }

    /// Sends a message: text from `String` and `&str`, binary from `Bytes` and `Vec<u8>`. The server's handler has run when this
    /// returns.
    pub fn send(&mut self, message: impl Into<Message>) {
        let message = message.into();
        self.send_frame(message.opcode(), message.as_bytes());
    }

    /// Starts the closing handshake.
    pub fn close(&mut self, code: CloseCode, reason: &str) {
        let payload = [&code.get().to_be_bytes(), reason.as_bytes()].concat();
        self.send_frame(Opcode::Close, &payload);
    }

    /// The next message. Waits for it, at most 20 seconds.
    ///
    /// # Errors
    /// The server has closed the WebSocket, or no message comes.
    pub fn receive(&mut self) -> io::Result<Message> {
        loop {
            match self.next()? {
                Frame::Message(message) => return Ok(message),
                Frame::Close(frame) => {
                    let text =
                        frame.map_or_else(String::new, |frame| format!(": {} {}", frame.code.get(), frame.reason));
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("the WebSocket is closed{text}")));
                }
                Frame::Other => {}
            }
        }
    }

    /// Waits for the server to close it, at most 20 seconds. Messages before that are discarded.
    ///
    /// # Errors
    /// It is not closed.
    pub fn closed(&mut self) -> io::Result<Option<CloseFrame>> {
        loop {
            if let Frame::Close(frame) = self.next()? {
                return Ok(frame);
            }
        }
    }

    /// Masked, as clients must.
    fn send_frame(&mut self, opcode: Opcode, payload: &[u8]) {
        const KEY: [u8; 4] = [1, 2, 3, 4];
        let mut frame = vec![0x80 | opcode as u8];
        match payload.len() {
            length @ ..126 => frame.push(0x80 | length as u8),
            length @ ..=0xffff => {
                frame.push(0x80 | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            length => {
                frame.push(0x80 | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend(KEY);
        let start = frame.len();
        frame.extend(payload);
        mask::apply(frame.get_mut(start..).unwrap_or_default(), KEY, 0);
        let now = self.now();
        if let Some(stream) = &mut self.stream {
            stream.on(Told::Received(&frame), now, &Here);
        }
    }

    fn next(&mut self) -> io::Result<Frame> {
        let until = Instant::now() + WAIT_MAX;
        loop {
            if let Some((frame, length)) = parse(&self.received)? {
                self.received.drain(..length);
                return Ok(frame);
            }
            let now = self.now();
            let Some(stream) = &mut self.stream else { return Err(io::ErrorKind::NotConnected.into()) };
            let mut buffer = [0; 4096];
            let wants = stream.on(Told::Writable, now, &Here);
            match stream.take(&mut buffer) {
                0 if wants.end.is_some() => return Ok(Frame::Close(None)),
                0 => {
                    let left = until.checked_duration_since(Instant::now()).ok_or(io::ErrorKind::TimedOut)?;
                    self.bell.wait(left);
                }
                n => self.received.extend(buffer.get(..n).unwrap_or_default()),
            }
        }
    }

    fn now(&self) -> Millis {
        Millis::try_from(self.started.elapsed().as_millis()).unwrap_or(Millis::MAX)
    }
}

/// The first frame of a server: without a mask, and, as no client here offers compression, complete in itself.
fn parse(bytes: &[u8]) -> io::Result<Option<(Frame, usize)>> {
    let (&[first, second], rest) = match bytes.split_first_chunk() {
        Some(split) => split,
        None => return Ok(None),
    };
    let (length, head) = match second {
        126 => match rest.first_chunk() {
            Some(length) => (u64::from(u16::from_be_bytes(*length)), 4),
            None => return Ok(None),
        },
        127 => match rest.first_chunk() {
            Some(length) => (u64::from_be_bytes(*length), 10),
            None => return Ok(None),
        },
        length => (u64::from(length), 2),
    };
    let end = head + usize::try_from(length).map_err(io::Error::other)?;
    let Some(payload) = bytes.get(head..end) else { return Ok(None) };
    let frame = match first & 0xf {
        0x1 => Frame::Message(Message::Text(String::from_utf8(payload.to_vec()).map_err(io::Error::other)?)),
        0x2 => Frame::Message(Message::Binary(Bytes::copy_from_slice(payload))),
        0x8 => Frame::Close(CloseFrame::parse(payload).map_err(io::Error::other)?),
        _ => Frame::Other,
    };
    Ok(Some((frame, end)))
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.release(&Here);
        }
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").finish_non_exhaustive()
    }
}

/// Runs the handlers of WebSockets on the thread that sends to them.
struct Here;

impl Runs for Here {
    fn run(&self, socket: Arc<Shared>) {
        while socket.run() == Turn::Again {}
    }
}
