//! `narval run` and `narval shell`: programs of a store, wherever it lies.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use narval_install::run::{enter, helper, is_at_home, main_program, shell_variables};
use narval_install::{Destination, Progress, Trace, Wanted, install};
use narval_nix::StorePath;

use crate::Failure;
use crate::args::client::{CacheArgs, ClientArgs, OutputArgs};
use crate::commands::install::parse_wanted;
use crate::ui::output::note;
use crate::ui::progress::Display;

/// Run a program from a store path, installing it first if needed
///
/// If the store is not at /nix/store, it is bound there for the program in a user and mount namespace, without root. User,
/// files and network are not changed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  narval run …-hello-2.12\n  narval run --store ./root …-hello-2.12 -- hello --greeting hi"
)]
pub struct RunArgs {
    /// Store path: in full, HASH-NAME, or the hash part alone
    #[arg(value_name = "PATH")]
    path: String,
    /// Command to run, with the path's bin folder first on PATH [default: the path's main program]
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
    #[command(flatten)]
    client: ClientArgs,
}

/// Start a shell with the programs of store paths on PATH
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  narval shell …-git-2.51 …-jq-1.8\n  narval shell …-git-2.51 -- git --version")]
pub struct ShellArgs {
    /// Store paths: in full, HASH-NAME, or the hash part alone
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Command to run [default: $SHELL]
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
    #[command(flatten)]
    client: ClientArgs,
}

/// What a process of one thread does after `run` has started it anew. Not for users.
#[derive(Debug, clap::Args)]
pub struct EnterArgs {
    /// Where the store is.
    real_store: PathBuf,
    /// Where it is to be seen.
    store_dir: PathBuf,
    /// A folder that may be covered.
    scratch: PathBuf,
    /// What to run.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs `narval run`: does not return when the program starts.
///
/// # Errors
/// When the path can't be installed, or the program not started.
pub fn run(args: RunArgs) -> Result<(), Failure> {
    args.client.output.start_log();
    let destination = args.client.store.destination()?;
    let paths = ensure(&destination, &args.client.caches, args.client.output, &[args.path])?;
    let command = match (args.command.is_empty(), paths.first()) {
        (true, Some(path)) => vec![main_program(destination.config(), path)?.into_os_string()],
        _ => args.command,
    };
    start(&destination, &paths, &command)
}

/// Runs `narval shell`.
///
/// # Errors
/// As [`run`].
pub fn shell(args: ShellArgs) -> Result<(), Failure> {
    args.client.output.start_log();
    let destination = args.client.store.destination()?;
    let paths = ensure(&destination, &args.client.caches, args.client.output, &args.paths)?;
    let shell = || std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
    let command = if args.command.is_empty() { vec![shell()] } else { args.command };
    start(&destination, &paths, &command)
}

/// The paths, installed.
fn ensure(
    destination: &Destination,
    caches: &CacheArgs,
    output: OutputArgs,
    texts: &[String],
) -> Result<Vec<StorePath>, Failure> {
    let wanted = parse_wanted(texts, destination.store_dir())?;
    let there: Vec<_> = wanted.iter().map(|one| destination.find_and_keep(one)).collect::<Result<_, _>>()?;
    if there.iter().all(Option::is_some) {
        return Ok(there.into_iter().flatten().collect());
    }
    let progress = Arc::new(Progress::default());
    let display = Display::start(&progress, output);
    let (client, options) = (caches.client()?, caches.options(None, false)?);
    let report = install(destination, &options, &client, &wanted, &progress, &Trace::new(false));
    display.finish();
    report?;
    let find = |one: &Wanted| destination.find(one)?.ok_or_else(|| Failure::runtime("installed, and not there"));
    wanted.iter().map(find).collect()
}

/// Becomes the program; through a process of one thread where a namespace is needed.
fn start(destination: &Destination, paths: &[StorePath], command: &[OsString]) -> Result<(), Failure> {
    let config = destination.config();
    let (program, arguments) = command.split_first().ok_or_else(|| Failure::usage("nothing to run"))?;
    let mut process = if is_at_home(config) {
        let mut process = Command::new(program);
        process.args(arguments);
        process
    } else {
        let mut process = Command::new("/proc/self/exe");
        process.arg("__enter").arg(&config.real_store_dir).arg(config.store_dir.as_str());
        process.arg(config.state_dir.join("narval-root")).arg("--").args(command);
        process
    };
    process.envs(shell_variables(config, paths));
    Err(not_started(program.as_ref(), &process.exec()))
}

/// Runs the hidden second half of `narval run`.
///
/// # Errors
/// When the kernel forbids namespaces and there is no helper, or the program does not start.
pub fn enter_and_run(args: EnterArgs) -> Result<(), Failure> {
    let (program, arguments) = args.command.split_first().ok_or_else(|| Failure::usage("nothing to run"))?;
    let Err(error) = enter(&args.real_store, &args.store_dir, &args.scratch) else {
        return Err(not_started(program.as_ref(), &Command::new(program).args(arguments).exec()));
    };
    let this = std::env::current_exe().map_err(Failure::runtime)?;
    let Some((name, view)) = helper(&args.real_store, &args.store_dir, &this) else {
        return Err(Failure::runtime(error));
    };
    note!("narval: cannot {}: {}; using {name} instead", error.step, error.source);
    Err(not_started(program.as_ref(), &Command::new(name).args(view).args(&args.command).exec()))
}

/// 127 when there is no such program, 126 when it can't be run, as shells have it.
fn not_started(program: &Path, error: &std::io::Error) -> Failure {
    let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
    Failure::Coded(code, format!("cannot run {}: {error}", program.display()))
}
