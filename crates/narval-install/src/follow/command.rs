//! The commands of the user: each runs in a process group of its own, which is ended when its time is over, when the program is told to stop, and
//! when the program dies.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use narval_push::watch::Stop;

/// Time between two looks at a process.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long processes have to end after SIGTERM, before SIGKILL.
const END_WITHIN: Duration = Duration::from_secs(10);

/// A pipe from this program is the wrapper's standard input. It ends when this program is killed, and then the whole group is killed: after a restart,
/// the command would otherwise run beside the one that goes back. `$1` is the command.
const WRAPPER: &str = r#"exec 3<&0 </dev/null
{ read -r _ <&3; kill -9 0; } &
watcher=$!
exec 3<&-
/bin/sh -c "$1"
status=$?
kill -9 "$watcher"
exit "$status""#;

/// How a command has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// With success.
    Well,
    /// Without.
    Badly(String),
    /// The program was told to stop.
    Stopped,
}

/// What a command is run with.
pub(super) struct Run<'a> {
    /// For `/bin/sh -c`.
    pub(super) command: &'a str,
    /// Where it starts.
    pub(super) folder: &'a Path,
    /// Added to the environment.
    pub(super) variables: &'a [(&'static str, String)],
    /// How long it may take.
    pub(super) timeout: Duration,
}

impl Run<'_> {
    /// Runs the command until it ends. `stop` ends it, too, if it is given.
    pub(super) fn run(&self, stop: Option<&Stop>) -> Ended {
        match self.try_run(stop) {
            Ok(ended) => ended,
            Err(error) => Ended::Badly(format!("cannot be run in '{}': {error}", self.folder.display())),
        }
    }

    fn try_run(&self, stop: Option<&Stop>) -> io::Result<Ended> {
        // Held open until the command has ended.
        let (read, _alive) = io::pipe()?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", WRAPPER, "sh", self.command]).current_dir(self.folder).process_group(0);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        // Standard output is for this program's own.
        command.stdin(read).stdout(Stdio::from(io::stderr())).stderr(Stdio::inherit());
        let mut child = command.spawn()?;
        let until = Instant::now() + self.timeout;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(ended(status));
            }
            if stop.is_some_and(Stop::is_stopped) {
                end(&mut child);
                return Ok(Ended::Stopped);
            }
            if Instant::now() >= until {
                end(&mut child);
                return Ok(Ended::Badly(format!("was ended: it took longer than {} s", self.timeout.as_secs_f32())));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

fn ended(status: ExitStatus) -> Ended {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(0), _) => Ended::Well,
        (Some(code), _) => Ended::Badly(format!("ended with exit code {code}")),
        (None, signal) => Ended::Badly(format!("was ended by signal {}", signal.unwrap_or(0))),
    }
}

/// Ends a process and its group.
fn end(child: &mut Child) {
    let group = Pid::from_child(child);
    // An error is that there is no such group any more.
    let _ = kill_process_group(group, Signal::TERM);
    let until = Instant::now() + END_WITHIN;
    while Instant::now() < until {
        // The first one stays in the group until it is waited for.
        if child.try_wait().is_ok_and(|status| status.is_some()) && test_kill_process_group(group).is_err() {
            return;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let _ = kill_process_group(group, Signal::KILL);
    // It cannot ignore that.
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(command: &str, timeout_ms: u64, stop: Option<&Stop>) -> Ended {
        let folder = std::env::temp_dir();
        let variables = [("NARVAL_REVISION", "7".to_owned())];
        Run { command, folder: &folder, variables: &variables, timeout: Duration::from_millis(timeout_ms) }.run(stop)
    }

    #[test]
    fn commands_end_well_badly_or_are_ended() {
        assert_eq!(run("test \"$NARVAL_REVISION\" = 7 && ! read -r x", 60_000, None), Ended::Well);
        assert_eq!(run("exit 3", 60_000, None), Ended::Badly("ended with exit code 3".to_owned()));
        assert_eq!(run("kill -15 $$; sleep 60", 60_000, None), Ended::Badly("ended with exit code 143".to_owned()));
        let Ended::Badly(why) = run("sleep 600 & sleep 600; true", 50, None) else { panic!("it has no end") };
        assert!(why.contains("longer than 0.05 s"), "{why}");
        let stop = Stop::default();
        stop.stop();
        assert_eq!(run("sleep 600", 60_000, Some(&stop)), Ended::Stopped);
        let gone =
            Run { command: "true", folder: Path::new("/dev/null/nowhere"), variables: &[], timeout: Duration::MAX / 4 };
        assert!(matches!(gone.run(None), Ended::Badly(why) if why.contains("/nowhere")));
    }

    #[test]
    fn what_a_command_has_started_is_ended_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("pid");
        let command = format!(
            "(trap '' TERM; echo $(exec sh -c 'echo $PPID') > {0}.new; mv {0}.new {0}; while :; do sleep 0.05; done) & wait",
            mark.display()
        );
        let stop = Stop::default();
        std::thread::scope(|scope| {
            let running = scope.spawn(|| run(&command, 600_000, Some(&stop)));
            while !mark.exists() {
                std::thread::sleep(LOOK_EVERY);
            }
            stop.stop();
            assert_eq!(running.join().unwrap(), Ended::Stopped);
        });
        let pid = std::fs::read_to_string(&mark).unwrap();
        // It has been killed, and ends when the kernel comes to it. A zombie may be left to the init of this machine.
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
            if state.is_empty() || state.contains(") Z ") {
                break;
            }
            assert!(Instant::now() < until, "{state}");
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
