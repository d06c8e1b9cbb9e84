//! Machines that follow releases, by what they report: which revision they run, since when, and what failed last.
//!
//! Nothing that they say is trusted, and nothing is done because of it. A report has a limited size, and no control characters. A cache has a limited
//! number of machines. When it has them all, a new one takes the place of the one that was silent for the longest time, if that is a day; otherwise it
//! is refused: whoever makes up names cannot make those of living machines disappear.

use serde::{Deserialize, Serialize};

use crate::access::grant::{Grant, Scope};
use crate::cache::Cache;
use crate::name::MachineName;
use crate::records::machines::{MACHINES_LISTED_MAX, MACHINES_MAX, Machine, MachineCursor, MachineReport, Noted};
use crate::rejection::{Rejection, RejectionKind};

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
