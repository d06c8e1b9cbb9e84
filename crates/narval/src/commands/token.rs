//! `narval token`: manages the tokens of a writable cache.

use std::time::Duration;

use clap::Subcommand;
use narval_keep::{CachePatterns, CacheSettings, DEFAULT_CACHE, NewToken, Scope, Scopes, TokenInfo};
use serde_json::json;

use crate::Failure;
use crate::args::data::{DataArgs, ago, ahead, now};
use crate::ui::json;
use crate::ui::output::{note, out};
use crate::values::time::parse_time;

/// Create, list and revoke tokens for a writable cache
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a token and print it
    ///
    /// It is only shown once, because only its hash is stored. Clients send it as `Authorization: Bearer`, or as the
    /// password in netrc, with any user name.
    #[command(after_help = "\
Examples:
  narval token create --pull --push --sign ci > token
  narval token create --push --sign --cache 'team-*' --expires 90d builders")]
    Create(CreateArgs),
    /// List tokens, and when they were last used
    #[command(after_help = "Example:\n  narval token list")]
    List {
        #[command(flatten)]
        data: DataArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a token
    #[command(after_help = "Example:\n  narval token revoke 0a1b2c3d4f5g6h7i")]
    Revoke {
        #[command(flatten)]
        data: DataArgs,
        /// Its id, as shown by `narval token list`: the part between the underscores
        #[arg(value_name = "ID")]
        id: String,
    },
}

#[derive(Debug, clap::Args)]
struct CreateArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Name of the token, for lists and the audit log
    #[arg(value_name = "LABEL")]
    label: String,
    /// Caches that it is valid for: names, or patterns such as `team-*`
    #[arg(long = "cache", value_name = "NAME", default_value = DEFAULT_CACHE)]
    caches: Vec<String>,
    /// Time until it expires, such as `90d` [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    expires: Option<Duration>,
    #[command(flatten)]
    allows: AllowArgs,
}

/// What a token allows.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "What it allows")]
struct AllowArgs {
    /// Read caches that are not public
    #[arg(long)]
    pull: bool,
    /// Upload paths
    #[arg(long)]
    push: bool,
    /// Have the cache sign uploaded paths
    #[arg(long)]
    sign: bool,
    /// Add and remove pins
    #[arg(long)]
    pin: bool,
    /// Delete paths
    #[arg(long)]
    delete: bool,
    /// Replace the contents of a path
    #[arg(long)]
    replace: bool,
    /// All of these
    #[arg(long)]
    admin: bool,
}

impl AllowArgs {
    fn scopes(&self) -> Scopes {
        let chosen = [self.pull, self.push, self.sign, self.pin, self.delete, self.replace, self.admin];
        Scope::ALL.into_iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(scope, _)| scope).collect()
    }
}

/// Runs `narval token`.
///
/// # Errors
/// If the data folder cannot be used, or the requested token is not possible.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Create(args) => create(&args),
        Command::List { data, json } => list(&data, json),
        Command::Revoke { data, id } => revoke(&data, &id),
    }
}

fn create(args: &CreateArgs) -> Result<(), Failure> {
    let new = NewToken {
        label: args.label.clone(),
        caches: CachePatterns::new(&args.caches).map_err(Failure::usage)?,
        scopes: args.allows.scopes(),
        expires: args.expires.map(|time| now().saturating_add(time.as_secs())),
    };
    if new.scopes.is_empty() {
        return Err(Failure::usage("the token would allow nothing: give --push, --pull or another option of --help"));
    }
    let data = args.data.create()?;
    // A token can be created before the server's first start, so create the cache.
    data.create_cache(&Default::default(), &CacheSettings::default()).map_err(Failure::runtime)?;
    let (info, token) = data.tokens().create(&new).map_err(Failure::usage)?;
    let detail = format!("'{}' allows {} in {}", info.label, info.scopes, info.caches.join(", "));
    data.audit().note(&crate::args::data::administrator(), None, "create token", &info.id, &Ok(detail));
    out!("{}", token.as_str());
    note!("token {} '{}' allows {} in {}", info.id, info.label, info.scopes, info.caches.join(", "));
    if info.scopes.has(Scope::Push) && !info.scopes.has(Scope::Sign) {
        note!(
            "paths that are pushed with it are not signed by the cache, so clients refuse them unless their builder has signed them: --sign \
             allows it"
        );
    }
    Ok(())
}

fn list(data: &DataArgs, json: bool) -> Result<(), Failure> {
    let tokens = data.open()?.tokens().list().map_err(Failure::runtime)?;
    for token in &tokens {
        if json {
            let TokenInfo { id, label, caches, scopes, created, expires, last_used, revoked } = token;
            let scopes = scopes.to_string();
            json::event(
                "token",
                json!({"id": id, "label": label, "caches": caches, "scopes": scopes, "created": created, "expires": expires,
                    "lastUsed": last_used, "revoked": revoked}),
            );
            continue;
        }
        let state = match (token.revoked, token.expires) {
            (Some(time), _) => format!("revoked {}", ago(time)),
            (None, Some(time)) if time <= now() => "expired".to_owned(),
            (None, Some(time)) => format!("expires {}", ahead(time)),
            (None, None) => "valid".to_owned(),
        };
        let used = token.last_used.map_or_else(|| "never used".to_owned(), |time| format!("used {}", ago(time)));
        out!("{}  {}  {}  {}  {state}, {used}", token.id, token.label, token.scopes, token.caches.join(","));
    }
    if json {
        json::summary(json!({"tokens": tokens.len()}));
    }
    Ok(())
}

fn revoke(data: &DataArgs, id: &str) -> Result<(), Failure> {
    let data = data.open()?;
    if !data.tokens().revoke(id).map_err(Failure::runtime)? {
        return Err(Failure::usage(format!("there is no token '{id}'; 'narval token list' shows them")));
    }
    data.audit().note(&crate::args::data::administrator(), None, "revoke", id, &Ok("revoked".to_owned()));
    data.wait_until_noticed();
    Ok(())
}
