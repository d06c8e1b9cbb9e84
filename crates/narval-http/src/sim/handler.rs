//! The handler of the simulated clients' requests, with every kind of response.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::pattern;
use super::websocket::{self, Tally};
use crate::http1::head_parts::HeadRef;
use crate::io::sim::Baton;
use crate::message::body::Body;
use crate::message::body::source::{BodySource, BodyWaker, FileRange, Fill, SegmentBuf};
use crate::message::handler::Handler;
use crate::message::request::Request;
use crate::message::response::Response;
use http::StatusCode;

/// Answers `/kind/length` with `pattern(length)`, and a POST with the length of its body, or the body.
pub(super) struct Simulated {
    pub(super) file: Arc<File>,
    pub(super) baton: Arc<Baton>,
    pub(super) tally: Arc<Tally>,
    pub(super) served: Arc<Mutex<Vec<Served>>>,
}

/// A request that was answered.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) target: Vec<u8>,
    /// Its body, if all of it was read.
    pub(super) body: Option<Vec<u8>>,
}

impl Simulated {
    /// A body that a participant writes in pieces.
    fn pushed(&self, content: Vec<u8>, length: Option<u64>) -> io::Result<Body> {
        let (body, mut writer) = Body::writer(length);
        self.baton.add(move || {
            for (at, piece) in content.chunks(7001).enumerate() {
                let flushed = if at % 3 == 0 { writer.flush() } else { Ok(()) };
                // The client may have disconnected, which is fine.
                if flushed.and_then(|()| writer.write_all(piece)).is_err() {
                    return;
                }
            }
            drop(writer.finish());
        })?;
        Ok(body)
    }

    fn serves(&self, head: &HeadRef<'_>) -> usize {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        served.push(Served { target: head.target().into(), body: None });
        served.len() - 1
    }

    fn post(&self, kind: &str, request: &mut Request, number: usize) -> io::Result<Body> {
        let mut body = Vec::new();
        let most = if kind == "early" { 1000 } else { u64::MAX };
        request.body().take(most).read_to_end(&mut body)?;
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(served) = served.get_mut(number).filter(|_| kind != "early") {
            served.body = Some(body.clone());
        }
        drop(served);
        match kind {
            "echo" => self.pushed(body, None),
            "early" => Ok(Body::empty()),
            _ => Ok(Body::bytes(body.len().to_string())),
        }
    }
}

impl Handler for Simulated {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        let (kind, length) = head.path().strip_prefix('/')?.split_once('/')?;
        let length = length.parse::<usize>().ok()?;
        let body = match kind {
            "inline" => Body::bytes(pattern(length.min(1 << 20))),
            "at-once" => {
                Body::file(FileRange { file: self.file.clone(), offset: 0, length: length.min(400_000) as u64 })
            }
            _ => return None,
        };
        self.serves(head);
        Some(Response::new(StatusCode::OK).body(body))
    }

    fn handle(&self, mut request: Request) -> Response {
        let number = self.serves(&request.head());
        let path = request.path().to_owned();
        let (kind, length) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
        let length = length.parse::<usize>().unwrap_or_default().min(400_000);
        let range = |offset: usize, length: usize| FileRange {
            file: self.file.clone(),
            offset: offset as u64,
            length: length as u64,
        };
        let source = |with_files: bool| Pieces { at: 0, length, file: with_files.then(|| self.file.clone()) };
        let body = match kind {
            "bytes" => Body::bytes(pattern(length)),
            "file" => Body::file(range(0, length)),
            "length" => Body::source(source(false), Some(length as u64)),
            "chunked" => Body::source(source(false), None),
            "mixed" => Body::source(source(true), None),
            "fails" => Body::source(Fails, None),
            "waits" => Body::source(Waits { pieces: source(false), rested: false }, None),
            "pushed" => match self.pushed(pattern(length), length.is_multiple_of(2).then_some(length as u64)) {
                Ok(body) => body,
                Err(_) => return Response::new(StatusCode::INTERNAL_SERVER_ERROR),
            },
            "post" | "chunks" | "echo" | "early" => match self.post(kind, &mut request, number) {
                Ok(body) => body,
                Err(_) => return Response::new(StatusCode::BAD_REQUEST),
            },
            "socket" => return websocket::accept(&request, length, &self.tally),
            _ => return Response::new(StatusCode::NOT_FOUND),
        };
        Response::new(StatusCode::OK).body(body)
    }
}

/// A source that waits before each piece, in every possible way.
struct Waits {
    pieces: Pieces,
    rested: bool,
}

impl BodySource for Waits {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        self.rested = !self.rested;
        if self.rested { Ok(Fill::Wait) } else { self.pieces.fill(out) }
    }

    fn wait(&mut self, waker: BodyWaker) -> Duration {
        match self.pieces.at / 50_000 % 3 {
            0 => return Duration::ZERO,
            1 => waker.wake(),
            _ => drop(waker),
        }
        Duration::from_millis(3)
    }

    fn never_blocks(&self) -> bool {
        self.pieces.length.is_multiple_of(2)
    }
}

/// A source that fails after its first piece.
struct Fails;

impl BodySource for Fails {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        out.memory().extend(pattern(100));
        Err(io::Error::other("on purpose"))
    }
}

struct Pieces {
    at: usize,
    length: usize,
    file: Option<Arc<File>>,
}

impl BodySource for Pieces {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let n = (self.length - self.at).min(50_000);
        let half = n / 2;
        match &self.file {
            Some(file) => {
                out.push_file(FileRange { file: file.clone(), offset: self.at as u64, length: half as u64 });
            }
            None => out.memory().extend(pattern(self.at + half).drain(self.at..)),
        }
        out.memory().extend(pattern(self.at + n).drain(self.at + half..));
        self.at += n;
        Ok(if self.at == self.length { Fill::Done } else { Fill::More })
    }
}
