//! Who looks at which cache, and from where.

use std::sync::Arc;

use narval_http::Request;
use narval_keep::{CacheName, Grant, Scope};

use crate::auth::Caller;
use crate::auth::sessions::Session;
use crate::error::ServeError;
use crate::gate::Gate;
use crate::routes::pages::View;

/// Who looks at which cache, and from where.
#[derive(Clone, Debug)]
pub(crate) struct Visit {
    /// The name of the cache.
    pub(crate) cache: CacheName,
    /// Whether the visitor may read it. If not, documents must not depend on what it has, or on whether it exists.
    pub(crate) may_read: bool,
    /// Whether reading needs no token.
    pub(crate) is_public: bool,
    /// Whether one can sign in at all.
    pub(crate) has_tokens: bool,
    /// Who has signed in.
    pub(crate) who: Option<Who>,
    /// The link from this document to the cache's root: `./` or `../../`. Links are relative, so that proxies can put the cache anywhere.
    pub(crate) root: String,
    /// The cache's URL for clients, without a slash at its end.
    pub(crate) url: String,
    /// The host of the URL, with its port.
    pub(crate) host: String,
}

/// A browser that has signed in.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    /// The label of the token.
    pub(crate) label: String,
    /// What it allows in this cache.
    pub(crate) scopes: Vec<Scope>,
    /// What it allows in all.
    pub(crate) grant: Arc<Grant>,
    /// What its forms must have.
    pub(crate) proof: String,
}

impl Who {
    fn of(session: &Session, cache: &CacheName) -> Self {
        let scopes = Scope::ALL.into_iter().filter(|scope| session.grant.allows(cache, *scope)).collect();
        Self {
            label: session.grant.label.clone(),
            scopes,
            grant: Arc::clone(&session.grant),
            proof: session.proof.clone(),
        }
    }

    /// Whether the token allows this here.
    pub(crate) fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }
}

impl Visit {
    /// The visit of a request. The cache's own path begins at byte `at` of the request's.
    pub(crate) fn new(cache: CacheName, request: &Request, at: usize) -> Self {
        let (head, path) = (request.head(), request.path());
        let (before, own) = path.split_at_checked(at).unwrap_or((path, ""));
        let root = match own {
            "" => format!("{}/", before.rsplit('/').next().unwrap_or_default()),
            own => match own.matches('/').count() {
                ..=1 => "./".to_owned(),
                depth => "../".repeat(depth - 1),
            },
        };
        let host = head.host().unwrap_or("localhost").to_owned();
        let url = format!("{}://{host}{before}", head.scheme());
        Self { cache, may_read: true, is_public: true, has_tokens: false, who: None, root, url, host }
    }

    /// The same for a cache with tokens.
    #[must_use]
    pub(crate) fn with_tokens(self, is_public: bool, may_read: bool, session: Option<&Session>) -> Self {
        let who = session.map(|session| Who::of(session, &self.cache));
        Self { is_public, may_read, has_tokens: true, who, ..self }
    }

    /// Whether this visitor may do what needs this scope.
    pub(crate) fn may(&self, scope: Scope) -> bool {
        self.who.as_ref().is_some_and(|who| who.may(scope))
    }

    /// Whether this visitor is told of the whole server: with tokens, an administrator of the cache at `/`.
    pub(crate) fn is_operator(&self) -> bool {
        self.cache == CacheName::default() && (!self.has_tokens || self.may(Scope::Admin))
    }

    /// A link below the cache's root.
    pub(crate) fn link(&self, below: &str) -> String {
        format!("{}{below}", self.root)
    }

    /// A link to a path's view.
    pub(crate) fn path(&self, hash: impl std::fmt::Display) -> String {
        format!("{}_narval/path/{hash}", self.root)
    }
}

impl Gate<'_> {
    /// Who looks at a view; `None`: whoever it is has to sign in first. Wrong credentials are no error here: documents have no use for them, and
    /// browsers would ask for a password.
    ///
    /// # Errors
    /// If the token of a session cannot be verified again.
    pub(crate) fn visit(&self, visit: Visit, view: &View, request: &Request) -> Result<Option<Visit>, ServeError> {
        let head = request.head();
        let session = self.auth.session(&head)?;
        let caller = self.auth.caller(&head, self.metrics).unwrap_or(Caller::Anonymous);
        let grant = session.as_ref().map(|session| &*session.grant).into_iter();
        let mut grants = grant.chain(match &caller {
            Caller::Bearer(grant) => Some(&**grant),
            Caller::Anonymous => None,
        });
        let may_read = self.is_public || grants.any(|grant| grant.allows(self.cache, Scope::Pull));
        let is_shown = if view.needs_session() { session.is_some() } else { may_read };
        Ok(is_shown.then(|| visit.with_tokens(self.is_public, may_read, session.as_ref())))
    }
}
