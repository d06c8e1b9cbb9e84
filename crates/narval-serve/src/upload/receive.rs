//! Bodies of uploads: where they are read, and how they are counted.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use narval_files::{Background, served_client, work_for};
use narval_http::{HeadRef, Request, Response, StatusCode, header};
use narval_keep::{Cache, Data, Rejection, RejectionKind, Stored};
use narval_nix::Compression;
use narval_nix::narinfo::NARINFO_LEN_MAX;

use super::parts::Parts;
use crate::error::ServeError;
use crate::metrics::Metrics;
use crate::piecework::Piecework;
use crate::watch::Transferring;

/// Bodies up to this size are handled by the upload threads. The engine streams larger ones.
pub const SMALL_UPLOAD_BYTES: usize = 64 * 1024;
/// The threads for small uploads.
const THREADS_MAX: usize = 8;
/// Small uploads that wait for a thread. Their bodies count towards the engine's memory for bodies.
const WAITING_MAX: usize = 4096;
/// The most bytes that are read of a `nix-cache-info`, or of a file that is discarded.
pub(super) const OTHER_BYTES_MAX: u64 = 1024 * 1024;

/// Accepts uploads to one cache.
#[derive(Debug)]
pub(crate) struct Uploads {
    pub(super) data: Data,
    pub(super) cache: Cache,
    pub(super) pool: Arc<UploadPool>,
    pub(super) metrics: Arc<Metrics>,
}

/// State that the uploads to all caches of a server share.
#[derive(Debug)]
pub(crate) struct UploadPool {
    pub(super) threads: Arc<Background>,
    /// For `POST missing`, which may ask for many paths.
    pub(super) missing: Arc<Piecework>,
    pub(super) parts: Parts,
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

impl Uploads {
    pub(crate) fn new(data: Data, cache: Cache, pool: Arc<UploadPool>, metrics: Arc<Metrics>) -> Self {
        Self { data, cache, pool, metrics }
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

    pub(super) fn stored(&self, stored: &Stored) {
        self.metrics.uploads_stored.inc();
        tracing::debug!("stored a NAR of {} bytes ({} compressed)", stored.nar_size, stored.file_size);
    }

    /// [Receives](Self::receive) a body of which at most `bytes_max` bytes are [read]. A larger one is refused before it is there.
    pub(super) fn receive_at_most(
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
    pub(super) fn receive(
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
pub(super) fn repeats_uploads(head: &HeadRef<'_>) -> bool {
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
pub(super) fn for_client(error: ServeError, repeats: bool) -> ServeError {
    match error {
        ServeError::Rejected(rejection) if rejection.kind == RejectionKind::NoSpace && !repeats => {
            Rejection { kind: RejectionKind::TooLarge, ..rejection }.into()
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
    Rejection::too_large(format!("the upload is larger than {bytes_max} bytes")).into()
}

/// The length of a body, if the client has announced it.
pub(super) fn announced(request: &Request) -> Option<u64> {
    request.header("content-length").and_then(|length| length.parse().ok())
}

pub(super) fn ended_early(error: &io::Error) -> ServeError {
    ServeError::Upload(format!("the upload ended early: {error}"))
}

/// A body that counts the bytes read.
pub(super) struct CountedBody<'a> {
    body: &'a mut dyn Read,
    metrics: &'a Metrics,
    transfer: Transferring,
}

impl<'a> CountedBody<'a> {
    /// `name`: of its file. `length`: in bytes, if the client has said it.
    pub(super) fn new(body: &'a mut dyn Read, metrics: &'a Metrics, (name, length): (&str, Option<u64>)) -> Self {
        Self { body, metrics, transfer: metrics.uploads.begin(name, length) }
    }
}

impl Read for CountedBody<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let got = self.body.read(out)?;
        self.metrics.upload_bytes.inc_by(got as u64);
        self.transfer.done.fetch_add(got as u64, Ordering::Relaxed);
        Ok(got)
    }
}

/// The lines of a narinfo that describe the file of a NAR.
pub(super) fn narinfo_lines(stored: &Stored) -> String {
    format!(
        "URL: nar/{}\nCompression: {}\nFileHash: sha256:{}\nFileSize: {}\nNarHash: sha256:{}\nNarSize: {}\n",
        stored.name,
        stored.compression,
        stored.file_hash.to_nix32(),
        stored.file_size,
        stored.nar_hash.to_nix32(),
        stored.nar_size
    )
}

/// A response of the push protocol.
pub(super) fn text(status: StatusCode, text: String) -> Response {
    Response::text(status, text).header(header::CACHE_CONTROL, "no-store")
}

const _: () = assert!(NARINFO_LEN_MAX as u64 <= OTHER_BYTES_MAX, "narinfos are small files");

/// The compression given by the extension of a NAR's file name.
pub(super) fn compression_of(extension: &str) -> Option<Compression> {
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
            let error = Rejection::new(RejectionKind::NoSpace, "the disk is full").into();
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
