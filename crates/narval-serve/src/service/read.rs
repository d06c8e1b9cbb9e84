//! Answers to reads, from the sources in order.

use std::sync::Arc;

use narval_cache::upstream::Small;
use narval_http::{HeadRef, Request, Response};
use narval_keep::{RejectionKind, SmallKind};

use super::{Shared, measured};
use crate::error::ServeError;
use crate::origins::{Live, Writable};
use crate::routes::table::{NarRoute, Route};
use crate::routes::{self, batch, health, log, releases};
use crate::upstream;
use crate::writable::{nar, small};

impl Shared {
    /// Answers only from the writable cache: below `/push`.
    pub(super) fn read_own(
        &self,
        writable: &Writable,
        route: Route<'_>,
        request: Request,
    ) -> Result<Response, ServeError> {
        let small = |kind, name: &str| small::answer(&writable.cache, kind, name);
        match route {
            Route::NarInfo(hash_part) => {
                Ok(self.narinfos.respond(&request.head(), self.narinfos.of_writable(hash_part)?))
            }
            Route::Listing(hash_part) => small(SmallKind::Listing, hash_part.as_str()),
            Route::Log(path) => small(SmallKind::Log, path.base_name()),
            Route::BuildTrace(key) => {
                small(SmallKind::BuildTrace, &format!("{}/{}.doi", key.drv_path, key.output_name))
            }
            Route::Realisation(id) => small(SmallKind::Realisation, &format!("{id}.doi")),
            Route::Nar(_) | Route::UpstreamNar(_) | Route::Batch | Route::Presence => Err(ServeError::NoPath),
            route => self.read(route, request),
        }
    }

    /// Answers from the sources in order.
    pub(super) fn read(&self, route: Route<'_>, request: Request) -> Result<Response, ServeError> {
        let head = request.head();
        match route {
            Route::NarInfo(hash_part) => Ok(self.narinfos.respond(&head, self.narinfos.read(hash_part)?)),
            Route::Nar(route) => self.nar(&route, &head),
            Route::UpstreamNar(name) => upstream::nar::answer(
                self.origins.upstream.as_ref().ok_or(ServeError::NoRoute)?,
                name,
                &head,
                &self.origins.metrics,
            ),
            Route::NarFile(name) => match &self.origins.writable {
                Some(writable) => {
                    let how = (self.deltas.as_ref(), writable.redirect);
                    nar::answer(&writable.cache, name, &head, how, &self.origins.metrics)
                }
                None if name.ends_with(".nar") || name.ends_with(".nar.zst") => Err(ServeError::Invalid),
                None => Err(ServeError::NoRoute),
            },
            Route::CacheInfo => Ok(Arc::clone(&self.cache_info).into()),
            Route::Listing(hash_part) => self
                .first(
                    |live| routes::small::listing(&live.nars.planner, hash_part, &head),
                    SmallKind::Listing,
                    || hash_part.to_string(),
                )
                .or_else(|error| self.small_of_upstreams(error, &Small::Listing(hash_part))),
            Route::Log(path) => self
                .first(|live| log::answer(&live.store, &path), SmallKind::Log, || path.base_name().to_owned())
                .or_else(|error| self.small_of_upstreams(error, &Small::Log(path.clone()))),
            Route::BuildTrace(key) => self
                .first(
                    |live| routes::small::build_trace(&live.store, &key),
                    SmallKind::BuildTrace,
                    || format!("{}/{}.doi", key.drv_path, key.output_name),
                )
                .or_else(|error| self.small_of_upstreams(error, &Small::BuildTrace(key.clone()))),
            Route::Realisation(id) => self
                .first(
                    |live| routes::small::realisation(&live.store, id.clone()),
                    SmallKind::Realisation,
                    || format!("{id}.doi"),
                )
                .or_else(|error| self.small_of_upstreams(error, &Small::Realisation(id.clone()))),
            Route::DebugInfo(name) => {
                let writable = self.origins.writable.as_ref().ok_or(ServeError::NoRoute)?;
                small::answer(&writable.cache, SmallKind::DebugInfo, name).or_else(|error| {
                    match Small::debug_info(name) {
                        Some(small) => self.small_of_upstreams(error, &small),
                        None => Err(error),
                    }
                })
            }
            Route::Other(name) => {
                let writable = self.origins.writable.as_ref().ok_or(ServeError::NoRoute)?;
                small::answer(&writable.cache, SmallKind::Other, name).map_err(|error| match error {
                    ServeError::NoPath => ServeError::NoRoute,
                    error => error,
                })
            }
            Route::Releases(route) => {
                let writable = self.origins.writable.as_ref().ok_or(ServeError::NoRoute)?;
                releases::answer(&writable.cache, &route, &head)
            }
            Route::Batch => batch::answer(&self.narinfos, request),
            Route::Presence => self.presence.as_ref().ok_or(ServeError::NoRoute)?.answer(&head),
            Route::Metrics => measured::answer(&self.origins, &self.state, &head),
            Route::Traces(hash_part) => {
                Ok(upstream::traces::answer(self.origins.upstream.as_ref().ok_or(ServeError::NoRoute)?, &hash_part))
            }
            Route::Health => Ok(health::answer(
                self.origins.live.as_ref().map(|live| &*live.store),
                self.origins.writable.as_ref().map(|writable| &writable.cache),
            )),
            Route::Ready => Ok(health::ready(
                self.origins.live.as_ref().map(|live| &*live.store),
                self.origins.writable.as_ref().map(|writable| &writable.cache),
            )),
            Route::Page(route) => self.page.as_ref().ok_or(ServeError::NoRoute)?.answer(route, request),
            Route::Index => Ok(health::index(&self.store_dir, &self.sign_keys, self.origins.writable.is_some())),
            Route::Invalid => Err(ServeError::Invalid),
            Route::Push(_) | Route::Api | Route::Peer(_) | Route::View(_) | Route::Unknown => Err(ServeError::NoRoute),
        }
    }

    /// A NAR of the live store, or else of the upstreams, whose names may look the same.
    fn nar(&self, route: &NarRoute<'_>, head: &HeadRef<'_>) -> Result<Response, ServeError> {
        let answer = self.origins.live.as_ref().map_or(Err(ServeError::NoPath), |live| live.nars.answer(head, route));
        match (answer, &self.origins.upstream, route.nar_hash.as_deref()) {
            (Err(ServeError::NoPath | ServeError::OtherNarHash), Some(upstreams), Some(hash)) => {
                let extension = if route.zstd { ".nar.zst" } else { ".nar" };
                let name = format!("{}-{hash}{extension}", route.hash_part);
                upstream::nar::answer(upstreams, &name, head, &self.origins.metrics)
            }
            (answer, ..) => answer,
        }
    }

    /// A small file from the upstreams, if the error is that it is absent.
    fn small_of_upstreams(&self, error: ServeError, small: &Small) -> Result<Response, ServeError> {
        match (&error, &self.origins.upstream) {
            (ServeError::NoPath, Some(upstreams)) => upstream::small::answer(upstreams, small),
            (ServeError::Rejected(rejection), Some(upstreams)) if rejection.kind == RejectionKind::NotFound => {
                upstream::small::answer(upstreams, small)
            }
            _ => Err(error),
        }
    }

    /// A small file from the live store, else from the writable cache.
    fn first(
        &self,
        live: impl FnOnce(&Live) -> Result<Response, ServeError>,
        kind: SmallKind,
        name: impl FnOnce() -> String,
    ) -> Result<Response, ServeError> {
        let answer = self.origins.live.as_ref().map_or(Err(ServeError::NoPath), live);
        match (answer, &self.origins.writable) {
            (Err(ServeError::NoPath), Some(writable)) => small::answer(&writable.cache, kind, &name()),
            (answer, _) => answer,
        }
    }
}
