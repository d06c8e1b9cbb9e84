//! Channels, and names of packages as arguments.

use std::sync::Arc;
use std::time::Duration;

use narval_cache::{BinaryCaches, CacheError};
use narval_client::{Client, Scheme, Url};
use narval_install::names::{
    self, CHANNEL_DEFAULT, Candidate, Channel, ChannelNames, NamesFolder, Output, Refreshed, Resolution,
    ResolveOptions, Resolved, SourceOfName, machine_system,
};
use narval_install::{Destination, Error, Origin, Wanted};
use narval_names::{Package, Problem, Selector};
use narval_nix::StorePath;
use serde_json::json;

use super::own_folder;
use crate::args::client::ClientArgs;
use crate::args::names::{LISTED_MAX, cannot_search, line, list_variants, may_be_name, show_package, since};
use crate::args::paths::parse_wanted;
use crate::args::releases::{ReleaseLookup, is_release};
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{note, out};
use crate::ui::output_args::OutputArgs;
use crate::ui::progress::watched;
use crate::values::time::parse_time;

/// In place of a channel: none.
const NONE: &str = "none";
/// Where names are looked up.
#[derive(Clone, Debug, clap::Args)]
pub struct NameArgs {
    /// Channel whose names are used: a name such as nixos-25.11, or the URL of a folder with packages.json.br and store-paths.xz; `none` for no
    /// channel. Repeatable; the first one that has the name is used [default: nixos-unstable]
    #[arg(
        long,
        value_name = "CHANNEL",
        env = "NARVAL_CHANNEL",
        hide_env_values = true,
        value_delimiter = ' ',
        help_heading = "Names"
    )]
    pub channel: Vec<String>,
    /// System that names are for, such as aarch64-linux [default: this machine's]
    #[arg(long, value_name = "SYSTEM", help_heading = "Names")]
    pub system: Option<String>,
    /// Never ask for the build records of a release, which decide names that the channel's files leave open
    #[arg(
        long,
        env = "NARVAL_NO_BUILD_RECORDS",
        hide_env_values = true,
        value_parser = clap::builder::FalseyValueParser::new(),
        help_heading = "Names"
    )]
    pub no_build_records: bool,
    /// Ask a channel or cache for newer names by itself if this is how long ago it was asked, such as 1d [default: only 'narval update' asks]
    #[arg(long, value_name = "TIME", env = "NARVAL_NAMES_AGE", hide_env_values = true, value_parser = parse_time, help_heading = "Names")]
    pub names_age: Option<Duration>,
}

impl NameArgs {
    /// The channels, in order.
    pub(crate) fn channels(&self) -> Result<Vec<Channel>, Failure> {
        if self.channel.is_empty() {
            return Ok(vec![Channel::parse(CHANNEL_DEFAULT)?]);
        }
        let given = self.channel.iter().filter(|text| !text.is_empty() && *text != NONE);
        Ok(given.map(|text| Channel::parse(text)).collect::<Result<_, _>>()?)
    }

    /// Whether names of this age are used without asking for newer ones.
    fn are_new(&self, age: Duration) -> bool {
        self.names_age.is_none_or(|names_age| age < names_age)
    }

    pub(crate) fn system(&self) -> String {
        self.system.clone().unwrap_or_else(machine_system)
    }
}

/// The user's folder of names: `$XDG_CACHE_HOME/narval/names`, which is `~/.cache/narval/names`.
pub(crate) fn names_folder() -> Result<NamesFolder, Failure> {
    let advice = "set it, or XDG_CACHE_HOME, for the names of channels";
    own_folder("XDG_CACHE_HOME", ".cache", "narval/names", advice).map(NamesFolder::at)
}

/// Asks a channel for its names, with its progress shown.
pub(crate) fn refresh(
    folder: &NamesFolder,
    channel: &Channel,
    client: &Arc<Client>,
    lock_timeout: Duration,
    output: OutputArgs,
) -> Result<Refreshed, Failure> {
    let (refreshed, stopped) = watched(output, ("the names that were there stay", "begins again"), |work| {
        Ok(folder.refresh(channel, client, lock_timeout, work)?)
    })?;
    stopped.map(|()| refreshed)
}

/// What nixpkgs' environment variables allow.
pub(crate) fn allowed() -> Vec<Problem> {
    let is_set = |problem: &Problem| std::env::var(problem.variable()).is_ok_and(|value| value == "1");
    Problem::ALL.into_iter().filter(is_set).collect()
}

/// Looks up names: in caches and channels, which are opened when they are needed.
pub(crate) struct Lookup<'a> {
    destination: &'a Destination,
    client: &'a ClientArgs,
    args: &'a NameArgs,
    opened: Option<(Arc<Client>, BinaryCaches)>,
    channels: Option<Vec<ChannelNames>>,
    /// Whether the caller says what a name means.
    pub(crate) is_silent: bool,
    /// What tells a path that was chosen before.
    pub(crate) distinction: Vec<String>,
}

/// What an argument stands for.
pub(crate) struct Meant {
    pub(crate) wanted: Wanted,
    /// The package, if a channel has told what the name means.
    pub(crate) package: Option<Package>,
    /// How to find it again, and which output it is, in this case.
    pub(crate) origin: Option<(Origin, String)>,
}

impl From<Wanted> for Meant {
    fn from(wanted: Wanted) -> Self {
        Self { wanted, package: None, origin: None }
    }
}

impl<'a> Lookup<'a> {
    pub(crate) const fn new(destination: &'a Destination, client: &'a ClientArgs, args: &'a NameArgs) -> Self {
        Self { destination, client, args, opened: None, channels: None, is_silent: false, distinction: Vec::new() }
    }

    /// The HTTP client and the caches.
    pub(crate) fn caches(&mut self) -> Result<(Arc<Client>, &BinaryCaches), Failure> {
        if self.opened.is_none() {
            let (caches, options) = (&self.client.caches, self.client.caches.options(None, false)?);
            let (client, dir) = (caches.client()?, self.destination.store_dir());
            let is_read = |url: &&Url| !caches.offline || url.scheme() == Scheme::File;
            let urls: Vec<Url> = options.caches.iter().filter(is_read).cloned().collect();
            let opened = BinaryCaches::open(&urls, &client, dir, options.keys, options.check_signatures)?;
            self.opened = Some((client, opened));
        }
        match &self.opened {
            Some((client, caches)) => Ok((Arc::clone(client), caches)),
            None => Err(Error::Died.into()),
        }
    }

    /// The names of the channels, which are fetched if they are not there.
    pub(crate) fn channels(&mut self) -> Result<&mut Vec<ChannelNames>, Failure> {
        if self.channels.is_none() {
            let folder = names_folder()?;
            let mut opened = self.exact(&folder)?;
            for channel in self.args.channels()? {
                opened.push(self.channel(&folder, &channel)?);
            }
            self.channels = Some(opened);
        }
        self.channels.as_mut().ok_or_else(|| Error::Died.into())
    }

    /// The names that the caches have published. A cache is asked once, and then by 'narval update'.
    fn exact(&self, folder: &NamesFolder) -> Result<Vec<ChannelNames>, Failure> {
        let mut opened = Vec::new();
        for url in self.client.caches.urls()? {
            let mut known = ChannelNames::of_cache(folder, &url)?;
            let is_old = known.iter().flatten().any(|names| !self.args.are_new(names.age()));
            if (known.is_none() || is_old) && !self.client.caches.offline {
                let (config, caches) = (self.destination.config(), &self.client.caches);
                let (client, keys) = (caches.client()?, caches.keys()?);
                let trust = (&keys, !caches.no_check_sigs);
                match folder.refresh_exact(&url, &client, trust, &config.store_dir, config.lock_timeout) {
                    Ok(_) => known = ChannelNames::of_cache(folder, &url)?,
                    Err(error) => tracing::debug!("{url}: {error}"),
                }
            }
            opened.extend(known.flatten());
        }
        Ok(opened)
    }

    fn channel(&self, folder: &NamesFolder, channel: &Channel) -> Result<ChannelNames, Failure> {
        let known = ChannelNames::open(folder, channel)?;
        let is_usable = |names: &ChannelNames| self.client.caches.offline || self.args.are_new(names.age());
        if let Some(names) = known {
            if is_usable(&names) {
                return Ok(names);
            }
            return self.newer(folder, channel, names);
        }
        let (client, output) = (self.client.caches.client()?, self.client.output);
        let refreshed = refresh(folder, channel, &client, self.destination.config().lock_timeout, output)?;
        if !output.json && !output.quiet {
            note!("{} has {} names: {}", channel.name(), refreshed.attributes, refreshed.release);
        }
        let absent = || Failure::runtime(format!("the names of {} are not there", channel.name()));
        ChannelNames::open(folder, channel)?.ok_or_else(absent)
    }

    /// The names of a channel that were asked for too long ago, asked for again. If that fails, the old ones are still true.
    fn newer(&self, folder: &NamesFolder, channel: &Channel, old: ChannelNames) -> Result<ChannelNames, Failure> {
        let (client, lock_timeout) = (self.client.caches.client()?, self.destination.config().lock_timeout);
        match refresh(folder, channel, &client, lock_timeout, self.client.output) {
            Ok(_) => Ok(ChannelNames::open(folder, channel)?.unwrap_or(old)),
            Err(failure @ Failure::Coded(130, _)) => Err(failure),
            Err(failure) => {
                tracing::warn!("the names of {} stay those of {}: {failure}", channel.name(), since(old.age()));
                Ok(old)
            }
        }
    }

    /// What arguments stand for: store paths, profiles, or names.
    ///
    /// # Errors
    /// Exit code 3 if a name is unknown, or if it may mean several paths, which are then listed.
    pub(crate) fn meant(&mut self, texts: &[String]) -> Result<Vec<Meant>, Failure> {
        let mut all = Vec::with_capacity(texts.len());
        for text in texts {
            if is_release(text) {
                all.push(self.released(text)?);
                continue;
            }
            match parse_wanted(std::slice::from_ref(text), self.destination.config()) {
                Ok(wanted) => all.extend(wanted.into_iter().map(Meant::from)),
                Err(unknown) => all.extend(self.named(text, unknown)?),
            }
        }
        Ok(all)
    }

    /// The path of a release.
    pub(crate) fn released(&self, text: &str) -> Result<Meant, Failure> {
        let lookup = ReleaseLookup {
            caches: &self.client.caches,
            system: self.args.system.as_deref(),
            store_dir: self.destination.store_dir(),
            lock_timeout: self.destination.config().lock_timeout,
        };
        let (found, path) = lookup.path(text)?;
        let (selector, cache) = (found.release.selector().to_string(), &found.cache);
        if self.client.output.json && !self.is_silent {
            let fields =
                json!({"name": text, "path": path.base_name(), "release": selector, "cache": cache.to_string()});
            json::event("named", fields);
        } else if !self.client.output.quiet && !self.is_silent {
            note!("{text} is {selector} in {cache}: {path}");
        }
        let system = lookup.system()?;
        let origin = Origin {
            name: text.to_owned(),
            attribute: format!("@{}", found.release.name),
            system: system.to_string(),
            channel: cache.to_string(),
            release: selector,
            revision: String::new(),
            choice: None,
            distinction: Vec::new(),
            is_default: true,
        };
        let outputs = found.release.paths.get(&system).into_iter().flatten();
        let output = outputs.filter(|(_, one)| one.path == path).map(|(output, _)| output.to_string()).next();
        Ok(Meant { wanted: Wanted::Path(path), package: None, origin: output.map(|output| (origin, output)) })
    }

    /// The paths of a name. `unknown` is the error if it cannot be one.
    fn named(&mut self, text: &str, unknown: Failure) -> Result<Vec<Meant>, Failure> {
        let selector = (!text.starts_with(['.', '/'])).then(|| Selector::parse(text));
        let is_searched = self.args.channel.is_empty() || self.args.channels()?.is_empty();
        let urls = self.client.caches.urls()?;
        let (mut candidates, mut cannot, mut failure) = (Vec::new(), Vec::new(), None);
        if is_searched && may_be_name(text) && !self.client.caches.offline {
            match names::find(&urls, &self.client.caches.client()?, text) {
                Ok(found) => (candidates, cannot) = (found.candidates, found.cannot),
                Err(error) => failure = Some(error),
            }
        }
        if let [only] = candidates.as_slice() {
            self.say_found(text, only);
            return Ok(vec![Wanted::Path(only.path.clone()).into()]);
        }
        let has_channels = !self.args.channels()?.is_empty() || !self.channels()?.is_empty();
        match selector.filter(|_| has_channels) {
            Some(Ok(selector)) => return self.of_channels(text, &selector, &candidates, failure.map(Failure::from)),
            // No path has this name, and a package is meant.
            Some(Err(error)) if candidates.is_empty() && text.contains(['@', '^', '=']) => {
                return Err(Failure::usage(error));
            }
            _ => {}
        }
        match (failure, candidates.is_empty()) {
            _ if !may_be_name(text) || self.client.caches.offline => Err(unknown),
            (Some(failure), _) => Err(failure.into()),
            (None, false) => Err(self.several_candidates(text, &candidates)),
            (None, true) if cannot.len() == urls.len() => {
                let cannot = cannot_search(&cannot, text).unwrap_or_default();
                Err(Failure::usage(format!("{unknown}; {cannot}")))
            }
            (None, true) => {
                let cannot = cannot_search(&cannot, text).map(|cannot| format!("; {cannot}")).unwrap_or_default();
                Err(Failure::Coded(
                    3,
                    format!(
                        "no cache has a path of the name '{text}': 'narval search {text}' looks for similar names{cannot}"
                    ),
                ))
            }
        }
    }

    /// What the first channel that has a name says. Of several `candidates` of caches, it decides which one is meant.
    fn of_channels(
        &mut self,
        text: &str,
        selector: &Selector,
        candidates: &[Candidate],
        failure: Option<Failure>,
    ) -> Result<Vec<Meant>, Failure> {
        let resolutions = match self.resolve(text, selector) {
            Ok(resolution) => resolution,
            // What the caches know is more to the point.
            Err(_) if !candidates.is_empty() => return Err(self.several_candidates(text, candidates)),
            Err(error) => return Err(failure.unwrap_or(error)),
        };
        let (at, resolution) = resolutions;
        let is_candidate = |path: &StorePath| candidates.is_empty() || candidates.iter().any(|one| one.path == *path);
        match resolution {
            Resolution::One(resolved) if resolved.outputs.iter().all(|output| is_candidate(&output.path)) => {
                self.say_resolved(text, &resolved, at)?;
                let origin = self.origin(selector, &resolved, at)?;
                let meant = |output: &Output| Meant {
                    wanted: Wanted::Path(output.path.clone()),
                    package: Some(resolved.package.clone()),
                    origin: Some((origin.clone(), output.name.clone())),
                };
                Ok(resolved.outputs.iter().map(meant).collect())
            }
            _ if !candidates.is_empty() => Err(self.several_candidates(text, candidates)),
            resolution => Err(self.unresolved(text, &resolution, at)?),
        }
    }

    /// What a profile remembers of a name.
    fn origin(&mut self, selector: &Selector, resolved: &Resolved, at: usize) -> Result<Origin, Failure> {
        let Some(channel) = self.channels()?.get(at) else { return Err(Error::Died.into()) };
        let fact = |name: &str| channel.index().fact(name).unwrap_or_default().to_owned();
        let chosen = resolved.outputs.iter().find(|output| output.source == SourceOfName::Choice);
        let version = selector.version.as_ref().map(|version| format!("@{version}")).unwrap_or_default();
        Ok(Origin {
            name: format!("{}{version}", selector.attribute),
            attribute: resolved.package.attribute.clone(),
            system: resolved.system.clone(),
            channel: channel.channel().name().to_owned(),
            release: fact("release"),
            revision: fact("revision"),
            choice: chosen.map(|output| output.path.base_name().to_owned()),
            distinction: resolved.distinction.clone(),
            is_default: selector.outputs.is_empty(),
        })
    }

    /// What a name means that was found in a channel before: nobody else is asked.
    pub(crate) fn again(&mut self, text: &str) -> Result<Vec<Meant>, Failure> {
        let selector = Selector::parse(text).map_err(Failure::usage)?;
        self.of_channels(text, &selector, &[], None)
    }

    /// What a name means, and in which of the channels.
    pub(crate) fn resolve(&mut self, text: &str, selector: &Selector) -> Result<(usize, Resolution), Failure> {
        self.channels()?;
        let (client, _) = self.caches()?;
        let system = self.args.system();
        let output = self.client.output;
        let on_records = |server: &str| {
            if !output.json && !output.quiet {
                note!("{text}: the channel's files do not tell which path it is; asking its build records at {server}");
            }
        };
        let records = (!self.args.no_build_records).then_some(&*client);
        let (allowed, distinction) = (allowed(), &*self.distinction);
        let options =
            ResolveOptions { system: &system, allowed: &allowed, records, on_records: &on_records, distinction };
        let (Some((_, caches)), Some(channels)) = (&self.opened, &mut self.channels) else {
            return Err(Error::Died.into());
        };
        let mut last = None;
        for at in 0..channels.len() {
            let Some(channel) = channels.get_mut(at) else { break };
            let is_exact = channel.is_exact();
            // What is chosen among the paths of a channel is not asked of a cache.
            if is_exact && selector.choice.is_some() {
                continue;
            }
            let resolution = channel.resolve(selector, text, caches, &options)?;
            let is_usable = match &resolution {
                Resolution::Unknown { .. } => false,
                Resolution::NotBuilt { .. } => !is_exact,
                // A channel that was asked for may have another release than the evaluation of the cache.
                Resolution::One(resolved) if is_exact && !self.args.channel.is_empty() => {
                    let mut others = channels.iter().filter(|channel| !channel.is_exact()).peekable();
                    others.peek().is_none() || others.any(|other| other.lists(&resolved.outputs).unwrap_or(false))
                }
                _ => true,
            };
            // What a channel says is more than what an earlier one does not know.
            if is_usable {
                return Ok((at, resolution));
            }
            last = Some((at, resolution)).filter(|_| !is_exact).or(last);
        }
        Ok(last.unwrap_or((0, Resolution::Unknown { nearest: Vec::new() })))
    }

    /// What a channel says about a name whose path was looked up, whether there is one or not.
    pub(crate) fn package(&self, text: &str) -> Option<Package> {
        let selector = Selector::parse(text).ok()?;
        // Why there is none was said when its path was looked up.
        self.channels.as_ref()?.iter().find_map(|channel| channel.select(&selector, text).ok()?.ok())
    }

    fn say_found(&self, text: &str, found: &Candidate) {
        if self.is_silent {
            return;
        }
        if self.client.output.json {
            json::event("named", json!({"name": text, "path": found.path.base_name(), "cache": found.cache}));
        } else if !self.client.output.quiet {
            note!("{text} is {} in {}", line(found), found.cache);
        }
    }

    fn say_resolved(&mut self, text: &str, resolved: &Resolved, at: usize) -> Result<(), Failure> {
        let output = self.client.output;
        if self.is_silent {
            return Ok(());
        }
        let Some(channel) = self.channels()?.get(at) else { return Ok(()) };
        let (name, asked) = (channel.channel().name(), since(channel.age()));
        let release = channel.index().fact("release").unwrap_or_default();
        for one in &resolved.outputs {
            let path = one.path.base_name();
            if output.json {
                json::event(
                    "named",
                    json!({"name": text, "path": path, "attribute": resolved.package.attribute, "output": one.name,
                        "system": resolved.system, "source": one.source.word(), "channel": name, "release": release}),
                );
            } else if !output.quiet {
                let how = match one.source {
                    SourceOfName::Choice => ", as you have chosen",
                    SourceOfName::Records => ", by its build record",
                    SourceOfName::Exact | SourceOfName::Channel => "",
                };
                note!("{text} is {path} in {name} of {asked}{how}");
            }
        }
        Ok(())
    }

    /// Says why a name is not one path.
    fn unresolved(&mut self, text: &str, resolution: &Resolution, at: usize) -> Result<Failure, Failure> {
        let output = self.client.output;
        let channels: Vec<_> = self.channels()?.iter().map(|channel| channel.channel().name().to_owned()).collect();
        let channel = channels.get(at).cloned().unwrap_or_default();
        let urls = self.client.caches.urls()?.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let message = match resolution {
            Resolution::Several { package, variants, .. } if variants.iter().all(|one| one.nar_size.is_none()) => {
                list_variants(text, variants, output);
                let asked = match self.client.caches.offline {
                    true => "no cache was asked: --offline".to_owned(),
                    false => format!("no cache has a path of it; asked: {urls}"),
                };
                format!("{channel} has {}, but {asked}", package.attribute)
            }
            Resolution::Several { package, output: wanted, variants, twins } => {
                list_variants(text, variants, output);
                let others = match twins.as_slice() {
                    [] => String::new(),
                    twins => format!(" (a path may be that of {})", twins.join(", ")),
                };
                let count = variants.len();
                format!(
                    "'{text}' may be {} of {channel}, output {wanted}, for {}{others}: choose one with '{}=HASH', which is remembered for this release",
                    if count == 1 { "this path".to_owned() } else { format!("any of {count} paths") },
                    self.args.system(),
                    package.attribute
                )
            }
            Resolution::Attributes(packages) => {
                for package in packages.iter().take(LISTED_MAX) {
                    show_package(package, output);
                }
                format!("'{text}' is the name of {} packages of {channel}: give the attribute of one", packages.len())
            }
            Resolution::Unknown { nearest } => {
                let near = match nearest.as_slice() {
                    [] => format!("'narval search {text}' looks in descriptions"),
                    near => format!("did you mean {}?", near.join(", ")),
                };
                format!("{} has no package '{text}'; {near}", channels.join(" or "))
            }
            Resolution::NotBuilt { package, output: wanted, elsewhere } => {
                let why = if *elsewhere { "its paths are for other systems" } else { "it was not built" };
                format!(
                    "{channel} has {} ({}, output {wanted}), but no path of it for {}: {why}; its caches were asked: {urls}",
                    package.attribute,
                    package.name,
                    self.args.system()
                )
            }
            Resolution::One(_) => return Err(Error::Died.into()),
        };
        Ok(Failure::Coded(3, message))
    }

    fn several_candidates(&self, text: &str, several: &[Candidate]) -> Failure {
        for candidate in several.iter().take(LISTED_MAX) {
            if self.client.output.json {
                let (path, cache) = (candidate.path.base_name(), &candidate.cache);
                json::event("candidate", json!({"name": text, "path": path, "cache": cache}));
            } else {
                out!("{}  {}", line(candidate), candidate.cache);
            }
        }
        Failure::Coded(
            3,
            format!(
                "'{text}' is the name of {} paths: install one of them by its version, or by HASH-NAME",
                several.len()
            ),
        )
    }

    /// A failure to install, with what the channel says if no cache has a path that it named.
    pub(crate) fn explained(&self, error: &Error, meant: &[Meant]) -> Option<Failure> {
        let Error::Cache(CacheError::NotFound { what, caches }) = error else { return None };
        let named =
            meant.iter().find(|one| one.wanted.to_string() == *what || one.wanted.hash_part().as_str() == what)?;
        let package = named.package.as_ref()?;
        Some(Failure::Coded(
            3,
            format!("{} is {what} in its channel, but no cache has that path; asked: {caches}", package.attribute),
        ))
    }
}
