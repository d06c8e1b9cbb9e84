//! The revisions of releases that were seen: a cache that is put back to yesterday, by an accident or by somebody who has its bucket but not its key,
//! is noticed.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;

use narval_client::Url;
use narval_nix::Release;
use narval_nix::release::{ReleaseSystem, Selector, Which};
use narval_store::lock_file;
use serde::{Deserialize, Serialize};

use crate::remembered;
use narval_transfer::Error;

/// The file with the revisions.
const FILE: &str = "seen.json";
/// The largest file that is read: some hundred thousand revisions.
const LEN_MAX: u64 = 32 * 1024 * 1024;

/// A folder with the newest revision that was seen of each release.
#[derive(Clone, Debug)]
pub struct SeenReleases {
    folder: PathBuf,
    lock_timeout: Duration,
}

#[derive(Default, Serialize, Deserialize)]
struct Seen {
    /// The id of the cache at each address.
    #[serde(default)]
    caches: BTreeMap<String, String>,
    /// By the id of a cache: the newest revision of each `NAME SYSTEM`, and of each `NAME@VERSION SYSTEM`.
    #[serde(default)]
    revisions: BTreeMap<String, BTreeMap<String, u64>>,
}

impl SeenReleases {
    /// The folder at this path, which is created when it is needed, and how long other processes are waited for.
    pub const fn at(folder: PathBuf, lock_timeout: Duration) -> Self {
        Self { folder, lock_timeout }
    }

    /// Compares a release, whose signature is valid, with what was seen before, and remembers it.
    ///
    /// # Errors
    /// If it is older, or of another cache than before, and that is not allowed; or if what was seen cannot be read or written.
    pub(super) fn check(
        &self,
        cache: &Url,
        selector: &Selector,
        system: &ReleaseSystem,
        release: &Release,
        allow_downgrade: bool,
    ) -> Result<(), Error> {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        created.map_err(|error| Error::file("create", &self.folder, error))?;
        let path = self.folder.join(FILE);
        let _lock = lock_file(&path.with_extension("lock"), self.lock_timeout)?;
        let advice =
            ": it has the revisions of releases that were seen. Put it back from a backup, or remove it to begin again";
        let mut seen: Seen = remembered::read(&path, LEN_MAX, advice)?;
        let (address, id) = (cache.to_string(), &release.cache);
        let allow =
            "if that is meant, for example after its backup was restored, run this again with --allow-downgrade";
        if seen.caches.get(&address).is_some_and(|known| known != id) && !allow_downgrade {
            return Err(Error::WrongPath(format!(
                "{cache}: {selector} is a release of another cache than the one that was seen there before; {allow}"
            )));
        }
        let version = match &selector.which {
            Which::Version(version) => Some(format!("{}@{version} {system}", release.name)),
            Which::Latest | Which::Revision(_) => None,
        };
        let newest = format!("{} {system}", release.name);
        let revisions = seen.revisions.entry(id.clone()).or_default();
        // A release that was asked for by its revision may be as old as it wants.
        let compared = match &selector.which {
            Which::Revision(_) => None,
            _ => Some(version.as_ref().unwrap_or(&newest)),
        };
        let before = compared.and_then(|key| revisions.get(key)).copied().unwrap_or(0);
        if release.revision < before && !allow_downgrade {
            return Err(Error::WrongPath(format!(
                "{cache}: the newest release {selector} is revision {}, but revision {before} was seen before: the cache was put back to an older \
                 state, or somebody shows an old one; {allow}",
                release.revision
            )));
        }
        let mut is_changed = seen.caches.insert(address, id.clone()).as_ref() != Some(id);
        for key in std::iter::once(&newest).chain(&version) {
            let known = revisions.get(key).copied();
            let is_compared = compared == Some(key);
            let revision = if is_compared { release.revision } else { release.revision.max(known.unwrap_or(0)) };
            is_changed |= known != Some(revision);
            revisions.insert(key.clone(), revision);
        }
        // What was seen must not be forgotten: a crash would let an old release in.
        if is_changed { remembered::write(&path, &seen, 0o600) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use std::fs;

    use super::*;
    use narval_nix::StoreDir;
    use narval_nix::release::ReleasedPath;

    fn release(revision: u64, cache: &str) -> Release {
        let path = "7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-api".parse().unwrap();
        let nar_hash = "sha256:0lxjvvpr59c2mdram7ympy5ay741f180kv3349hvfc3f8nrmbqf6".parse().unwrap();
        let outputs = BTreeMap::from([("out".parse().unwrap(), ReleasedPath { path, nar_hash })]);
        Release {
            store_dir: StoreDir::default(),
            cache: cache.to_owned(),
            name: "api".parse().unwrap(),
            revision,
            created: 1,
            version: None,
            promoted_from: None,
            percent: None,
            paths: BTreeMap::from([("x86_64-linux".parse().unwrap(), outputs)]),
            notes: BTreeMap::new(),
            signatures: Vec::new(),
        }
    }

    #[test]
    fn revisions_never_fall() {
        let folder = tempfile::tempdir().unwrap();
        let seen = SeenReleases::at(folder.path().join("a/b"), Duration::from_secs(5));
        let url = Url::parse("https://cache.example.org").unwrap();
        let system: ReleaseSystem = "x86_64-linux".parse().unwrap();
        let check = |selector: &str, release: &Release, allow: bool| {
            seen.check(&url, &selector.parse().unwrap(), &system, release, allow).map_err(|error| error.to_string())
        };
        check("@api", &release(41, "one"), false).unwrap();
        check("@api", &release(41, "one"), false).unwrap();
        let error = check("@api", &release(40, "one"), false).unwrap_err();
        assert!(error.contains("revision 40, but revision 41 was seen before"), "{error}");
        assert!(error.contains("--allow-downgrade"), "{error}");
        // By its number an older one may be had, and it does not make an older one the newest.
        check("@api@3", &release(3, "one"), false).unwrap();
        assert!(check("@api", &release(40, "one"), false).is_err());
        // Nor does one of a version, which has its own newest one.
        check("@api@1.0", &release(30, "one"), false).unwrap();
        assert!(check("@api@1.0", &release(29, "one"), false).is_err());
        assert!(check("@api", &release(40, "one"), false).is_err());
        // Newer ones that were asked for by their numbers count.
        check("@api@50", &release(50, "one"), false).unwrap();
        assert!(check("@api", &release(49, "one"), false).is_err());
        assert!(check("@api", &release(60, "two"), false).unwrap_err().contains("another cache"));
        // From then on, the older one is the newest.
        check("@api", &release(40, "one"), true).unwrap();
        check("@api", &release(40, "one"), false).unwrap();
        check("@api", &release(60, "two"), true).unwrap();
        fs::write(folder.path().join("a/b/seen.json"), "{").unwrap();
        assert!(check("@api", &release(90, "two"), false).unwrap_err().contains("begin again"));
    }
}
