//! `narval shell`: starts a shell with the programs of store paths.

use std::ffi::OsString;

use crate::args::channels::NameArgs;
use crate::args::client::{ClientArgs, DeltaArgs};
use crate::commands::running::run::{become_program, ensure_installed, of_project, refuse_version};
use crate::project::ProjectArgs;
use crate::ui::failure::Failure;

/// Start a shell with the programs of store paths on PATH
///
/// Without a PATH, in a project, those of the packages that narval.toml names, at exactly the paths that narval.lock has: see 'narval lock'. These paths are
/// not collected as garbage as long as the project has its lock.
#[derive(Debug, clap::Args)]
#[command(disable_version_flag = true)]
#[command(
    after_help = "Examples:\n  narval shell git jq\n  narval shell …-git-2.51 …-jq-1.8\n  narval shell …-git-2.51 -- git --version\n\n  In a project, a folder with narval.toml and narval.lock:\n  narval shell\n  narval shell -- make"
)]
pub struct Args {
    /// Names of packages, such as git or nodejs@22; store paths: in full, HASH-NAME, only the hash part, where they are installed, or symlinks to
    /// these; or profiles [default: the packages of the project]
    #[arg(value_name = "PATH")]
    paths: Vec<String>,
    /// Command to run [default: $SHELL]
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
    /// Not ours: an argument of the program comes after `--`
    #[arg(long, short = 'V', hide = true)]
    version: bool,
    #[command(flatten)]
    names: NameArgs,
    #[command(flatten)]
    project: ProjectArgs,
    #[command(flatten)]
    deltas: DeltaArgs,
    #[command(flatten)]
    client: ClientArgs,
}

/// Runs `narval shell`.
///
/// # Errors
/// Like `narval run`.
pub fn run(args: Args) -> Result<(), Failure> {
    refuse_version(args.version, "shell")?;
    args.client.output.start_log();
    let destination = args.client.store.destination()?;
    let paths = match args.paths.as_slice() {
        [] => of_project(&destination, &args.client, args.deltas, &args.names, &args.project)?,
        paths => ensure_installed(&destination, &args.client, args.deltas, &args.names, paths)?.0,
    };
    let shell = || std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
    let command = if args.command.is_empty() { vec![shell()] } else { args.command };
    become_program(&destination, &paths, &command)
}
