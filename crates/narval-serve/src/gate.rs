//! Access control of one cache. It runs before anything of the cache is read, so that refusals reveal nothing about its contents.

use narval_cache::written::{CacheName, Grant, Scope};
use narval_http::{HeadRef, Method, Request};
use narval_nix::HashPart;

use crate::auth::{Auth, Caller, unauthorized};
use crate::error::ServeError;
use crate::metrics::Metrics;
use crate::routes::table::{PushRoute, Route};

/// Access control of one cache, or of a name that no cache has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate<'a> {
    pub(crate) auth: &'a Auth,
    pub(crate) cache: &'a CacheName,
    pub(crate) is_public: bool,
    /// Whether the cache is at `/`, where load balancers ask for its health.
    pub(crate) is_root: bool,
    pub(crate) metrics: &'a Metrics,
}

/// What a caller may do.
#[derive(Debug)]
pub(crate) enum Allowed<'a> {
    Put(Route<'a>, Grant),
    Post(PushRoute<'a>, Grant),
    /// May ask how much of this NAR was received.
    Progress(&'a str, Grant),
    /// May change what the cache keeps.
    Administer(Administration<'a>, Grant),
    Read(Route<'a>),
}

/// Requests that change what a cache keeps. They need other scopes than uploads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Administration<'a> {
    /// `GET …/pins`
    ListPins,
    /// `PUT …/pins/<name>`
    Pin(&'a str),
    /// `DELETE …/pins/<name>`
    Unpin(&'a str),
    /// `DELETE /<hash part>.narinfo`
    Delete(HashPart),
}

impl<'a> Administration<'a> {
    /// Returns `None` for all other requests.
    fn of(method: &Method, route: &Route<'a>) -> Option<Self> {
        Some(match (method, route) {
            (&Method::GET | &Method::HEAD, Route::Push(PushRoute::Pins)) => Self::ListPins,
            (&Method::PUT, Route::Push(PushRoute::Pin(name))) => Self::Pin(name),
            (&Method::DELETE, Route::Push(PushRoute::Pin(name))) => Self::Unpin(name),
            (&Method::DELETE, Route::NarInfo(hash_part)) => Self::Delete(*hash_part),
            _ => return None,
        })
    }

    const fn scope(self) -> Scope {
        match self {
            Self::ListPins | Self::Pin(_) | Self::Unpin(_) => Scope::Pin,
            Self::Delete(_) => Scope::Delete,
        }
    }
}

impl Gate<'_> {
    /// What this request may do.
    ///
    /// # Errors
    /// 401, 403, 404 and 405: the same for a private cache and for a cache that does not exist.
    pub(crate) fn pass<'r>(&self, route: Route<'r>, request: &Request) -> Result<Allowed<'r>, ServeError> {
        let caller = self.auth.caller(&request.head(), self.metrics)?;
        let granted = |caller: Caller, scope: Scope| -> Result<Grant, ServeError> {
            let grant = caller.grant(request.peer())?;
            grant.require(self.cache, scope)?;
            Ok(grant)
        };
        let grant = |caller| granted(caller, Scope::Push);
        if let Some(asked) = Administration::of(request.method(), &route) {
            return Ok(Allowed::Administer(asked, granted(caller, asked.scope())?));
        }
        match (request.method().clone(), route) {
            (Method::PUT, route) => Ok(Allowed::Put(route, grant(caller)?)),
            (Method::POST, Route::Push(push)) => Ok(Allowed::Post(push, grant(caller)?)),
            (Method::GET | Method::HEAD, Route::Push(PushRoute::Nar(name))) => {
                Ok(Allowed::Progress(name, grant(caller)?))
            }
            (_, Route::Push(PushRoute::Missing | PushRoute::Commit | PushRoute::Oidc)) => {
                Err(ServeError::Method("POST"))
            }
            (_, Route::Push(PushRoute::Pins)) => Err(ServeError::Method("GET, HEAD")),
            (_, Route::Push(PushRoute::Pin(_))) => Err(ServeError::Method("PUT, DELETE")),
            (method, route) if is_read(&method) || (method == Method::POST && route == Route::Batch) => {
                self.may_read(&caller, &route)?;
                Ok(Allowed::Read(route))
            }
            _ => Err(ServeError::Method("GET, HEAD, PUT")),
        }
    }

    /// Whether a caller may read, as far as this can be decided from memory. Otherwise, and for wrong tokens, which are refused on every request,
    /// a worker decides.
    pub(crate) fn may_read_inline(&self, head: &HeadRef<'_>) -> bool {
        match head.header_bytes("authorization") {
            None => self.is_public,
            Some(_) => {
                let grant = self.auth.remembered(head);
                grant.is_some_and(|grant| self.is_public || grant.allows(self.cache, Scope::Pull))
            }
        }
    }

    /// Checks whether a caller may read. A private cache answers 401 to callers without a token. To a token without the scope `pull`, every
    /// name is absent, whether it exists or not; a token that may push can read `nix-cache-info`, which Nix asks for first.
    fn may_read(&self, caller: &Caller, route: &Route<'_>) -> Result<(), ServeError> {
        if self.is_public || (self.is_root && matches!(route, Route::Health | Route::Ready)) {
            return Ok(());
        }
        match caller {
            Caller::Anonymous => Err(unauthorized(
                "this cache is private: put a token into the netrc file as the password for this host (any login)",
            )),
            Caller::Bearer(grant) if grant.allows(self.cache, Scope::Pull) => Ok(()),
            Caller::Bearer(grant) if *route == Route::CacheInfo && grant.allows(self.cache, Scope::Push) => Ok(()),
            Caller::Bearer(_) => Err(ServeError::NoPath),
        }
    }
}

pub(crate) fn is_read(method: &Method) -> bool {
    *method == Method::GET || *method == Method::HEAD
}
