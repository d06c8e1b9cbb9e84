//! The metadata of one path, and its closure as a graph.

use std::collections::HashMap;

use narval_nix::narinfo::NarInfo;
use narval_nix::{HashPart, StorePath};
use serde::Serialize;

use super::Places;
use crate::error::ServeError;
use crate::narinfo::memo::Answer;

/// The maximum number of displayed paths of a closure.
const CLOSURE_MAX: usize = 50_000;
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

fn source(places: &Places, path: &StorePath) -> Result<&'static str, ServeError> {
    if let Some(store) = &places.store
        && store.is_valid(path)?
    {
        return Ok("store");
    }
    let kept = |cache: &narval_cache::written::Cache| cache.missing(&[path.hash_part()], None);
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

/// The answer to `closure/<hash part>`: the path itself comes first.
#[derive(Debug, Serialize)]
pub(super) struct ClosureAnswer {
    nodes: Vec<Node>,
    /// The number of referenced paths that no source has, or that exceed the limit.
    missing: usize,
}

#[derive(Debug, Serialize)]
struct Node {
    hash: String,
    name: String,
    /// The size of the NAR in bytes.
    size: u64,
    /// The indices of the nodes that it refers to.
    references: Vec<usize>,
}

/// The narinfos of a closure.
pub(super) struct Closure {
    /// The path itself comes first.
    pub(super) infos: Vec<NarInfo>,
    /// Where each is in `infos`; `None`: no source has it, or it exceeds the limit.
    places_of: HashMap<HashPart, Option<usize>>,
}

/// A path of a closure.
#[derive(Debug, Serialize)]
pub(super) struct WithSize {
    hash: String,
    pub(super) name: String,
    /// The size of the NAR in bytes.
    pub(super) size: u64,
}

impl WithSize {
    pub(super) fn of(info: &NarInfo) -> Self {
        let Named { hash, name } = Named::of(&info.path);
        Self { hash, name, size: info.nar_size }
    }
}

/// Reads the narinfos of a closure.
pub(super) fn read_closure(places: &Places, hash_part: HashPart) -> Result<Closure, ServeError> {
    let mut infos = vec![look_up(places, hash_part)?.ok_or(ServeError::NoPath)?];
    let mut places_of = HashMap::from([(hash_part, Some(0))]);
    let mut next = 0;
    while let Some(info) = infos.get(next) {
        next += 1;
        for reference in info.references.clone() {
            let part = reference.hash_part();
            if places_of.contains_key(&part) {
                continue;
            }
            let found = if infos.len() < CLOSURE_MAX { look_up(places, part)? } else { None };
            places_of.insert(part, found.is_some().then_some(infos.len()));
            infos.extend(found);
        }
    }
    Ok(Closure { infos, places_of })
}

/// The closure of a path.
pub(super) fn closure(places: &Places, hash_part: HashPart) -> Result<ClosureAnswer, ServeError> {
    let Closure { infos, places_of } = read_closure(places, hash_part)?;
    let missing = places_of.values().filter(|place| place.is_none()).count();
    let nodes = infos.iter().enumerate().map(|(at, info)| {
        let place = |path: &StorePath| places_of.get(&path.hash_part()).copied().flatten().filter(|to| *to != at);
        Node {
            hash: info.path.hash_part().to_string(),
            name: info.path.name().to_string(),
            size: info.nar_size,
            references: info.references.iter().filter_map(place).collect(),
        }
    });
    Ok(ClosureAnswer { nodes: nodes.collect(), missing })
}
