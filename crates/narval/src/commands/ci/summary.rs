//! What a job had from the cache and gave to it.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use narval_install::human_bytes;
use narval_nix::{HashPart, Release};
use narval_push::watch::WatchReport;
use serde_json::{Value, json};

use super::platform::Platform;
use super::saved::{CacheUse, Saved};
use super::session::{Pushes, Session};
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{counted, note, paths};
use crate::ui::output_args::OutputArgs;
use crate::values::time::written;

/// The most paths that are listed for people.
const LISTED_MAX: usize = 50;

/// The summary of a job.
pub(super) struct Summary {
    cache: String,
    is_substituter: bool,
    cache_use: CacheUse,
    saved: Saved,
    pushes: Pushes,
    /// Seconds from the end of the command to that of the pushes.
    waited: f64,
    /// The exit code of the command.
    code: Option<u8>,
    is_dry: bool,
    /// The release that was recorded, or why none was.
    release: Option<Result<String, String>>,
}

/// Records a release, in this time at most.
pub(super) type Record<'a> = &'a dyn Fn(Duration) -> Result<Release, String>;

impl Summary {
    /// Ends a session, which may take this long, and says what it was.
    ///
    /// # Errors
    /// Its files cannot be read.
    pub(super) fn of(
        session: Session,
        deadline: Duration,
        code: Option<u8>,
        record: Option<Record<'_>>,
    ) -> Result<Self, Failure> {
        let (cache, is_substituter, begun) = (session.cache.clone(), session.is_substituter, Instant::now());
        let is_dry = session.is_dry;
        let (pushes, cache_use, saved) = session.end(deadline)?;
        // Who may not push may not release either.
        let record = record.filter(|_| !matches!(pushes, Pushes::None));
        let release = record.map(|record| {
            record(deadline.saturating_sub(begun.elapsed())).map(|release| release.selector().to_string())
        });
        let waited = begun.elapsed().as_secs_f64();
        Ok(Self { cache, is_substituter, cache_use, saved, pushes, waited, code, is_dry, release })
    }

    /// Shows it.
    pub(super) fn show(&self, output: OutputArgs) {
        let platform = Platform::of_process();
        if let Some(warning) = self.warning() {
            platform.warn(&warning);
        }
        if !output.quiet {
            platform.show(&self.markdown(), &self.text());
        }
        if output.json {
            json::summary(self.json());
        }
    }

    const fn report(&self) -> Option<&WatchReport> {
        match &self.pushes {
            Pushes::Done(report) => Some(report),
            _ => None,
        }
    }

    /// What is wrong, for a warning.
    pub(super) fn warning(&self) -> Option<String> {
        let of_release = match &self.release {
            Some(Err(reason)) => Some(format!("no release is recorded: {reason}")),
            _ => None,
        };
        let both = [self.warning_of_pushes(), of_release];
        both.into_iter().flatten().reduce(|one, other| format!("{one}; {other}"))
    }

    fn warning_of_pushes(&self) -> Option<String> {
        match &self.pushes {
            Pushes::None => None,
            Pushes::Unknown => Some(format!("{} did not answer in time: not all that was built is there", self.cache)),
            Pushes::Failed(reason) => Some(format!("what was built is not pushed: {reason}")),
            Pushes::Done(report) if report.left == 0 && report.failures.is_empty() => None,
            Pushes::Done(report) => {
                let why = report.failures.first().map_or_else(|| "no time was left".to_owned(), Clone::clone);
                Some(format!("{} not pushed: {why}", paths(report.left)))
            }
        }
    }

    /// What was not built, in words.
    fn saved(&self) -> Option<String> {
        let Saved { paths: all, known, bytes, .. } = self.saved;
        let builds = match self.saved.seconds_known() {
            None => "no build time is known".to_owned(),
            Some(seconds) => {
                format!("{} of building, known of {known} of {}", written(Duration::from_secs(seconds)), paths(all))
            }
        };
        (all > 0).then(|| format!("{builds}; {} that were not built", human_bytes(bytes)))
    }

    /// Why a path that was built did not come from the cache.
    fn why_built(&self, part: &HashPart) -> &'static str {
        match () {
            () if !self.is_substituter => "the cache was not asked",
            () if self.cache_use.there.contains(part) => "the cache has it",
            () if self.cache_use.absent.contains(part) => "not in the cache",
            () => "not asked for",
        }
    }

    /// One object.
    pub(super) fn json(&self) -> Value {
        let report = self.report();
        let built = report.iter().flat_map(|report| &report.delivered);
        let built: Vec<Value> =
            built.map(|path| json!({"path": path.to_string(), "why": self.why_built(&path.hash_part())})).collect();
        json!({
            "cache": self.cache, "exit_code": self.code, "waited_seconds": self.waited, "substituter": self.is_substituter,
            "hits": self.cache_use.there.len(), "misses": self.cache_use.absent.len(), "nars": self.cache_use.nars,
            "bytes_fetched": self.cache_use.bytes, "seconds_fetching": self.cache_use.seconds,
            "fetched": self.saved.paths, "bytes_saved": self.saved.bytes,
            "seconds_saved": self.saved.seconds_known(), "seconds_saved_known_of": self.saved.known,
            "pushed": report.map(|report| report.pushed), "already": report.map(|report| report.already),
            "bytes_sent": report.map(|report| report.sent), "left": report.map(|report| report.left),
            "built": built, "warning": self.warning(), "dry_run": self.is_dry,
            "release": self.release.as_ref().and_then(|release| release.as_ref().ok()),
            "would_push": report.filter(|_| self.is_dry).map(|report| -> Vec<Value> {
                report.lacking.iter().map(|(path, size)| json!({"path": path.to_string(), "nar_size": size})).collect()
            }),
        })
    }

    /// One or two lines.
    pub(super) fn text(&self) -> String {
        let CacheUse { there, absent, nars, bytes, .. } = &self.cache_use;
        let mut text = match self.is_substituter {
            true => format!(
                "narval ci: {}: {} there, {} not; fetched {} ({})\n",
                self.cache,
                paths(there.len()),
                absent.len(),
                counted(*nars, "NAR"),
                human_bytes(*bytes)
            ),
            false => format!("narval ci: {} was not asked for paths\n", self.cache),
        };
        if let Some(saved) = self.saved() {
            let _ = writeln!(text, "narval ci: saved {saved}");
        }
        if let Some(report) = self.report().filter(|_| self.is_dry) {
            let bytes: u64 = report.lacking.values().sum();
            let (lacking, size) = (paths(report.lacking.len()), human_bytes(bytes));
            let _ = writeln!(text, "narval ci: would push {lacking}, {size} before compression");
            for path in report.lacking.keys().take(LISTED_MAX) {
                let _ = writeln!(text, "narval ci:   {path}");
            }
        } else if let Some(report) = self.report() {
            // Nobody can read what it was not written to.
            let _ = writeln!(
                text,
                "narval ci: built {}; pushed {} ({}), already there {}, {:.1} s after the end of the command",
                report.delivered.len(),
                paths(report.pushed),
                human_bytes(report.sent),
                report.already,
                self.waited
            );
        }
        if let Some(Ok(release)) = &self.release {
            let _ = writeln!(text, "narval ci: released {release}");
        }
        text
    }

    /// Writes the figures to a file, as metrics. That this is not possible is a warning.
    pub(super) fn write_metrics(&self, file: Option<&Path>) {
        write_metrics(file, &self.json());
    }

    /// For a page of the platform.
    pub(super) fn markdown(&self) -> String {
        let CacheUse { there, absent, nars, bytes, seconds, .. } = &self.cache_use;
        let mut text = format!("### Narval: {}\n\n| | |\n|---|---|\n", escaped(&self.cache));
        let mut row = |name: &str, value: String| {
            let _ = writeln!(text, "| {name} | {value} |");
        };
        if self.is_substituter {
            row("paths that it has", there.len().to_string());
            row("paths that it does not have", absent.len().to_string());
            row("fetched", format!("{}, {} in {seconds:.1} s", counted(*nars, "NAR"), human_bytes(*bytes)));
            if let Some(saved) = self.saved() {
                row("saved", saved);
            }
        }
        if let Some(report) = self.report() {
            row("built", report.delivered.len().to_string());
            if self.is_dry {
                row("would be pushed", paths(report.lacking.len()));
            }
            row("pushed", format!("{}, {}", paths(report.pushed), human_bytes(report.sent)));
            row("already there", report.already.to_string());
            row("waited after the end of the command", format!("{:.1} s", self.waited));
        }
        if let Some(Ok(release)) = &self.release {
            row("released", escaped(release));
        }
        if let Some(warning) = self.warning() {
            row("**warning**", escaped(&warning));
        }
        let built: Vec<_> = self.report().iter().flat_map(|report| &report.delivered).collect();
        if !built.is_empty() {
            text.push_str("\n<details><summary>What was built, and why</summary>\n\n| path | why |\n|---|---|\n");
            for path in built.iter().take(LISTED_MAX) {
                let why = self.why_built(&path.hash_part());
                let _ = writeln!(text, "| `{path}` | {why} |");
            }
            if built.len() > LISTED_MAX {
                let _ = writeln!(text, "| and {} more | |", built.len() - LISTED_MAX);
            }
            text.push_str("\n</details>\n");
        }
        text
    }
}

/// Writes the numbers of a summary to a file, each as a metric: what GitLab shows beside those of the branch that a job's is merged into.
pub(super) fn write_metrics(file: Option<&Path>, summary: &Value) {
    let Some(file) = file else { return };
    let figures = summary.as_object().into_iter().flatten();
    let figures = figures.filter_map(|(name, value)| {
        Some((
            name,
            match value {
                Value::Array(all) => all.len().into(),
                value => value.as_number()?.clone(),
            },
        ))
    });
    let text: String = figures.map(|(name, value)| format!("narval_ci_{name} {value}\n")).collect();
    if let Err(error) = std::fs::write(file, text) {
        note!("narval ci: the metrics cannot be written to '{}': {error}", file.display());
    }
}

/// A text in a cell of a table.
fn escaped(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '<' => "&lt;".to_owned(),
            '&' => "&amp;".to_owned(),
            '|' | '`' | '*' | '_' | '[' | ']' | '\\' => format!("\\{c}"),
            c if c.is_control() => " ".to_owned(),
            c => c.to_string(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_others_are_text() {
        assert_eq!(escaped("a|b\n<img>`x`"), "a\\|b &lt;img>\\`x\\`");
    }
}
