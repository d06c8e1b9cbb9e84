//! `narval.toml` and `narval.lock` of a project's folder.

use narval_client::Url;
use narval_nix::release::ReleaseSystem;
use narval_nix::{NarHash, PublicKey, StorePath};

use crate::config::At;
use crate::config::field::{Nested, table};
use crate::config::kinds::{integer, parsed, text};

/// What a system is in messages.
const SYSTEM: &str = "a system such as x86_64-linux";

table! {
    /// `narval.toml`: what a project needs.
    ProjectFile {
        /// Packages, as `narval install` takes them: names, releases (`@api`) and store paths
        packages: Vec<At<String>> = text(),
        /// Channel that names are looked up in
        channel: Option<At<String>> = text(),
        /// Systems that are locked
        systems: Vec<At<ReleaseSystem>> = parsed::<ReleaseSystem>(SYSTEM),
        /// Caches that have packages, in addition to those of the user
        caches: Vec<At<Url>> = parsed::<Url>("the address of a binary cache"),
        /// Public keys of these caches
        public_keys: Vec<At<PublicKey>> = parsed::<PublicKey>("a public key, NAME:BASE64,"),
    }
}

table! {
    /// `narval.lock`: the paths of these packages.
    LockFile {
        /// Version of the format
        version: At<u32> = integer(1..=u32::MAX),
        /// The channel that narval.toml names
        channel: Option<String> = text(),
        /// The packages, one for each name and system.
        package: Vec<LockedPackage> = Nested::Table(None),
    }
}

table! {
    /// What a name means on a system.
    LockedPackage {
        /// The name, as narval.toml has it
        name: String = text(),
        /// The system
        system: ReleaseSystem = parsed::<ReleaseSystem>(SYSTEM),
        /// Release of the channel or of the cache
        release: Option<String> = text(),
        /// Revision of nixpkgs
        revision: Option<String> = text(),
        /// The paths.
        outputs: Vec<LockedPath> = Nested::Table(None),
    }
}

table! {
    /// A path, and what it contains.
    LockedPath {
        /// The output
        name: String = text(),
        /// The path, without the store directory
        path: StorePath = parsed::<StorePath>("a store path, HASH-NAME,"),
        /// SHA-256 of its NAR
        nar_hash: NarHash = parsed::<NarHash>("a hash, sha256:…,"),
    }
}
