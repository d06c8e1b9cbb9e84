//! The CI platform: how a job shows a warning and a summary there.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::ui::output::note;

/// The most that a summary may have, in bytes: GitHub takes 1 MiB for a step.
const SUMMARY_LEN_MAX: usize = 256 * 1024;

/// A platform that shows summaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Platform {
    /// GitHub, and Forgejo and Gitea, which do the same.
    Actions,
    GitLab,
    Buildkite,
    /// CircleCI, Jenkins, Kubernetes, a terminal.
    Other,
}

impl Platform {
    /// That of this process.
    pub(super) fn of_process() -> Self {
        Self::of(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
    }

    fn of(is_set: impl Fn(&str) -> bool) -> Self {
        match () {
            () if ["GITHUB_ACTIONS", "FORGEJO_ACTIONS", "GITEA_ACTIONS"].into_iter().any(&is_set) => Self::Actions,
            () if is_set("GITLAB_CI") => Self::GitLab,
            () if is_set("BUILDKITE") => Self::Buildkite,
            () => Self::Other,
        }
    }

    /// Shows a warning.
    pub(super) fn warn(self, text: &str) {
        match self {
            Self::Actions => note!("::warning title=Narval::{}", escaped(text)),
            _ => note!("narval ci: {text}"),
        }
    }

    /// Shows a summary: Markdown where it is rendered, the text elsewhere.
    pub(super) fn show(self, markdown: &str, text: &str) {
        let seconds = narval_client::clock::now();
        let markdown: String = markdown.chars().take(SUMMARY_LEN_MAX).collect();
        let is_shown = match self {
            Self::Actions => append_to("GITHUB_STEP_SUMMARY", &markdown),
            Self::Buildkite => annotate(&markdown),
            Self::GitLab => {
                note!("\x1b[0Ksection_start:{seconds}:narval_ci\r\x1b[0KNarval");
                text.lines().for_each(|line| note!("{line}"));
                note!("\x1b[0Ksection_end:{seconds}:narval_ci\r\x1b[0K");
                return;
            }
            Self::Other => Ok(()),
        };
        if let Err(reason) = is_shown {
            note!("narval ci: the summary cannot be shown: {reason}");
        }
        text.lines().for_each(|line| note!("{line}"));
    }
}

/// Appends to the file that a variable names, if it names one.
fn append_to(variable: &str, text: &str) -> Result<(), String> {
    let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) else { return Ok(()) };
    let written = OpenOptions::new().append(true).create(true).open(path).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")
    });
    written.map_err(|error| format!("{variable}: {error}"))
}

/// Gives later steps of the job a variable. Returns whether the platform has a way.
pub(super) fn set_for_later_steps(name: &str, value: &str) -> Result<bool, String> {
    if std::env::var_os("GITHUB_ENV").is_none_or(|path| path.is_empty()) {
        return Ok(false);
    }
    // A line that no value has ends it.
    let end = (0_u32..).map(|number| format!("narval_{number}")).find(|end| !value.contains(end.as_str()));
    let end = end.unwrap_or_default();
    append_to("GITHUB_ENV", &format!("{name}<<{end}\n{}\n{end}", value.trim_end())).map(|()| true)
}

fn annotate(markdown: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("buildkite-agent: {error}");
    let mut agent = Command::new("buildkite-agent");
    agent.args(["annotate", "--style", "info", "--context", "narval"]).stdin(Stdio::piped());
    let mut child = agent.stdout(Stdio::null()).spawn().map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(markdown.as_bytes()).map_err(failed)?;
    }
    let status = child.wait().map_err(failed)?;
    if status.success() { Ok(()) } else { Err(format!("buildkite-agent annotate: {status}")) }
}

/// A text in a command of GitHub's runner.
fn escaped(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_and_their_commands() {
        let of = |set: &str| Platform::of(|name| name == set);
        assert_eq!(
            ["GITHUB_ACTIONS", "FORGEJO_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI"].map(of),
            [Platform::Actions, Platform::Actions, Platform::GitLab, Platform::Buildkite, Platform::Other]
        );
        assert_eq!(escaped("50%\n::error::x"), "50%25%0A::error::x");
    }
}
