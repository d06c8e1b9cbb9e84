//! `narval run`: runs a program of a store path, wherever the store is.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use narval_install::run::{is_at_home, main_program, shell_variables};
use narval_install::{Destination, Error, Options, Progress, Wanted, install};
use narval_names::Package;
use narval_nix::{NarHash, StorePath};

use crate::args::channels::{Lookup, Meant, NameArgs};
use crate::args::client::{ClientArgs, DeltaArgs};
use crate::args::paths::or_elsewhere;
use crate::commands::running::follow::enter_and_follow;
use crate::project::accept::with_caches;
use crate::project::locked::{Lock, hashes};
use crate::project::{ProjectArgs, protect};
use crate::ui::failure::Failure;
use crate::ui::progress::{Display, FETCH};

/// Run a program from a store path, installing it first if needed
///
/// If the store is not at /nix/store, it is bound there for the program, in a user and mount namespace and without
/// root. User, files and network are not changed.
#[derive(Debug, clap::Args)]
#[command(disable_version_flag = true)]
#[command(
    after_help = "Examples:\n  narval run ripgrep -- rg --version\n  narval run …-hello-2.12\n  narval run --store ./root …-hello-2.12 -- hello --greeting hi\n  narval run ~/p -- hello\n\n  In a project, a folder with narval.toml and narval.lock:\n  narval run -- make"
)]
pub struct Args {
    /// Name of a package, such as ripgrep; store path (in full, HASH-NAME, only the hash part, where it is installed, or a symlink to any of
    /// these); or a profile [default: the packages of the project: see 'narval lock']
    #[arg(value_name = "PATH")]
    path: Option<String>,
    /// Command to run, with the path's bin folder first on PATH [default: the path's main program]
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

/// Runs `narval run`: does not return if the program starts.
///
/// # Errors
/// The path cannot be installed, or the program cannot be started.
pub fn run(args: Args) -> Result<(), Failure> {
    refuse_version(args.version, "run")?;
    args.client.output.start_log();
    let destination = args.client.store.destination()?;
    let Some(path) = args.path else {
        if args.command.is_empty() {
            return Err(Failure::usage("say what to run: a PATH, or a command of the project after --"));
        }
        let paths = of_project(&destination, &args.client, args.deltas, &args.names, &args.project)?;
        return become_program(&destination, &paths, &args.command);
    };
    let (paths, package) = ensure_installed(&destination, &args.client, args.deltas, &args.names, &[path])?;
    let program =
        package.map(|package| package.program).filter(|program| !program.is_empty() && !program.contains('/'));
    let command = match args.command.is_empty() {
        true => vec![main_program(destination.config(), &paths, program.as_deref())?.into_os_string()],
        false => args.command,
    };
    become_program(&destination, &paths, &command)
}

/// Says how the program gets an option that was given to us instead.
pub(crate) fn refuse_version(given: bool, command: &str) -> Result<(), Failure> {
    let advice = format!(
        "the program's arguments follow it after '--': 'narval {command} PATH -- PROGRAM --version'; 'narval --version' is ours"
    );
    if given { Err(Failure::usage(advice)) } else { Ok(()) }
}

/// Installs the missing paths, and returns all of them, and the package of the first one if a channel has told what its name means.
pub(crate) fn ensure_installed(
    destination: &Destination,
    client: &ClientArgs,
    deltas: DeltaArgs,
    names: &NameArgs,
    texts: &[String],
) -> Result<(Vec<StorePath>, Option<Package>), Failure> {
    let mut lookup = Lookup::new(destination, client, names);
    let meant = lookup.meant(texts)?;
    let package = meant.first().and_then(|one: &Meant| one.package.clone());
    let wanted: Vec<Wanted> = meant.iter().map(|one| one.wanted.clone()).collect();
    let there: Vec<_> = wanted.iter().map(|one| destination.find_and_keep(one)).collect::<Result<_, _>>()?;
    if there.iter().all(Option::is_some) {
        return Ok((there.into_iter().flatten().collect(), package));
    }
    fetch(destination, client, deltas, &wanted, HashMap::new())?
        .map_err(|error| lookup.explained(&error, &meant).unwrap_or_else(|| or_elsewhere(error, destination)))?;
    let find =
        |one: &Wanted| destination.find(one)?.ok_or_else(|| Failure::runtime("it was installed, but does not exist"));
    Ok((wanted.iter().map(find).collect::<Result<_, _>>()?, package))
}

/// Installs paths, with their progress shown.
fn fetch(
    destination: &Destination,
    client: &ClientArgs,
    deltas: DeltaArgs,
    wanted: &[Wanted],
    nar_hashes: HashMap<StorePath, NarHash>,
) -> Result<Result<(), Error>, Failure> {
    let options = Options { deltas: deltas.chosen(), nar_hashes, ..client.caches.options(None, false)? };
    let progress = Arc::new(Progress::default());
    let display = Display::start(&progress, client.output, FETCH);
    let report = client.caches.client().map(|client| install(destination, &options, &client, wanted, &progress));
    display.finish();
    Ok(report?.map(drop))
}

/// The locked paths of the project, installed as far as they are missing.
pub(crate) fn of_project(
    destination: &Destination,
    client: &ClientArgs,
    deltas: DeltaArgs,
    names: &NameArgs,
    project: &ProjectArgs,
) -> Result<Vec<StorePath>, Failure> {
    let accept = project.accept_project;
    let project = project.open()?;
    let Some(lock) = Lock::read(&project)? else {
        return Err(project.says("there is no narval.lock beside it: 'narval lock' makes it"));
    };
    let packages = lock.of(&project, &names.system().parse().map_err(Failure::usage)?)?;
    let hashes = hashes(&packages);
    let paths: Vec<StorePath> =
        packages.iter().flat_map(|package| &package.outputs).map(|one| one.path.clone()).collect();
    let mut missing = Vec::new();
    for path in &paths {
        let wanted = Wanted::Path(path.clone());
        if destination.find_and_keep(&wanted)?.is_none() {
            missing.push(wanted);
            continue;
        }
        let there = destination.store().path_info(path).map_err(Error::from)?;
        if let Some(there) = there.filter(|there| hashes.get(path) != Some(&there.nar_hash)) {
            let (hash, dir) = (there.nar_hash, destination.name());
            return Err(
                Error::WrongPath(format!("{path} in {dir} has the NAR hash {hash}, and narval.lock another")).into()
            );
        }
    }
    if !missing.is_empty() {
        let client = with_caches(&project, client, None, accept)?;
        fetch(destination, &client, deltas, &missing, hashes)?.map_err(|error| or_elsewhere(error, destination))?;
    }
    protect(destination, &project, &paths, !missing.is_empty())?;
    Ok(paths)
}

/// Executes the program, in a namespace if one is needed. Only a process with one thread can enter a user namespace: if this one has
/// more, it executes itself again.
pub(crate) fn become_program(
    destination: &Destination,
    paths: &[StorePath],
    command: &[OsString],
) -> Result<(), Failure> {
    let config = destination.config();
    let (program, arguments) = command.split_first().ok_or_else(|| Failure::usage("nothing to run"))?;
    let scratch = config.state_dir.join("narval-root");
    let variables = shell_variables(config, paths);
    let store_dir = Path::new(config.store_dir.as_str());
    let entered = match is_at_home(config) {
        true => Ok(()),
        false => enter_and_follow(&config.real_store_dir, store_dir, &scratch),
    };
    match entered {
        Ok(()) => Err(not_started(program.as_ref(), &Command::new(program).args(arguments).envs(variables).exec())),
        // The second process tries it again, with programs that may do it, or reports why it cannot. Without /proc, there is none.
        Err(error) => {
            let mut process = Command::new("/proc/self/exe");
            process.arg("internal-enter").arg(&config.real_store_dir).arg(config.store_dir.as_str());
            let again = process.arg(scratch).arg("--").args(command).envs(variables).exec();
            Err(Failure::runtime(format!("{error} (and the second attempt: {again})")))
        }
    }
}

/// 127 if there is no such program, 126 if it cannot be run: the exit codes of shells.
pub(crate) fn not_started(program: &Path, error: &std::io::Error) -> Failure {
    let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
    Failure::Coded(code, format!("cannot run {}: {error}", program.display()))
}
