//! `/nar/…`: the NAR of a store path, from where it is kept, else made from the path's files while it is sent.

use std::sync::Arc;

use narval_http::semantics::accept::{Coding, negotiate_coding};
use narval_http::{Body, HeadRef, HeaderValue, Method, Response, SegmentBuf, StatusCode, header};
use narval_nix::{NarHash, PathInfo};
use narval_store::{NarStream, PackedNar, Stamp};

use super::table::NarRoute;
use crate::config::Dialect;
use crate::error::ServeError;
use crate::metrics::Metrics;
use crate::nar::deltas::{DeltaEnd, DeltaRequest, Deltas};
use crate::nar::file::send_file;
use crate::nar::memory::{NarFormat, NarMemory, SMALL_NAR_BYTES_MAX, is_plain, verified_nar};
use crate::nar::packed::PackedNars;
use crate::nar::plan::{PathNar, Planner};
use crate::nar::representation::{Representation, Selected};
use crate::nar::sources::{NarSource, RangesSource, VerifiedSource, with_packed};
use crate::nar::zstd::{CompressedNar, InFlightSource, NarCache, Stored, compress_alone, etag, etag_alone};
use crate::narinfo::memo::Memo;

/// The NARs of a store.
#[derive(Debug)]
pub(crate) struct Nars {
    pub(crate) dialect: Dialect,
    /// Whether every NAR is hashed while it is sent.
    pub(crate) verify: bool,
    pub(crate) planner: Arc<Planner>,
    pub(crate) memory: NarMemory,
    pub(crate) packed: Option<Arc<PackedNars>>,
    pub(crate) compressed: Option<Arc<NarCache>>,
    pub(crate) deltas: Option<Arc<Deltas>>,
    /// Narinfos name the compressed file where there is one.
    pub(crate) narinfos: Arc<Memo<Stamp>>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Nars {
    /// Answers from memory, on the shard.
    #[inline]
    pub(crate) fn inline(&self, head: &HeadRef<'_>, route: &NarRoute<'_>) -> Option<Response> {
        let nar_hash = route.nar_hash.as_deref().filter(|_| is_plain(head))?;
        if self.deltas.is_some() && DeltaRequest::is_possible(head) {
            return None;
        }
        let format = match route.zstd {
            true if self.dialect == Dialect::Narval => NarFormat::Zstd,
            false if self.compressed.is_some() && asks_for_zstd(head) => NarFormat::Coded,
            false => NarFormat::Identity,
            true => return None,
        };
        self.memory.get(self.planner.store.stamp()?, (route.hash_part, nar_hash, format))
    }

    /// Answers with a NAR or ranges of it, compressed where the client asks for that.
    pub(crate) fn answer(&self, head: &HeadRef<'_>, route: &NarRoute<'_>) -> Result<Response, ServeError> {
        if let Some(deltas) = &self.deltas
            && let Some(delta_request) = DeltaRequest::of(head)
            && let Some(response) = self.delta(deltas, head, route, &delta_request)?
        {
            return Ok(response);
        }
        // Before the database is read: what is remembered can only be newer than its stamp says.
        let stamp = self.planner.store.stamp();
        let coded = route.zstd || (self.compressed.is_some() && asks_for_zstd(head));
        if coded && let Some(response) = self.zstd(head, route, stamp)? {
            return Ok(response);
        }
        let content_type = match self.dialect {
            Dialect::NixServe => "text/plain",
            Dialect::Narval => "application/x-nix-nar",
        };
        let (path_nar, stream) = self.planner.plan(route.hash_part)?;
        let nar_hash = check_hash(route, &path_nar.nar_hash)?;
        let size = path_nar.layout.size_bytes();
        if size <= SMALL_NAR_BYTES_MAX && is_plain(head) {
            self.metrics.nar_bytes_identity.inc_by(size);
            return Ok(self.memory.small_nar(stamp, &path_nar, stream, content_type, &self.planner.damaged)?.into());
        }
        let representation = Representation {
            content_type: HeaderValue::from_static(content_type),
            coding: None,
            etag: HeaderValue::from_str(&format!("\"{nar_hash}\"")).ok(),
            varies: self.compressed.is_some() && size > SMALL_NAR_BYTES_MAX,
            size,
        };
        let packed = self.packed.as_ref().and_then(|packed| packed.get(&path_nar.nar_hash));
        if let Some(packed) = &packed
            && let Some(file) = packed.nar.whole()
        {
            let response = send_file(&representation, head, file, &self.metrics.nar_bytes_identity)?;
            if let Some(stamp) = stamp {
                self.memory.insert_packed(stamp, &path_nar, packed, representation);
            }
            return Ok(response);
        }
        let packed = packed.map(|packed| Arc::clone(&packed.nar));
        representation.answer(head, |selected| self.body(head, selected, &path_nar, stream, packed))
    }

    /// Answers with the delta from the base that the client has, if this store has it, too.
    fn delta(
        &self,
        deltas: &Arc<Deltas>,
        head: &HeadRef<'_>,
        route: &NarRoute<'_>,
        delta_request: &DeltaRequest,
    ) -> Result<Option<Response>, ServeError> {
        let store = &self.planner.store;
        let Some(base) = store.path_info_by_hash_part(&delta_request.base)? else { return Ok(None) };
        let info = store.path_info_by_hash_part(&route.hash_part)?.ok_or(ServeError::NoPath)?;
        check_hash(route, &info.nar_hash)?;
        if base.nar_hash != delta_request.base_hash {
            return Ok(None);
        }
        let (old, new) = (self.delta_end(&base), self.delta_end(&info));
        deltas.answer(head, delta_request, (old, new), self.compressed_size(&info.nar_hash))
    }

    /// A path as an end of a delta.
    pub(crate) fn delta_end(&self, info: &PathInfo) -> DeltaEnd {
        let (planner, hash_part, hash) = (Arc::clone(&self.planner), info.path.hash_part(), info.nar_hash);
        let read = move || {
            let (path_nar, stream) = planner.plan(hash_part).map_err(|error| error.to_string())?;
            if path_nar.nar_hash != hash {
                return Err("it was rebuilt".to_owned());
            }
            verified_nar(&path_nar, stream, &planner.damaged).map_err(|error| error.to_string())
        };
        DeltaEnd { hash, size: info.nar_size, read: Box::new(read) }
    }

    /// The size in bytes of a compressed NAR, if there is one.
    pub(crate) fn compressed_size(&self, nar_hash: &NarHash) -> Option<u64> {
        Some(self.compressed.as_ref()?.find_name(nar_hash)?.file_size)
    }

    /// The body of an answer that is made from the files of the path, and from what is packed of them.
    fn body(
        &self,
        head: &HeadRef<'_>,
        selected: Selected,
        path_nar: &Arc<PathNar>,
        stream: NarStream,
        packed: Option<Arc<PackedNar>>,
    ) -> Result<Body, ServeError> {
        let (size, metrics) = (path_nar.layout.size_bytes(), &self.metrics);
        let source = |stream, packed_nars| {
            let (path_nar, metrics) = (Arc::clone(path_nar), Arc::clone(metrics));
            NarSource { path_nar, stream: with_packed(stream, packed.as_ref()), metrics, packed_nars }
        };
        Ok(match selected {
            // One piece is verified before the status line: a NAR that is wrong is answered 404.
            Selected::Whole if self.verify && size <= SegmentBuf::QUANTUM as u64 && *head.method() != Method::HEAD => {
                metrics.nar_bytes_identity.inc_by(size);
                Body::bytes(verified_nar(path_nar, stream, &self.planner.damaged)?)
            }
            Selected::Whole if self.verify => {
                let damaged = Arc::clone(&self.planner.damaged);
                let source = VerifiedSource::new(Arc::clone(path_nar), stream, damaged, Arc::clone(metrics));
                Body::source(source, Some(size))
            }
            Selected::Whole => {
                let to_pack = self.packed.as_ref().filter(|_| packed.is_none()).map(Arc::clone);
                Body::source(source(stream, to_pack), Some(size))
            }
            Selected::One(range) => {
                let stream = path_nar.stream(range.start..range.start + range.length, &self.planner.ahead);
                let stream = stream.map_err(|error| ServeError::of_files(&path_nar.path, &error))?;
                Body::source(source(stream, None), Some(range.length))
            }
            Selected::Several(parts) => {
                let length = parts.content_length();
                let (ahead, metrics) = (Arc::clone(&self.planner.ahead), Arc::clone(metrics));
                let source = RangesSource::new(Arc::clone(path_nar), packed.clone(), ahead, metrics, parts);
                Body::source(source, Some(length))
            }
        })
    }

    /// Answers with the compressed NAR: under its own URL, or as a coding of the NAR. Small NARs are not coded.
    fn zstd(
        &self,
        head: &HeadRef<'_>,
        route: &NarRoute<'_>,
        stamp: Option<Stamp>,
    ) -> Result<Option<Response>, ServeError> {
        let info = self.planner.store.path_info_by_hash_part(&route.hash_part)?.ok_or(ServeError::NoPath)?;
        let nar_hash = check_hash(route, &info.nar_hash)?;
        if !route.zstd && info.nar_size <= SMALL_NAR_BYTES_MAX {
            return Ok(None);
        }
        match &self.compressed {
            None => self.zstd_uncached(head, route, &nar_hash).map(Some),
            Some(cache) => self.zstd_cached(cache, head, route, (&info, nar_hash), stamp),
        }
    }

    /// Answers with the file in the cache, or with one that is being made.
    fn zstd_cached(
        &self,
        cache: &NarCache,
        head: &HeadRef<'_>,
        route: &NarRoute<'_>,
        (info, nar_hash): (&PathInfo, String),
        stamp: Option<Stamp>,
    ) -> Result<Option<Response>, ServeError> {
        let of_file =
            |stored: &Stored| zstd_representation(route, &etag(&nar_hash, &stored.encoding), stored.file_size);
        let bytes = &self.metrics.nar_bytes_zstd;
        let is_news = !cache.knows(&info.nar_hash);
        if let Some((stored, file)) = cache.find(&info.nar_hash) {
            if is_news {
                // Another process made it: the remembered narinfo does not name it.
                self.narinfos.forget(&route.hash_part);
            }
            self.metrics.nar_cache_hits.inc();
            let representation = of_file(&stored);
            let response = send_file(&representation, head, &file, bytes)?;
            if let Some(stamp) = stamp {
                let format = if route.zstd { NarFormat::Zstd } else { NarFormat::Coded };
                let hashes = (&info.nar_hash, stored.file_hash);
                self.memory.insert_compressed(stamp, (route.hash_part, format), hashes, representation);
            }
            return Ok(Some(response));
        }
        let unfinished = zstd_representation(route, &cache.etag(&nar_hash), 0);
        if let Some(response) = unfinished.on_conditions(head) {
            return Ok(Some(response));
        }
        let (path_nar, _) = self.planner.plan(route.hash_part)?;
        // The path may have been rebuilt since its hash was checked.
        check_hash(route, &path_nar.nar_hash)?;
        let (narinfos, hash_part) = (Arc::clone(&self.narinfos), route.hash_part);
        let found = cache.get(&path_nar, &self.planner.ahead, move || narinfos.forget(&hash_part));
        match found.map_err(|error| ServeError::damaged(&path_nar.path, error.to_string()))? {
            CompressedNar::File(stored, file) => send_file(&of_file(&stored), head, &file, bytes).map(Some),
            CompressedNar::InFlight(in_flight) => {
                let length = if *head.method() == Method::HEAD { Ok(None) } else { in_flight.begin_answer() };
                let length = length.map_err(|reason| ServeError::damaged(&path_nar.path, reason))?;
                if !route.zstd && in_flight.has_no_room() {
                    // Compressing it for each client alone would cost more than it saves.
                    return Ok(None);
                }
                let body = Body::source(InFlightSource::new(in_flight, Arc::clone(&self.metrics)), length);
                Ok(Some(unfinished.fields(Response::new(StatusCode::OK), false).body(body)))
            }
        }
    }

    /// Compresses for this client alone: there is no cache, but a client may remember the URL of a time when there was one.
    fn zstd_uncached(&self, head: &HeadRef<'_>, route: &NarRoute<'_>, nar_hash: &str) -> Result<Response, ServeError> {
        let representation = zstd_representation(route, &etag_alone(nar_hash), 0);
        if let Some(response) = representation.on_conditions(head) {
            return Ok(response);
        }
        let (path_nar, _) = self.planner.plan(route.hash_part)?;
        check_hash(route, &path_nar.nar_hash)?;
        let in_flight = compress_alone(&path_nar, &self.planner.ahead, &self.planner.damaged);
        let in_flight = in_flight.map_err(|error| ServeError::of_files(&path_nar.path, &error))?;
        let body = Body::source(InFlightSource::new(in_flight, Arc::clone(&self.metrics)), None);
        Ok(representation.fields(Response::new(StatusCode::OK), false).body(body))
    }
}

fn zstd_representation(route: &NarRoute<'_>, etag: &str, size: u64) -> Representation {
    Representation {
        content_type: HeaderValue::from_static(if route.zstd { "application/zstd" } else { "application/x-nix-nar" }),
        coding: (!route.zstd).then_some(HeaderValue::from_static("zstd")),
        etag: HeaderValue::from_str(etag).ok(),
        varies: !route.zstd,
        size,
    }
}

/// A NAR is compressed for clients that accept it, but not when they ask for a range: that is how they resume an uncompressed NAR.
fn asks_for_zstd(head: &HeadRef<'_>) -> bool {
    head.header_bytes(header::RANGE.as_str()).is_none()
        && negotiate_coding(head, &[Coding::Zstd, Coding::Identity]) == Some(Coding::Zstd)
}

/// The NAR hash in nix32, if the URL names that one or none.
fn check_hash(route: &NarRoute<'_>, nar_hash: &NarHash) -> Result<String, ServeError> {
    let nar_hash = nar_hash.to_nix32();
    match route.nar_hash.as_deref() {
        Some(requested) if requested != nar_hash => Err(ServeError::OtherNarHash),
        _ => Ok(nar_hash),
    }
}
