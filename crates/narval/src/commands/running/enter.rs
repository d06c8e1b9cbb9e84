//! `narval __enter`: the second half of `narval run`, in a single-threaded process.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use narval_install::run::{helper, others_hidden};

use crate::Failure;
use crate::commands::running::follow::{enter_and_follow, warn_of_hidden};
use crate::commands::running::run::not_started;
use crate::ui::output::note;

/// Run by `narval run` in a single-threaded process. Not for users.
#[derive(Debug, clap::Args)]
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
