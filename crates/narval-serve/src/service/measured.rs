//! `/metrics`: of one cache, and at the cache at `/` of all that the caller may read.

use std::sync::Arc;

use narval_http::{HeadRef, Response};
use narval_keep::Scope;

use crate::auth::Caller;
use crate::error::ServeError;
use crate::families::Families;
use crate::origins::Origins;
use crate::routes::metrics;
use crate::state::ServerState;

/// Answers with what was counted. Nothing is counted for it: what takes long was counted before, on a thread.
pub(super) fn answer(origins: &Origins, state: &ServerState, head: &HeadRef<'_>) -> Result<Response, ServeError> {
    let mut families = Families::default();
    if origins.shows_engine {
        let writable = origins.writable.as_ref();
        let caller = writable.map(|writable| writable.auth.caller(head, &origins.metrics)).transpose()?;
        origins.add_server(state, &mut families, matches!(caller, Some(Caller::Bearer(_))));
        origins.add_cache(&mut families);
        for other in state.services() {
            if !Arc::ptr_eq(&other.metrics, &origins.metrics) && other.is_readable_by(caller.as_ref()) {
                other.add_cache(&mut families);
            }
        }
    } else {
        origins.add_cache(&mut families);
    }
    Ok(metrics::answer(families))
}

impl Origins {
    fn is_readable_by(&self, caller: Option<&Caller>) -> bool {
        self.writable.as_ref().is_none_or(|writable| {
            let allows = |caller: &Caller| match caller {
                Caller::Anonymous => false,
                Caller::Bearer(grant) => grant.allows(writable.cache.name(), Scope::Pull),
            };
            writable.is_public || caller.is_some_and(allows)
        })
    }

    /// What is of the whole server. Strangers are not told of its tokens.
    fn add_server(&self, state: &ServerState, families: &mut Families, knows_caller: bool) {
        families.add_text(&state.engine_text());
        metrics::add_build(families);
        metrics::add_waits(families);
        metrics::add_certificates(families, &state.certificates());
        if let Some(folder) = self.live.as_ref().and_then(|live| live.nars.compressed.as_ref()) {
            metrics::add_disk(families, "nar-cache", folder.root());
        }
        if let Some(writable) = &self.writable {
            metrics::add_data(families, &writable.data);
            if let Some(survey) = writable.data.survey().filter(|_| knows_caller) {
                metrics::add_tokens(families, &survey.tokens);
            }
        }
    }

    /// What is of this cache.
    fn add_cache(&self, families: &mut Families) {
        self.metrics.add_to(families);
        let name = self.name();
        if let Some(writable) = &self.writable {
            metrics::add_limits(families, &writable.cache);
            if let Some(full) = writable.data.survey().as_ref().and_then(|survey| survey.caches.get(&name)) {
                metrics::add_fullness(families, &writable.cache, full);
            }
        }
        if let Some(nars) = self.live.as_ref().and_then(|live| live.nars.compressed.as_ref()) {
            metrics::add_nar_cache(families, name.as_str(), nars);
        }
        if let Some(upstreams) = &self.upstream {
            metrics::add_upstreams(families, name.as_str(), &upstreams.stats());
        }
    }
}
