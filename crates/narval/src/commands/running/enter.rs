//! `narval internal-enter`: the second half of `narval run`, in a single-threaded process.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use narval_install::run::{helper, others_hidden};

use crate::commands::running::follow::{enter_and_follow, warn_of_hidden};
use crate::commands::running::run::not_started;
use crate::ui::failure::Failure;
use crate::ui::output::note;

/// What launchers of earlier versions call this command.
pub(crate) const FORMER_NAME: &str = "__enter";

/// Run by `narval run` in a single-threaded process. Not for users.
#[derive(Debug, clap::Args)]
#[command(alias = FORMER_NAME)]
pub struct Args {
    /// Where the store is.
    real_store: PathBuf,
    /// Where it is bound.
    store_dir: PathBuf,
    /// A folder that may be mounted over.
    scratch: PathBuf,
    /// The command.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs the hidden second half of `narval run`.
///
/// # Errors
/// If the kernel forbids namespaces and there is no helper, or the program cannot be started.
pub fn run(args: Args) -> Result<(), Failure> {
    let (program, arguments) = args.command.split_first().ok_or_else(|| Failure::usage("nothing to run"))?;
    let error = match enter_and_follow(&args.real_store, &args.store_dir, &args.scratch) {
        Ok(()) => return Err(not_started(program.as_ref(), &Command::new(program).args(arguments).exec())),
        Err(error) => error,
    };
    let this = std::env::current_exe().map_err(Failure::runtime)?;
    let Some((name, view)) = helper(&args.real_store, &args.store_dir, &this) else {
        return Err(Failure::runtime(error));
    };
    note!("narval: cannot {}: {}; using {name} instead", error.step, error.source);
    warn_of_hidden(others_hidden(&args.store_dir), &args.real_store, &args.store_dir);
    Err(not_started(program.as_ref(), &Command::new(name).args(view).args(&args.command).exec()))
}

/// Tries to enter a namespace with an empty store at this place. The error is what a program says that needs it.
///
/// # Errors
/// Why it is not possible.
pub(crate) fn try_to_enter(store_dir: &str) -> Result<(), String> {
    let tried = || -> io::Result<Result<(), String>> {
        // Removed when dropped; a leftover is two empty folders in the folder for temporary files.
        let folder = tempfile::Builder::new().prefix("narval-doctor-").tempdir()?;
        let [store, root] = ["store", "root"].map(|name| folder.path().join(name));
        std::fs::create_dir(&store)?;
        std::fs::create_dir(&root)?;
        let mut probe = Command::new("/proc/self/exe");
        // A program that is there in the emptiest system.
        probe.arg("internal-enter").arg(store).arg(store_dir).arg(root).args(["--", "/proc/self/exe", "--version"]);
        let output = probe.output()?;
        let message = String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("narval: ").to_owned();
        Ok(if output.status.success() { Ok(()) } else { Err(message) })
    };
    tried().unwrap_or_else(|error| Err(error.to_string()))
}
