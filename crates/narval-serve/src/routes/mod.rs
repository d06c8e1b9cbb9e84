//! The routes: one file for each family, named as its URL is.

use std::sync::Arc;

use narval_http::{Request, Response};

use crate::error::ServeError;
use crate::service::Shared;

mod batch;
mod build_trace;
mod health;
mod log;
mod ls;
mod metrics;
pub(crate) mod nar;
pub(crate) mod narinfo;
pub(crate) mod nix_cache_info;
pub(crate) mod table;

use table::Route;

/// Answers a request, on a worker.
pub(crate) fn answer(shared: &Arc<Shared>, route: Route, request: Request) -> Result<Response, ServeError> {
    match route {
        Route::CacheInfo => Ok(Arc::clone(&shared.cache_info).into()),
        Route::NarInfo(hash_part) => narinfo::answer(shared, hash_part, &request),
        Route::Nar(route) => nar::answer(shared, &route, &request),
        Route::Listing(hash_part) => ls::answer(shared, hash_part, &request),
        Route::Log(path) => log::answer(shared, &path),
        Route::BuildTrace(key) => build_trace::answer(shared, &key),
        Route::Realisation(id) => build_trace::older(shared, id),
        Route::Batch => batch::answer(shared, request),
        Route::Metrics => Ok(metrics::answer(shared)),
        Route::Health => Ok(health::answer(shared)),
        Route::Index => Ok(health::index(shared)),
        Route::Invalid => Err(ServeError::Invalid),
        Route::Unknown => Err(ServeError::NoRoute),
    }
}
