//! Lines of the audit log.

use serde::{Deserialize, Serialize};

/// A line of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditLine {
    /// Seconds since 1970.
    pub time: u64,
    /// The id of the token, which is not secret.
    pub token: String,
    /// The label of the token, or who used the command line.
    pub label: String,
    /// The address of the client.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub peer: Option<String>,
    /// The cache, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cache: Option<String>,
    /// What was done.
    pub action: String,
    /// With what: a path, the name of a NAR, a token.
    pub subject: String,
    /// `ok` or `refused`.
    pub result: String,
    /// What came of it, or why it was refused.
    pub detail: String,
}
