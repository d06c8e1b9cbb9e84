//! What a name means in a channel: one order of sources, and no guess.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use narval_cache::{BinaryCaches, CacheError};
use narval_client::{Client, Url};
use narval_names::{Decision, Evidence, Index, NamesError, Package, Problem, Selector, SystemWalk, join};
use narval_nix::{StorePath, compare_versions};

use super::channel::{Channel, NamesFolder, names_error};
use super::distinction::{between, only_fitting};
use super::evidence::FromNarinfos;
use super::learnt::Learnt;
use super::records;
use narval_transfer::Error;

/// The system that `packages.json` is evaluated for: what it says about systems of packages is for this one.
const EVALUATED_FOR: &str = "x86_64-linux";
/// The most names that are suggested for a misspelt one.
const NEAREST_MAX: usize = 5;
/// The most paths of a closure that is measured to tell variants apart.
const MEASURED_MAX: usize = 5_000;
/// The most variants that are described.
const VARIANTS_MAX: usize = 20;

/// The names of one channel: its index, exact indexes of caches, and what was learnt about the release.
pub struct ChannelNames {
    channel: Channel,
    index: Index,
    age: Duration,
    /// Whether a cache has published it: it says which path each attribute has.
    is_exact: bool,
    learnt: Learnt,
    walk: SystemWalk,
}

/// What is asked for, and how.
#[derive(Clone, Copy)]
pub struct ResolveOptions<'a> {
    /// The system; usually this machine's.
    pub system: &'a str,
    /// Problems that are accepted.
    pub allowed: &'a [Problem],
    /// The client that may ask for build records; `None` if they are not asked for.
    pub records: Option<&'a Client>,
    /// Is told which server is asked for build records.
    pub on_records: &'a dyn Fn(&str),
    /// What told an earlier choice among the paths of this name from the others: [`Resolved::distinction`].
    pub distinction: &'a [String],
}

/// What a name means.
#[derive(Debug)]
pub enum Resolution {
    /// These paths.
    One(Box<Resolved>),
    /// One of several paths, of which the sources do not tell which.
    Several {
        /// The attribute.
        package: Box<Package>,
        /// The output.
        output: String,
        /// The paths.
        variants: Vec<Variant>,
        /// Other attributes that a path may belong to.
        twins: Vec<String>,
    },
    /// One of several attributes.
    Attributes(Vec<Package>),
    /// The channel has no such name.
    Unknown {
        /// Names that are near it.
        nearest: Vec<String>,
    },
    /// The channel has it, but no path of it was built.
    NotBuilt {
        /// The attribute.
        package: Box<Package>,
        /// The output.
        output: String,
        /// Whether there are paths for other systems.
        elsewhere: bool,
    },
}

/// The paths of a package.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The package.
    pub package: Package,
    /// The system.
    pub system: String,
    /// The outputs that were asked for.
    pub outputs: Vec<Output>,
    /// If a path was chosen among several: what tells it from the others, also in other releases. Empty if nothing does.
    pub distinction: Vec<String>,
}

/// One output of a package.
#[derive(Clone, Debug)]
pub struct Output {
    /// The output.
    pub name: String,
    /// Its path.
    pub path: StorePath,
    /// How that is known.
    pub source: SourceOfName,
}

/// How a path is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceOfName {
    /// Its user has chosen it among several.
    Choice,
    /// An exact index of a cache.
    Exact,
    /// The channel's two files.
    Channel,
    /// The build records of the release.
    Records,
}

impl SourceOfName {
    /// One word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Choice => "choice",
            Self::Exact => "exact",
            Self::Channel => "channel",
            Self::Records => "records",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        [Self::Choice, Self::Exact, Self::Channel, Self::Records].into_iter().find(|source| source.word() == word)
    }
}

/// One of several paths that a name may mean.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The path.
    pub path: StorePath,
    /// The size of its NAR; `None` if no cache has it.
    pub nar_size: Option<u64>,
    /// The number of paths in its closure, and the size of these; `None` if it is not known, or large.
    pub closure: Option<(usize, u64)>,
    /// The names of references that not all variants have.
    pub refers_to: Vec<String>,
    /// Whether another variant has the same contents.
    pub is_same: bool,
}

/// What is known about one output.
enum Known {
    Path(StorePath, SourceOfName),
    Several { left: Vec<StorePath>, twins: Vec<String> },
    NotBuilt { elsewhere: bool },
}

/// The system of this machine, as Nix names it.
pub fn machine_system() -> String {
    let machine = match std::env::consts::ARCH {
        "x86" => "i686",
        "arm" => "armv7l",
        "powerpc64" => "powerpc64le",
        other => other,
    };
    format!("{machine}-linux")
}

impl ChannelNames {
    /// Opens the names of a channel; `None` if there is no index of it.
    ///
    /// # Errors
    /// If the index cannot be opened.
    pub fn open(folder: &NamesFolder, channel: &Channel) -> Result<Option<Self>, Error> {
        let Some((index, age)) = folder.open(channel)? else { return Ok(None) };
        let (learnt, channel, walk) = (folder.learnt(&index), channel.clone(), SystemWalk::default());
        Ok(Some(Self { channel, index, age, is_exact: false, learnt, walk }))
    }

    /// The names that a cache has published, with the path of each, as they were fetched last; `None` if it has none. The outer `None`: the cache was
    /// not asked yet.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn of_cache(folder: &NamesFolder, cache: &Url) -> Result<Option<Option<Self>>, Error> {
        let opened = |(index, age): (Index, Duration)| {
            let (channel, learnt) = (Channel::of_cache(cache), folder.learnt(&index));
            Self { channel, index, age, is_exact: true, learnt, walk: SystemWalk::default() }
        };
        Ok(folder.exact(cache)?.map(|found| found.map(opened)))
    }

    /// Whether the channel's list has these paths.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn lists(&self, outputs: &[Output]) -> Result<bool, Error> {
        for output in outputs {
            let listed = self.index.paths_named(output.path.name()).map_err(|source| self.fail(source))?;
            if !listed.contains(&output.path) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a cache has published it.
    pub const fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// The channel.
    pub const fn channel(&self) -> &Channel {
        &self.channel
    }

    /// The index of the channel.
    pub const fn index(&self) -> &Index {
        &self.index
    }

    /// How long ago the channel was asked.
    pub const fn age(&self) -> Duration {
        self.age
    }

    fn fail(&self, source: NamesError) -> Error {
        names_error(&self.channel, source)
    }

    /// The package that a name selects, or why it is none.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn select(&self, selector: &Selector, text: &str) -> Result<Result<Package, Resolution>, Error> {
        self.select_in(selector, text).map_err(|source| self.fail(source))
    }

    fn select_in(&self, selector: &Selector, text: &str) -> Result<Result<Package, Resolution>, NamesError> {
        let named = self.index.package(&selector.attribute)?;
        if selector.version.is_none() {
            if let Some(package) = named {
                return Ok(Ok(package));
            }
            // The name of a derivation, such as git-2.51.0.
            let attributes = self.index.attributes_named(text)?;
            let found = attributes.iter().filter_map(|attribute| self.index.package(attribute).transpose());
            return Ok(match one_of(found.collect::<Result<_, _>>()?) {
                Some(chosen) => chosen,
                None => Err(Resolution::Unknown { nearest: self.index.nearest(&selector.attribute, NEAREST_MAX)? }),
            });
        }
        let (set, last) = selector.attribute.rsplit_once('.').unwrap_or(("", &selector.attribute));
        let pname = named.as_ref().map_or_else(|| last.trim_matches('"').to_owned(), |package| package.pname.clone());
        let mut fitting: Vec<Package> = named.into_iter().collect();
        for (attribute, version) in self.index.versions_of(&pname)? {
            let is_beside = attribute.rsplit_once('.').map_or("", |(set, _)| set) == set;
            if is_beside && selector.has_version(&version) && attribute != selector.attribute {
                fitting.extend(self.index.package(&attribute)?);
            }
        }
        fitting.retain(|package| selector.has_version(&package.version));
        fitting.sort_by(|one, other| compare_versions(&other.version, &one.version));
        let newest = fitting.first().map(|package| package.version.clone()).unwrap_or_default();
        fitting.retain(|package| package.version == newest);
        if let Some(named) = fitting.iter().position(|package| package.attribute == selector.attribute) {
            return Ok(Ok(fitting.swap_remove(named)));
        }
        Ok(one_of(fitting).unwrap_or_else(|| {
            let mut all = self.index.versions_of(&pname).unwrap_or_default();
            let wanted = selector.version.as_deref().unwrap_or_default();
            all.sort_by(|(_, one), (_, other)| compare_versions(other, one));
            // As many newer ones as older ones.
            let newer = all.partition_point(|(_, version)| compare_versions(version, wanted).is_gt());
            let first = newer.saturating_sub(NEAREST_MAX / 2).min(all.len().saturating_sub(NEAREST_MAX));
            let nearest = all.iter().skip(first).take(NEAREST_MAX);
            Err(Resolution::Unknown {
                nearest: nearest.map(|(attribute, version)| format!("{attribute} ({version})")).collect(),
            })
        }))
    }

    /// What a name means.
    ///
    /// # Errors
    /// If the package is not allowed, has no such output, its path is not what it says, or a cache cannot be asked.
    pub fn resolve(
        &mut self,
        selector: &Selector,
        text: &str,
        caches: &BinaryCaches,
        options: &ResolveOptions<'_>,
    ) -> Result<Resolution, Error> {
        let package = match self.select(selector, text)? {
            Ok(package) => package,
            Err(resolution) => return Ok(resolution),
        };
        refuse(&package, options)?;
        // A few packages of x86_64-linux are built for i686-linux, such as Wine.
        let is_32_bit = options.system == EVALUATED_FOR && package.system == "i686-linux";
        let system = if is_32_bit { package.system.clone() } else { options.system.to_owned() };
        let wanted = wanted_outputs(selector, &package)?;
        let (mut outputs, mut distinction) = (Vec::new(), Vec::new());
        for (at, output) in wanted.iter().enumerate() {
            let choice = selector.choice.filter(|_| at == 0);
            let known = match choice {
                Some(part) => self.chosen(&package, output, part)?,
                None => self.known(&package, (output, &system), caches, options)?,
            };
            let known = match known {
                Known::Several { left, twins } => {
                    match only_fitting(&left, options.distinction, &mut FromNarinfos::new(caches, &mut self.learnt)) {
                        Some(path) => {
                            distinction = options.distinction.to_vec();
                            Known::Path(path, SourceOfName::Choice)
                        }
                        None => Known::Several { left, twins },
                    }
                }
                Known::Path(path, source) if choice.is_some() => {
                    let mut evidence = FromNarinfos::new(caches, &mut self.learnt);
                    let all = join(&self.index, &package, (output, &system), &mut self.walk, &mut evidence);
                    if let Decision::Several { left, .. } = all.map_err(|source| names_error(&self.channel, source))? {
                        distinction = between(&path, &left, &mut evidence);
                    }
                    Known::Path(path, source)
                }
                known => known,
            };
            match known {
                Known::Path(path, source) => {
                    check_name(&package, output, &path, source)?;
                    if !self.is_exact
                        && self
                            .learnt
                            .answer(&package.attribute, &system, output)
                            .is_none_or(|(known, _)| known != path)
                    {
                        self.learnt.add_answer(&package.attribute, &system, output, &path, source.word());
                    }
                    outputs.push(Output { name: output.clone(), path, source });
                }
                Known::Several { left, twins } => {
                    let variants = self.described(left, caches)?;
                    return Ok(Resolution::Several {
                        package: package.into(),
                        output: output.clone(),
                        variants,
                        twins,
                    });
                }
                Known::NotBuilt { elsewhere } => {
                    return Ok(Resolution::NotBuilt { package: package.into(), output: output.clone(), elsewhere });
                }
            }
        }
        Ok(Resolution::One(Box::new(Resolved { package, system, outputs, distinction })))
    }

    /// What the sources know about an output, in their order.
    fn known(
        &mut self,
        package: &Package,
        (output, system): (&str, &str),
        caches: &BinaryCaches,
        options: &ResolveOptions<'_>,
    ) -> Result<Known, Error> {
        let attribute = &package.attribute;
        if self.is_exact {
            let exact = self.index.exact(attribute).map_err(|source| self.fail(source))?;
            let found = exact.into_iter().find(|found| found.system == system && found.output == output);
            return Ok(found
                .map_or(Known::NotBuilt { elsewhere: false }, |found| Known::Path(found.path, SourceOfName::Exact)));
        }
        if let Some((path, from)) = self.learnt.answer(attribute, system, output)
            && let Some(source) = SourceOfName::parse(&from)
        {
            return Ok(Known::Path(path, source));
        }
        let mut evidence = FromNarinfos::new(caches, &mut self.learnt);
        let decision = join(&self.index, package, (output, system), &mut self.walk, &mut evidence);
        let failure = evidence.failure.take();
        let undecided = match decision.map_err(|source| names_error(&self.channel, source))? {
            Decision::One(path) => return Ok(Known::Path(path, SourceOfName::Channel)),
            Decision::Several { left, twins } => {
                match self.of_same_derivation(package, (output, system), &left, caches)? {
                    Some(path) => return Ok(Known::Path(path, SourceOfName::Channel)),
                    None => Known::Several { left, twins },
                }
            }
            Decision::OtherSystems(_) => Known::NotBuilt { elsewhere: true },
            Decision::Absent => Known::NotBuilt { elsewhere: false },
        };
        if let Some(path) = self.recorded(package, (output, system), options) {
            return Ok(Known::Path(path, SourceOfName::Records));
        }
        match failure.filter(CacheError::is_outage) {
            // With the cache, it might have been decided.
            Some(failure) => Err(failure.into()),
            None => Ok(undecided),
        }
    }

    /// The path that the build records of the release have.
    fn recorded(
        &mut self,
        package: &Package,
        (output, system): (&str, &str),
        options: &ResolveOptions<'_>,
    ) -> Option<StorePath> {
        let client = options.records.filter(|client| !client.is_offline())?;
        let evaluation = Url::parse(self.index.fact("build-records")?).ok()?;
        (options.on_records)(&evaluation.to_string());
        let record = match records::ask(client, &evaluation, &package.attribute, system) {
            Ok(record) => record?,
            Err(error) => {
                tracing::warn!("the build records at {evaluation} cannot be asked: {error}");
                return None;
            }
        };
        let mut found = None;
        for (name, path) in record.outputs {
            // A record that names something else tells nothing.
            if check_name(package, &name, &path, SourceOfName::Records).is_ok() {
                let word = SourceOfName::Records.word();
                self.learnt.add_answer(&package.attribute, system, &name, &path, word);
                if name == output {
                    found = Some(path);
                }
            }
        }
        found
    }

    /// The path that a user has chosen.
    fn chosen(&self, package: &Package, output: &str, part: narval_nix::HashPart) -> Result<Known, Error> {
        for name in package.path_names(output) {
            let paths = self.index.paths_named(&name).map_err(|source| self.fail(source))?;
            if let Some(path) = paths.into_iter().find(|path| path.hash_part() == part) {
                return Ok(Known::Path(path, SourceOfName::Choice));
            }
        }
        Err(Error::Unresolved(format!("{} has no path {part} named as {}", self.channel.name(), package.name)))
    }

    /// Of several paths, the only one that was made together with another output of the package, if it is known which path that one has. Manual
    /// pages, for example, refer to nothing that tells their system.
    fn of_same_derivation(
        &mut self,
        package: &Package,
        (output, system): (&str, &str),
        left: &[StorePath],
        caches: &BinaryCaches,
    ) -> Result<Option<StorePath>, Error> {
        for other in package.outputs.iter().filter(|other| *other != output) {
            let remembered = self.learnt.answer(&package.attribute, system, other).map(|(path, _)| path);
            let mut evidence = FromNarinfos::new(caches, &mut self.learnt);
            let known = match remembered {
                Some(path) => Some(path),
                None => {
                    let decision = join(&self.index, package, (other, system), &mut self.walk, &mut evidence);
                    match decision.map_err(|source| names_error(&self.channel, source))? {
                        Decision::One(path) => Some(path),
                        _ => None,
                    }
                }
            };
            let Some(deriver) = known.and_then(|path| evidence.deriver(&path)) else { continue };
            let mut fitting = left.iter().filter(|path| evidence.deriver(path).as_ref() == Some(&deriver));
            if let (Some(only), None) = (fitting.next(), fitting.next()) {
                return Ok(Some(only.clone()));
            }
        }
        Ok(None)
    }

    /// What differs between paths. If none can be had, and not because no cache has it, the error says why.
    fn described(&mut self, left: Vec<StorePath>, caches: &BinaryCaches) -> Result<Vec<Variant>, Error> {
        let mut evidence = FromNarinfos::new(caches, &mut self.learnt);
        let mut references: BTreeMap<StorePath, BTreeSet<String>> = BTreeMap::new();
        let mut hashes = Vec::new();
        let mut variants = Vec::new();
        for path in left.into_iter().take(VARIANTS_MAX) {
            let found = evidence
                .narinfo(&path)
                .map(|found| (found.info.nar_size, found.info.nar_hash, found.info.references.clone()));
            if let Some((_, hash, all)) = &found {
                let others = all.iter().filter(|other| **other != path);
                references.insert(path.clone(), others.map(|other| other.name().to_owned()).collect());
                hashes.push(*hash);
            }
            let closure = found.as_ref().and_then(|_| measured(&path, &mut evidence));
            let nar_size = found.as_ref().map(|(size, ..)| *size);
            let hash = found.map(|(_, hash, _)| hash);
            variants.push((hash, Variant { path, nar_size, closure, refers_to: Vec::new(), is_same: false }));
        }
        if let (true, Some(failure)) = (hashes.is_empty(), evidence.failure.take()) {
            return Err(failure.into());
        }
        let everywhere = |name: &String| references.values().all(|all| all.contains(name));
        let describe = |(hash, mut variant): (Option<_>, Variant)| {
            let own = references.get(&variant.path);
            variant.refers_to =
                own.map(|own| own.iter().filter(|name| !everywhere(name)).cloned().collect()).unwrap_or_default();
            variant.is_same = hash.is_some_and(|hash| hashes.iter().filter(|other| **other == hash).count() > 1);
            variant
        };
        Ok(variants.into_iter().map(describe).collect())
    }
}

/// The number of paths in a closure, and their size.
fn measured(path: &StorePath, evidence: &mut FromNarinfos<'_>) -> Option<(usize, u64)> {
    let (mut seen, mut level, mut size) = (HashSet::from([path.clone()]), vec![path.clone()], 0_u64);
    while !level.is_empty() {
        if seen.len() > MEASURED_MAX {
            return None;
        }
        let mut next = Vec::new();
        for references in evidence.references(&level) {
            next.extend(references?.into_iter().filter(|path| seen.insert(path.clone())));
        }
        for path in &level {
            size = size.saturating_add(evidence.narinfo(path)?.info.nar_size);
        }
        level = next;
    }
    Some((seen.len(), size))
}

/// The package, if all are the same one under several names; `None` if there is none.
fn one_of(mut packages: Vec<Package>) -> Option<Result<Package, Resolution>> {
    packages.sort_by_key(|package| {
        (package.attribute.matches('.').count(), package.attribute.len(), package.attribute.clone())
    });
    let first = packages.first()?.clone();
    let is_first = |package: &Package| Package { attribute: first.attribute.clone(), ..package.clone() } == first;
    Some(if packages.iter().all(is_first) { Ok(first) } else { Err(Resolution::Attributes(packages)) })
}

fn wanted_outputs(selector: &Selector, package: &Package) -> Result<Vec<String>, Error> {
    if selector.outputs.is_empty() {
        return Ok(package.default_outputs());
    }
    if selector.outputs.iter().any(|output| output == "*") {
        return Ok(package.outputs.clone());
    }
    match selector.outputs.iter().find(|output| !package.outputs.contains(output)) {
        None => Ok(selector.outputs.clone()),
        Some(unknown) => Err(Error::Unresolved(format!(
            "{} has no output '{unknown}'; it has: {}",
            package.attribute,
            package.outputs.join(", ")
        ))),
    }
}

/// Refuses a package that is not installed without being told to, as Nix does.
fn refuse(package: &Package, options: &ResolveOptions<'_>) -> Result<(), Error> {
    // What a platform lacks is known for one.
    let counts = |problem: &Problem| options.system == EVALUATED_FOR || *problem != Problem::Unsupported;
    let mut problems = package.problems.iter().filter(|problem| !options.allowed.contains(problem));
    let Some(problem) = problems.find(|problem| counts(problem)) else { return Ok(()) };
    let why = match problem {
        Problem::Insecure if !package.vulnerabilities.is_empty() => {
            format!(" ({})", package.vulnerabilities.join("; "))
        }
        Problem::Unfree if !package.licence.is_empty() => format!(" ({})", package.licence),
        _ => String::new(),
    };
    Err(Error::NotAllowed(format!(
        "{} {}{why}; to accept that, set {}=1",
        package.name,
        problem.description(),
        problem.variable()
    )))
}

/// The path's own name must be what the attribute says. An exact index is signed: its maker vouches for the path.
fn check_name(package: &Package, output: &str, path: &StorePath, source: SourceOfName) -> Result<(), Error> {
    let names = package.path_names(output);
    if source == SourceOfName::Exact || names.iter().any(|name| name == path.name()) {
        return Ok(());
    }
    Err(Error::WrongPath(format!(
        "{} is said to be {path}, whose name is not {}: nothing is installed",
        package.attribute,
        names.join(" or ")
    )))
}
