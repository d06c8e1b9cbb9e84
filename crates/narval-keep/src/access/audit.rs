//! The audit log: one line for each write.
//!
//! It is a file beside the index. If the index is in a database that many servers share, the log is a table there: lines are
//! collected and written together every [`WRITE_EVERY`], and each server also has a file with its own lines, so that those of a
//! server that was killed before it wrote them are not lost.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::access::grant::Grant;
use crate::index::{Index, IndexError};
use crate::name::CacheName;
use crate::records::audit::AuditLine;

/// How often lines are written to the database.
pub(crate) const WRITE_EVERY: Duration = Duration::from_secs(1);

/// The most lines that wait for the database. Further ones are only in the file.
const WAITING_MAX: usize = 64 * 1024;

/// Lines in one transaction.
const WRITTEN_MAX: usize = 4096;

/// Lines that are read at a time.
const READ_MAX: usize = 4096;

/// For how long lines are kept in a database, in seconds.
pub(crate) const AUDIT_KEPT_FOR: u64 = 400 * 24 * 60 * 60;

/// The audit log.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    /// Lines for the database, if that has the log.
    waiting: Option<Mutex<Waiting>>,
}

/// Lines that are not in the database yet.
#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<AuditLine>,
    /// Lines that were too many.
    dropped: u64,
}

impl Audit {
    pub(crate) fn new(path: PathBuf, in_database: bool) -> Self {
        Self { path, waiting: in_database.then(Mutex::default) }
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
    pub(crate) fn note_done<'a>(
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
        let time = narval_client::clock::now();
        let lines = subjects.into_iter().map(|(subject, detail)| AuditLine {
            time,
            token: grant.token.clone(),
            label: grant.label.clone(),
            peer: grant.peer.clone(),
            cache: cache.map(|cache| cache.as_str().to_owned()),
            action: action.to_owned(),
            subject: subject.to_owned(),
            result: result.to_owned(),
            detail: detail.to_owned(),
        });
        let lines: Vec<AuditLine> = lines.collect();
        if let Err(error) = self.write_to_file(&lines) {
            tracing::error!("cannot write the audit log '{}': {error}", self.path.display());
        }
        let Some(waiting) = &self.waiting else { return };
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let room = WAITING_MAX.saturating_sub(waiting.lines.len());
        waiting.dropped += lines.len().saturating_sub(room) as u64;
        waiting.lines.extend(lines.into_iter().take(room));
    }

    fn write_to_file(&self, lines: &[AuditLine]) -> std::io::Result<()> {
        let mut text = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut text, line)?;
            text.push(b'\n');
        }
        if text.is_empty() {
            return Ok(());
        }
        // Opened each time, so that the file can be rotated; one write, so that lines of several threads do not mix.
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600).open(&self.path)?.write_all(&text)
    }

    /// Forgets all lines of this log that are not in a database yet, before those of a backup.
    pub(crate) fn clear(&self) -> std::io::Result<()> {
        if let Some(waiting) = &self.waiting {
            *waiting.lock().unwrap_or_else(PoisonError::into_inner) = Waiting::default();
        }
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes lines of another log, from a backup.
    pub(crate) fn restore(&self, index: &dyn Index, lines: &[AuditLine], to_file: bool) -> std::io::Result<()> {
        if to_file {
            self.write_to_file(lines)?;
        }
        if self.waiting.is_some() && !lines.is_empty() {
            index.add_audit(lines).map_err(std::io::Error::other)?;
        }
        Ok(())
    }

    /// Writes the lines that wait to the database. While that is away, they stay.
    pub(crate) fn flush(&self, index: &dyn Index) {
        let Some(waiting) = &self.waiting else { return };
        loop {
            let (lines, dropped) = {
                let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                let count = waiting.lines.len().min(WRITTEN_MAX);
                (waiting.lines.drain(..count).collect::<Vec<_>>(), std::mem::take(&mut waiting.dropped))
            };
            if dropped > 0 {
                let path = self.path.display();
                tracing::error!(
                    "{dropped} lines of the audit log are only in '{path}': the database was away too long"
                );
            }
            if lines.is_empty() {
                return;
            }
            match index.add_audit(&lines) {
                Ok(()) => {}
                Err(error) if error.is_unavailable() => {
                    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                    lines.into_iter().rev().for_each(|line| waiting.lines.push_front(line));
                    return;
                }
                Err(error) => {
                    tracing::error!(
                        "{} lines of the audit log are only in '{}': {error}",
                        lines.len(),
                        self.path.display()
                    );
                    return;
                }
            }
        }
    }

    /// Reads lines of a database since a time, oldest first, after this one and until `take` returns `false`. Returns the last one that was read, if
    /// there may be more.
    pub(crate) fn database_page(
        index: &dyn Index,
        after: u64,
        since: u64,
        mut take: impl FnMut(AuditLine) -> bool,
    ) -> Result<Option<u64>, IndexError> {
        let lines = index.audit(after.cast_signed(), since, READ_MAX)?;
        let is_full = lines.len() == READ_MAX;
        let mut last = None;
        for (id, line) in lines {
            last = Some(id.cast_unsigned());
            if !take(line) {
                return Ok(last);
            }
        }
        Ok(last.filter(|_| is_full))
    }
}
