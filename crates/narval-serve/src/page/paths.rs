//! The metadata of one path, and its closure as a graph.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use narval_http::{BodySource, Fill, SegmentBuf};
use narval_keep::{Pin, SmallKind};
use narval_nix::narinfo::NarInfo;
use narval_nix::{ClosurePath, HashPart, StorePath, TrustedKeys};
use serde::{Serialize, Serializer};

use super::places::Places;
use crate::error::ServeError;
use crate::narinfo::memo::Answer;
use crate::routes::log;

/// The maximum number of displayed paths of a closure.
const CLOSURE_MAX: usize = 50_000;
/// How many paths of a closure are read at a time.
const PATHS_OF_PIECE: usize = 200;
/// The maximum number of displayed referrers.
const REFERRERS_MAX: usize = 200;
/// The maximum number of paths of a closure that a document is made of.
const TREE_MAX: usize = 5_000;
/// How long reading it may take: upstreams may be slow, and others wait for the thread.
const TREE_TIME_MAX: Duration = Duration::from_secs(5);

/// What is known about a path, besides its narinfo.
pub(super) struct Details {
    pub(super) info: NarInfo,
    /// The paths that it refers to, the largest first. Those without a size are not here.
    pub(super) references: Vec<Named>,
    /// By name.
    pub(super) referrers: Vec<Named>,
    /// Whether there are more referrers than listed.
    pub(super) more_referrers: bool,
    /// Whether there is a log of its build.
    pub(super) has_log: bool,
    pub(super) signatures: Vec<Signed>,
    pub(super) pins: Vec<Pin>,
    pub(super) source: Source,
}

/// Another path.
pub(super) struct Named {
    pub(super) path: StorePath,
    pub(super) size: Option<u64>,
}

/// A signature.
pub(super) struct Signed {
    pub(super) key: String,
    /// `Some` if the key is one of this server's: whether the signature is valid.
    pub(super) ours: Option<bool>,
}

/// Where a path comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Store,
    Cache,
    Upstream,
}

/// The details of a path.
pub(super) fn details(places: &Places, hash_part: HashPart) -> Result<Details, ServeError> {
    let info = look_up(places, hash_part)?.ok_or(ServeError::NoPath)?;
    let fingerprint = info.fingerprint(&places.store_dir);
    let signatures = info.signatures.iter().map(|signature| {
        let key = places.sign_keys.iter().find(|key| key.name() == signature.key_name());
        let ours = key.map(|key| key.verify(fingerprint.as_bytes(), signature));
        Signed { key: signature.key_name().to_owned(), ours }
    });
    let signatures = signatures.collect();
    let source = source(places, &info.path)?;
    let mut referrers = referrers(places, &info.path)?;
    let more_referrers = referrers.len() > REFERRERS_MAX;
    referrers.truncate(REFERRERS_MAX);
    let references = info.references.iter().filter(|path| **path != info.path);
    let mut references = named(places, references.cloned())?;
    references.sort_by_key(|named| std::cmp::Reverse(named.size));
    Ok(Details {
        references,
        referrers: named(places, referrers.into_iter())?,
        more_referrers,
        has_log: info.deriver.as_ref().is_some_and(|deriver| has_log(places, deriver)),
        signatures,
        pins: pins(places, &info.path)?,
        source,
        info,
    })
}

fn named(places: &Places, paths: impl Iterator<Item = StorePath>) -> Result<Vec<Named>, ServeError> {
    let with_size = |path: StorePath| {
        let size = look_up(places, path.hash_part())?.map(|info| info.nar_size);
        Ok(Named { path, size })
    };
    paths.map(with_size).collect()
}

/// The narinfo of a path, from whichever source has it.
pub(super) fn look_up(places: &Places, hash_part: HashPart) -> Result<Option<NarInfo>, ServeError> {
    match places.narinfos.look_up_without_prefetch(hash_part)? {
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
        let found = places.writable.as_ref().map(|cache| cache.small_file(SmallKind::Log, deriver.base_name()));
        found.is_some_and(|found| found.is_ok_and(|log| log.is_some()))
    };
    in_store() || in_cache()
}

fn source(places: &Places, path: &StorePath) -> Result<Source, ServeError> {
    if let Some(store) = &places.store
        && store.is_valid(path)?
    {
        return Ok(Source::Store);
    }
    let kept = |cache: &narval_keep::Cache| cache.missing(&[path.hash_part()], None);
    match places.writable.as_ref().map(kept).transpose()? {
        Some(missing) if missing.is_empty() => Ok(Source::Cache),
        _ => Ok(Source::Upstream),
    }
}

/// By name; one more than are shown, if there are.
fn referrers(places: &Places, path: &StorePath) -> Result<Vec<StorePath>, ServeError> {
    let mut found = Vec::new();
    if let Some(store) = &places.store {
        found.extend(store.referrers(path)?.into_iter().filter(|referrer| referrer != path));
    }
    if let Some(cache) = &places.writable {
        for referrer in cache.referrers(&path.hash_part())?.into_iter().take(REFERRERS_MAX + 1) {
            let is_new = found.iter().all(|found: &StorePath| found.hash_part() != referrer);
            if is_new && let Some(info) = look_up(places, referrer)? {
                found.push(info.path);
            }
        }
    }
    found.sort_by(|one, other| one.name().cmp(other.name()));
    Ok(found)
}

fn pins(places: &Places, path: &StorePath) -> Result<Vec<Pin>, ServeError> {
    let Some(cache) = &places.writable else { return Ok(Vec::new()) };
    Ok(cache.pins()?.into_iter().filter(|pin| pin.path == path.base_name()).collect())
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

impl ClosurePath for WithSize {
    fn hash_part(&self) -> HashPart {
        self.hash
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn nar_size(&self) -> u64 {
        self.size
    }
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

/// A closure, from the path itself on.
pub(super) struct Tree {
    /// The path itself comes first, and each path after one that refers to it.
    pub(super) nodes: Vec<TreeNode>,
    /// How many referenced paths no source has.
    pub(super) missing: usize,
    /// Whether there are more paths than were read.
    pub(super) more: bool,
}

/// A path of a closure.
pub(super) struct TreeNode {
    pub(super) path: WithSize,
    /// The length of the shortest chain of references to it, and the path before it in that chain.
    pub(super) depth: u32,
    pub(super) before: Option<usize>,
    /// See [`is_accepted`] and [`is_signed`].
    pub(super) accepted: Option<bool>,
    pub(super) signed: bool,
}

impl Tree {
    /// Reads the closure of a path, while somebody wants it.
    pub(super) fn read(places: &Places, hash_part: HashPart, is_wanted: &dyn Fn() -> bool) -> Result<Self, ServeError> {
        let mut walk = Walk::new(hash_part);
        let mut nodes: Vec<TreeNode> = Vec::new();
        // Of those that were found and are not read yet.
        let mut before = vec![(0, None)];
        let began = Instant::now();
        while nodes.len() < TREE_MAX
            && began.elapsed() < TREE_TIME_MAX
            && let Some(next) = walk.next(places)?
        {
            if !is_wanted() {
                return Err(ServeError::Busy);
            }
            let (depth, from) = before.get(nodes.len()).copied().unwrap_or_default();
            before.resize(walk.found.len(), (depth + 1, Some(nodes.len())));
            let signed = is_signed(places, &next.info);
            let accepted = (!places.sign_keys.is_empty()).then(|| signed || next.info.ca.is_some());
            nodes.push(TreeNode { path: WithSize::of(&next.info), depth, before: from, accepted, signed });
        }
        let more = nodes.len() < walk.found.len();
        Ok(Self { nodes, missing: walk.missing(), more })
    }

    /// The shortest chain of references from the path itself to another one.
    pub(super) fn chain(&self, to: &HashPart) -> Vec<&TreeNode> {
        let mut at = self.nodes.iter().position(|node| node.path.hash == *to);
        let mut chain = Vec::new();
        while let Some(node) = at.and_then(|at| self.nodes.get(at)) {
            chain.push(node);
            at = node.before;
        }
        chain.reverse();
        chain
    }
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
                let exists = self.found.len() < CLOSURE_MAX && look_up(places, part)?.is_some();
                let place = u32::try_from(self.found.len()).ok().filter(|_| exists);
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
    // Contents are their own proof.
    (!places.sign_keys.is_empty()).then(|| info.ca.is_some() || is_signed(places, info))
}

/// Whether a path has a valid signature of one of this server's keys.
pub(super) fn is_signed(places: &Places, info: &NarInfo) -> bool {
    let keys: TrustedKeys = places.sign_keys.iter().cloned().collect();
    keys.find_valid(info.fingerprint(&places.store_dir).as_bytes(), &info.signatures).is_some()
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
