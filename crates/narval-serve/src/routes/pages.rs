//! Which view or request of the page a path names. Pure, as [`table`](super::table).

use narval_nix::HashPart;

use super::releases::ReleaseRoute;

/// The path of the page's requests.
pub(crate) const PATH: &str = "_narval/page";

/// What all addresses of the views but `/` begin with.
pub(crate) const VIEWS: &str = "_narval";

/// A request of the page, below [`PATH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageRoute<'a> {
    /// `check`: how many paths have a valid signature of this server.
    Check,
    /// `paths?q=…&from=…`: search, the newest first; `paths?package=…`: the versions of a package.
    Paths,
    /// `closure/<hash part>`: the closure as a graph with sizes.
    Closure(HashPart),
    /// `file/<hash part>/<path in it>`: one file of a NAR.
    File(HashPart, &'a str),
    /// `tar/<hash part>/<path in it>`: a folder as an archive.
    Tar(HashPart, &'a str),
    /// `session`: GET, whether this browser has signed in; POST to sign in, DELETE to sign out.
    Session,
}

impl<'a> PageRoute<'a> {
    /// Parses the part after [`PATH`] and a slash.
    pub(crate) fn parse(rest: &'a str) -> Option<Self> {
        let hash_part = |text: &str| HashPart::parse(text.as_bytes()).ok();
        match rest.split_once('/') {
            None if rest == "check" => Some(Self::Check),
            None if rest == "paths" => Some(Self::Paths),
            None if rest == "session" => Some(Self::Session),
            Some(("closure", hash)) => hash_part(hash).map(Self::Closure),
            Some((kind @ ("file" | "tar"), rest)) => {
                let (hash, path) = rest.split_once('/').unwrap_or((rest, ""));
                let hash = hash_part(hash)?;
                Some(if kind == "file" { Self::File(hash, path) } else { Self::Tar(hash, path) })
            }
            _ => None,
        }
    }
}

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

/// What is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReleasesView {
    /// All names.
    All,
    /// The releases of a name.
    Name(String),
    /// One of them.
    One(String, String),
}
