//! The metadata of one path, and its closure as a graph.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use narval_http::{BodySource, Fill, SegmentBuf};
use narval_keep::SmallKind;
use narval_nix::narinfo::NarInfo;
use narval_nix::{HashPart, StorePath, TrustedKeys};
use serde::{Serialize, Serializer};

use super::Places;
use crate::error::ServeError;
use crate::narinfo::memo::Answer;
use crate::routes::log;

/// The maximum number of displayed paths of a closure.
const CLOSURE_MAX: usize = 50_000;
/// How many paths of a closure are read at a time.
const PATHS_OF_PIECE: usize = 200;
/// The maximum number of displayed referrers.
const REFERRERS_MAX: usize = 1_000;

/// A path in a list.
#[derive(Debug, Serialize)]
pub(super) struct Named {
    hash: String,
    name: String,
}

impl Named {
    fn of(path: &StorePath) -> Self {
        Self { hash: path.hash_part().to_string(), name: path.name().to_string() }
    }
}

/// The answer to `path/<hash part>`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PathAnswer {
    path: String,
    hash: String,
    name: String,
    nar_hash: String,
    nar_size: u64,
    compression: String,
    file_size: Option<u64>,
    url: String,
    references: Vec<Named>,
    referrers: Vec<Named>,
    /// Whether there are more referrers than listed.
    more_referrers: bool,
    deriver: Option<Named>,
    /// Whether there may be a log of its build.
    log: bool,
    content_address: Option<String>,
    signatures: Vec<Signed>,
    pins: Vec<String>,
    /// Where it comes from: `store`, `cache` or `upstream`.
    source: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Signed {
    key: String,
    /// `Some` if the key is one of this server's: whether the signature is valid.
    ours: Option<bool>,
}

/// The metadata of a path.
pub(super) fn path(places: &Places, hash_part: HashPart) -> Result<PathAnswer, ServeError> {
    let info = look_up(places, hash_part)?.ok_or(ServeError::NoPath)?;
    let fingerprint = info.fingerprint(&places.store_dir);
    let signatures = info.signatures.iter().map(|signature| {
        let key = places.sign_keys.iter().find(|key| key.name() == signature.key_name());
        let ours = key.map(|key| key.verify(fingerprint.as_bytes(), signature));
        Signed { key: signature.key_name().to_owned(), ours }
    });
    let source = source(places, &info.path)?;
    let mut referrers = referrers(places, &info.path)?;
    let more_referrers = referrers.len() > REFERRERS_MAX;
    referrers.truncate(REFERRERS_MAX);
    Ok(PathAnswer {
        path: format!("{}/{}", places.store_dir, info.path),
        hash: hash_part.to_string(),
        name: info.path.name().to_string(),
        nar_hash: info.nar_hash.to_string(),
        nar_size: info.nar_size,
        compression: info.compression.to_string(),
        file_size: info.file_size,
        url: info.url.clone(),
        references: info.references.iter().filter(|path| **path != info.path).map(Named::of).collect(),
        referrers,
        more_referrers,
        deriver: info.deriver.as_ref().map(Named::of),
        log: info.deriver.as_ref().is_some_and(|deriver| has_log(places, deriver)),
        content_address: info.ca.as_ref().map(ToString::to_string),
        signatures: signatures.collect(),
        pins: pins(places, &info.path)?,
        source,
    })
}

/// The narinfo of a path, from whichever source has it.
pub(super) fn look_up(places: &Places, hash_part: HashPart) -> Result<Option<NarInfo>, ServeError> {
    match places.narinfos.look_at(hash_part)? {
        Answer::Absent => Ok(None),
        Answer::Present(present) => match NarInfo::parse(&present.text, &places.store_dir) {
            Ok(info) => Ok(Some(info)),
            Err(error) => {
                tracing::error!("the narinfo of {hash_part} cannot be shown: {error}");
                Ok(None)
            }
        },
    }
}

/// Whether a log of this derivation is here. What upstreams have is not asked for.
fn has_log(places: &Places, deriver: &StorePath) -> bool {
    let in_store = || places.store.as_ref().is_some_and(|store| log::answer(store, deriver).is_ok());
    let in_cache = || {
        let found = places.written.as_ref().map(|cache| cache.small_file(SmallKind::Log, deriver.base_name()));
        found.is_some_and(|found| found.is_ok_and(|log| log.is_some()))
    };
    places.has_upstreams || in_store() || in_cache()
}

fn source(places: &Places, path: &StorePath) -> Result<&'static str, ServeError> {
    if let Some(store) = &places.store
        && store.is_valid(path)?
    {
        return Ok("store");
    }
    let kept = |cache: &narval_keep::Cache| cache.missing(&[path.hash_part()], None);
    match places.written.as_ref().map(kept).transpose()? {
        Some(missing) if missing.is_empty() => Ok("cache"),
        _ => Ok("upstream"),
    }
}

fn referrers(places: &Places, path: &StorePath) -> Result<Vec<Named>, ServeError> {
    let mut named = Vec::new();
    if let Some(store) = &places.store {
        let referrers = store.referrers(path)?;
        named.extend(referrers.iter().filter(|referrer| *referrer != path).map(Named::of));
    }
    if let Some(cache) = &places.written {
        for referrer in cache.referrers(&path.hash_part())?.into_iter().take(REFERRERS_MAX + 1) {
            let is_new = named.iter().all(|named: &Named| named.hash != referrer.as_str());
            if is_new && let Some(info) = look_up(places, referrer)? {
                named.push(Named::of(&info.path));
            }
        }
    }
    named.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(named)
}

fn pins(places: &Places, path: &StorePath) -> Result<Vec<String>, ServeError> {
    let Some(cache) = &places.written else { return Ok(Vec::new()) };
    let pins = cache.pins()?.into_iter().filter(|pin| pin.path == path.base_name());
    Ok(pins.map(|pin| pin.name).collect())
}

/// A path of a closure.
#[derive(Clone, Debug, Serialize)]
pub(super) struct WithSize {
    #[serde(serialize_with = "as_text")]
    pub(super) hash: HashPart,
    pub(super) name: Box<str>,
    /// The size of the NAR in bytes.
    pub(super) size: u64,
}

fn as_text<S: Serializer>(hash: &HashPart, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(hash.as_str())
}

impl WithSize {
    fn of(info: &NarInfo) -> Self {
        Self { hash: info.path.hash_part(), name: info.path.name().to_string().into(), size: info.nar_size }
    }
}

/// The paths of a closure.
pub(super) struct Closure {
    /// The path itself.
    pub(super) of: NarInfo,
    /// All of them; the path itself comes first.
    pub(super) paths: Vec<WithSize>,
}

/// Reads the closure of a path, while somebody wants it.
pub(super) fn read_closure(
    places: &Places,
    hash_part: HashPart,
    is_wanted: &dyn Fn() -> bool,
) -> Result<Closure, ServeError> {
    let mut walk = Walk::new(hash_part);
    let (mut of, mut paths) = (None, Vec::new());
    while let Some(next) = walk.next(places)? {
        if !is_wanted() {
            return Err(ServeError::Busy);
        }
        paths.push(WithSize::of(&next.info));
        of.get_or_insert(next.info);
    }
    Ok(Closure { of: of.ok_or(ServeError::NoPath)?, paths })
}

/// Walks a closure. Only the hash parts are in memory: narinfos are read when their turn comes.
struct Walk {
    /// In the order in which they were found.
    found: Vec<HashPart>,
    /// Where each is in `found`; `None`: no source has it, or it exceeds the limit.
    places_of: HashMap<HashPart, Option<u32>>,
    next: usize,
}

/// The next path of a closure.
struct Next {
    info: NarInfo,
    /// Where the others that it refers to are.
    references: Vec<u32>,
}

impl Walk {
    fn new(hash_part: HashPart) -> Self {
        Self { found: vec![hash_part], places_of: HashMap::from([(hash_part, Some(0))]), next: 0 }
    }

    /// Reads the next path.
    ///
    /// # Errors
    /// If the sources cannot be read, or no longer have the path.
    fn next(&mut self, places: &Places) -> Result<Option<Next>, ServeError> {
        let Some(hash_part) = self.found.get(self.next).copied() else { return Ok(None) };
        let info = look_up(places, hash_part)?.ok_or(ServeError::NoPath)?;
        let mut references = Vec::with_capacity(info.references.len());
        for part in info.references.iter().map(StorePath::hash_part).filter(|part| *part != hash_part) {
            if !self.places_of.contains_key(&part) {
                let is_there = self.found.len() < CLOSURE_MAX && look_up(places, part)?.is_some();
                let place = u32::try_from(self.found.len()).ok().filter(|_| is_there);
                self.found.extend(place.map(|_| part));
                self.places_of.insert(part, place);
            }
            references.extend(self.places_of.get(&part).copied().flatten());
        }
        self.next += 1;
        Ok(Some(Next { info, references }))
    }

    /// The number of referenced paths that no source has, or that exceed the limit.
    fn missing(&self) -> usize {
        self.places_of.values().filter(|place| place.is_none()).count()
    }
}

/// The answer to `closure/<hash part>`, which is written while the closure is walked:
/// `{"nodes":[{"hash":…,"name":…,"size":…,"references":[…]},…],"missing":…}`. The path itself comes first; references are indices of nodes.
pub(super) struct ClosureBody {
    places: Arc<Places>,
    walk: Walk,
    first: Option<Next>,
}

#[derive(Serialize)]
struct Node<'a> {
    #[serde(flatten)]
    path: WithSize,
    references: &'a [u32],
    /// Whether a client that trusts only this server's keys accepts it; `None` if it has no key.
    #[serde(skip_serializing_if = "Option::is_none")]
    signed: Option<bool>,
}

/// Whether a client that trusts only this server's keys accepts a path; `None` if it has no key.
pub(super) fn is_accepted(places: &Places, info: &NarInfo) -> Option<bool> {
    let keys: TrustedKeys = places.sign_keys.iter().cloned().collect();
    let is_signed = || keys.find_valid(info.fingerprint(&places.store_dir).as_bytes(), &info.signatures).is_some();
    // Contents are their own proof.
    (!places.sign_keys.is_empty()).then(|| info.ca.is_some() || is_signed())
}

/// The closure of a path.
pub(super) fn closure(places: &Arc<Places>, hash_part: HashPart) -> Result<(StorePath, ClosureBody), ServeError> {
    let mut walk = Walk::new(hash_part);
    let first = walk.next(places)?.ok_or(ServeError::NoPath)?;
    let path = first.info.path.clone();
    Ok((path, ClosureBody { places: Arc::clone(places), walk, first: Some(first) }))
}

impl BodySource for ClosureBody {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        for _ in 0..PATHS_OF_PIECE {
            let (next, before) = match self.first.take() {
                Some(first) => (Some(first), "{\"nodes\":["),
                None => (self.walk.next(&self.places).map_err(io::Error::other)?, ","),
            };
            let Some(Next { info, references }) = next else {
                out.memory().extend(format!("],\"missing\":{}}}", self.walk.missing()).into_bytes());
                return Ok(Fill::Done);
            };
            out.memory().extend_from_slice(before.as_bytes());
            serde_json::to_writer(
                out.memory(),
                &Node { path: WithSize::of(&info), references: &references, signed: is_accepted(&self.places, &info) },
            )?;
            if out.room() == 0 {
                break;
            }
        }
        Ok(Fill::More)
    }
}
