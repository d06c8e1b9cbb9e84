//! The command of the job: started, watched, and told of signals.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::session::Ending;
use crate::commands::running::run::not_started;
use crate::ui::failure::Failure;

/// How long the pushes of a job that is cancelled may take: GitHub's runner waits 7.5 s before it ends everything.
pub(super) const CANCELLED: Duration = Duration::from_secs(6);

/// How the command has ended.
pub(super) struct Ended {
    /// Its exit code, or 128 and the number of the signal that ended it.
    pub(super) code: u8,
    /// When a signal told the job to end.
    pub(super) cancelled: Option<Instant>,
}

/// Runs the command to its end. A SIGINT or SIGTERM is passed on to it, and what there is to push is pushed at once; a second one kills it.
///
/// # Errors
/// It cannot be started: 127 if it does not exist, else 126.
pub(super) fn run(command: &[OsString], nix_config: Option<String>, ending: Ending) -> Result<Ended, Failure> {
    let (program, arguments) = command.split_first().ok_or_else(|| Failure::usage("nothing to run"))?;
    let mut process = Command::new(program);
    process.args(arguments).envs(nix_config.map(|config| ("NIX_CONFIG", config)));
    let uncaught = |error: std::io::Error| Failure::runtime(format!("cannot catch signals: {error}"));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(uncaught)?;
    let (handle, cancelled) = (signals.handle(), Arc::new(OnceLock::new()));
    let mut child = process.spawn().map_err(|error| not_started(program.as_ref(), &error))?;
    let (pid, first) = (Pid::from_child(&child), Arc::clone(&cancelled));
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                if first.set(Instant::now()).is_err() {
                    let _ = kill_process(pid, Signal::KILL);
                    continue;
                }
                // A terminal sends it to both.
                if signal == SIGTERM || !std::io::stdin().is_terminal() {
                    let signal = if signal == SIGTERM { Signal::TERM } else { Signal::INT };
                    // It may have ended.
                    let _ = kill_process(pid, signal);
                }
                ending.finish();
                let ending = ending.clone();
                drop(std::thread::Builder::new().name("grace".into()).spawn(move || {
                    std::thread::sleep(CANCELLED);
                    ending.stop();
                }));
            }
        })
        .map_err(uncaught)?;
    let status = child.wait().map_err(|error| Failure::runtime(format!("cannot wait for the command: {error}")))?;
    handle.close();
    Ok(Ended { code: code_of(status), cancelled: cancelled.get().copied() })
}

fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}
