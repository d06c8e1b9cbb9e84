//! The audit log: one line of JSON for each write.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{CacheName, Grant};

/// The audit log, one JSON object per line: `time` (seconds since 1970), `token`, `label`, `peer`, `cache`, `action`,
/// `subject`, `result` (`ok` or `refused`), `detail`. A token is identified by its id, which is not secret.
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

    /// Records an action or a refusal. Failures to write are logged.
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
        self.write(grant, cache, action, result, [(subject, detail.as_str())]);
    }

    /// Records many actions of one type, each with its detail.
    pub(super) fn note_done<'a>(
        &self,
        grant: &Grant,
        cache: &CacheName,
        action: &str,
        done: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) {
        self.write(grant, Some(cache), action, "ok", done);
    }

    fn write<'a>(
        &self,
        grant: &Grant,
        cache: Option<&CacheName>,
        action: &str,
        result: &str,
        subjects: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) {
        let write = || -> std::io::Result<()> {
            let mut text = Vec::new();
            let time = super::now();
            for (subject, detail) in subjects {
                let (token, label, peer) = (&*grant.token, &*grant.label, grant.peer.as_deref());
                let cache = cache.map(CacheName::as_str);
                serde_json::to_writer(
                    &mut text,
                    &Line { time, token, label, peer, cache, action, subject, result, detail },
                )?;
                text.push(b'\n');
            }
            if text.is_empty() {
                return Ok(());
            }
            // Opened each time, so that the file can be rotated; one write, so that lines of several threads do not mix.
            let mut options = OpenOptions::new();
            options.append(true).create(true).mode(0o600).open(&self.path)?.write_all(&text)
        };
        if let Err(error) = write() {
            tracing::error!("cannot write the audit log '{}': {error}", self.path.display());
        }
    }
}
