//! `narval machines`: what the machines that follow releases have reported to a cache.

use clap::Subcommand;
use narval_http::Method;
use narval_keep::{Machine, MachineName};
use serde_json::json;

use crate::args::administered::{AdministeredArgs, AdministeredCache, escaped};
use crate::args::data::{ago, now};
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::out;

/// List machines that follow releases, and what they run
///
/// Machines report it themselves, with 'narval follow --report'. Those that report nothing for 30 days are forgotten.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  narval machines --at https://cache.example.org
  narval machines forget web-3 --at https://cache.example.org"
)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    place: AdministeredArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Forget a machine, until it reports again
    #[command(after_help = "Example:\n  narval machines forget web-3 --at https://cache.example.org")]
    Forget {
        #[command(flatten)]
        place: AdministeredArgs,
        /// Name of the machine
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// Runs `narval machines`.
///
/// # Errors
/// If the data folder or the URL cannot be used, or the token may not administer the cache.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        None => list(&args.place.open()?, args.json),
        Some(Command::Forget { place, name }) => forget(&place.open()?, &name),
    }
}

fn list(place: &AdministeredCache, as_json: bool) -> Result<(), Failure> {
    let count = place.each("machines", |machine| {
        if as_json {
            json::event("machine", machine);
        } else {
            show(&serde_json::from_value(machine).map_err(Failure::runtime)?);
        }
        Ok(())
    })?;
    if as_json {
        json::summary(json!({"machines": count}));
    }
    Ok(())
}

/// What a server says is text: control characters are left out.
fn show(machine: &Machine) {
    let plain = |text: &str| text.chars().filter(|c| !c.is_control()).collect::<String>();
    let Machine { name, seen, report, .. } = machine;
    let revision = report.revision.map_or_else(|| "  no revision".to_owned(), |revision| format!("  {revision}"));
    let since = report.since.map(|since| format!(" since {}", ago(since))).unwrap_or_default();
    let trying = report.trying.map(|trying| format!(" {trying}")).unwrap_or_default();
    let generation = report.generation.map(|number| format!(", generation {number}")).unwrap_or_default();
    let silent = if machine.is_silent(now()) { ", not heard of since" } else { "" };
    out!(
        "{}  {}{revision}{since}{generation}  {}{trying}  seen {}{silent}",
        plain(name),
        plain(&report.release),
        report.state.text(),
        ago(*seen)
    );
    if let Some(error) = &report.error {
        let at = report.error_at.map(|at| format!(" ({})", ago(at))).unwrap_or_default();
        out!("  {}{at}", plain(error));
    }
}

fn forget(place: &AdministeredCache, name: &str) -> Result<(), Failure> {
    let parsed: MachineName = name.parse().map_err(|error| Failure::usage(format!("'{name}' is {error}")))?;
    place.ask(&Method::DELETE, &format!("machines/{}", escaped(parsed.as_str())), None).map(drop)
}
