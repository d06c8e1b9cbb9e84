//! Neighbours: near caches on the same network.

use std::time::Duration;

use crate::config::error::ConfigError;
use crate::config::field::table;
use crate::config::key::At;
use crate::config::kinds::{boolean, choice, duration, integer, size, text};

/// When neighbours are asked and answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnlyOn {
    /// Always.
    Any,
    /// While the machine is on mains power.
    Ac,
    /// While its network is not metered.
    Unmetered,
    /// Both.
    AcUnmetered,
}

impl OnlyOn {
    /// Whether the machine must be on mains power.
    pub const fn needs_ac(self) -> bool {
        matches!(self, Self::Ac | Self::AcUnmetered)
    }

    /// Whether its network must not be metered.
    pub const fn needs_unmetered(self) -> bool {
        matches!(self, Self::Unmetered | Self::AcUnmetered)
    }
}

const ONLY_ON: [(&str, &str, OnlyOn); 4] = [
    ("any", "Always", OnlyOn::Any),
    ("ac", "On mains power, not on battery", OnlyOn::Ac),
    ("unmetered", "While NetworkManager says that the network is not metered", OnlyOn::Unmetered),
    ("ac-unmetered", "Both", OnlyOn::AcUnmetered),
];

table! {
    /// Neighbours of the cache at `/`.
    Neighbours {
        /// Whether near caches on the networks of `neighbours-on` find one another, and take signed paths of upstreams from each other; see docs/near.md#neighbours
        neighbours: At<bool> = boolean().or("false").restart().flag("neighbours", "true", |arg| arg.help("Find near caches on the networks of --neighbours-on, and take signed paths of upstreams from each other; see docs/near.md#neighbours")),
        /// Network with neighbours: the address of its gateway, the name of an interface, or `any`
        neighbours_on: Vec<At<String>> = text().restart().option("neighbours-on", "NETWORK"),
        /// When neighbours are asked and answered
        neighbours_only_on: OnlyOn = choice(&ONLY_ON).or("any").restart().option("neighbours-only-on", "WHEN"),
        /// What is sent to neighbours in a second, in bytes, all together
        neighbours_rate_max: At<u64> = size().or("50M").restart().option("neighbours-rate-max", "SIZE"),
        /// How long a neighbour may take to answer, and be silent while it sends a NAR
        neighbours_patience: Duration = duration(Duration::from_millis(1)..=Duration::from_secs(10)).or("50ms").restart().option("neighbours-patience", "TIME"),
        /// How many NARs are sent to neighbours at the same time
        neighbours_nars_max: u32 = integer::<u32>(1..=4096).or("256").restart().option("neighbours-nars-max", "N"),
    }
}

impl Neighbours {
    /// What is wrong with them.
    pub fn check(&self, has_upstreams: bool) -> Option<ConfigError> {
        let At { value: true, origin } = &self.neighbours else { return None };
        let on = origin.setting("neighbours-on", "NETWORK");
        match (self.neighbours_on.is_empty(), has_upstreams, cfg!(feature = "neighbours")) {
            (_, _, false) => Some(origin.error("neighbours", "this program was built without them")),
            (true, ..) => Some(origin.error(
                "neighbours",
                format!("says no network: give {on}, with a gateway's address, an interface or 'any'"),
            )),
            (_, false, _) => {
                Some(origin.error("neighbours", "needs an upstream: neighbours take its paths from each other"))
            }
            _ => None,
        }
    }
}
