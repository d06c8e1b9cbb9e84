//! Which path an attribute means, from a channel's two files alone: the paths of its name, without those of other systems.
//!
//! A list of store paths has all systems of a channel, and variants of one name. What is left must be the only one, and no other attribute of the
//! same name may be the one that it belongs to: otherwise nothing is decided, and nothing is guessed.

use std::collections::{BTreeSet, HashMap, HashSet};

use narval_nix::StorePath;

use crate::error::NamesError;
use crate::index::Index;
use crate::package::Package;

/// The most paths that are visited to tell the systems of one.
const WALK_MAX: usize = 20_000;
/// The most candidates of one name: `hook` and `source` have dozens of paths.
const CANDIDATES_MAX: usize = 256;
/// How the names of C libraries and what takes their place begin.
const C_LIBRARIES: [&str; 5] = ["glibc-", "musl-", "uclibc-", "libSystem-", "apple-sdk-"];

/// What caches know about paths.
pub trait Evidence {
    /// The references of each of these paths; `None` if they are not known.
    fn references(&mut self, paths: &[StorePath]) -> Vec<Option<Vec<StorePath>>>;

    /// The derivation that has made a path.
    fn deriver(&mut self, path: &StorePath) -> Option<StorePath>;

    /// The systems of programs that a C library loads; empty if the path is none, or it is not known.
    fn c_library(&mut self, path: &StorePath) -> Vec<String>;
}

/// The systems of a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Systems {
    /// Those of the C libraries that it refers to, directly or through others.
    pub reached: BTreeSet<String>,
    /// Whether all references on the way were known.
    pub is_complete: bool,
}

impl Systems {
    /// Whether the path may be for this system. A path whose closure has no C library may be for any.
    pub fn fits(&self, system: &str) -> bool {
        self.reached.is_empty() || self.reached.contains(system)
    }
}

/// Finds out which systems paths are for, and remembers it.
///
/// The nearest C libraries tell: a package of one system may have programs of another one further away, as Wine has.
#[derive(Debug, Default)]
pub struct SystemWalk {
    known: HashMap<(StorePath, bool), Systems>,
    libraries: HashMap<StorePath, Vec<String>>,
}

impl SystemWalk {
    /// The systems of a path; with `whole`, those of all C libraries of its closure.
    pub fn systems(&mut self, path: &StorePath, whole: bool, evidence: &mut dyn Evidence) -> Systems {
        if let Some(known) = self.known.get(&(path.clone(), whole)) {
            return known.clone();
        }
        let mut found = Systems { reached: BTreeSet::new(), is_complete: true };
        let (mut seen, mut level) = (HashSet::from([path.clone()]), vec![path.clone()]);
        while !level.is_empty() {
            for path in level.iter().filter(|path| C_LIBRARIES.iter().any(|begin| path.name().starts_with(begin))) {
                let systems = self.libraries.entry(path.clone()).or_insert_with(|| evidence.c_library(path));
                found.reached.extend(systems.iter().cloned());
            }
            if !whole && !found.reached.is_empty() {
                break;
            }
            if seen.len() > WALK_MAX {
                found.is_complete = false;
                break;
            }
            let mut next = Vec::new();
            for references in evidence.references(&level) {
                match references {
                    Some(references) => next.extend(references.into_iter().filter(|path| seen.insert(path.clone()))),
                    None => found.is_complete = false,
                }
            }
            level = next;
        }
        self.known.insert((path.clone(), whole), found.clone());
        found
    }
}

/// What the two files say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// This path, and no other.
    One(StorePath),
    /// One of these, or of more than these.
    Several {
        /// The paths.
        left: Vec<StorePath>,
        /// Other attributes of the same name, which may be what a path belongs to.
        twins: Vec<String>,
    },
    /// Paths of the name are all for other systems.
    OtherSystems(Vec<StorePath>),
    /// The channel has no path of the name: it was not built.
    Absent,
}

/// Which path an output of a package is on a system.
///
/// # Errors
/// If the index cannot be read.
pub fn join(
    index: &Index,
    package: &Package,
    (output, system): (&str, &str),
    walk: &mut SystemWalk,
    evidence: &mut dyn Evidence,
) -> Result<Decision, NamesError> {
    let mut candidates = Vec::new();
    let mut name = String::new();
    for (path_name, base) in package.path_names(output).into_iter().zip(package.path_names("out")) {
        candidates = index.paths_named(&path_name)?;
        name = base;
        if !candidates.is_empty() {
            break;
        }
    }
    let twins = twins(index, package, &name)?;
    let differing: Vec<String> =
        twins.iter().filter(|twin| package.may_differ(twin)).map(|twin| twin.attribute.clone()).collect();
    if candidates.is_empty() {
        return Ok(Decision::Absent);
    }
    if candidates.len() > CANDIDATES_MAX {
        return Ok(Decision::Several { left: candidates, twins: differing });
    }
    let mut left = Vec::new();
    let mut is_certain = true;
    for path in &candidates {
        // What is not built because of its problems has no path: one that is left by mistake would be taken for it.
        let systems = walk.systems(path, !package.problems.is_empty(), evidence);
        if systems.fits(system) {
            is_certain &= systems.reached.contains(system) || systems.is_complete;
            left.push(path.clone());
        }
    }
    match left.as_slice() {
        [] => Ok(Decision::OtherSystems(candidates)),
        [only] if is_certain && differing.is_empty() => Ok(Decision::One(only.clone())),
        [_] => Ok(Decision::Several { left, twins: differing }),
        _ => {
            let by_outputs = by_outputs(index, package, output, (&left, &twins), evidence)?;
            Ok(by_outputs.map_or(Decision::Several { left, twins: differing }, Decision::One))
        }
    }
}

/// The other attributes whose paths have this name on the same system, of which some are aliases.
fn twins(index: &Index, package: &Package, name: &str) -> Result<Vec<Package>, NamesError> {
    let attributes = index.attributes_named(name)?;
    let others = attributes.iter().filter(|attribute| **attribute != package.attribute).take(CANDIDATES_MAX);
    let packages = others.filter_map(|attribute| index.package(attribute).transpose());
    let is_twin = |twin: &Result<Package, NamesError>| twin.as_ref().map_or(true, |twin| twin.system == package.system);
    packages.filter(is_twin).collect()
}

/// Of several paths, the only one whose derivation has the outputs of the package: those that share its deriver. Nothing is told by it if another
/// attribute of the name has the same outputs.
fn by_outputs(
    index: &Index,
    package: &Package,
    output: &str,
    (left, twins): (&[StorePath], &[Package]),
    evidence: &mut dyn Evidence,
) -> Result<Option<StorePath>, NamesError> {
    let set = |package: &Package| package.outputs.iter().cloned().collect::<BTreeSet<_>>();
    let same = |twin: &&Package| {
        let renamed = Package { attribute: package.attribute.clone(), ..(*twin).clone() };
        set(twin) == set(package) && renamed != *package
    };
    if twins.iter().any(|twin| same(&twin)) || twins.iter().all(|twin| set(twin) == set(package)) {
        return Ok(None);
    }
    let mut outputs = set(package);
    outputs.extend(twins.iter().flat_map(set));
    let mut found: HashMap<StorePath, BTreeSet<String>> = HashMap::new();
    for other in &outputs {
        for name in package.path_names(other) {
            for path in index.paths_named(&name)?.into_iter().take(CANDIDATES_MAX) {
                if let Some(deriver) = evidence.deriver(&path) {
                    found.entry(deriver).or_default().insert(other.clone());
                }
            }
        }
    }
    let mut fitting = Vec::new();
    for path in left {
        let Some(deriver) = evidence.deriver(path) else { return Ok(None) };
        if found.get(&deriver).is_some_and(|outputs| outputs.contains(output) && *outputs == set(package)) {
            fitting.push(path.clone());
        }
    }
    Ok(match fitting.as_slice() {
        [only] => Some(only.clone()),
        _ => None,
    })
}
