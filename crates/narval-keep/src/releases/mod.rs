//! Releases: names that a cache gives to paths that it has, signed with its key.
//!
//! A release is recorded after its paths are visible, in one transaction that also pins them. Revisions are counted by the index, so that all servers
//! of a cache agree on their order. What is promoted is a release of another name, with a revision of that: a name that is moved back has a newer
//! revision, and clients do not take that for an attack.

mod list;
mod machines;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use narval_nix::release::{
    ReleaseError, ReleaseName, ReleaseSystem, ReleaseVersion, ReleasedPath, ReleasedPaths, SHARE_OF_ALL, Which,
    check_notes, check_paths,
};
use narval_nix::{HashPart, NarHash, Release, StorePath, StorePathName};

pub use self::list::ReleasePage;
pub use self::machines::MachinePage;
use crate::access::grant::{Grant, Scope};
use crate::cache::Cache;
use crate::index::IndexError;
use crate::records::releases::{
    RELEASE_NAMES_MAX, RELEASE_SYSTEMS_MAX, Recorded, ReleaseRecord, ReleaseRefused, ReleaseRequest, ReleaseToRecord,
};
use crate::rejection::{Rejection, RejectionKind};

/// A release to record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRelease {
    /// Its name.
    pub name: ReleaseName,
    /// Its version, if its author counts.
    pub version: Option<ReleaseVersion>,
    /// Its paths, by system and output.
    pub paths: BTreeMap<ReleaseSystem, BTreeMap<StorePathName, StorePath>>,
    /// What is noted with it.
    pub notes: BTreeMap<String, String>,
    /// What a request that is sent again has in common with the first one, which may have been answered: it records nothing more.
    pub key: Option<String>,
}

/// The longest key of a request, in bytes.
pub const RELEASE_KEY_LEN_MAX: usize = 64;

/// How a release is promoted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Promotion {
    /// The share of machines that it is for, from 1 to 100 percent; `None`: all.
    pub percent: Option<u8>,
    /// See [`NewRelease::key`].
    pub key: Option<String>,
}

fn check_key(key: Option<&str>) -> Result<(), Rejection> {
    let is_legal = |key: &str| {
        (1..=RELEASE_KEY_LEN_MAX).contains(&key.len())
            && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    if key.is_none_or(is_legal) {
        return Ok(());
    }
    Err(Rejection::malformed(format!("a key has 1 to {RELEASE_KEY_LEN_MAX} letters, digits and -")))
}

/// A release of the cache, for one of its systems.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptRelease {
    /// The release, with all its systems.
    pub release: Release,
    /// The system of this row.
    pub system: String,
    /// Whether its paths are kept whatever comes after it.
    pub is_pinned: bool,
    /// Whether its paths are kept. Otherwise they may be there still, until they are collected.
    pub is_kept: bool,
}

fn unreadable(record: &ReleaseRecord) -> Rejection {
    tracing::error!("release @{}@{} in the index cannot be read", record.name, record.revision);
    Rejection::failed("the release cannot be read; see the server's log")
}

fn kept(record: ReleaseRecord) -> Result<KeptRelease, Rejection> {
    let release = Release::parse(record.json.as_bytes()).map_err(|_| unreadable(&record))?;
    Ok(KeptRelease { release, system: record.system, is_pinned: record.is_pinned, is_kept: record.is_kept })
}

/// The paths of a release, as they are pinned.
fn held(release: &Release) -> Vec<(ReleaseSystem, HashPart, String)> {
    let paths = release.paths.iter().flat_map(|(system, outputs)| outputs.values().map(move |one| (system, one)));
    let mut held: Vec<_> = paths
        .map(|(system, released)| (system.clone(), released.path.hash_part(), released.path.base_name().to_owned()))
        .collect();
    // Two outputs may be one path.
    held.sort();
    held.dedup();
    held
}

/// How often a release is signed whose revision others take meanwhile, if its key is elsewhere.
const SIGN_ATTEMPTS_MAX: u32 = 8;

fn lock_made(made: &Mutex<Option<Release>>) -> MutexGuard<'_, Option<Release>> {
    made.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cache {
    /// Records a release of paths that the cache has.
    ///
    /// # Errors
    /// If the token may not release this name, the cache has no key to sign it with, or a path is not there.
    pub fn release(&self, new: &NewRelease, grant: &Grant) -> Result<Release, Rejection> {
        self.audited("release", &new.name, grant, || self.try_release(new, (None, None), grant))
    }

    /// Records a release of a name again, as one of another name (or the same: then the older one is the newest again).
    ///
    /// # Errors
    /// If there is no such release, or see [`Cache::release`].
    pub fn promote(
        &self,
        from: &ReleaseName,
        which: &Which,
        to: &ReleaseName,
        how: &Promotion,
        grant: &Grant,
    ) -> Result<Release, Rejection> {
        self.audited("promote", to, grant, || {
            grant.require_release(self.name(), to)?;
            let found = self.find_release(from, which, None)?.ok_or_else(|| self.no_release(from, which))?.release;
            let outputs = |outputs: BTreeMap<StorePathName, ReleasedPath>| {
                outputs.into_iter().map(|(output, released)| (output, released.path)).collect()
            };
            let paths = found.paths.into_iter().map(|(system, of)| (system, outputs(of))).collect();
            let Promotion { percent, key } = how.clone();
            let new = NewRelease { name: to.clone(), version: found.version, paths, notes: found.notes, key };
            self.try_release(&new, (Some((from.clone(), found.revision)), percent), grant)
        })
    }

    fn audited(
        &self,
        action: &str,
        name: &ReleaseName,
        grant: &Grant,
        act: impl FnOnce() -> Result<Release, Rejection>,
    ) -> Result<Release, Rejection> {
        let result = act();
        let done = |release: &Release| match &release.promoted_from {
            Some((from, revision)) => {
                let percent = release.percent.map(|percent| format!(" for {percent} %")).unwrap_or_default();
                format!("{} from @{from}@{revision}{percent}", release.selector())
            }
            None => release.selector().to_string(),
        };
        let outcome = result.as_ref().map(done).map_err(ToString::to_string);
        self.audit(grant, action, name.as_str(), &outcome);
        result
    }

    fn try_release(
        &self,
        new: &NewRelease,
        (promoted_from, percent): (Option<(ReleaseName, u64)>, Option<u8>),
        grant: &Grant,
    ) -> Result<Release, Rejection> {
        grant.require_release(self.name(), &new.name)?;
        check_paths(&new.paths).map_err(Rejection::malformed)?;
        check_notes(&new.notes).map_err(Rejection::malformed)?;
        check_key(new.key.as_deref())?;
        if percent.is_some_and(|percent| !(1..=100).contains(&percent)) {
            return Err(Rejection::malformed(ReleaseError::Percent));
        }
        let percent = percent.filter(|percent| *percent < 100);
        let keys = self.sign_keys();
        if keys.is_empty() {
            let message = format!(
                "the cache '{}' has no key, and releases are signed: its operator gives it one with 'sign-keys' in the configuration file",
                self.name()
            );
            return Err(Rejection::conflict(message));
        }
        let _no_collection = self.no_collection()?;
        let settings = self.settings();
        let parts: BTreeSet<HashPart> =
            new.paths.values().flat_map(BTreeMap::values).map(StorePath::hash_part).collect();
        let (now, new, cache_name) = (self.now(), new.clone(), self.name().clone());
        let (name, key, store_dir) = (new.name.clone(), new.key.clone(), settings.store_dir.clone());
        // What is to be signed, and then what is signed.
        let made: Arc<Mutex<Option<Release>>> = Arc::default();
        let (making, all, is_elsewhere) =
            (Arc::clone(&made), Arc::clone(&keys), keys.iter().any(narval_nix::SecretKey::is_elsewhere));
        let make = move |uid: &str, revision: u64, contents: &[(HashPart, String, NarHash)]| {
            let released = |path: &StorePath| {
                let (.., nar_hash) =
                    contents.iter().find(|(part, base, _)| *part == path.hash_part() && base == path.base_name())?;
                Some(ReleasedPath { path: path.clone(), nar_hash: *nar_hash })
            };
            let mut paths = ReleasedPaths::new();
            for (system, outputs) in &new.paths {
                let of_system = paths.entry(system.clone()).or_default();
                for (output, path) in outputs {
                    of_system.insert(output.clone(), released(path)?);
                }
            }
            let mut release = Release {
                store_dir: store_dir.clone(),
                cache: format!("{uid}-{cache_name}"),
                name: new.name.clone(),
                revision,
                created: now,
                version: new.version.clone(),
                promoted_from: promoted_from.clone(),
                percent,
                paths,
                notes: new.notes.clone(),
                signatures: Vec::new(),
            };
            if is_elsewhere {
                // Not within a transaction: it takes time.
                let mut made = lock_made(&making);
                match &*made {
                    Some(signed) if signed.signed_text() == release.signed_text() && !signed.signatures.is_empty() => {
                        release.signatures.clone_from(&signed.signatures);
                    }
                    _ => {
                        *made = Some(release);
                        return None;
                    }
                }
            } else {
                all.iter().try_for_each(|key| release.sign(key)).ok()?;
            }
            let version = release.version.as_ref().map(ToString::to_string);
            let record = ReleaseToRecord { version, percent, json: release.to_json(), paths: held(&release) };
            Some((release, record))
        };
        let request = ReleaseRequest { name: name.clone(), key, new_uid: new_uid()? };
        for _ in 0..SIGN_ATTEMPTS_MAX {
            let of = (parts.clone(), settings.keep_releases, now);
            let recorded = self.index().add_release(self.id(), request.clone(), of, make.clone())?;
            let unsigned = lock_made(&made).take_if(|made| made.signatures.is_empty());
            if let Some(mut release) = unsigned {
                keys.iter().try_for_each(|key| release.sign(key))?;
                *lock_made(&made) = Some(release);
                continue;
            }
            return match recorded {
                Ok(Recorded::New(release)) => Ok(release),
                Ok(Recorded::Again(json)) => Release::parse(json.as_bytes())
                    .map_err(|_| Rejection::failed("the release that was recorded before cannot be read")),
                Err(refused) => Err(self.not_recorded(&name, refused)),
            };
        }
        Err(Rejection::conflict("other releases of this name were recorded while this one was signed; try again"))
    }

    fn not_recorded(&self, name: &ReleaseName, refused: ReleaseRefused) -> Rejection {
        let cache = self.name();
        let (kind, message) = match refused {
            ReleaseRefused::Absent(absent) => {
                let what = absent.map_or_else(|| "a path of this name".to_owned(), |part| format!("'{part}'"));
                let message = format!("{what} is not in the cache '{cache}', so it cannot be released: push it first");
                return Rejection::not_found(message);
            }
            ReleaseRefused::Names => (
                RejectionKind::NoSpace,
                format!(
                    "'{name}' would be one name more than the {RELEASE_NAMES_MAX} that the cache '{cache}' may have for releases: forget names that \
                     nobody uses with 'narval release forget NAME --all', or use another cache"
                ),
            ),
            ReleaseRefused::Systems => (
                RejectionKind::NoSpace,
                format!(
                    "releases '{name}' of the cache '{cache}' would be for more than {RELEASE_SYSTEMS_MAX} systems: use another name, or forget this \
                     one with 'narval release forget {name} --all'"
                ),
            ),
        };
        Rejection::new(kind, message).because("quota")
    }

    /// A release; with a system, one that has paths for it. The newest one is that for all machines.
    ///
    /// # Errors
    /// If the index fails.
    pub fn find_release(
        &self,
        name: &ReleaseName,
        which: &Which,
        system: Option<&ReleaseSystem>,
    ) -> Result<Option<KeptRelease>, Rejection> {
        self.find_release_for(SHARE_OF_ALL, name, which, system)
    }

    /// The same for a machine of this share ([`share_of`](narval_nix::release::share_of)): the newest one may be for some machines only.
    ///
    /// # Errors
    /// If the index fails.
    pub fn find_release_for(
        &self,
        share: u8,
        name: &ReleaseName,
        which: &Which,
        system: Option<&ReleaseSystem>,
    ) -> Result<Option<KeptRelease>, Rejection> {
        // One that is named is meant, whomever it is for.
        let share = if *which == Which::Latest { share } else { 0 };
        let by = match which {
            Which::Latest => (None, None),
            Which::Revision(revision) => (Some(*revision), None),
            Which::Version(version) => (None, Some(version.as_str())),
        };
        let system = system.map(ReleaseSystem::as_str);
        self.index().find_release(self.id(), name.as_str(), system, by, share)?.map(kept).transpose()
    }

    /// Pins a release, so that it keeps its paths however many come after it; or unpins it.
    ///
    /// # Errors
    /// If the token may not pin, there is no such release, or a path of it is gone.
    pub fn pin_release(
        &self,
        name: &ReleaseName,
        which: &Which,
        is_pinned: bool,
        grant: &Grant,
    ) -> Result<Release, Rejection> {
        let action = if is_pinned { "pin release" } else { "unpin release" };
        self.audited(action, name, grant, || {
            grant.require(self.name(), Scope::Pin)?;
            let found = self.find_release(name, which, None)?.ok_or_else(|| self.no_release(name, which))?.release;
            let how = (is_pinned, self.settings().keep_releases, self.now());
            let pinned = self.index().pin_release(self.id(), (name.as_str(), found.revision), held(&found), how)?;
            pinned.map(|()| found).map_err(|absent| {
                let message =
                    format!("'{absent}' of the release @{name}@{which} is not in the cache '{}' any more", self.name());
                Rejection::conflict(message)
            })
        })
    }

    /// Forgets a release, or all of a name. Their paths are collected as any others are.
    ///
    /// # Errors
    /// If the token may not delete, there is no such release, or it is the newest one of a system: clients would see the name go back.
    pub fn forget_release(&self, name: &ReleaseName, revision: Option<u64>, grant: &Grant) -> Result<(), Rejection> {
        let which = revision.map_or(Which::Latest, Which::Revision);
        let result = grant.require(self.name(), Scope::Delete).and_then(|()| {
            match self.index().forget_release(self.id(), name.as_str(), revision)? {
                Some(true) => Ok(()),
                Some(false) => Err(self.no_release(name, &which)),
                None => {
                    let message = format!(
                        "@{name}@{which} is the newest release of a system for some machines: to go back, promote an older one as '{name}' first; without a \
                         revision, the whole name is forgotten"
                    );
                    Err(Rejection::conflict(message))
                }
            }
        });
        let outcome = result.as_ref().map(|()| "forgotten".to_owned()).map_err(ToString::to_string);
        self.audit(grant, "forget release", &format!("@{name}@{which}"), &outcome);
        result
    }

    fn no_release(&self, name: &ReleaseName, which: &Which) -> Rejection {
        Rejection::not_found(format_args!("the cache '{}' has no release @{name}@{which}", self.name()))
    }

    /// Refuses pins whose names are those of releases.
    pub(super) fn check_pin_name(&self, name: &str) -> Result<(), Rejection> {
        if name.starts_with('@') && self.is_hold(name)? {
            let message = "this pin is that of a release: 'narval release pin' and 'narval release forget' change it";
            return Err(Rejection::conflict(message));
        }
        Ok(())
    }

    fn is_hold(&self, pin: &str) -> Result<bool, IndexError> {
        self.index().is_hold(self.id(), pin)
    }
}

/// A new id for a cache.
fn new_uid() -> Result<String, Rejection> {
    let mut bytes = [0; 10];
    getrandom::fill(&mut bytes).map_err(|error| {
        tracing::error!("no random numbers from the system: {error}");
        Rejection::failed("the system provides no random numbers")
    })?;
    Ok(narval_nix::nix32::encode(&bytes))
}
