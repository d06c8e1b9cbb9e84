//! Machines that follow releases, and what they report.

use std::fmt;
use std::str::FromStr;

use narval_nix::release::Selector;
use serde::{Deserialize, Serialize};

use crate::name::MachineName;
use crate::rejection::Rejection;

/// How many machines a cache remembers. One that follows several releases counts as several.
pub const MACHINES_MAX: u64 = 10_000;
/// The largest report, in bytes of JSON.
pub const REPORT_LEN_MAX: u64 = 8 * 1024;
/// How long a machine is remembered that reports nothing, in seconds.
pub const MACHINES_KEPT_FOR: u64 = 30 * 24 * 3600;
/// Machines of one page of the list.
pub const MACHINES_LISTED_MAX: u32 = 500;
/// How long a machine must have been silent until another may take its place, in seconds.
pub(crate) const SILENT_FOR: u64 = 24 * 3600;
/// How late a report may be, in seconds.
const LATE: u64 = 60;

/// The longest texts of a report, in bytes.
const PATH_LEN_MAX: usize = 512;
const ERROR_LEN_MAX: usize = 1024;
const VERSION_LEN_MAX: usize = 64;

/// What a machine does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MachineState {
    /// It runs what it says.
    Running,
    /// It switches to a revision, or checks it.
    Trying,
    /// The newest revision failed, and the one before runs.
    WentBack,
    /// It does not follow any more, until it is started again.
    Stopped,
}

impl MachineState {
    /// In words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Trying => "trying",
            Self::WentBack => "gone back",
            Self::Stopped => "stopped",
        }
    }
}

/// What a machine reports. Times are seconds since 1970 by its own clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineReport {
    /// The release that it follows, such as `@web`.
    pub release: String,
    /// What it does.
    pub state: MachineState,
    /// The revision that runs; `None` if something else made the generation, or none runs yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// The generation of its profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The path that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The revision that is tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trying: Option<u64>,
    /// What failed last, if nothing has succeeded since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_at: Option<u64>,
    /// The next report comes within so many seconds; `None`: it may come at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_within: Option<u64>,
    /// The version of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

impl MachineReport {
    /// Parses and checks a report. Unknown keys are ignored, and not kept: a newer program may have more to say.
    ///
    /// # Errors
    /// If it is malformed, too long, or has control characters.
    pub fn parse(json: &[u8]) -> Result<Self, Rejection> {
        let malformed = |why: String| Rejection::malformed(format!("not a report of a machine: {why}"));
        let report: Self = serde_json::from_slice(json).map_err(|error| malformed(error.to_string()))?;
        let _: Selector = report.release.parse().map_err(|_| malformed("'release' is not that of a cache".into()))?;
        let texts = [
            ("path", &report.path, PATH_LEN_MAX),
            ("error", &report.error, ERROR_LEN_MAX),
            ("version", &report.version, VERSION_LEN_MAX),
        ];
        for (name, text, len_max) in texts {
            if text.as_ref().is_some_and(|text| text.len() > len_max || text.chars().any(char::is_control)) {
                return Err(malformed(format!("'{name}' has at most {len_max} bytes, and no control characters")));
            }
        }
        Ok(report)
    }

    /// A text that a report can have as its error: one line, cut off where it is too long.
    pub fn error_text(text: &str) -> String {
        let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if line.len() > ERROR_LEN_MAX {
            let end = (0..=ERROR_LEN_MAX - '…'.len_utf8()).rev().find(|at| line.is_char_boundary(*at));
            line.truncate(end.unwrap_or(0));
            line.push('…');
        }
        line
    }
}

/// A machine that follows a release, as it has reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// When it has reported, in seconds since 1970 by the cache's clock.
    pub seen: u64,
    /// The id of the token that it has reported with.
    pub token: String,
    /// What it has reported.
    #[serde(flatten)]
    pub report: MachineReport,
}

impl Machine {
    /// Whether it should have been heard of by now.
    pub fn is_silent(&self, now: u64) -> bool {
        let next = self.report.next_within.filter(|_| self.report.state != MachineState::Stopped);
        next.is_some_and(|next| self.seen.saturating_add(next).saturating_add(LATE) < now)
    }
}

/// The machine that a page of the list comes after, as text `NAME@RELEASE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineCursor {
    pub(crate) name: String,
    pub(crate) release: String,
}

impl fmt::Display for MachineCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A release begins with `@`.
        write!(f, "{}{}", self.name, self.release)
    }
}

impl FromStr for MachineCursor {
    type Err = Rejection;

    fn from_str(text: &str) -> Result<Self, Rejection> {
        let malformed = || Rejection::malformed("'after' is what the page before has as 'next'");
        let (name, release) = text.split_at(text.find('@').ok_or_else(malformed)?);
        let _: MachineName = name.parse().map_err(|_| malformed())?;
        let _: Selector = release.parse().map_err(|_| malformed())?;
        Ok(Self { name: name.to_owned(), release: release.to_owned() })
    }
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Noted {
    Again,
    New,
    /// There is no place for it.
    Full,
}
