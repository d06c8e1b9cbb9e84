//! `narval release`: shows, promotes, pins and forgets releases of a cache.

use clap::Subcommand;
use narval_http::Method;
use narval_nix::Release;
use narval_nix::StoreDir;
use narval_nix::release::{ReleaseName, Selector, Which};
use serde_json::{Value, json};

use crate::args::administered::{AdminTarget, AdministeredArgs, escaped};
use crate::args::client::{LockArgs, SourceCacheArgs};
use crate::args::data::ago;
use crate::args::releases::ReleaseLookup;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::out;
use crate::ui::output_args::OutputArgs;

/// Show, promote, pin and forget releases of a cache
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show a release, after verifying its signature
    #[command(after_help = "\
Examples:
  narval release show api --from https://cache.example.org
  narval release show api@1.4.2 --from https://cache.example.org")]
    Show {
        /// Release: `api`, `api@41` or `api@1.4.2`
        #[arg(value_name = "RELEASE")]
        release: Selected,
        /// System whose newest release is meant [default: this machine's]
        #[arg(long, value_name = "SYSTEM")]
        system: Option<String>,
        #[command(flatten)]
        caches: SourceCacheArgs,
        #[command(flatten)]
        lock: LockArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Record a release under another name, which machines follow
    ///
    /// The other name gets a new revision, so this is also how to go back. Needs a token with the scope `release:` of the other name.
    ///
    /// With --percent, it is for some of the machines that follow the name, chosen by their names: 10, then 50, then 100 percent are the same machines and
    /// more. All others, and 'narval install', have the newest release for all. To undo it, promote that one (`latest`).
    #[command(after_help = "\
Examples:
  narval release promote api 41 --as prod --at https://cache.example.org
  narval release promote api 42 --as prod --percent 10 \\
    --at https://cache.example.org
  narval release promote prod 6 --as prod --at https://cache.example.org
  narval release promote prod latest --as prod --data /var/lib/narval")]
    Promote {
        /// Name
        #[arg(value_name = "NAME")]
        name: Named,
        /// Revision, version, or `latest`
        #[arg(value_name = "REVISION")]
        which: Which,
        /// Name that it is recorded under
        #[arg(long = "as", value_name = "NAME")]
        to_name: Named,
        /// Share of machines that it is for, in percent
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=100))]
        percent: Option<u8>,
        #[command(flatten)]
        place: AdministeredArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Keep the paths of a release, however many come after it
    #[command(after_help = "Example:\n  narval release pin api 41 --at https://cache.example.org")]
    Pin {
        /// Name
        #[arg(value_name = "NAME")]
        name: Named,
        /// Revision, version, or `latest`
        #[arg(value_name = "REVISION")]
        which: Which,
        /// Undo it
        #[arg(long)]
        remove: bool,
        #[command(flatten)]
        place: AdministeredArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Forget a release, or all of a name: their paths are collected as any others are
    #[command(after_help = "\
Examples:
  narval release forget api 41 --at https://cache.example.org
  narval release forget api --all --at https://cache.example.org")]
    Forget {
        /// Name
        #[arg(value_name = "NAME")]
        name: Named,
        /// Revision
        #[arg(value_name = "REVISION", required_unless_present = "all", value_parser = clap::value_parser!(u64).range(1..))]
        revision: Option<u64>,
        /// All releases of this name
        #[arg(long, conflicts_with = "revision")]
        all: bool,
        #[command(flatten)]
        place: AdministeredArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// A release, with or without `@` before its name.
#[derive(Clone, Debug)]
struct Selected(Selector);

impl std::str::FromStr for Selected {
    type Err = narval_nix::release::ReleaseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        format!("@{}", text.trim_start_matches('@')).parse().map(Self)
    }
}

/// The name of one, with or without `@`.
#[derive(Clone, Debug)]
struct Named(ReleaseName);

impl std::str::FromStr for Named {
    type Err = narval_nix::release::ReleaseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.trim_start_matches('@').parse().map(Self)
    }
}

/// Runs `narval release`.
///
/// # Errors
/// If the cache cannot be asked, refuses, or has no such release.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Show { release, system, caches, lock, output } => {
            output.start_log();
            let store_dir = StoreDir::default();
            let lookup = ReleaseLookup {
                caches: &caches,
                system: system.as_deref(),
                store_dir: &store_dir,
                lock_timeout: lock.timeout(),
            };
            let found = lookup.find(&release.0.to_string())?;
            show(&found.release, &found.cache.to_string(), output);
        }
        Command::Promote { name, which, to_name, percent, place, output } => {
            output.start_log();
            let opened = place.open()?;
            if let AdminTarget::Local(data) = &opened.place {
                let cache = opened.of(data)?;
                let mut keys = place.place.data.sign_keys(cache.name())?;
                keys.extend(data.signing_keys().map_err(Failure::runtime)?.remove(cache.name()).unwrap_or_default());
                cache.set_sign_keys(keys);
            }
            let body = json!({"from": {"name": name.0.as_str(), "which": which.to_string()}, "percent": percent});
            let release = opened.ask(&Method::POST, &path_of(&to_name, None), Some(&body))?;
            show(&parsed(&release)?, &opened.shown(), output);
        }
        Command::Pin { name, which, remove, place, output } => {
            output.start_log();
            let method = if remove { Method::DELETE } else { Method::PUT };
            let path = format!("{}/pin", path_of(&name, Some(&which.to_string())));
            let selector = parsed(&place.open()?.ask(&method, &path, None)?)?.selector().to_string();
            done(output, &json!({"release": selector, "pinned": !remove}), &selector);
        }
        Command::Forget { name, revision, place, output, .. } => {
            output.start_log();
            let which = revision.map(|revision| revision.to_string());
            place.open()?.ask(&Method::DELETE, &path_of(&name, which.as_deref()), None)?;
            let selector =
                Selector { name: name.0, which: revision.map_or(Which::Latest, Which::Revision) }.to_string();
            done(output, &json!({"forgotten": selector}), &format!("forgotten: {selector}"));
        }
    }
    Ok(())
}

/// The path of a release, or of all of a name.
fn path_of(name: &Named, which: Option<&str>) -> String {
    let which = which.map(|which| format!("/{}", escaped(which))).unwrap_or_default();
    format!("releases/{}{which}", escaped(name.0.as_str()))
}

fn parsed(release: &Value) -> Result<Release, Failure> {
    let unreadable = |error| Failure::runtime(format!("the answer is no release: {error}"));
    Release::parse(release.to_string().as_bytes()).map_err(unreadable)
}

fn done(output: OutputArgs, summary: &Value, text: &str) {
    if output.json {
        json::summary(summary.clone());
    } else if !output.quiet {
        out!("{text}");
    }
}

fn show(release: &Release, cache: &str, output: OutputArgs) {
    if output.json {
        // It was parsed, so it is JSON.
        let mut fields: Value = serde_json::from_str(&release.to_json()).unwrap_or_default();
        if let Some(fields) = fields.as_object_mut() {
            fields.insert("at".to_owned(), json!(cache));
        }
        json::summary(fields);
        return;
    }
    if output.quiet {
        return;
    }
    let version = release.version.as_ref().map(|version| format!("  {version}")).unwrap_or_default();
    let from = release.promoted_from.as_ref();
    let from = from.map(|(name, revision)| format!("  from @{name}@{revision}")).unwrap_or_default();
    let percent = release.percent.map(|percent| format!("  for {percent} %")).unwrap_or_default();
    out!("{}{version}  {}{from}{percent}  {cache}", release.selector(), ago(release.created));
    for (system, outputs) in &release.paths {
        for (output, released) in outputs {
            out!("{system}  {output}  {}", release.store_dir.display(&released.path));
        }
    }
    for (name, note) in &release.notes {
        out!("{name}: {note}");
    }
    for signature in &release.signatures {
        out!("signed by {}", signature.key_name());
    }
}
