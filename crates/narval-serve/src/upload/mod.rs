//! Uploads: what `nix copy --to`, `nix store sign` and `nix store copy-log` PUT, and our own push protocol (`docs/push-protocol.md`).
//!
//! Uploads are refused before the body is read if possible, so that a client that waits for `100 Continue` does not send it. A small body is in
//! memory when the handler runs. A few dedicated threads verify and sync it, so that workers stay free for reads. A large body is read, verified
//! and written on one of the engine's threads for streamed bodies.

mod coding;
mod narinfo;
mod parts;
pub(crate) mod push;
pub(crate) mod releases;

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use narval_files::{served_client, work_for};
use narval_http::{HeadRef, Request, Response, StatusCode, header};
use narval_keep::{
    Begin, Cache, Data, Grant, MachineName, MachineReport, NarFileName, Put, RECEIPT_KEY, REPORT_LEN_MAX, Refusal,
    RefusalKind, SmallKind, Stored, UNFINISHED_GRACE,
};
use narval_nix::narinfo::NARINFO_LEN_MAX;
use narval_nix::release::RELEASE_LEN_MAX;
use narval_nix::{CacheInfo, Compression, HashPart};

use crate::background::Background;
use crate::config::Face;
use crate::error::ServeError;
use crate::gate::Administration;
use crate::metrics::Metrics;
use crate::piecework::Piecework;
use crate::routes::table::{PushRoute, Route};
use crate::watch::Transferring;
use coding::{coding, decoded};
use parts::Parts;

/// Bodies up to this size are handled by the upload threads. The engine streams larger ones.
pub const SMALL_UPLOAD_BYTES: usize = 64 * 1024;
/// The threads for small uploads.
const THREADS_MAX: usize = 8;
/// Small uploads that wait for a thread. Their bodies count towards the engine's memory for bodies.
const WAITING_MAX: usize = 4096;
/// The most bytes that are read of a `nix-cache-info`, or of a file that is discarded.
const OTHER_BYTES_MAX: u64 = 1024 * 1024;

/// Accepts uploads to one cache.
#[derive(Debug)]
pub(crate) struct Uploads {
    data: Data,
    cache: Cache,
    pool: Arc<UploadPool>,
    metrics: Arc<Metrics>,
}

/// State that the uploads to all caches of a server share.
#[derive(Debug)]
pub(crate) struct UploadPool {
    threads: Arc<Background>,
    /// For `POST missing`, which may ask for many paths.
    missing: Arc<Piecework>,
    parts: Parts,
}

impl Default for UploadPool {
    fn default() -> Self {
        Self {
            threads: Background::new("upload", THREADS_MAX, WAITING_MAX),
            missing: Arc::new(Piecework::new("missing")),
            parts: Parts::default(),
        }
    }
}

/// The kind of an uploaded file.
#[derive(Debug)]
enum Upload {
    CacheInfo,
    NarInfo(HashPart),
    Small(SmallKind, String),
    /// A path that cannot be a file name. The upload is discarded.
    Unknown(String),
}

impl Uploads {
    pub(crate) fn new(data: Data, cache: Cache, pool: Arc<UploadPool>, metrics: Arc<Metrics>) -> Self {
        Self { data, cache, pool, metrics }
    }

    /// Answers a PUT with a token that may push.
    pub(crate) fn put(
        self: &Arc<Self>,
        route: Route<'_>,
        grant: Grant,
        request: Request,
    ) -> Result<Response, ServeError> {
        let repeats = repeats_uploads(&request.head());
        self.try_put(route, grant, request).map_err(|error| for_client(error, repeats))
    }

    fn try_put(self: &Arc<Self>, route: Route<'_>, grant: Grant, request: Request) -> Result<Response, ServeError> {
        if self.data.is_short_of_room() {
            self.pool.parts.drop_idle(Duration::from_secs(UNFINISHED_GRACE));
        }
        let upload = match route {
            Route::CacheInfo => Upload::CacheInfo,
            Route::NarInfo(hash_part) => Upload::NarInfo(hash_part),
            Route::NarFile(name) => return self.put_nar(name, grant, request),
            Route::Listing(hash_part) => Upload::Small(SmallKind::Listing, hash_part.to_string()),
            Route::Log(path) => Upload::Small(SmallKind::Log, path.base_name().to_owned()),
            Route::Realisation(id) => Upload::Small(SmallKind::Realisation, format!("{id}.doi")),
            Route::BuildTrace(key) => {
                Upload::Small(SmallKind::BuildTrace, format!("{}/{}.doi", key.drv_path, key.output_name))
            }
            Route::DebugInfo(name) => Upload::Small(SmallKind::DebugInfo, name.to_owned()),
            Route::Push(PushRoute::Nar(name)) => return push::nar(self, name, grant, request),
            Route::Other(name) => match name_of_cache(name) {
                Some(cache) => return Err(no_cache(cache).into()),
                None => Upload::Small(SmallKind::Other, name.to_owned()),
            },
            Route::Unknown => Upload::Unknown(request.path().to_owned()),
            Route::Nar(_) | Route::UpstreamNar(_) | Route::Invalid => return Err(ServeError::Invalid),
            Route::Peer(_) => return Err(ServeError::Method("GET")),
            Route::Batch | Route::Push(_) => return Err(ServeError::Method("POST")),
            Route::Presence
            | Route::Api
            | Route::Traces(_)
            | Route::Health
            | Route::Ready
            | Route::Metrics
            | Route::Index
            | Route::Page(_)
            | Route::View(_)
            | Route::Releases(_) => {
                return Err(ServeError::Method("GET, HEAD"));
            }
        };
        let coding = coding(&request.head())?;
        let this = Arc::clone(self);
        let bytes_max = match upload {
            Upload::NarInfo(_) => NARINFO_LEN_MAX as u64,
            Upload::CacheInfo | Upload::Unknown(_) => OTHER_BYTES_MAX,
            Upload::Small(..) => u64::MAX,
        };
        self.receive_at_most(bytes_max, request, move |body| this.take(upload, &mut decoded(coding, body)?, &grant))
    }

    /// Answers a POST of the push protocol with a token that may push.
    pub(crate) fn post(
        self: &Arc<Self>,
        route: PushRoute<'_>,
        grant: Grant,
        request: Request,
    ) -> Result<Response, ServeError> {
        match route {
            PushRoute::Missing => push::missing(self, grant, request),
            PushRoute::Nars => push::nars(self, grant, request),
            PushRoute::Commit => push::commit(self, grant, request),
            // The gate has answered these.
            PushRoute::Nar(_) | PushRoute::Release(_) | PushRoute::Machine(_) | PushRoute::Oidc => {
                Err(ServeError::NoRoute)
            }
        }
    }

    /// Records releases and notes reports of machines, as the token allows. This can wait for uploads, so it runs on the upload threads.
    pub(crate) fn administer(
        self: &Arc<Self>,
        asked: Administration<'_>,
        grant: Grant,
        request: Request,
    ) -> Result<Response, ServeError> {
        let this = Arc::clone(self);
        match asked {
            Administration::Release(name) => {
                let name = name.to_owned();
                self.receive_at_most(RELEASE_LEN_MAX as u64, request, move |body| {
                    releases::record(&this.cache, &name, body, &grant)
                })
            }
            Administration::Report(name) => {
                let name: MachineName = name.parse().map_err(ServeError::from)?;
                self.receive_at_most(REPORT_LEN_MAX, request, move |body| {
                    let report = MachineReport::parse(&read(body, REPORT_LEN_MAX)?)?;
                    this.cache.report(&name, &report, &grant)?;
                    Ok(text(StatusCode::OK, "noted\n".to_owned()))
                })
            }
        }
    }

    /// Runs a command of the page. As [`administer`](Self::administer), on the upload threads.
    pub(crate) fn run(
        self: &Arc<Self>,
        request: Request,
        command: impl FnOnce(&Data, &Cache, &mut dyn Read) -> Result<Response, ServeError> + Send + 'static,
    ) -> Result<Response, ServeError> {
        let this = Arc::clone(self);
        self.receive(request, move |body| command(&this.data, &this.cache, body))
    }

    /// Runs a request of the API for administration, on the upload threads.
    pub(crate) fn run_at_most(
        self: &Arc<Self>,
        bytes_max: u64,
        request: Request,
        answer: impl FnOnce(&Data, &mut dyn Read) -> Result<Response, ServeError> + Send + 'static,
    ) -> Result<Response, ServeError> {
        let this = Arc::clone(self);
        self.receive_at_most(bytes_max, request, move |body| answer(&this.data, body))
    }

    /// Returns how much of a NAR was received in parts.
    pub(crate) fn progress(&self, name: &str, grant: &Grant) -> Result<Response, ServeError> {
        push::progress(self, name, grant)
    }

    fn put_nar(self: &Arc<Self>, name: &str, grant: Grant, request: Request) -> Result<Response, ServeError> {
        let head = request.head();
        let coding = coding(&head)?;
        let length = head.header("content-length").and_then(|length| length.parse().ok()).filter(|_| coding.is_none());
        // Before the body is read: a client that waits for 100 Continue need not send it.
        let upload = match self.cache.begin_nar(name, length, &grant)? {
            Begin::Known(_) => {
                self.metrics.uploads_known.inc();
                return Ok(Response::new(StatusCode::OK));
            }
            Begin::Receive(upload) => upload,
        };
        let (this, name) = (Arc::clone(self), name.to_owned());
        self.receive(request, move |body| {
            let mut body = decoded(coding, body)?;
            let stored = upload.receive(&mut Counted::new(&mut *body, &this.metrics, (&name, length)))?;
            this.stored(&stored);
            Ok(Response::new(StatusCode::CREATED))
        })
    }

    fn stored(&self, stored: &Stored) {
        self.metrics.uploads_stored.inc();
        tracing::debug!("stored a NAR of {} bytes ({} compressed)", stored.nar_size, stored.file_size);
    }

    /// Accepts an upload that is not a NAR.
    fn take(&self, upload: Upload, body: &mut dyn Read, grant: &Grant) -> Result<Response, ServeError> {
        match upload {
            Upload::CacheInfo => self.take_cache_info(body),
            Upload::NarInfo(hash_part) => narinfo::take(&self.cache, hash_part, body, grant),
            Upload::Small(kind, name) => Ok(match self.cache.put_small(kind, &name, body, grant)? {
                Put::Written => Response::new(StatusCode::CREATED),
                Put::Kept | Put::Dropped => Response::new(StatusCode::OK),
            }),
            Upload::Unknown(path) => {
                // A copy by a later version of Nix must not fail because of a new kind of file.
                let bytes = read(body, OTHER_BYTES_MAX)?.len();
                tracing::warn!("PUT {path}: a file of an unknown type was dropped ({bytes} bytes)");
                Ok(Response::new(StatusCode::OK))
            }
        }
    }

    /// The cache generates its own `nix-cache-info`. A client with another store directory must not continue.
    fn take_cache_info(&self, body: &mut dyn Read) -> Result<Response, ServeError> {
        let text = read(body, OTHER_BYTES_MAX)?;
        let info = CacheInfo::parse(&text).map_err(|error| ServeError::Upload(format!("nix-cache-info: {error}")))?;
        let ours = &self.cache.settings().store_dir;
        if info.store_dir != *ours {
            let message = format!("this cache is for the store directory '{ours}', not for '{}'", info.store_dir);
            return Err(Refusal::new(RefusalKind::Conflict, message).into());
        }
        Ok(Response::new(StatusCode::OK))
    }

    /// [Receives](Self::receive) a body of which at most `bytes_max` bytes are [read]. A larger one is refused before it is there.
    fn receive_at_most(
        self: &Arc<Self>,
        bytes_max: u64,
        request: Request,
        take: impl FnOnce(&mut dyn Read) -> Result<Response, ServeError> + Send + 'static,
    ) -> Result<Response, ServeError> {
        let is_coded = request.header("content-encoding").is_some();
        if !is_coded && announced(&request).is_some_and(|length| length > bytes_max) {
            return Err(too_large(bytes_max));
        }
        self.receive(request, take)
    }

    /// Runs `take` with the body: on an upload thread if it is small, otherwise on this thread.
    fn receive(
        self: &Arc<Self>,
        mut request: Request,
        take: impl FnOnce(&mut dyn Read) -> Result<Response, ServeError> + Send + 'static,
    ) -> Result<Response, ServeError> {
        let limit = SMALL_UPLOAD_BYTES as u64;
        if announced(&request).is_some_and(|length| length >= limit) {
            return take(request.body());
        }
        let mut begun = Vec::new();
        request.body().by_ref().take(limit).read_to_end(&mut begun).map_err(|error| ended_early(&error))?;
        if begun.len() >= SMALL_UPLOAD_BYTES {
            return take(&mut begun.as_slice().chain(request.body()));
        }
        let (response, responder) = Response::later();
        let metrics = Arc::clone(&self.metrics);
        let repeats = repeats_uploads(&request.head());
        let client = served_client();
        let job = Box::new(move || {
            let _entered = work_for(client);
            let answer = take(&mut begun.as_slice()).map_err(|error| for_client(error, repeats));
            responder.respond(answer.unwrap_or_else(|error| error.into_response(&metrics)));
            // The engine counts the body's memory until this point.
            drop(request);
        });
        self.pool.threads.offer(job).map_err(|_| ServeError::Busy)?;
        Ok(response)
    }
}

/// Whether a client can repeat an upload after a temporary error. Nix before 2.33.2 then sends `Content-Length` without a body, five times
/// (measured), and its user never sees the first answer.
/// For requests to a cache that does not exist.
pub(crate) fn no_cache(name: &str) -> Refusal {
    Refusal::new(RefusalKind::NotFound, format!("there is no cache '{name}' here"))
}

/// What is before the path of a NAR, a narinfo or `nix-cache-info`: the client means a cache, and not a file of an unknown kind in the one at
/// `/`. So uploads to a cache that does not exist, or does not exist any more, are not taken.
fn name_of_cache(path: &str) -> Option<&str> {
    let is_of_cache = |rest: &str| match Route::parse(Face::Narval, rest, None) {
        Route::CacheInfo | Route::NarInfo(_) => true,
        Route::NarFile(name) => NarFileName::parse(name).is_ok(),
        _ => false,
    };
    let slashes = path.match_indices('/').map(|(at, _)| path.split_at(at));
    slashes.filter(|(_, rest)| is_of_cache(rest)).map(|(name, _)| name).next()
}

fn repeats_uploads(head: &HeadRef<'_>) -> bool {
    let agent = head.header("user-agent").unwrap_or_default();
    let Some(version) = agent.split(' ').find_map(|word| word.strip_prefix("Nix/")) else { return true };
    let digits = |part: &str| {
        part.bytes()
            .take_while(u8::is_ascii_digit)
            .fold(0, |n: u32, digit| n.saturating_mul(10).saturating_add(u32::from(digit - b'0')))
    };
    let mut parts = version.split('.').map(digits);
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next()) >= (2, 33, 2)
}

/// Replaces a temporary error with a permanent one for clients that cannot repeat uploads.
fn for_client(error: ServeError, repeats: bool) -> ServeError {
    match error {
        ServeError::Refused(refusal) if refusal.kind == RefusalKind::NoSpace && !repeats => {
            Refusal { kind: RefusalKind::TooLarge, ..refusal }.into()
        }
        error => error,
    }
}

/// Reads a whole body.
///
/// # Errors
/// 413 for more than `bytes_max` bytes; 400 if it ends early or its coding is damaged.
pub(crate) fn read(body: &mut dyn Read, bytes_max: u64) -> Result<Vec<u8>, ServeError> {
    let mut bytes = Vec::new();
    body.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|error| ended_early(&error))?;
    if bytes.len() as u64 > bytes_max {
        return Err(too_large(bytes_max));
    }
    Ok(bytes)
}

fn too_large(bytes_max: u64) -> ServeError {
    Refusal::new(RefusalKind::TooLarge, format!("the upload is larger than {bytes_max} bytes")).into()
}

/// The length of a body, if the client has announced it.
fn announced(request: &Request) -> Option<u64> {
    request.header("content-length").and_then(|length| length.parse().ok())
}

fn ended_early(error: &io::Error) -> ServeError {
    ServeError::Upload(format!("the upload ended early: {error}"))
}

/// A body that counts the bytes read.
struct Counted<'a> {
    body: &'a mut dyn Read,
    metrics: &'a Metrics,
    transfer: Transferring,
}

impl<'a> Counted<'a> {
    /// `name`: of its file. `length`: in bytes, if the client has said it.
    fn new(body: &'a mut dyn Read, metrics: &'a Metrics, (name, length): (&str, Option<u64>)) -> Self {
        Self { body, metrics, transfer: metrics.uploads.begin(name, length) }
    }
}

impl Read for Counted<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let got = self.body.read(out)?;
        self.metrics.upload_bytes.inc_by(got as u64);
        self.transfer.done.fetch_add(got as u64, Ordering::Relaxed);
        Ok(got)
    }
}

/// The lines of a narinfo that describe the file of a NAR.
fn narinfo_lines(stored: &Stored) -> String {
    let receipt = stored.receipt.as_ref().map(|receipt| format!("{RECEIPT_KEY}: {receipt}\n")).unwrap_or_default();
    format!(
        "URL: nar/{}\nCompression: {}\nFileHash: sha256:{}\nFileSize: {}\nNarHash: sha256:{}\nNarSize: {}\n{receipt}",
        stored.name,
        stored.compression,
        stored.file_hash.to_nix32(),
        stored.file_size,
        stored.nar_hash.to_nix32(),
        stored.nar_size
    )
}

/// A response of the push protocol.
fn text(status: StatusCode, text: String) -> Response {
    Response::text(status, text).header(header::CACHE_CONTROL, "no-store")
}

const _: () = assert!(NARINFO_LEN_MAX as u64 <= OTHER_BYTES_MAX, "narinfos are small files");

/// The compression given by the extension of a NAR's file name.
fn compression_of(extension: &str) -> Option<Compression> {
    Compression::ALL.into_iter().find(|compression| compression.file_extension() == extension)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may say so")]

    use super::*;

    #[test]
    fn a_full_disk_is_a_final_error_for_clients_that_cannot_repeat_a_put() {
        let status = |agent: &str| {
            let head = format!("PUT /x HTTP/1.1\r\nHost: h\r\nUser-Agent: {agent}\r\n\r\n");
            let request = Request::parse(head, "").unwrap();
            let error = Refusal::new(RefusalKind::NoSpace, "the disk is full").into();
            for_client(error, repeats_uploads(&request.head()))
                .into_response(&Metrics::new(&narval_keep::CacheName::default()))
                .status()
                .as_u16()
        };
        for old in ["curl/7.88.1 Nix/2.8.0", "curl/8.5.0 Nix/2.33.1", "curl/8.5.0 Nix/2.3.18 x"] {
            assert_eq!(status(old), 413, "{old}");
        }
        for new in ["curl/8.5.0 Nix/2.33.2", "curl/8.5.0 Nix/2.34.8pre", "Nix/3.0", "narval/0.1", ""] {
            assert_eq!(status(new), 507, "{new}");
        }
    }
}
