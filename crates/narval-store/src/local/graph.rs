//! The valid paths and their references, as a garbage collection sees them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;

use narval_nix::{HashPart, StoreDir, StorePath};
use rusqlite::Connection;

pub(super) fn hash_parts_of(paths: &BTreeSet<StorePath>) -> HashSet<HashPart> {
    paths.iter().map(StorePath::hash_part).collect()
}

/// What to collect.
#[derive(Debug, Clone, Default)]
pub struct GarbageOptions {
    /// Further paths to keep, with their closures.
    pub keep: Vec<StorePath>,
    /// Folders whose links are not roots: they are about to be removed.
    pub removed_folders: Vec<PathBuf>,
    /// Whether derivers of live paths may be collected if nothing else keeps them (`keep-derivations = false`).
    pub drop_derivations: bool,
    /// Whether outputs of live derivations are kept (`keep-outputs = true`).
    pub keep_outputs: bool,
    /// Collect only these paths; it is an error if one of them is in use.
    pub only: Option<Vec<StorePath>>,
}

/// A valid path.
pub(super) struct Node {
    pub(super) id: i64,
    deriver: Option<StorePath>,
}

/// The valid paths and their references.
pub(super) struct Graph {
    pub(super) paths: BTreeMap<StorePath, Node>,
    references: HashMap<StorePath, Vec<StorePath>>,
    /// The outputs of derivations.
    outputs: HashMap<StorePath, Vec<StorePath>>,
}

impl Graph {
    /// Reads them from a single state of the database.
    pub(super) fn read(store_dir: &StoreDir, connection: &Connection) -> Result<Self, rusqlite::Error> {
        let parse = |full: &str| store_dir.parse(full).ok();
        let snapshot = connection.unchecked_transaction()?;
        let mut by_id = HashMap::new();
        let mut paths = BTreeMap::new();
        let mut statement = snapshot.prepare("select id, path, deriver from ValidPaths")?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            // Paths of another store directory are not collected.
            let Some(path) = parse(&row.get::<_, String>(1)?) else { continue };
            let deriver = row.get::<_, Option<String>>(2)?.and_then(|deriver| parse(&deriver));
            let id = row.get(0)?;
            by_id.insert(id, path.clone());
            paths.insert(path, Node { id, deriver });
        }
        let mut references: HashMap<StorePath, Vec<StorePath>> = HashMap::new();
        let mut statement = snapshot.prepare("select referrer, reference from Refs")?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            if let (Some(referrer), Some(reference)) =
                (by_id.get(&row.get::<_, i64>(0)?), by_id.get(&row.get::<_, i64>(1)?))
            {
                references.entry(referrer.clone()).or_default().push(reference.clone());
            }
        }
        let mut outputs: HashMap<StorePath, Vec<StorePath>> = HashMap::new();
        let mut statement = snapshot.prepare("select drv, path from DerivationOutputs")?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            if let (Some(derivation), Some(output)) =
                (by_id.get(&row.get::<_, i64>(0)?), parse(&row.get::<_, String>(1)?))
            {
                outputs.entry(derivation.clone()).or_default().push(output);
            }
        }
        Ok(Self { paths, references, outputs })
    }

    /// The closure of these paths. A root keeps every path with its hash part, whatever its name (Nix `gc.cc`).
    pub(super) fn reach(&self, start: &BTreeSet<StorePath>, options: &GarbageOptions) -> HashSet<StorePath> {
        let mut reached: HashSet<StorePath> = HashSet::new();
        let hash_parts = hash_parts_of(start);
        let mut next: Vec<&StorePath> =
            self.paths.keys().filter(|path| hash_parts.contains(&path.hash_part())).collect();
        while let Some(path) = next.pop() {
            let Some((path, node)) = self.paths.get_key_value(path) else { continue };
            if reached.insert(path.clone()) {
                next.extend(self.references.get(path).into_iter().flatten());
                next.extend(node.deriver.iter().filter(|_| !options.drop_derivations));
                next.extend(self.outputs.get(path).into_iter().flatten().filter(|_| options.keep_outputs));
            }
        }
        reached
    }

    /// A path that refers to this one and is not in `except`.
    pub(super) fn referrer(&self, path: &StorePath, except: &[StorePath]) -> Option<String> {
        let mut all = self.references.iter();
        let (referrer, _) =
            all.find(|(referrer, references)| references.contains(path) && !except.contains(referrer))?;
        Some(format!("'{referrer}' refers to it"))
    }

    /// These paths, each after those among them that refer to it. Paths that refer to each other in a cycle are last.
    pub(super) fn referrers_first<'a>(&self, paths: &'a [StorePath]) -> Vec<&'a StorePath> {
        let among: HashMap<&StorePath, &'a StorePath> = paths.iter().map(|path| (path, path)).collect();
        let references = |path: &StorePath| {
            let all = self.references.get(path).into_iter().flatten();
            all.filter(|to| *to != path).filter_map(|to| among.get(to).copied()).collect::<Vec<_>>()
        };
        let mut referrers: HashMap<&StorePath, usize> = HashMap::new();
        for path in paths {
            for to in references(path) {
                *referrers.entry(to).or_default() += 1;
            }
        }
        let mut ready: Vec<&StorePath> = paths.iter().rev().filter(|path| !referrers.contains_key(path)).collect();
        let mut ordered = Vec::with_capacity(paths.len());
        while let Some(path) = ready.pop() {
            ordered.push(path);
            for to in references(path) {
                if let Some(left) = referrers.get_mut(to) {
                    *left -= 1;
                    if *left == 0 {
                        referrers.remove(to);
                        ready.push(to);
                    }
                }
            }
        }
        ordered.extend(paths.iter().filter(|path| referrers.contains_key(path)));
        ordered
    }
}
