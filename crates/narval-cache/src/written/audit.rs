//! The audit log: one line of JSON for each write.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{CacheName, Grant};

/// Who did what, one JSON object a line: `time` (seconds since 1970), `token`, `label`, `peer`, `cache`, `action`, `subject`,
/// `result` (`ok` or `refused`), `detail`. A token is named by its id, which is no secret.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
}

#[derive(Serialize)]
struct Line<'a> {
    time: u64,
    token: &'a str,
    label: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<&'a str>,
    action: &'a str,
    subject: &'a str,
    result: &'a str,
    detail: &'a str,
}

impl Audit {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Notes what somebody did, or was refused. What cannot be noted goes to the program's log.
    pub fn note(
        &self,
        grant: &Grant,
        cache: Option<&CacheName>,
        action: &str,
        subject: &str,
        outcome: &Result<String, String>,
    ) {
        let (result, detail) = match outcome {
            Ok(detail) => ("ok", detail),
            Err(detail) => ("refused", detail),
        };
        let line = Line {
            time: super::now(),
            token: &grant.token,
            label: &grant.label,
            peer: grant.peer.as_deref(),
            cache: cache.map(CacheName::as_str),
            action,
            subject,
            result,
            detail,
        };
        let write = || -> std::io::Result<()> {
            let mut text = serde_json::to_vec(&line)?;
            text.push(b'\n');
            // Opened each time, so that the file can be rotated; one write, so that lines of several threads do not mix.
            let mut options = OpenOptions::new();
            options.append(true).create(true).mode(0o600).open(&self.path)?.write_all(&text)
        };
        if let Err(error) = write() {
            tracing::error!("cannot write the audit log '{}': {error}", self.path.display());
        }
    }
}
