//! `narval release`: shows, promotes, pins and forgets releases of a cache.

use clap::Subcommand;
use narval_client::Url;
use narval_install::Administered;
use narval_nix::Release;
use narval_nix::StoreDir;
use narval_nix::release::{ReleaseName, Selector, Which};
use serde_json::json;

use crate::Failure;
use crate::args::client::{CacheArgs, LockArgs, OutputArgs, parse_cache};
use crate::args::data::ago;
use crate::args::push::TokenArgs;
use crate::args::releases::ReleaseLookup;
use crate::ui::json;
use crate::ui::output::out;

/// Show, promote, pin and forget releases of a cache
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

/// The cache, and a token for it.
#[derive(Debug, clap::Args)]
struct ToArgs {
    /// URL of the cache
    #[arg(long, value_name = "URL")]
    to: String,
    #[command(flatten)]
    token: TokenArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl ToArgs {
    fn open(&self) -> Result<Administered, Failure> {
        self.output.start_log();
        let url: Url = parse_cache(&self.to)?;
        let client = self.token.client(std::slice::from_ref(&url))?;
        Ok(Administered::new(url, client))
    }
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
        caches: CacheArgs,
        #[command(flatten)]
        lock: LockArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Record a release under another name, which machines follow
    ///
    /// The other name gets a new revision, so this is also how to go back. Needs a token with the scope `release:` of the other name.
    #[command(after_help = "\
Examples:
  narval release promote api 41 --as prod --to https://cache.example.org
  narval release promote prod 6 --as prod --to https://cache.example.org")]
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
        #[command(flatten)]
        to: ToArgs,
    },
    /// Keep the paths of a release, however many come after it
    #[command(after_help = "Example:\n  narval release pin api 41 --to https://cache.example.org")]
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
        to: ToArgs,
    },
    /// Forget a release, or all of a name: their paths are collected as any others are
    #[command(after_help = "\
Examples:
  narval release forget api 41 --to https://cache.example.org
  narval release forget api --all --to https://cache.example.org")]
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
        to: ToArgs,
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
        Command::Promote { name, which, to_name, to } => {
            let cache = to.open()?;
            let body = json!({"from": {"name": name.0.as_str(), "which": which.to_string()}});
            let release = cache.release(&to_name.0, &body)?;
            show(&release, &cache.url().to_string(), to.output);
        }
        Command::Pin { name, which, remove, to } => {
            let cache = to.open()?;
            let selector = cache.pin_release(&name.0, &which, !remove)?;
            done(to.output, &json!({"release": selector, "pinned": !remove}), &selector);
        }
        Command::Forget { name, revision, to, .. } => {
            let cache = to.open()?;
            cache.forget_release(&name.0, revision)?;
            let selector =
                Selector { name: name.0, which: revision.map_or(Which::Latest, Which::Revision) }.to_string();
            done(to.output, &json!({"forgotten": selector}), &format!("forgotten: {selector}"));
        }
    }
    Ok(())
}

fn done(output: OutputArgs, summary: &serde_json::Value, text: &str) {
    if output.json {
        json::summary(summary.clone());
    } else if !output.quiet {
        out!("{text}");
    }
}

fn show(release: &Release, cache: &str, output: OutputArgs) {
    if output.json {
        // It was parsed, so it is JSON.
        let mut fields: serde_json::Value = serde_json::from_str(&release.to_json()).unwrap_or_default();
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
    out!("{}{version}  {}{from}  {cache}", release.selector(), ago(release.created));
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
