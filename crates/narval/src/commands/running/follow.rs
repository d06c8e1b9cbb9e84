//! `narval internal-follow`: the process beside a program of `narval run`, which shows it what the host adds to its store.

use std::io::{self, PipeWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use narval_install::run::{EnterError, Follow, Others, enter, follow};

use crate::ui::failure::Failure;
use crate::ui::output::note;

/// Starts the process and ends: a child that a program has not started could keep it waiting. This program would take 2 ms for that.
const APART: &str = r#"{ "$0" internal-follow "$1" <&3 3<&- & } 3<&0"#;

/// Run by `narval run`. Not for users.
///
/// Standard input says when the program is in its namespace, standard output is its pidfd, and standard error the inotify instance.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where the overlay is.
    store_dir: PathBuf,
}

/// Runs the hidden process beside a program.
///
/// # Errors
/// Nobody sees them: the program does not see new paths of the host then.
pub fn run(args: Args) -> Result<(), Failure> {
    let (entered, process, changes) = (io::stdin(), io::stdout(), io::stderr());
    follow(process.as_fd(), changes.as_fd(), entered.as_fd(), &args.store_dir).map_err(Failure::runtime)
}

/// Enters the namespace in which `real_store` is at `store_dir`, and says what the program cannot see there.
pub(crate) fn enter_and_follow(real_store: &Path, store_dir: &Path, scratch: &Path) -> Result<(), EnterError> {
    // Started first: from the inside, nobody could enter the namespace again.
    let started = store_dir.is_dir().then(|| Started::new(store_dir));
    let others = enter(real_store, store_dir, scratch);
    let followed = started.map_or(Ok(()), |started| started?.finish(matches!(others, Ok(Others::Seen))));
    let others = others?;
    if let (Others::Seen, Err(error)) = (others, followed) {
        let shown = store_dir.display();
        note!("narval: paths that are added to {shown} from now on may not be seen by the program: {error}");
    }
    warn_of_hidden(others, real_store, store_dir);
    Ok(())
}

/// Says that the namespace hides the store that this machine has.
pub(crate) fn warn_of_hidden(others: Others, real_store: &Path, store_dir: &Path) {
    if others == Others::Hidden {
        let (shown, store) = (store_dir.display(), real_store.display());
        note!(
            "narval: this machine's paths in {shown} cannot be seen beside those of {store}: overlays are not possible here"
        );
    }
}

struct Started {
    /// The shell that starts the process.
    child: Child,
    /// Tells the process that this one is in its namespace.
    entered: PipeWriter,
}

impl Started {
    fn new(store_dir: &Path) -> io::Result<Self> {
        let Follow { process, changes } = Follow::this_process(store_dir)?;
        let (waits, entered) = io::pipe()?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", APART]).arg(std::env::current_exe()?).arg(store_dir);
        // A process group of its own: what is typed at the terminal is for the program.
        command.stdin(waits).stdout(process).stderr(changes).process_group(0);
        Ok(Self { child: command.spawn()?, entered })
    }

    /// Leaves the process to itself. Without an overlay, it ends.
    fn finish(mut self, has_overlay: bool) -> io::Result<()> {
        let sent = if has_overlay { self.entered.write_all(&[1]) } else { Ok(()) };
        self.child.wait()?;
        sent
    }
}
