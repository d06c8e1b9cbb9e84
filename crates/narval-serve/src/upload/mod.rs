//! Uploads: what `nix copy --to`, `nix store sign` and `nix store copy-log` PUT, and our own push protocol (`docs/push-protocol.md`).
//!
//! Uploads are refused before the body is read if possible, so that a client that waits for `100 Continue` does not send it. A small body is in
//! memory when the handler runs. A few dedicated threads verify and sync it, so that workers stay free for reads. A large body is read, verified
//! and written on one of the engine's threads for streamed bodies.

mod coding;
mod narinfo;
mod parts;
mod push;
pub(crate) mod receive;
pub(crate) mod releases;

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use narval_http::{Request, Response, StatusCode};
use narval_keep::{
    Begin, Grant, MachineName, MachineReport, NarFileName, PutOutcome, REPORT_LEN_MAX, Rejection, SmallKind,
    UNFINISHED_GRACE,
};
use narval_nix::narinfo::NARINFO_LEN_MAX;
use narval_nix::release::RELEASE_LEN_MAX;
use narval_nix::{CacheInfo, HashPart};

use crate::config::Dialect;
use crate::error::ServeError;
use crate::gate::Administration;
use crate::routes::cache_names::no_cache;
use crate::routes::table::{PushRoute, Route};
use coding::{coding, decoded};
use receive::{CountedBody, OTHER_BYTES_MAX, Uploads, for_client, read, repeats_uploads, text};

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
        operation: Administration<'_>,
        grant: Grant,
        request: Request,
    ) -> Result<Response, ServeError> {
        let this = Arc::clone(self);
        match operation {
            Administration::Release(name) => {
                let name = name.to_owned();
                self.receive_at_most(RELEASE_LEN_MAX as u64, request, move |body| {
                    releases::record(&this.cache, &name, body, &grant)
                })
            }
            Administration::Report(name) => {
                let name: MachineName = name.parse().map_err(Rejection::from)?;
                self.receive_at_most(REPORT_LEN_MAX, request, move |body| {
                    let report = MachineReport::parse(&read(body, REPORT_LEN_MAX)?)?;
                    this.cache.report(&name, &report, &grant)?;
                    Ok(text(StatusCode::OK, "noted\n".to_owned()))
                })
            }
        }
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
            let stored = upload.receive(&mut CountedBody::new(&mut *body, &this.metrics, (&name, length)))?;
            this.stored(&stored);
            Ok(Response::new(StatusCode::CREATED))
        })
    }

    /// Accepts an upload that is not a NAR.
    fn take(&self, upload: Upload, body: &mut dyn Read, grant: &Grant) -> Result<Response, ServeError> {
        match upload {
            Upload::CacheInfo => self.take_cache_info(body),
            Upload::NarInfo(hash_part) => narinfo::take(&self.cache, hash_part, body, grant),
            Upload::Small(kind, name) => Ok(match self.cache.put_small(kind, &name, body, grant)? {
                PutOutcome::Written => Response::new(StatusCode::CREATED),
                PutOutcome::Kept | PutOutcome::Dropped => Response::new(StatusCode::OK),
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
            return Err(Rejection::conflict(message).into());
        }
        Ok(Response::new(StatusCode::OK))
    }
}

/// What is before the path of a NAR, a narinfo or `nix-cache-info`: the client means a cache, and not a file of an unknown kind in the one at
/// `/`. So uploads to a cache that does not exist, or does not exist any more, are not taken.
fn name_of_cache(path: &str) -> Option<&str> {
    let is_of_cache = |rest: &str| match Route::parse(Dialect::Narval, rest, None) {
        Route::CacheInfo | Route::NarInfo(_) => true,
        Route::NarFile(name) => NarFileName::parse(name).is_ok(),
        _ => false,
    };
    let slashes = path.match_indices('/').map(|(at, _)| path.split_at(at));
    slashes.filter(|(_, rest)| is_of_cache(rest)).map(|(name, _)| name).next()
}
