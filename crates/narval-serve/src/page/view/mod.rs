//! The views: documents that the server renders, each with an address of its own. They work without script, as links and GET forms; the one
//! script of all of them (`assets/`) makes search immediate, copies, signs in, and updates numbers.
//!
//! A view is a function that returns the [`Markup`] of its `<main>`, written with `maud`, which escapes whatever is put into it. Names of paths and
//! files come from whoever built them: [`words::name`] also isolates their direction. [`layout`] puts a view between header and footer. Data goes into
//! the document only, never into style or script, so the policy has constant hashes.

mod absent;
mod compare;
mod files;
pub(super) mod layout;
mod manage;
mod overview;
mod package;
mod packages;
mod parts;
mod releases;
mod status;
pub(super) mod words;

use std::sync::Arc;

use maud::Markup;
use narval_http::{Request, Response, StatusCode};
use narval_keep::{CacheName, Grant, Scope};
use narval_nix::HashPart;

use super::Parts;
use super::manage::{Done, Form};
use crate::auth::sessions::Session;
use crate::error::ServeError;
use crate::routes::releases::ReleaseRoute;
use layout::Frame;
use releases::ReleasesView;

/// A view of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// `/`: what the cache is, and how to use it.
    Overview,
    /// `/?q=…`: its packages.
    Packages,
    /// `/_narval/path/<hash part>`: one of its paths.
    Path(HashPart),
    /// `/_narval/files/<hash part>/<path in it>`: a folder or a file of a path.
    Files(HashPart, String),
    /// `/_narval/compare/<hash part>/<hash part>`: what differs.
    Compare(HashPart, HashPart),
    /// `/releases…`: the names that the cache has given to paths.
    Releases(ReleasesView),
    /// `/_narval/status`: whether the server is well, and what it does.
    Status,
    /// `/_narval/manage/<part>`: for browsers that have signed in.
    Manage(String),
    /// An address of a view that has an invalid part.
    Absent,
}

/// The parameters of `/` that make it the list of packages.
const PACKAGES: [&str; 4] = ["q", "package", "filter", "from"];

impl View {
    /// Parses the part after `_narval/`; `None` if it is not that of a view.
    pub(crate) fn parse(rest: &str) -> Option<Self> {
        let hash_part = |text: &str| HashPart::parse(text.as_bytes()).ok();
        let (kind, rest) = rest.split_once('/').unwrap_or((rest, ""));
        let found = match kind {
            "status" => rest.is_empty().then_some(Self::Status),
            "manage" => Some(Self::Manage(rest.to_owned())),
            "path" => hash_part(rest).map(Self::Path),
            "files" => {
                let (hash, path) = rest.split_once('/').unwrap_or((rest, ""));
                hash_part(hash).map(|hash| Self::Files(hash, path.to_owned()))
            }
            "compare" => {
                rest.split_once('/').and_then(|(one, other)| Some(Self::Compare(hash_part(one)?, hash_part(other)?)))
            }
            _ => return None,
        };
        Some(found.unwrap_or(Self::Absent))
    }

    /// The view of a request for `/`.
    pub(crate) fn of_index(query: Option<&str>) -> Self {
        let keys = query.unwrap_or_default().split('&').filter_map(|pair| pair.split('=').next());
        if keys.into_iter().any(|key| PACKAGES.contains(&key)) { Self::Packages } else { Self::Overview }
    }

    /// The view of a request below `/releases`; `None` if it is answered with a text for browsers, too.
    pub(crate) fn of_releases(route: &ReleaseRoute<'_>) -> Option<Self> {
        Some(Self::Releases(match route {
            ReleaseRoute::All => ReleasesView::All,
            ReleaseRoute::Name(name) => ReleasesView::Name((*name).to_owned()),
            ReleaseRoute::One(name, which) => ReleasesView::One((*name).to_owned(), (*which).to_owned()),
            ReleaseRoute::Path(..) => return None,
        }))
    }

    /// Whether it can only be seen after signing in.
    pub(crate) const fn needs_session(&self) -> bool {
        matches!(self, Self::Manage(_))
    }
}

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
    pub(super) grant: Arc<Grant>,
    /// What its forms must have.
    pub(super) proof: String,
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
    pub(super) fn link(&self, below: &str) -> String {
        format!("{}{below}", self.root)
    }

    /// A link to a path's view.
    pub(super) fn path(&self, hash: impl std::fmt::Display) -> String {
        format!("{}_narval/path/{hash}", self.root)
    }
}

/// Renders a view. Called on the page's threads: it may read, search and walk.
///
/// # Errors
/// If a source cannot be read. What is absent is a view of its own, with the status 404.
pub(super) fn answer(parts: &Parts, view: &View, visit: &Visit, request: &Request) -> Result<Response, ServeError> {
    let (title, main, status) = match render(parts, view, visit, request) {
        Ok((title, main)) => (title, main, StatusCode::OK),
        Err(ServeError::NoPath) => ("Not found".to_owned(), absent::absent(visit), StatusCode::NOT_FOUND),
        Err(error) => return Err(error),
    };
    let head = request.head();
    let frame = Frame { parts, visit, view, title: &title, main };
    Ok(frame.respond(status, head.query(), layout::accepts_zstd(&head)))
}

/// Answers with the part of Manage that has a form, and says what came of it.
pub(super) fn after_form(
    parts: &Parts,
    part: String,
    visit: &Visit,
    (form, done): (&Form, Result<Done, ServeError>),
    accepts_zstd: bool,
) -> Response {
    let (main, status) = manage::after(parts, &part, visit, form, done);
    let view = View::Manage(part);
    Frame { parts, visit, view: &view, title: "Manage", main }.respond(status, None, accepts_zstd)
}

/// The title and the contents of a view.
fn render(parts: &Parts, view: &View, visit: &Visit, request: &Request) -> Result<(String, Markup), ServeError> {
    match view {
        View::Absent => Err(ServeError::NoPath),
        View::Overview => overview::overview(parts, visit),
        View::Packages => packages::packages(parts, visit, request.query()),
        View::Path(hash_part) => package::package(parts, visit, *hash_part, request),
        View::Compare(one, other) => compare::compared(parts, visit, [*one, *other], request),
        View::Files(hash_part, path) => files::files(parts, visit, (*hash_part, path), request),
        View::Releases(view) => releases::releases(parts, visit, view, request.query()),
        View::Status => Ok(status::status(&*parts.service(&visit.cache).ok_or(ServeError::NoPath)?, visit)),
        View::Manage(part) => manage::manage(parts, part, visit, request.query()),
    }
}
