//! Which store path a name means: `git`, `python3Packages.numpy`, `nodejs@22`, `git-2.47.2`.
//!
//! There are two kinds of sources: caches of Narval can be searched by the names of their paths ([`search`], [`find`]), and channels have the
//! attributes of nixpkgs ([`Channel`], [`ChannelNames`]). The order is always the same: what was decided before for this release; an exact index that
//! a cache publishes; the channel's two files; the build records of its release. What none of them decides is not guessed.

mod caches;
mod channel;
mod distinction;
mod evidence;
mod exact;
mod learnt;
mod pieces;
mod programs;
mod records;
mod resolve;

pub use caches::{Candidate, Query, SearchResults, Upgrade, Upgrades, find, named, query_for, search, sort, upgrades};
pub use channel::{CHANNEL_DEFAULT, Channel, NamesFolder, Refreshed};
pub use exact::prepare_exact;
pub use programs::Programs;
pub use resolve::{ChannelNames, Output, Resolution, ResolveOptions, Resolved, SourceOfName, Variant, machine_system};
