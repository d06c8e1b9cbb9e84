//! NARs of upstreams: files that are kept, and files that grow while they are sent.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use narval_cache::upstream::{Fill as Growing, FillEnd, NarAnswer, Unavailable, Upstreams};
use narval_http::{
    Body, BodySource, BodyWaker, FileRange, Fill, HeadRef, HeaderValue, Method, Response, SegmentBuf, StatusCode,
};

use crate::error::ServeError;
use crate::metrics::Metrics;
use crate::nar::file::send_file;
use crate::nar::representation::{Representation, Selected};

/// Pieces of at least this size are sent from the file with `sendfile(2)`.
const SENDFILE_BYTES_MIN: u64 = 128 * 1024;
/// How long a connection waits at most before it looks whether there is more, without having been told.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Answers with a NAR by its name below `nar/`, or with a range of it. It waits for what the upstream says first, and for no more.
pub(crate) fn answer(
    upstreams: &Upstreams,
    name: &str,
    head: &HeadRef<'_>,
    metrics: &Arc<Metrics>,
) -> Result<Response, ServeError> {
    let file_name = name.split_once('-').map_or(name, |(_, file)| file);
    let representation = |size| Representation {
        content_type: HeaderValue::from_static("application/x-nix-nar"),
        coding: None,
        etag: HeaderValue::from_str(&format!("\"{file_name}\"")).ok(),
        varies: false,
        size,
    };
    if *head.method() == Method::HEAD {
        // Answered by the narinfo: nothing is fetched.
        return match upstreams.nar_length(name)?.ok_or(ServeError::NoPath)? {
            Some(length) => representation(length).answer(head, |_| Ok(Body::source(Nothing, Some(length)))),
            None => Ok(representation(0).fields(Response::new(StatusCode::OK), false)),
        };
    }
    if let Some(response) = representation(0).on_conditions(head) {
        return Ok(response);
    }
    match upstreams.nar(name)?.ok_or(ServeError::NoPath)? {
        NarAnswer::File(file, length) => {
            let bytes =
                if name.ends_with(".nar") { &metrics.nar_bytes_identity } else { &metrics.nar_bytes_compressed };
            send_file(&representation(length), head, &Arc::new(file), bytes)
        }
        NarAnswer::Fill(growing, None) => {
            let body = Body::source(Follower::new(growing, 0, None, metrics), None);
            Ok(representation(0).fields(Response::new(StatusCode::OK), false).body(body))
        }
        NarAnswer::Fill(growing, Some(length)) => representation(length).answer(head, |selected| match selected {
            Selected::Whole => Ok(Body::source(Follower::new(growing, 0, Some(length), metrics), Some(length))),
            Selected::One(range) => {
                let follower = Follower::new(growing, range.start, Some(range.start + range.length), metrics);
                Ok(Body::source(follower, Some(range.length)))
            }
            // No Nix client asks for several ranges.
            Selected::Several(_) => Err(Unavailable {
                retry_after: Duration::from_secs(1),
                reason: "several ranges are sent once the NAR is here".to_owned(),
            }
            .into()),
        }),
    }
}

/// The body of an answer to HEAD.
struct Nothing;

impl BodySource for Nothing {
    fn fill(&mut self, _: &mut SegmentBuf) -> io::Result<Fill> {
        Ok(Fill::Done)
    }
}

/// Reads behind the thread that fetches.
struct Follower {
    growing: Arc<Growing>,
    sent: u64,
    /// Where to stop; `None`: at the end.
    to: Option<u64>,
    metrics: Arc<Metrics>,
}

impl Follower {
    fn new(growing: Arc<Growing>, from: u64, to: Option<u64>, metrics: &Arc<Metrics>) -> Self {
        Self { growing, sent: from, to, metrics: Arc::clone(metrics) }
    }
}

impl BodySource for Follower {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let progress = self.growing.progress();
        let readable = progress.readable.min(self.to.unwrap_or(u64::MAX));
        let there = readable.saturating_sub(self.sent);
        if there == 0 {
            return match progress.end {
                Some(FillEnd::Complete) => Ok(Fill::Done),
                Some(FillEnd::Failed(reason)) => {
                    self.metrics.stream_aborts.inc();
                    Err(io::Error::new(io::ErrorKind::InvalidData, &*reason))
                }
                None => Ok(Fill::Wait),
            };
        }
        let length = if there >= SENDFILE_BYTES_MIN {
            let file = Arc::clone(self.growing.file());
            out.push_file(FileRange { file, offset: self.sent, length: there });
            there
        } else {
            let memory = out.memory();
            let from = memory.len();
            memory.resize(from + usize::try_from(there).unwrap_or_default(), 0);
            self.growing.file().read_exact_at(memory.get_mut(from..).unwrap_or_default(), self.sent)?;
            there
        };
        self.metrics.nar_bytes_upstream.inc_by(length);
        self.sent += length;
        Ok(if self.to == Some(self.sent) { Fill::Done } else { Fill::More })
    }

    fn wait(&mut self, waker: BodyWaker) -> Duration {
        self.growing.when_beyond(self.sent, move || waker.wake());
        LOOK_EVERY
    }
}
