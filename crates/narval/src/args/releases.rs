//! Releases as arguments: `@api`, `@api@41`, `@api@1.4.2` in place of a store path.

use std::time::Duration;

use narval_cache::BinaryCaches;
use narval_install::names::machine_system;
use narval_install::releases::{Expected, FoundRelease, SeenReleases, find_in};
use narval_install::{Error, Wanted};
use narval_nix::release::{ReleaseSystem, SHARE_OF_ALL, Selector};
use narval_nix::{StoreDir, StorePath};
use narval_store::StoreConfig;

use super::own_folder;
use crate::args::client::SourceCacheArgs;
use crate::ui::failure::Failure;

/// Whether an argument is meant to be a release.
pub(crate) fn is_release(text: &str) -> bool {
    text.starts_with('@')
}

/// The user's folder with the revisions that were seen: `$XDG_STATE_HOME/narval/releases`, which is `~/.local/state/narval/releases`.
pub(crate) fn seen_releases(lock_timeout: Duration) -> Result<SeenReleases, Failure> {
    let advice = "set it, or XDG_STATE_HOME, for the revisions of releases that were seen";
    let folder = own_folder("XDG_STATE_HOME", ".local/state", "narval/releases", advice)?;
    Ok(SeenReleases::at(folder, lock_timeout))
}

/// Where releases are looked up.
pub(crate) struct ReleaseLookup<'a> {
    pub(crate) caches: &'a SourceCacheArgs,
    /// `None`: this machine's.
    pub(crate) system: Option<&'a str>,
    pub(crate) store_dir: &'a StoreDir,
    pub(crate) lock_timeout: Duration,
}

impl ReleaseLookup<'_> {
    pub(crate) fn system(&self) -> Result<ReleaseSystem, Failure> {
        self.system.map_or_else(machine_system, ToOwned::to_owned).parse().map_err(Failure::usage)
    }

    /// The newest release that is meant, verified.
    pub(crate) fn find(&self, text: &str) -> Result<FoundRelease, Failure> {
        let selector: Selector = text.parse().map_err(Failure::usage)?;
        if self.caches.offline {
            return Err(Failure::usage(format!(
                "{selector} is looked up in caches, which --offline excludes: give its store path"
            )));
        }
        let (urls, client) = (self.caches.urls()?, self.caches.client()?);
        let (keys, seen) = (self.caches.keys()?, seen_releases(self.lock_timeout)?);
        let expected = Expected {
            system: &self.system()?,
            keys: &keys,
            check_signatures: !self.caches.no_check_sigs,
            seen: &seen,
            allow_downgrade: self.caches.allow_downgrade,
            share: SHARE_OF_ALL,
        };
        Ok(find_in(&urls, &client, &selector, &expected)?)
    }

    /// The path that a release has for the system, in the cache as the release says.
    pub(crate) fn path(&self, text: &str) -> Result<(FoundRelease, StorePath), Failure> {
        let found = self.find(text)?;
        let (release, cache) = (&found.release, &found.cache);
        if release.store_dir != *self.store_dir {
            let message = format!(
                "{cache}: {} is for the store {}, and this one is {}",
                release.selector(),
                release.store_dir,
                self.store_dir
            );
            return Err(Error::WrongPath(message).into());
        }
        let released = release.main_path(&self.system()?).ok_or(Error::Died)?.clone();
        let client = self.caches.client()?;
        let is_checked = !self.caches.no_check_sigs;
        let opened =
            BinaryCaches::open(std::slice::from_ref(cache), &client, self.store_dir, self.caches.keys()?, is_checked)?;
        // Whoever needs it from there says so if it is absent.
        if let Ok(there) = opened.find(&Wanted::Path(released.path.clone()))
            && there.info.nar_hash != released.nar_hash
        {
            let message = format!(
                "{cache}: {} has other contents than {} says: it was replaced since; record the release again",
                released.path,
                release.selector()
            );
            return Err(Error::WrongPath(message).into());
        }
        Ok((found, released.path))
    }

    /// Arguments with store paths in place of releases.
    pub(crate) fn expanded(&self, texts: &[String]) -> Result<Vec<String>, Failure> {
        let expand = |text: &String| match is_release(text) {
            true => self.path(text).map(|(_, path)| self.store_dir.display(&path).to_string()),
            false => Ok(text.clone()),
        };
        texts.iter().map(expand).collect()
    }
}

/// Arguments with store paths in place of releases, for this machine's system.
pub(crate) fn expand_releases(
    caches: &SourceCacheArgs,
    texts: &[String],
    store: &StoreConfig,
) -> Result<Vec<String>, Failure> {
    let (store_dir, lock_timeout) = (&store.store_dir, store.lock_timeout);
    ReleaseLookup { caches, system: None, store_dir, lock_timeout }.expanded(texts)
}
