//! `/nar/…`: a store path as a NAR, made from its files as it is sent.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use narval_http::http1::accept::{Coding, negotiate_coding};
use narval_http::http1::range::{ByteRange, MultipartRanges};
use narval_http::{
    Body, BodySource, FileRange, Fill, HeadRef, HeaderValue, Method, Request, Response, SegmentBuf, StatusCode, header,
};
use narval_nix::{NarHash, Sha256Hasher};
use narval_store::{NarReader, NarStream, PackedNar, ReadAhead, Step};

use super::table::NarRoute;
use crate::Face;
use crate::error::ServeError;
use crate::metrics::Counter;
use crate::metrics::Metrics;
use crate::nar::damaged::{Corrupt, NOT_AS_REGISTERED};
use crate::nar::memory::{Form, SMALL_NAR_BYTES_MAX, is_plain};
use crate::nar::packed::FlatNars;
use crate::nar::plan::Planned;
use crate::nar::representation::{Representation, Selected};
use crate::nar::zstd::{FlightSource, Found, Stored, compress_alone, etag, etag_alone};
use crate::narinfo::memo::Generation;
use crate::service::Shared;

/// What is left of a NAR after a large file for it to be made together with that: what closes the archive, hardly more.
const TAIL_BYTES_MAX: u64 = 1024;

/// Answers with a NAR or ranges of it, compressed where the client asks for that.
pub(crate) fn answer(shared: &Shared, route: &NarRoute, request: &Request) -> Result<Response, ServeError> {
    let head = request.head();
    // Before the store is read: see the memo's description.
    let generation = shared.store.stamp();
    let coded = route.zstd || (shared.nar_cache.is_some() && asks_for_zstd(&head));
    if coded && let Some(response) = zstd(shared, route, &head, generation)? {
        return Ok(response);
    }
    let content_type = match shared.config.face {
        Face::NixServe => "text/plain",
        Face::Narval => "application/x-nix-nar",
    };
    let (planned, stream) = shared.plan(route.hash_part)?;
    let nar_hash = check_hash(route, &planned.nar_hash)?;
    if planned.layout.size_bytes() <= SMALL_NAR_BYTES_MAX && is_plain(&head) {
        shared.metrics.nar_bytes_identity.inc_by(planned.layout.size_bytes());
        return Ok(shared.small_nar(generation, &planned, stream, content_type)?.into());
    }
    let representation = Representation {
        content_type: HeaderValue::from_static(content_type),
        coding: None,
        etag: HeaderValue::from_str(&format!("\"{nar_hash}\"")).ok(),
        varies: shared.nar_cache.is_some() && planned.layout.size_bytes() > SMALL_NAR_BYTES_MAX,
        size: planned.layout.size_bytes(),
    };
    let flat_nars = shared.flat_nars.as_ref();
    let kept = flat_nars.and_then(|flat_nars| flat_nars.get(&planned.nar_hash));
    if let Some(kept) = &kept
        && let Some(file) = kept.packed.whole()
    {
        let response = send_file(&representation, &head, file, &shared.metrics.nar_bytes_identity)?;
        if let Some(generation) = generation {
            shared.ready_nars.is_kept(generation, &planned, kept, representation);
        }
        return Ok(response);
    }
    let packed = kept.map(|kept| Arc::clone(&kept.packed));
    let source = |stream, flat_nars| {
        let (planned, metrics) = (Arc::clone(&planned), Arc::clone(&shared.metrics));
        NarSource { planned, stream: with(stream, packed.as_ref()), metrics, flat_nars }
    };
    representation.answer(&head, |selection| {
        Ok(match selection {
            Selected::Whole if shared.config.verify_nars && is_made_at_once(&planned, &head) => {
                shared.metrics.nar_bytes_identity.inc_by(planned.layout.size_bytes());
                Body::bytes(shared.checked_nar(&planned, stream)?)
            }
            Selected::Whole if shared.config.verify_nars => {
                Body::source(VerifiedSource::new(shared, &planned, stream), Some(planned.layout.size_bytes()))
            }
            Selected::Whole => {
                let to_tell = flat_nars.filter(|_| packed.is_none()).map(Arc::clone);
                Body::source(source(stream, to_tell), Some(planned.layout.size_bytes()))
            }
            Selected::One(range) => {
                let stream = planned.stream(range.start..range.start + range.length, &shared.ahead);
                let stream = stream.map_err(|error| ServeError::of_files(&planned.path, &error))?;
                Body::source(source(stream, None), Some(range.length))
            }
            Selected::Several(parts) => {
                let length = parts.content_length();
                let planned = Arc::clone(&planned);
                let (ahead, metrics) = (Arc::clone(&shared.ahead), Arc::clone(&shared.metrics));
                let packed = packed.clone();
                Body::source(
                    RangesSource { planned, packed, ahead, metrics, parts, next: 0, stream: None },
                    Some(length),
                )
            }
        })
    })
}

/// Whether a NAR that is verified is one piece, which can be made before the status line: if it is wrong, it is not there.
fn is_made_at_once(planned: &Planned, head: &HeadRef<'_>) -> bool {
    planned.layout.size_bytes() <= SegmentBuf::QUANTUM as u64 && *head.method() != Method::HEAD
}

/// A stream that takes what it can from a packed NAR, where there is one.
fn with(stream: NarStream, packed: Option<&Arc<PackedNar>>) -> NarStream {
    match packed {
        Some(packed) => stream.packed(Arc::clone(packed)),
        None => stream,
    }
}

/// A NAR is compressed for clients that say so, but not when they ask for a range: that is how they resume a NAR that
/// came as it is.
pub(crate) fn asks_for_zstd(head: &HeadRef<'_>) -> bool {
    head.header(header::RANGE.as_str()).is_none()
        && negotiate_coding(head, &[Coding::Zstd, Coding::Identity]) == Some(Coding::Zstd)
}

/// The NAR hash in nix32, if the URL names that one or none.
fn check_hash(route: &NarRoute, nar_hash: &NarHash) -> Result<String, ServeError> {
    let nar_hash = nar_hash.to_nix32();
    match route.nar_hash.as_deref() {
        Some(asked) if asked != nar_hash => Err(ServeError::OtherNarHash),
        _ => Ok(nar_hash),
    }
}

/// Answers with the compressed NAR: under its own URL, or as a coding of the NAR. Small NARs are not coded.
fn zstd(
    shared: &Shared,
    route: &NarRoute,
    head: &HeadRef<'_>,
    generation: Option<Generation>,
) -> Result<Option<Response>, ServeError> {
    let info = shared.store.path_info_by_hash_part(&route.hash_part)?.ok_or(ServeError::NoPath)?;
    let nar_hash = check_hash(route, &info.nar_hash)?;
    if !route.zstd && info.nar_size <= SMALL_NAR_BYTES_MAX {
        return Ok(None);
    }
    let representation = |etag: String, size| Representation {
        content_type: HeaderValue::from_static(if route.zstd { "application/zstd" } else { "application/x-nix-nar" }),
        coding: (!route.zstd).then_some(HeaderValue::from_static("zstd")),
        etag: HeaderValue::from_str(&etag).ok(),
        varies: !route.zstd,
        size,
    };
    let of_file = |stored: &Stored| representation(etag(&nar_hash, &stored.encoding), stored.file_size);
    let bytes = &shared.metrics.nar_bytes_zstd;
    let Some(cache) = &shared.nar_cache else {
        let representation = representation(etag_alone(&nar_hash), 0);
        if let Some(response) = representation.on_conditions(head) {
            return Ok(Some(response));
        }
        let (planned, _) = shared.plan(route.hash_part)?;
        check_hash(route, &planned.nar_hash)?;
        let flight = compress_alone(&planned, &shared.ahead, &shared.corrupt);
        let flight = flight.map_err(|error| ServeError::of_files(&planned.path, &error))?;
        let body = Body::source(FlightSource::new(flight, Arc::clone(&shared.metrics)), None);
        return Ok(Some(representation.fields(Response::new(StatusCode::OK), false).body(body)));
    };
    let is_news = !cache.knows(&info.nar_hash);
    if let Some((stored, file)) = cache.find(&info.nar_hash) {
        if is_news {
            // Another process made it: the narinfo that is remembered does not name it.
            shared.memo.forget(&route.hash_part);
        }
        shared.metrics.nar_cache_hits.inc();
        let representation = of_file(&stored);
        let response = send_file(&representation, head, &file, bytes)?;
        if let Some(generation) = generation {
            let form = if route.zstd { Form::Zstd } else { Form::Coded };
            let key = (route.hash_part, form);
            let hashes = (&info.nar_hash, stored.file_hash);
            shared.ready_nars.is_compressed(generation, key, hashes, representation);
        }
        return Ok(Some(response));
    }
    let unfinished = representation(cache.etag(&nar_hash), 0);
    if let Some(response) = unfinished.on_conditions(head) {
        return Ok(Some(response));
    }
    let (planned, _) = shared.plan(route.hash_part)?;
    // Rebuilt between the two looks.
    check_hash(route, &planned.nar_hash)?;
    let (memo, hash_part) = (Arc::clone(&shared.memo), route.hash_part);
    let found = cache.get(&planned, &shared.ahead, move || memo.forget(&hash_part));
    match found.map_err(|error| damaged(&planned, error.to_string()))? {
        Found::File(stored, file) => send_file(&of_file(&stored), head, &file, bytes).map(Some),
        Found::Flight(flight) => {
            let length = if *head.method() == Method::HEAD { Ok(None) } else { flight.begin_answer() };
            let length = length.map_err(|reason| damaged(&planned, reason))?;
            if !route.zstd && flight.has_no_room() {
                // Compressing it for each client alone would take more than it spares.
                return Ok(None);
            }
            let body = Body::source(FlightSource::new(flight, Arc::clone(&shared.metrics)), length);
            Ok(Some(unfinished.fields(Response::new(StatusCode::OK), false).body(body)))
        }
    }
}

/// Answers with a NAR that is in a file, and counts its bytes.
fn send_file(
    representation: &Representation,
    head: &HeadRef<'_>,
    file: &Arc<File>,
    bytes: &Counter,
) -> Result<Response, ServeError> {
    let part = |range: ByteRange| {
        bytes.inc_by(range.length);
        FileRange { file: Arc::clone(file), offset: range.start, length: range.length }
    };
    representation.answer(head, |selection| {
        Ok(match selection {
            Selected::Whole => Body::file(part(ByteRange { start: 0, length: representation.size })),
            Selected::One(range) => Body::file(part(range)),
            Selected::Several(parts) => {
                let length = parts.content_length();
                Body::source(FileRanges { file: Arc::clone(file), parts, next: 0 }, Some(length))
            }
        })
    })
}

fn damaged(planned: &Planned, reason: String) -> ServeError {
    ServeError::Damaged { path: planned.path.base_name().to_owned(), reason }
}

/// A NAR, or one range of it.
struct NarSource {
    planned: Arc<Planned>,
    stream: NarStream,
    metrics: Arc<Metrics>,
    /// Who is told when all of it was sent.
    flat_nars: Option<Arc<FlatNars>>,
}

impl BodySource for NarSource {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let filled = fill(&mut self.stream, &self.planned, &self.metrics, out)?;
        if filled == Fill::Done
            && let Some(flat_nars) = self.flat_nars.take()
        {
            flat_nars.was_sent(&self.planned);
        }
        Ok(filled)
    }
}

/// Appends the next piece of a stream. What can't be read breaks the answer off: a short NAR must not end cleanly.
fn fill(stream: &mut NarStream, planned: &Planned, metrics: &Metrics, out: &mut SegmentBuf) -> io::Result<Fill> {
    let (room, before) = (out.room(), stream.remaining_bytes());
    let step = stream.fill(out.memory(), room);
    metrics.nar_bytes_identity.inc_by(before.saturating_sub(stream.remaining_bytes()));
    match step {
        Ok(Step::More) => Ok(Fill::More),
        Ok(Step::Done) => Ok(Fill::Done),
        Ok(Step::File(part)) => {
            out.push_file(FileRange { file: part.file, offset: part.offset, length: part.length });
            if stream.remaining_bytes() > TAIL_BYTES_MAX {
                return Ok(Fill::More);
            }
            // What closes the archive goes with it: nobody has to be asked again for a few bytes.
            fill(stream, planned, metrics, out)
        }
        Err(error) => {
            metrics.stream_aborts.inc();
            tracing::error!("NAR of {} aborted: {error}", planned.path);
            Err(error.into())
        }
    }
}

/// A NAR that is hashed as it is sent, and aborted before its last piece when the hash does not match.
struct VerifiedSource {
    planned: Arc<Planned>,
    nar: NarReader,
    left: u64,
    hasher: Sha256Hasher,
    corrupt: Arc<Corrupt>,
    metrics: Arc<Metrics>,
}

impl VerifiedSource {
    fn new(shared: &Shared, planned: &Arc<Planned>, stream: NarStream) -> Self {
        Self {
            planned: Arc::clone(planned),
            left: planned.layout.size_bytes(),
            nar: NarReader::of(stream),
            hasher: Sha256Hasher::new(),
            corrupt: Arc::clone(&shared.corrupt),
            metrics: Arc::clone(&shared.metrics),
        }
    }
}

impl BodySource for VerifiedSource {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let room = out.room();
        let memory = out.memory();
        let from = memory.len();
        memory.resize(from + room, 0);
        let read = self.nar.read(memory.get_mut(from..).unwrap_or_default());
        let got = read.inspect_err(|error| {
            self.metrics.stream_aborts.inc();
            tracing::error!("NAR of {} aborted: {error}", self.planned.path);
        })?;
        memory.truncate(from + got);
        self.hasher.update(memory.get(from..).unwrap_or_default());
        self.left = self.left.saturating_sub(got as u64);
        self.metrics.nar_bytes_identity.inc_by(got as u64);
        if self.left > 0 && got > 0 {
            return Ok(Fill::More);
        }
        if self.hasher.clone().finish() == self.planned.nar_hash {
            return Ok(Fill::Done);
        }
        let hash_part = self.planned.path.hash_part();
        self.corrupt.add(hash_part, &self.planned.nar_hash, &self.planned.real_path);
        self.metrics.stream_aborts.inc();
        tracing::error!("NAR of {} aborted: {NOT_AS_REGISTERED}", self.planned.path);
        Err(io::Error::new(io::ErrorKind::InvalidData, NOT_AS_REGISTERED))
    }
}

/// Several ranges of a NAR, as `multipart/byteranges`.
struct RangesSource {
    planned: Arc<Planned>,
    packed: Option<Arc<PackedNar>>,
    ahead: Arc<ReadAhead>,
    metrics: Arc<Metrics>,
    parts: MultipartRanges,
    next: usize,
    stream: Option<NarStream>,
}

impl BodySource for RangesSource {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        if let Some(stream) = &mut self.stream {
            if fill(stream, &self.planned, &self.metrics, out)? == Fill::Done {
                self.stream = None;
            }
            return Ok(Fill::More);
        }
        let Some(range) = self.parts.ranges().get(self.next).copied() else {
            self.parts.end(out.memory());
            return Ok(Fill::Done);
        };
        self.parts.part_head(self.next, out.memory());
        self.next += 1;
        let range = range.start..range.start + range.length;
        self.stream = Some(with(self.planned.stream(range, &self.ahead)?, self.packed.as_ref()));
        Ok(Fill::More)
    }
}

/// Several ranges of a NAR in a file.
struct FileRanges {
    file: Arc<File>,
    parts: MultipartRanges,
    next: usize,
}

impl BodySource for FileRanges {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let Some(range) = self.parts.ranges().get(self.next).copied() else {
            self.parts.end(out.memory());
            return Ok(Fill::Done);
        };
        self.parts.part_head(self.next, out.memory());
        self.next += 1;
        out.push_file(FileRange { file: Arc::clone(&self.file), offset: range.start, length: range.length });
        Ok(Fill::More)
    }
}
