//! The command line of `narval`: one variant per command, and the groups shown by `--help`.

use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::caches::{copy, hook, pin, push, release, releases, token, use_cache, warm, watch_store};
use crate::commands::machines;
use crate::commands::packages::{info, lock, names, search, update, which_package};
use crate::commands::paths::{cat, diff, ls, nar, path_info, tree, verify, why, why_slow};
use crate::commands::profile::{env, gc, history, install, list, profiles, remove, rollback, upgrade};
use crate::commands::running::{enter, follow, run, shell};
use crate::commands::{cache, ci, completions, config, demo, doctor, key, login, man, oidc, serve, static_site, top};
use crate::ui::failure::Failure;
use crate::ui::output::note;
use crate::ui::{finish, json, log};

/// Serve, move and install Nix packages.
#[derive(Debug, Parser)]
#[command(name = "narval", version, propagate_version = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  narval demo
  narval key generate cache.example.org-1 > cache.sec
  narval serve --sign-key cache.sec
  narval install --from http://localhost:5000 /nix/store/…-hello-2.12

'narval COMMAND --help' describes a command.";

/// The commands by purpose; clap would list them in one column.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Serve", &["serve", "config", "warm", "static"]),
    (
        "Install",
        &[
            "search",
            "info",
            "which-package",
            "install",
            "run",
            "shell",
            "lock",
            "update",
            "list",
            "upgrade",
            "remove",
            "rollback",
            "history",
            "profiles",
            "env",
            "follow",
        ],
    ),
    ("Inspect", &["path-info", "tree", "why", "diff", "ls", "cat"]),
    (
        "Caches",
        &[
            "ci",
            "use",
            "copy",
            "push",
            "hook",
            "watch-store",
            "releases",
            "release",
            "machines",
            "login",
            "logout",
            "token",
            "oidc",
            "pin",
            "names",
            "cache",
        ],
    ),
    ("Maintain", &["verify", "gc", "doctor", "top", "why-slow"]),
    ("Tools", &["key", "nar", "demo", "completions", "man"]),
];

/// The clap definition of the command line.
pub fn definition() -> clap::Command {
    let definition = Cli::command();
    let mut template = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (group, names) in GROUPS {
        template.push_str(&format!("\n{group}:\n"));
        for command in names.iter().filter_map(|name| definition.find_subcommand(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            template.push_str(&format!("  {:<13}  {about}\n", command.get_name()));
        }
    }
    template.push_str("\nOptions:\n{options}{after-help}");
    definition.help_template(template)
}

/// Adds the arguments of a command to its definition.
type Define = fn(clap::Command) -> clap::Command;

/// The commands that scripts and builds start often.
const OFTEN: [(&str, Define); 12] = [
    ("internal-enter", enter::Args::augment_args),
    ("internal-follow", follow::Args::augment_args),
    ("cat", cat::Args::augment_args),
    ("copy", copy::Args::augment_args),
    ("env", env::Args::augment_args),
    ("hook", hook::Args::augment_args),
    ("install", install::Args::augment_args),
    ("path-info", path_info::Args::augment_args),
    ("push", push::Args::augment_args),
    ("run", run::Args::augment_args),
    ("serve", serve::Args::augment_args),
    ("shell", shell::Args::augment_args),
];

/// The definition with only this command, if it is one of [`OFTEN`]: defining all of them takes a third of the time that these need.
fn definition_of(name: &str) -> Option<clap::Command> {
    let name = if name == enter::FORMER_NAME { "internal-enter" } else { name };
    let (name, with_arguments) = OFTEN.iter().find(|(often, _)| *often == name)?;
    let program = clap::Command::new("narval").version(env!("CARGO_PKG_VERSION")).propagate_version(true);
    Some(program.subcommand_required(true).subcommand(with_arguments(clap::Command::new(*name))))
}

/// The command line of this process, by the definition of its command if that suffices: errors and help are about all of them.
fn parsed() -> Result<Cli, clap::Error> {
    let name = std::env::args_os().nth(1);
    let one = name.as_ref().and_then(|name| definition_of(name.to_str()?)?.try_get_matches().ok());
    let matches = one.map_or_else(|| definition().try_get_matches(), Ok)?;
    Cli::from_arg_matches(&matches)
}

#[derive(Debug, Subcommand)]
enum Command {
    Search(search::Args),
    Info(info::Args),
    WhichPackage(which_package::Args),
    Install(install::Args),
    Run(run::Args),
    Shell(shell::Args),
    Lock(lock::Args),
    Copy(copy::Args),
    Push(push::Args),
    Ci(Box<ci::Args>),
    #[command(name = "use")]
    Use(use_cache::Args),
    Hook(hook::Args),
    WatchStore(watch_store::Args),
    Verify(verify::Args),
    PathInfo(path_info::Args),
    Tree(tree::Args),
    Why(why::Args),
    Diff(diff::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Update(update::Args),
    List(list::Args),
    Upgrade(upgrade::Args),
    History(history::Args),
    Env(env::Args),
    Profiles(profiles::Args),
    Remove(remove::Args),
    Rollback(rollback::Args),
    Gc(gc::Args),
    Follow(machines::follow::Args),
    Doctor(doctor::Args),
    Top(top::Args),
    WhySlow(why_slow::Args),
    Completions(completions::Args),
    Man(man::Args),
    #[command(hide = true)]
    InternalEnter(enter::Args),
    #[command(hide = true)]
    InternalFollow(follow::Args),
    Serve(serve::Args),
    Config(config::Args),
    Warm(warm::Args),
    Static(static_site::Args),
    Login(login::Args),
    Logout(login::logout::Args),
    Token(token::Args),
    Oidc(oidc::Args),
    Pin(pin::Args),
    Releases(releases::Args),
    Release(release::Args),
    Machines(machines::list::Args),
    Names(names::Args),
    Cache(cache::Args),
    /// The same as `narval cache audit`.
    #[command(hide = true)]
    Audit(cache::audit::AuditArgs),
    Key(key::Args),
    Nar(nar::Args),
    Demo(demo::Args),
}

/// What does what a command of another package manager does.
const ELSEWHERE: [(&str, &str); 2] = [
    ("uninstall", "'narval remove NAME' does that"),
    ("build", "Narval builds nothing: 'nix build', then 'narval push ./result --to URL'"),
];

/// For a command that is unknown here and usual elsewhere, what to use.
fn hint_of_unknown(error: &clap::Error) -> Option<&'static str> {
    let name = std::env::args_os().nth(1).filter(|_| error.kind() == clap::error::ErrorKind::InvalidSubcommand)?;
    ELSEWHERE.iter().find_map(|(known, hint)| (name == *known).then_some(*hint))
}

/// Runs `narval` with the arguments of this process.
pub fn main() -> ExitCode {
    let cli = match parsed() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are "errors" for clap; it prints them to the right stream and knows the exit code (0 or
            // 2).
            if error.exit_code() != 0 {
                json::failure(&Failure::usage(error.render().to_string().trim_end()));
            }
            let printed = error.print();
            if let Some(hint) = hint_of_unknown(&error) {
                note!("{hint}");
            }
            return match printed {
                Ok(()) if error.exit_code() == 0 => finish::finish("narval"),
                Err(unwritten) if error.exit_code() == 0 => finish::unwritten("narval", &unwritten),
                // A build does not fail for an option of its hook.
                _ if std::env::args_os().nth(1).is_some_and(|command| command == "hook") => ExitCode::SUCCESS,
                // There is no stream left to report to.
                _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)),
            };
        }
    };
    let result = dispatch(cli.command);
    log::finish();
    match result {
        Ok(()) => finish::finish("narval"),
        Err(failure) => {
            json::failure(&failure);
            failure.report("narval")
        }
    }
}

fn dispatch(command: Command) -> Result<(), Failure> {
    match command {
        Command::Search(args) => search::run(&args),
        Command::Info(args) => info::run(&args),
        Command::WhichPackage(args) => which_package::run(&args),
        Command::Install(args) => install::run(args),
        Command::Run(args) => run::run(args),
        Command::Shell(args) => shell::run(args),
        Command::Lock(args) => lock::run(&args),
        Command::Copy(args) => copy::run(args),
        Command::Push(args) => push::run(args),
        Command::Ci(args) => ci::run(*args),
        Command::Use(args) => use_cache::run(args),
        Command::Hook(args) => hook::run(&args),
        Command::WatchStore(args) => watch_store::run(args),
        Command::Verify(args) => verify::run(args),
        Command::PathInfo(args) => path_info::run(args),
        Command::Tree(args) => tree::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Ls(args) => ls::run(args),
        Command::Cat(args) => cat::run(args),
        Command::Update(args) => update::run(&args),
        Command::List(args) => list::run(&args),
        Command::Upgrade(args) => upgrade::run(&args),
        Command::History(args) => history::run(&args),
        Command::Env(args) => env::run(&args),
        Command::Profiles(args) => profiles::run(args),
        Command::Remove(args) => remove::run(args),
        Command::Rollback(args) => rollback::run(args),
        Command::Gc(args) => gc::run(args),
        Command::Follow(args) => machines::follow::run(args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Top(args) => top::run(&args),
        Command::WhySlow(args) => why_slow::run(args),
        Command::Completions(args) => completions::run(&args, definition()),
        Command::Man(args) => man::run(&args, &definition()),
        Command::InternalEnter(args) => enter::run(args),
        Command::InternalFollow(args) => follow::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Config(args) => config::run(args),
        Command::Warm(args) => warm::run(args),
        Command::Static(args) => static_site::run(args),
        Command::Login(args) => login::run(&args),
        Command::Logout(args) => login::logout::run(&args),
        Command::Token(args) => token::run(args),
        Command::Oidc(args) => oidc::run(args),
        Command::Pin(args) => pin::run(args),
        Command::Releases(args) => releases::run(&args),
        Command::Release(args) => release::run(args),
        Command::Machines(args) => machines::list::run(args),
        Command::Names(args) => names::run(args),
        Command::Cache(args) => cache::run(args),
        Command::Audit(args) => cache::audit::audit(&args),
        Command::Key(args) => key::run(args),
        Command::Nar(args) => nar::run(args),
        Command::Demo(args) => demo::run(args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_fit_together() {
        definition().debug_assert();
    }

    #[test]
    fn a_command_that_is_defined_alone_is_the_same() {
        let help = |mut definition: clap::Command, name: &str| {
            definition.build();
            definition.find_subcommand_mut(name).unwrap().render_long_help().to_string()
        };
        for (name, _) in OFTEN {
            let alone = definition_of(name).unwrap();
            alone.clone().debug_assert();
            assert_eq!(help(alone, name), help(definition(), name));
        }
    }

    #[test]
    fn every_command_is_in_one_group() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let groups = GROUPS.iter().filter(|(_, names)| names.contains(&command.get_name()));
            assert_eq!(groups.count(), 1, "{}", command.get_name());
        }
    }
}
