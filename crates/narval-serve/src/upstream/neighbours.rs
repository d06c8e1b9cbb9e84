//! What neighbours get here, on an address of the network that they share: what is kept of upstreams, and nothing else. No upstream is asked for them.
//!
//! ```text
//! /nix-cache-info        the store directory
//! /HASH.narinfo          the narinfo as it came from the upstream, if it is kept
//! HEAD /nar/NAME?by=ID   200: it is here. 202: it is being fetched from an upstream, or will be by a machine that ranks higher for it. 404 otherwise
//! GET /nar/NAME          the file, or as much of it as has come, while it comes
//! ```

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use narval_cache::upstream::{NarAnswer, NeighbourCounts, Offer, Upstreams};
use narval_files::{FillEnd, GrowingFile, Permit, Permits, Waits};
use narval_http::{
    Body, BodySource, BodyWaker, FileRange, Fill, Handler, HeaderValue, Method, Request, Response, SegmentBuf,
    StatusCode,
};
use narval_nix::HashPart;
use parking_lot::Mutex;

use crate::error::ServeError;
use crate::nar::growing::Nothing;
use crate::nar::representation::{Representation, Selected};

/// The most that is sent in one piece, so that the rate is even.
const PIECE_MAX: u64 = 256 * 1024;
/// The maximum time until a waiting connection looks for more data.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How much may be sent at once after a pause, as a part of what may be sent in a second.
const BURST: f64 = 0.25;

/// What neighbours may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourLimits {
    /// How many bytes are sent to them in a second, all together.
    pub rate_max: u64,
    /// How many NARs are sent to them at the same time; others are told to ask elsewhere.
    pub nars_max: usize,
}

/// Answers neighbours.
pub struct ForNeighbours {
    upstreams: Upstreams,
    store_dir: String,
    /// Whether an address is one of a network whose machines are neighbours.
    admits: Box<dyn Fn(IpAddr) -> bool + Send + Sync>,
    nars: Permits,
    rate: Arc<Rate>,
}

impl ForNeighbours {
    /// Answers for a machine whose networks `admits` knows.
    pub fn new(
        upstreams: Upstreams,
        store_dir: &narval_nix::StoreDir,
        limits: NeighbourLimits,
        admits: impl Fn(IpAddr) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            upstreams,
            store_dir: store_dir.to_string(),
            admits: Box::new(admits),
            nars: Permits::new(limits.nars_max),
            rate: Arc::new(Rate::new(limits.rate_max)),
        }
    }

    fn answer(&self, request: &Request) -> Result<Response, ServeError> {
        let head = request.head();
        let is_head = *request.method() == Method::HEAD;
        let path = request.path().strip_prefix('/').ok_or(ServeError::NoRoute)?;
        let text = |kind: &'static str, text: String| {
            Response::text(StatusCode::OK, text)
                .header(narval_http::header::CONTENT_TYPE, HeaderValue::from_static(kind))
        };
        if path == "nix-cache-info" {
            let info = format!("StoreDir: {}\nWantMassQuery: 0\nPriority: 50\n", self.store_dir);
            return Ok(text("text/x-nix-cache-info", info));
        }
        if let Some(part) = path.strip_suffix(".narinfo") {
            let part = HashPart::parse(part.as_bytes()).map_err(|_| ServeError::NoPath)?;
            let narinfo = self.upstreams.offered_narinfo(&part).ok_or(ServeError::NoPath)?;
            return Ok(text("text/x-nix-narinfo", narinfo));
        }
        let name = path.strip_prefix("nar/").ok_or(ServeError::NoRoute)?;
        if is_head {
            let by = request.query().and_then(|query| u64::from_str_radix(query.strip_prefix("by=")?, 16).ok());
            return Ok(match self.upstreams.offer(name, by.unwrap_or(u64::MAX)) {
                Offer::Here => Response::new(StatusCode::OK),
                Offer::Coming(own) => {
                    Response::new(StatusCode::ACCEPTED).header("narval-neighbour", format!("{own:016x}"))
                }
                Offer::Wanted(own) => {
                    Response::new(StatusCode::ACCEPTED).header("narval-wanted", format!("{own:016x}"))
                }
                Offer::Nothing => Response::new(StatusCode::NOT_FOUND),
            });
        }
        let counts = self.upstreams.neighbour_counts();
        let permit = self.nars.take().ok_or_else(|| {
            counts.refused();
            ServeError::Busy
        })?;
        let (from, size) = match self.upstreams.offered_nar(name).ok_or(ServeError::NoPath)? {
            NarAnswer::File(file, length) => (From::File(Arc::new(file)), length),
            NarAnswer::Growing(waits, length) => (From::Growing(waits), length.ok_or(ServeError::NoPath)?),
        };
        let representation = Representation {
            content_type: HeaderValue::from_static("application/x-nix-nar"),
            coding: None,
            etag: None,
            varies: false,
            size,
        };
        representation.answer(&head, |selected| {
            let (at, length) = match selected {
                Selected::Whole => (0, size),
                Selected::One(range) => (range.start, range.length),
                Selected::Several(_) => return Err(ServeError::NoRoute),
            };
            counts.gives();
            let (rate, counts) = (Arc::clone(&self.rate), Arc::clone(counts));
            let sending = Sending { from, at, to: at + length, rate, counts, _permit: permit };
            Ok(Body::source(sending, Some(length)))
        })
    }
}

impl Handler for ForNeighbours {
    fn handle(&self, request: Request) -> Response {
        if !request.client_ip().is_some_and(|ip| (self.admits)(ip)) {
            return Response::new(StatusCode::FORBIDDEN);
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Response::new(StatusCode::METHOD_NOT_ALLOWED);
        }
        match self.answer(&request) {
            Ok(response) if *request.method() == Method::HEAD && response.status() == StatusCode::OK => {
                Response::new(StatusCode::OK).body(Body::source(Nothing, Some(0)))
            }
            Ok(response) => response,
            Err(ServeError::Busy) => Response::new(StatusCode::SERVICE_UNAVAILABLE),
            Err(_) => Response::new(StatusCode::NOT_FOUND),
        }
    }

    fn accepts_websockets(&self) -> bool {
        false
    }
}

enum From {
    File(Arc<File>),
    Growing(Waits),
}

/// A NAR for a neighbour, at the rate that all of them share.
struct Sending {
    from: From,
    at: u64,
    to: u64,
    rate: Arc<Rate>,
    counts: Arc<NeighbourCounts>,
    _permit: Permit,
}

impl BodySource for Sending {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let (readable, end, file) = match &self.from {
            From::File(file) => (self.to, Some(FillEnd::Complete), file),
            From::Growing(waits) => {
                let growing: &Arc<GrowingFile> = waits;
                let progress = growing.progress();
                (progress.readable, progress.end, growing.file())
            }
        };
        let there = readable.min(self.to).saturating_sub(self.at);
        if there == 0 && self.at < self.to {
            return match end {
                Some(FillEnd::Failed(reason)) => Err(io::Error::new(io::ErrorKind::InvalidData, &*reason)),
                Some(FillEnd::Complete) => Err(io::ErrorKind::UnexpectedEof.into()),
                None => Ok(Fill::Wait),
            };
        }
        let length = self.rate.take(there.min(PIECE_MAX));
        if length == 0 && self.at < self.to {
            return Ok(Fill::Wait);
        }
        if length == PIECE_MAX {
            out.push_file(FileRange { file: Arc::clone(file), offset: self.at, length });
        } else {
            let memory = out.memory();
            let from = memory.len();
            memory.resize(from + usize::try_from(length).unwrap_or_default(), 0);
            file.read_exact_at(memory.get_mut(from..).unwrap_or_default(), self.at)?;
        }
        self.at += length;
        self.counts.gave(length);
        Ok(if self.at == self.to { Fill::Done } else { Fill::More })
    }

    fn wait(&mut self, waker: BodyWaker) -> Duration {
        match &self.from {
            From::Growing(waits) if waits.progress().readable <= self.at => {
                waits.when_beyond(self.at, move || waker.wake());
                LOOK_EVERY
            }
            _ => self.rate.pause(),
        }
    }
}

/// What may be sent in a second, shared by all connections.
struct Rate {
    max: u64,
    /// What may be sent now, and when that was so.
    left: Mutex<(f64, Instant)>,
}

impl Rate {
    fn new(max: u64) -> Self {
        Self { max, left: Mutex::new((max as f64 * BURST, Instant::now())) }
    }

    /// Takes as many bytes as may be sent of these.
    fn take(&self, bytes: u64) -> u64 {
        let (mut left, now) = (self.left.lock(), Instant::now());
        let max = self.max as f64;
        left.0 = (left.0 + now.duration_since(left.1).as_secs_f64() * max).min((max * BURST).max(1.0));
        left.1 = now;
        let taken = (bytes as f64).min(left.0).max(0.0) as u64;
        left.0 -= taken as f64;
        taken
    }

    /// How long a connection waits that could take none.
    fn pause(&self) -> Duration {
        Duration::from_secs_f64((4096.0 / self.max.max(1) as f64).clamp(0.001, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_connections_share_a_rate() {
        let rate = Rate::new(1_000_000);
        let began = Instant::now();
        let mut taken = 0;
        while began.elapsed() < Duration::from_millis(200) {
            taken += rate.take(100_000);
        }
        let most = 250_000.0 + 1_000_000.0 * began.elapsed().as_secs_f64();
        assert!((250_000.0..=most + 1.0).contains(&(taken as f64)), "{taken}");
    }
}
