//! Access control of one cache. It runs before anything of the cache is read, so that rejections reveal nothing about its contents.

use std::sync::Arc;

use narval_http::{HeadRef, Method, Request};
use narval_keep::{CacheName, Grant, Rejection, Scope};
use narval_nix::release::ReleaseName;

use crate::auth::sessions::{PROOF_FIELD, Session, is_own_page};
use crate::auth::{Auth, Caller, is_read, unauthorized};
use crate::error::ServeError;
use crate::metrics::Metrics;
use crate::routes::pages::{PageRoute, View};
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
    /// May record a release, or report for a machine.
    Administer(Administration<'a>, Grant),
    /// A browser that signs in with this token.
    SignIn(Arc<Grant>),
    /// A browser that signs out.
    SignOut(Session),
    /// A browser that asks whether it has signed in, and whether it may read.
    SessionInfo {
        session: Option<Session>,
        may_read: bool,
    },
    /// A browser that has signed in, and sends a form of this part of Manage. The form has to have the session's proof.
    Form(String, Session),
    Read(Route<'a>),
}

/// Requests of clients that need another scope than uploads. All other administration is that of the API (`api/`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Administration<'a> {
    /// `POST releases/<name>`
    Release(&'a str),
    /// `POST machines/<name>`
    Report(&'a str),
}

impl<'a> Administration<'a> {
    /// Returns `None` for all other requests.
    fn of(method: &Method, route: &Route<'a>) -> Option<Self> {
        match (method, route) {
            (&Method::POST, Route::Push(PushRoute::Release(name))) => Some(Self::Release(name)),
            (&Method::POST, Route::Push(PushRoute::Machine(name))) => Some(Self::Report(name)),
            _ => None,
        }
    }

    /// # Errors
    /// If the token does not allow it, or the name is not that of a release or machine.
    fn require(self, cache: &CacheName, grant: &Grant) -> Result<(), Rejection> {
        match self {
            Self::Report(name) => grant.require_report(cache, &name.parse()?),
            Self::Release(name) => {
                let name: ReleaseName = name.parse().map_err(Rejection::malformed)?;
                grant.require_release(cache, &name)
            }
        }
    }
}

impl Gate<'_> {
    /// What this request may do.
    ///
    /// # Errors
    /// 401, 403, 404 and 405: the same for a private cache and for a cache that does not exist.
    pub(crate) fn pass<'r>(&self, route: Route<'r>, request: &Request) -> Result<Allowed<'r>, ServeError> {
        let head = request.head();
        match route {
            Route::Page(PageRoute::Session) => return self.session(request),
            Route::View(View::Manage(part)) if *request.method() == Method::POST => {
                return Ok(Allowed::Form(part, self.form_session(&head)?));
            }
            _ => {}
        }
        let caller = self.auth.caller(&head, self.metrics)?;
        let grant = |caller: Caller| -> Result<Grant, ServeError> {
            let grant = caller.grant(&head)?;
            grant.require(self.cache, Scope::Push)?;
            Ok(grant)
        };
        if let Some(operation) = Administration::of(request.method(), &route) {
            let grant = caller.grant(&head)?;
            operation.require(self.cache, &grant)?;
            return Ok(Allowed::Administer(operation, grant));
        }
        match (request.method().clone(), route) {
            (Method::PUT, route) => Ok(Allowed::Put(route, grant(caller)?)),
            (Method::POST, Route::Push(push)) => Ok(Allowed::Post(push, grant(caller)?)),
            (Method::GET | Method::HEAD, Route::Push(PushRoute::Nar(name))) => {
                Ok(Allowed::Progress(name, grant(caller)?))
            }
            (_, Route::Push(PushRoute::Nar(_))) => Err(ServeError::Method("HEAD, PUT")),
            (_, Route::Push(_)) => Err(ServeError::Method("POST")),
            (method, route) if is_read(&method) || (method == Method::POST && route == Route::Batch) => {
                self.may_read(&caller, &route, &head)?;
                Ok(Allowed::Read(route))
            }
            _ => Err(ServeError::Method("GET, HEAD, PUT")),
        }
    }

    /// Signing in and out. Only allowed to pages of this server: another site could sign its visitors in with its own token.
    fn session<'r>(&self, request: &Request) -> Result<Allowed<'r>, ServeError> {
        let head = request.head();
        match *request.method() {
            Method::GET | Method::HEAD => {
                let session = self.auth.session(&head)?;
                let is_granted = session.as_ref().is_some_and(|of| of.grant.allows(self.cache, Scope::Pull));
                // A proxy may add a token: whether it is good is said of requests that read.
                let may_read = self.is_public || is_granted || head.header_bytes("authorization").is_some();
                Ok(Allowed::SessionInfo { session, may_read })
            }
            Method::POST => {
                from_own_page(&head)?;
                Ok(Allowed::SignIn(self.auth.sign_in(&head, self.cache, self.metrics)?))
            }
            Method::DELETE => Ok(Allowed::SignOut(self.writing_session(&head)?)),
            _ => Err(ServeError::Method("GET, HEAD, POST, DELETE")),
        }
    }

    /// The session of a form. Browsers would ask for a password if it were answered 401.
    fn form_session(&self, head: &HeadRef<'_>) -> Result<Session, ServeError> {
        let message = "you are not signed in any more: go back, reload the page and sign in";
        let session = self.auth.session(head)?.ok_or_else(|| Rejection::forbidden(message))?;
        from_own_page(head)?;
        // Others are refused alike whether the cache exists or not; what each form needs is asked for when it is read.
        if ![Scope::Admin, Scope::Delete].into_iter().any(|scope| session.grant.allows(self.cache, scope)) {
            session.grant.require(self.cache, Scope::Pin)?;
        }
        Ok(session)
    }

    pub(crate) fn any_session(&self, head: &HeadRef<'_>) -> Result<Session, ServeError> {
        self.auth.session(head)?.ok_or_else(|| unauthorized("sign in first"))
    }

    /// The session of a request that changes something. Browsers add cookies to requests from any site, so the request must also come
    /// from our page and have the session's proof.
    pub(crate) fn writing_session(&self, head: &HeadRef<'_>) -> Result<Session, ServeError> {
        let session = self.any_session(head)?;
        from_own_page(head)?;
        if !session.is_proved_by(head.header_bytes(PROOF_FIELD).unwrap_or_default()) {
            return Err(Rejection::forbidden("the request lacks the session's proof: reload the page").into());
        }
        Ok(session)
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

    /// Checks whether a caller may read. A private cache answers 401 to callers without a token or a session. To those without the scope `pull`,
    /// every name is absent, whether it exists or not; a token that may push can read `nix-cache-info`, which Nix asks for first.
    fn may_read(&self, caller: &Caller, route: &Route<'_>, head: &HeadRef<'_>) -> Result<(), ServeError> {
        if self.is_public || (self.is_root && matches!(route, Route::Health | Route::Ready)) {
            return Ok(());
        }
        match caller {
            Caller::Anonymous => {
                let session = self.auth.session(head)?.ok_or_else(|| {
                    unauthorized(
                        "this cache is private: put a token into the netrc file as the password for this host (any login)",
                    )
                })?;
                if session.grant.allows(self.cache, Scope::Pull) { Ok(()) } else { Err(ServeError::NoPath) }
            }
            Caller::Bearer(grant) if grant.allows(self.cache, Scope::Pull) => Ok(()),
            Caller::Bearer(grant) if *route == Route::CacheInfo && grant.allows(self.cache, Scope::Push) => Ok(()),
            Caller::Bearer(_) => Err(ServeError::NoPath),
        }
    }
}

fn from_own_page(head: &HeadRef<'_>) -> Result<(), ServeError> {
    match is_own_page(head) {
        true => Ok(()),
        false => Err(Rejection::forbidden("only the page of this server may do this").into()),
    }
}
