//! The outcome of a check.

use serde_json::json;

use crate::ui::failure::Failure;
use crate::ui::json::{event, summary};
use crate::ui::output::out;

/// The outcome of a check: one line.
pub(super) struct Finding {
    /// What was checked.
    pub(super) what: &'static str,
    /// Whether it passed, or did not apply.
    pub(super) good: bool,
    /// What was found.
    pub(super) text: String,
}

impl Finding {
    /// A check that passed.
    pub(super) fn good(what: &'static str, text: impl Into<String>) -> Self {
        Self { what, good: true, text: text.into() }
    }

    /// A check that passed, or else what is wrong.
    pub(super) fn of(what: &'static str, outcome: Result<String, String>) -> Self {
        Self { what, good: outcome.is_ok(), text: outcome.unwrap_or_else(|wrong| wrong) }
    }

    /// A check that failed.
    pub(super) fn bad(what: &'static str, text: impl Into<String>) -> Self {
        Self { what, good: false, text: text.into() }
    }
}

/// Prints the findings, and fails if a check did.
pub(super) fn report(findings: &[Finding], json: bool) -> Result<(), Failure> {
    for found in findings {
        if json {
            event("check", json!({"check": found.what, "ok": found.good, "text": found.text}));
        } else {
            out!("{} {:<12} {}", if found.good { "ok  " } else { "FAIL" }, found.what, found.text);
        }
    }
    let bad = findings.iter().filter(|found| !found.good).count();
    if bad == 0 {
        if json {
            summary(json!({"checks": findings.len(), "failed": 0}));
        }
        return Ok(());
    }
    Err(Failure::runtime(format!("{bad} of {} checks failed", findings.len())))
}
