//! Machines that follow releases, by what they report: which revision they run, since when, and what failed last.
//!
//! Nothing that they say is trusted, and nothing is done because of it. A report has a limited size, and no control characters. A cache has a limited
//! number of machines. When it has them all, a new one takes the place of the one that was silent for the longest time, if that is a day; otherwise it
//! is refused: whoever makes up names cannot make those of living machines disappear.

use std::fmt;
use std::str::FromStr;

use narval_nix::release::Selector;
use serde::{Deserialize, Serialize};

use crate::cache::Cache;
use crate::name::MachineName;
use crate::rejection::{Rejection, RejectionKind};
use crate::tokens::{Grant, Scope};

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

/// A page of the list of machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachinePage {
    /// They are sorted by name and release.
    pub machines: Vec<Machine>,
    /// What the next page comes after; `None`: this is the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Cache {
    /// Notes what a machine reports. The first report of a machine is in the audit log.
    ///
    /// # Errors
    /// If the token may not report for it, or the cache has too many machines.
    pub fn report(&self, name: &MachineName, report: &MachineReport, grant: &Grant) -> Result<(), Rejection> {
        grant.require_report(self.name(), name)?;
        let json = serde_json::to_string(report).unwrap_or_default();
        let key = MachineCursor { name: name.to_string(), release: report.release.clone() };
        let noted = self.index().note_machine(self.id(), key, (grant.token.clone(), json), self.now())?;
        let outcome = match noted {
            Noted::Again => return Ok(()),
            Noted::New => Ok(format!("it follows {}", report.release)),
            Noted::Full => Err(format!(
                "'{name}' would be one machine more than the {MACHINES_MAX} that the cache '{}' may have: 'narval machines forget NAME' makes room, \
                 and so does every machine that is silent for a day",
                self.name()
            )),
        };
        self.audit(grant, "new machine", name.as_str(), &outcome);
        outcome.map(drop).map_err(|message| Rejection::new(RejectionKind::NoSpace, message).because("quota"))
    }

    /// A page of the machines that have reported. They are for those who administer the cache.
    ///
    /// # Errors
    /// If the index fails.
    pub fn machines(&self, after: Option<&MachineCursor>) -> Result<MachinePage, Rejection> {
        let mut machines = self.index().machines(self.id(), after, MACHINES_LISTED_MAX + 1)?;
        let is_more = machines.len() > MACHINES_LISTED_MAX as usize;
        machines.truncate(MACHINES_LISTED_MAX as usize);
        let next = machines.last().filter(|_| is_more).map(|last| format!("{}{}", last.name, last.report.release));
        Ok(MachinePage { machines, next })
    }

    /// Forgets a machine, until it reports again. Returns whether it was known.
    ///
    /// # Errors
    /// If the token may not administer, or the index fails.
    pub fn forget_machine(&self, name: &MachineName, grant: &Grant) -> Result<bool, Rejection> {
        let forgotten = grant
            .require(self.name(), Scope::Admin)
            .and_then(|()| Ok(self.index().forget_machine(self.id(), name.to_string())?));
        let outcome = match &forgotten {
            Ok(true) => Ok("forgotten".to_owned()),
            Ok(false) => return forgotten,
            Err(rejection) => Err(rejection.to_string()),
        };
        self.audit(grant, "forget machine", name.as_str(), &outcome);
        forgotten
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
