//! Which route a request's path names. Pure: nothing is looked up.

use std::borrow::Cow;

use narval_keep::PEER_PATH;
use narval_nix::realisation::{BuildTraceKey, DrvOutput};
use narval_nix::{HashPart, StorePath, StorePathName, nix32};

use super::pages::{PageRoute, View};
use super::releases::ReleaseRoute;
use super::{batch, pages};
use crate::config::Dialect;
use crate::metrics::RouteLabel;

/// What a path asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    /// `/nix-cache-info`
    CacheInfo,
    /// `/<hash part>.narinfo`
    NarInfo(HashPart),
    /// `/nar/…` of the store, any dialect
    Nar(NarRoute<'a>),
    /// `/nar/<file hash>.nar…` of the writable cache: the name of the file
    NarFile(&'a str),
    /// `/nar/<hash part>-<hash>.nar.…` of an upstream: the name of the file
    UpstreamNar(&'a str),
    /// `/log/<base name>`
    Log(StorePath),
    /// `/<hash part>.ls`
    Listing(HashPart),
    /// `/build-trace-v2/<derivation>/<output>.doi`
    BuildTrace(BuildTraceKey),
    /// `/realisations/<derivation hash>!<output>.doi`
    Realisation(DrvOutput),
    /// `/debuginfo/<build id>.debug`
    DebugInfo(&'a str),
    /// `/batch-lookup-v1`
    Batch,
    /// `/presence-v1`
    Presence,
    /// `/_narval/v1/traces/<hash part>`
    Traces(HashPart),
    /// A path of no known kind, which a later Nix may have uploaded, without its first `/`
    Other(&'a str),
    /// `/releases…`
    Releases(ReleaseRoute<'a>),
    /// `/_narval/v1/…`
    Push(PushRoute<'a>),
    /// `/_narval/api/v1…`, which has a table of its own
    Api,
    /// `/_narval/page/…`
    Page(PageRoute<'a>),
    /// `/_narval/status` and other views for browsers
    View(View),
    /// `/_narval/peer/…`
    Peer(PeerRoute<'a>),
    /// `/health`
    Health,
    /// `/ready`
    Ready,
    /// `/metrics`
    Metrics,
    /// `/`
    Index,
    /// A known route with an invalid part: 400.
    Invalid,
    /// No route: 404.
    Unknown,
}

/// A NAR by one of the URLs that clients remember for 30 days.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NarRoute<'a> {
    /// The hash part of the store path.
    pub(crate) hash_part: HashPart,
    /// The NAR hash in the URL, as sent; the legacy dialect has none.
    pub(crate) nar_hash: Option<Cow<'a, str>>,
    /// Whether the compressed NAR is asked for (`.nar.zst`).
    pub(crate) zstd: bool,
}

impl NarRoute<'_> {
    /// The same, without its request.
    pub(crate) fn into_owned(self) -> NarRoute<'static> {
        NarRoute { nar_hash: self.nar_hash.map(|hash| hash.into_owned().into()), ..self }
    }
}

/// The push protocol: `docs/push-protocol.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushRoute<'a> {
    /// `missing`
    Missing,
    /// `nar/<NAR hash>.nar…`
    Nar(&'a str),
    /// `nars`
    Nars,
    /// `commit`
    Commit,
    /// `oidc`
    Oidc,
    /// `releases/<name>`
    Release(&'a str),
    /// `machines/<name>`
    Machine(&'a str),
}

/// What another node asks for: a NAR of any cache, `<cache>/nar/<name>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerRoute<'a> {
    pub(crate) cache: &'a str,
    /// The name of the file.
    pub(crate) name: &'a str,
}

/// The path of the push protocol, and of what clients report.
pub(crate) const PUSH_PATH: &str = "_narval/v1";
/// The path of the API for administration, below that of a cache.
pub(crate) const API_PATH: &str = "_narval/api/v1";

/// The path of the filter of a cache.
pub(crate) const PRESENCE_PATH: &str = "presence-v1";

/// How the path of a narinfo ends.
pub(crate) const NARINFO: &str = ".narinfo";
/// How the path of a listing ends.
pub(crate) const LISTING: &str = ".ls";

/// The longest path of any route, percent-encoded: three bytes for each byte of a log's name.
const PATH_LEN_MAX: usize = 2048;

impl<'a> Route<'a> {
    /// Reads a decoded path and the query of a request.
    pub(crate) fn parse(dialect: Dialect, path: &'a str, query: Option<&'a str>) -> Self {
        if let Some(route) = Self::frequent(dialect, path, query) {
            return route;
        }
        match path.strip_prefix('/') {
            Some(path) if path.len() <= PATH_LEN_MAX => others(dialect, path),
            _ => Self::Unknown,
        }
    }

    /// The same for the routes that shards look at.
    #[inline]
    pub(crate) fn frequent(dialect: Dialect, path: &'a str, query: Option<&'a str>) -> Option<Self> {
        let path = path.strip_prefix('/')?;
        if let Some(stem) = path.strip_suffix(NARINFO)
            && let Ok(hash_part) = HashPart::parse(stem.as_bytes())
        {
            return Some(Self::NarInfo(hash_part));
        }
        if let Some(file) = path.strip_prefix("nar/") {
            return Some(nar(dialect, file, query));
        }
        (path == "nix-cache-info").then_some(Self::CacheInfo)
    }

    /// How requests for it are counted.
    pub(crate) fn label(&self) -> RouteLabel {
        match self {
            Self::CacheInfo => RouteLabel::CacheInfo,
            Self::NarInfo(_) => RouteLabel::NarInfo,
            Self::Nar(_) | Self::NarFile(_) | Self::UpstreamNar(_) => RouteLabel::Nar,
            Self::Log(_) => RouteLabel::Log,
            Self::Listing(_) => RouteLabel::Listing,
            Self::BuildTrace(_) | Self::Realisation(_) => RouteLabel::BuildTrace,
            Self::Batch => RouteLabel::Batch,
            Self::Presence => RouteLabel::Presence,
            Self::Push(_) => RouteLabel::Push,
            Self::Peer(_) => RouteLabel::Peer,
            Self::DebugInfo(_)
            | Self::Other(_)
            | Self::Releases(_)
            | Self::Api
            | Self::Page(_)
            | Self::View(_)
            | Self::Health
            | Self::Ready
            | Self::Metrics
            | Self::Traces(_)
            | Self::Index
            | Self::Invalid
            | Self::Unknown => RouteLabel::Other,
        }
    }
}

/// The routes that are never answered inline.
fn others(dialect: Dialect, path: &str) -> Route<'_> {
    if path.strip_suffix(NARINFO).is_some_and(|stem| !stem.contains('/')) {
        return Route::Invalid;
    }
    if let Some(name) = path.strip_prefix("log/") {
        return StorePath::parse(name).map_or(Route::Invalid, Route::Log);
    }
    if dialect == Dialect::NixServe {
        return Route::Unknown;
    }
    match path {
        "" => return Route::Index,
        "health" => return Route::Health,
        "ready" => return Route::Ready,
        "metrics" => return Route::Metrics,
        batch::PATH => return Route::Batch,
        PRESENCE_PATH => return Route::Presence,
        _ => {}
    }
    if let Some(stem) = path.strip_suffix(LISTING).filter(|stem| !stem.contains('/')) {
        return HashPart::parse(stem.as_bytes()).map_or(Route::Invalid, Route::Listing);
    }
    if let Some(rest) = path.strip_prefix("build-trace-v2/") {
        let parsed = rest.split_once('/').and_then(|(derivation, output)| {
            let output_name = StorePathName::parse(output.strip_suffix(".doi")?).ok()?;
            Some(Route::BuildTrace(BuildTraceKey { drv_path: StorePath::parse(derivation).ok()?, output_name }))
        });
        return parsed.unwrap_or(Route::Invalid);
    }
    if let Some(rest) = path.strip_prefix("realisations/") {
        let id = rest.strip_suffix(".doi").and_then(|id| id.parse().ok());
        return id.map_or(Route::Invalid, Route::Realisation);
    }
    if let Some(name) = path.strip_prefix("debuginfo/") {
        return Route::DebugInfo(name);
    }
    if let Some(rest) = path.strip_prefix(PUSH_PATH).and_then(|rest| rest.strip_prefix('/')) {
        return match (rest, rest.split_once('/')) {
            ("missing", _) => Route::Push(PushRoute::Missing),
            ("nars", _) => Route::Push(PushRoute::Nars),
            ("commit", _) => Route::Push(PushRoute::Commit),
            ("oidc", _) => Route::Push(PushRoute::Oidc),
            // The search of the page, at an address that stays: `narval search` and `narval install NAME` ask it.
            ("paths", _) => Route::Page(PageRoute::Paths),
            (_, Some(("traces", part))) => HashPart::parse(part.as_bytes()).map_or(Route::Invalid, Route::Traces),
            (_, Some(("machines", name))) => Route::Push(PushRoute::Machine(name)),
            (_, Some(("nar", name))) => Route::Push(PushRoute::Nar(name)),
            (_, Some(("releases", name))) => Route::Push(PushRoute::Release(name)),
            _ => Route::Unknown,
        };
    }
    if path.strip_prefix(API_PATH).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
        return Route::Api;
    }
    if let Some(rest) = path.strip_prefix(pages::PATH).and_then(|rest| rest.strip_prefix('/')) {
        return PageRoute::parse(rest).map_or(Route::Unknown, Route::Page);
    }
    if let Some(rest) = path.strip_prefix(PEER_PATH).and_then(|rest| rest.strip_prefix('/')) {
        let parsed = rest.split_once('/').and_then(|(cache, rest)| Some((cache, rest.strip_prefix("nar/")?)));
        return parsed.map_or(Route::Unknown, |(cache, name)| Route::Peer(PeerRoute { cache, name }));
    }
    if let Some(release) = ReleaseRoute::parse(path) {
        return Route::Releases(release);
    }
    if let Some(view) = path.strip_prefix(pages::VIEWS).and_then(|rest| View::parse(rest.strip_prefix('/')?)) {
        return Route::View(view);
    }
    Route::Other(path)
}

/// The dialects: `<hash>-<narhash>.nar` (nix-serve, nix-serve-ng), `<hash>.nar` (old nix-serve, eris),
/// `<narhash>.nar?hash=<hash>` (harmonia); and our own `<hash>-<narhash>.nar.zst`, which a client may have from `narval serve`
/// and ask `nix-serve` for. A file of the writable cache has the name that Nix gave it.
#[inline]
fn nar<'a>(dialect: Dialect, file: &'a str, query: Option<&str>) -> Route<'a> {
    let (name, zstd) = match file.strip_suffix(".zst") {
        Some(name) => (name, true),
        None => (file, false),
    };
    let stem = match name.strip_suffix(".nar") {
        Some(stem)
            if dialect == Dialect::NixServe
                || ![52, UNIQUE_LEN].contains(&stem.len())
                || query.is_some_and(|query| !query.is_empty()) =>
        {
            stem
        }
        _ if dialect == Dialect::Narval && is_file_name(file) => return Route::NarFile(file),
        Some(stem) => stem,
        None if dialect == Dialect::Narval && is_upstream_name(file) => return Route::UpstreamNar(file),
        None => return Route::Unknown,
    };
    let parsed = match stem.len() {
        85 => stem
            .split_once('-')
            .and_then(|(hash, nar_hash)| Some((HashPart::parse(hash.as_bytes()).ok()?, Some(nar_hash.into())))),
        52 => hash_of_query(query).map(|hash_part| (hash_part, Some(stem.into()))),
        32 => HashPart::parse(stem.as_bytes()).ok().map(|hash_part| (hash_part, None)),
        _ => None,
    };
    let Some((hash_part, nar_hash)) = parsed else { return Route::Invalid };
    Route::Nar(NarRoute { hash_part, nar_hash, zstd })
}

/// The length of `<52 characters>-<16 characters>`, as the writable cache names NARs.
const UNIQUE_LEN: usize = 52 + 1 + 16;

/// Whether it is `<52 characters>.nar` or `<52 characters>-<16 characters>.nar`, and perhaps an extension.
fn is_file_name(file: &str) -> bool {
    let unique = file.split_at_checked(UNIQUE_LEN).and_then(|(stem, rest)| Some((stem.split_once('-')?, rest)));
    match unique.filter(|((hash, _), _)| hash.len() == 52) {
        Some(((hash, random), rest)) => is_hash_name(hash, rest) && random.bytes().all(nix32::is_digit),
        None => file.split_at_checked(52).is_some_and(|(hash, rest)| is_hash_name(hash, rest)),
    }
}

fn is_hash_name(hash: &str, rest: &str) -> bool {
    let extension = rest.strip_prefix(".nar");
    hash.bytes().all(nix32::is_digit) && extension.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether it is `<32 characters>-<52 characters>.nar.` and an extension that no NAR of a store has.
fn is_upstream_name(file: &str) -> bool {
    let parts = file.split_once('-').filter(|(hash_part, rest)| hash_part.len() == 32 && is_file_name(rest));
    parts.is_some_and(|(hash_part, _)| HashPart::parse(hash_part.as_bytes()).is_ok())
}

fn hash_of_query(query: Option<&str>) -> Option<HashPart> {
    let hash = query?.split('&').find_map(|pair| pair.strip_prefix("hash="))?;
    HashPart::parse(hash.as_bytes()).ok()
}

/// The path with `%XX` decoded; `None` when that is not UTF-8 (no route has such a name).
pub(crate) fn decode(path: &str) -> Option<Cow<'_, str>> {
    if !path.contains('%') {
        return Some(Cow::Borrowed(path));
    }
    percent_encoding::percent_decode_str(path).decode_utf8().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "0i4073ldk2aplbmaarmp5c8gf3wmbl84";
    const NAR_HASH: &str = "0mdqa9w1p6cmli6976v4wi0sw9r4p5prkj7lzfd1877wk11c9c73";

    fn parse(dialect: Dialect, path: &str, query: Option<&str>) -> Route<'static> {
        let Some(path) = decode(path) else { return Route::Unknown };
        let query = query.map(|query| &*query.to_owned().leak());
        Route::parse(dialect, path.into_owned().leak(), query)
    }

    fn both(path: &str, query: Option<&str>) -> Route<'static> {
        let route = parse(Dialect::NixServe, path, query);
        assert_eq!(route, parse(Dialect::Narval, path, query), "{path}");
        route
    }

    fn rich(path: &str) -> Route<'static> {
        assert_eq!(parse(Dialect::NixServe, path, None), Route::Unknown, "{path}");
        parse(Dialect::Narval, path, None)
    }

    fn hash() -> HashPart {
        HashPart::parse(HASH.as_bytes()).unwrap()
    }

    fn nar_route(nar_hash: Option<&'static str>) -> Route<'static> {
        Route::Nar(NarRoute { hash_part: hash(), nar_hash: nar_hash.map(Cow::Borrowed), zstd: false })
    }

    #[test]
    fn routes_of_both_faces() {
        assert_eq!(both("/nix-cache-info", None), Route::CacheInfo);
        assert_eq!(both(&format!("/{HASH}.narinfo"), Some("x=y")), Route::NarInfo(hash()));
        assert_eq!(both(&format!("/nar/{HASH}-{NAR_HASH}.nar"), None), nar_route(Some(NAR_HASH)));
        assert_eq!(both(&format!("/nar/{HASH}.nar"), None), nar_route(None));
        assert_eq!(both(&format!("/nar/{NAR_HASH}.nar"), Some(&format!("hash={HASH}"))), nar_route(Some(NAR_HASH)));
        assert_eq!(both(&format!("/nar/{NAR_HASH}.nar"), Some(&format!("a=b&hash={HASH}"))), nar_route(Some(NAR_HASH)));
        let zstd = Route::Nar(NarRoute { hash_part: hash(), nar_hash: Some(NAR_HASH.into()), zstd: true });
        assert_eq!(both(&format!("/nar/{HASH}-{NAR_HASH}.nar.zst"), None), zstd);
        let log = Route::Log(StorePath::parse(&format!("{HASH}-a+b?=.drv")).unwrap());
        assert_eq!(both(&format!("/log/{HASH}-a+b%3F%3d.drv"), None), log);
    }

    #[test]
    fn routes_of_the_richer_face() {
        assert_eq!(rich("/"), Route::Index);
        assert_eq!((rich("/health"), rich("/ready")), (Route::Health, Route::Ready));
        assert_eq!(rich("/metrics"), Route::Metrics);
        assert_eq!(rich(&format!("/{HASH}.ls")), Route::Listing(hash()));
        assert_eq!(rich("/zz.ls"), Route::Invalid);
        assert_eq!(parse(Dialect::NixServe, &format!("/nar/{NAR_HASH}.nar"), None), Route::Invalid);
        for extension in ["", ".xz", ".zst"] {
            for random in ["", "-0123456789abcdfg"] {
                let name = format!("{NAR_HASH}{random}.nar{extension}").leak();
                assert_eq!(parse(Dialect::Narval, &format!("/nar/{name}"), None), Route::NarFile(name));
            }
        }
        assert_eq!(rich("/debuginfo/ab.debug"), Route::DebugInfo("ab.debug"));
        assert_eq!(rich("/_narval/v1/missing"), Route::Push(PushRoute::Missing));
        assert_eq!(rich("/_narval/v1/commit"), Route::Push(PushRoute::Commit));
        assert_eq!(rich("/_narval/v1/oidc"), Route::Push(PushRoute::Oidc));
        assert_eq!(rich("/_narval/v1/nar/x"), Route::Push(PushRoute::Nar("x")));
        assert_eq!(rich("/_narval/v1/later"), Route::Unknown);
        assert_eq!(rich(&format!("/_narval/v1/traces/{HASH}")), Route::Traces(hash()));
        assert_eq!(rich("/_narval/v1/traces/x"), Route::Invalid);
        assert_eq!(rich("/later/kind.json"), Route::Other("later/kind.json"));
        assert_eq!(rich("/_narval/page/check"), Route::Page(PageRoute::Check));
        assert_eq!(rich(&format!("/_narval/page/closure/{HASH}")), Route::Page(PageRoute::Closure(hash())));
        assert_eq!(rich(&format!("/_narval/page/file/{HASH}/bin/x")), Route::Page(PageRoute::File(hash(), "bin/x")));
        assert_eq!(rich("/_narval/page/closure/x"), Route::Unknown);
        assert_eq!(rich(&format!("/_narval/path/{HASH}")), Route::View(View::Path(hash())));
        assert_eq!(rich(&format!("/_narval/files/{HASH}/bin/x")), Route::View(View::Files(hash(), "bin/x".to_owned())));
        assert_eq!(rich("/_narval/path/x"), Route::View(View::Absent));
        assert_eq!(rich("/_narval/status"), Route::View(View::Status));
        let drv_path = StorePath::parse(&format!("{HASH}-a.drv")).unwrap();
        let trace = BuildTraceKey { drv_path, output_name: StorePathName::parse("out").unwrap() };
        assert_eq!(rich(&format!("/{}", trace.cache_path())), Route::BuildTrace(trace));
        let id: DrvOutput = format!("sha256:{}!out", "0".repeat(64)).parse().unwrap();
        assert_eq!(rich(&format!("/{}", id.cache_path())), Route::Realisation(id));
        assert_eq!(rich("/realisations/sha256:00!out.doi"), Route::Invalid);
        assert_eq!(rich(&format!("/build-trace-v2/{HASH}-a.drv/../x.doi")), Route::Invalid);
    }

    #[test]
    fn impossible_names_are_invalid() {
        let short = &HASH[1..];
        for path in [
            format!("/{short}.narinfo"),
            format!("/{HASH}0.narinfo"),
            format!("/{}.narinfo", HASH.replace('0', "e")),
            format!("/{}.narinfo", HASH.to_uppercase()),
            "/.narinfo".to_owned(),
            format!("/%00{short}.narinfo"),
            format!("/nar/{short}.nar"),
            format!("/nar/{HASH}_{NAR_HASH}.nar"),
            format!("/nar/{HASH}-{NAR_HASH}0.nar"),
            "/nar/../../etc/passwd.nar".to_owned(),
            format!("/log/{HASH}"),
            format!("/log/{HASH}-"),
            format!("/log/{HASH}-a/../../x"),
            format!("/log/{HASH}-a%00"),
            format!("/log/{HASH}-.."),
            "/log/".to_owned(),
        ] {
            assert_eq!(both(&path, None), Route::Invalid, "{path}");
        }
        assert_eq!(both(&format!("/nar/{NAR_HASH}.nar"), Some("hash=../x")), Route::Invalid);
    }

    #[test]
    fn everything_else_is_unknown() {
        for path in [
            "",
            "*",
            "/x",
            "//nix-cache-info",
            "/nix-cache-info/",
            "/../nix-cache-info",
            "/nar/x",
            "/%ff",
            "/a/b.narinfo",
        ] {
            assert_eq!(parse(Dialect::NixServe, path, None), Route::Unknown, "{path}");
            // Whether it can be the name of a file is for the cache to say.
            let richer = parse(Dialect::Narval, path, None);
            assert!(matches!(richer, Route::Unknown | Route::Other(_)), "{path}: {richer:?}");
        }
        assert_eq!(both(&format!("/{}", "x".repeat(PATH_LEN_MAX + 1)), None), Route::Unknown);
    }

    proptest::proptest! {
        #[test]
        fn no_path_panics(path in "\\PC{0,200}", query in "\\PC{0,60}") {
            let _ = decode(&path).map(|path| Route::parse(Dialect::Narval, &path, Some(&query)).label());
        }
    }
}
