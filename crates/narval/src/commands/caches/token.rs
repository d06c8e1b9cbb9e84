//! `narval token`: manages the tokens of a writable cache.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use narval_http::Method;
use narval_keep::{CachePatterns, CacheSettings, DEFAULT_CACHE, Scope, Scopes};
use serde_json::{Value, json};

use crate::args::administered::{AdminTarget, AdminTargetArgs, escaped, number, text};
use crate::args::data::{ago, ahead, now};
use crate::args::secret_key::write_secret;
use crate::ui::failure::Failure;
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
    /// It is only shown once, because only its hash is stored; --out writes it to a file that only you can read. Clients send it as `Authorization: Bearer`, or as the
    /// password in netrc, with any user name.
    #[command(after_help = "\
Examples:
  narval token create --pull --push --sign ci --out token
  narval token create --push --sign --cache 'team-*' --expires 90d builders
  narval token create --report='web-*' machines --out report.token
  narval token create --pull ci --at https://cache.example.org")]
    Create(CreateArgs),
    /// Change the caches and the scopes of a token
    ///
    /// Its holders need nothing new: a machine has one token for each host, so what it may do there is that token's.
    #[command(after_help = "\
Examples:
  narval token change 0a1b2c3d4f5g6h7i --add-scope sign
  narval token change 0a1b2c3d4f5g6h7i --cache default,team")]
    Change(ChangeArgs),
    /// List tokens, and when they were last used
    #[command(after_help = "Examples:\n  narval token list\n  narval token list --at https://cache.example.org")]
    List {
        #[command(flatten)]
        place: AdminTargetArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a token
    #[command(after_help = "Example:\n  narval token revoke 0a1b2c3d4f5g6h7i")]
    Revoke {
        #[command(flatten)]
        place: AdminTargetArgs,
        /// Its id, as shown by `narval token list`: the part between the underscores
        #[arg(value_name = "ID")]
        id: String,
    },
}

#[derive(Debug, clap::Args)]
struct CreateArgs {
    #[command(flatten)]
    place: AdminTargetArgs,
    /// Name of the token, for lists and the audit log
    #[arg(value_name = "LABEL")]
    label: String,
    /// Caches that it is valid for: names, or patterns such as `team-*`, separated by commas
    #[arg(long = "cache", value_name = "NAME", value_delimiter = ',', default_value = DEFAULT_CACHE)]
    caches: Vec<String>,
    /// File to write the token to; must not exist
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Time until it expires, such as `90d` [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    expires: Option<Duration>,
    #[command(flatten)]
    allows: AllowArgs,
}

#[derive(Debug, clap::Args)]
struct ChangeArgs {
    #[command(flatten)]
    place: AdminTargetArgs,
    /// Its id, as shown by `narval token list`: the part between the underscores
    #[arg(value_name = "ID")]
    id: String,
    /// Caches that it is valid for from now on, instead of those that it had
    #[arg(long = "cache", value_name = "NAME", value_delimiter = ',')]
    caches: Vec<String>,
    /// Caches that it is also valid for
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "caches")]
    add_cache: Vec<String>,
    /// Scopes that it also has: pull, push, sign, pin, delete, replace, report, admin, release:PATTERN,
    /// report:PATTERN
    #[arg(long, value_name = "SCOPE", value_delimiter = ',')]
    add_scope: Vec<Scopes>,
    /// Scopes that it has no longer
    #[arg(long, value_name = "SCOPE", value_delimiter = ',')]
    remove_scope: Vec<Scopes>,
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
    /// Record releases whose names match this pattern, such as `api-*`. Repeatable
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    release: Vec<String>,
    /// Report what runs on machines whose names match this pattern, such as `web-*`; without one, on any. Repeatable
    #[arg(long, value_name = "PATTERN", value_delimiter = ',', num_args = 0..=1, require_equals = true, default_missing_value = "*")]
    report: Vec<String>,
    /// All of these
    #[arg(long)]
    admin: bool,
}

impl AllowArgs {
    fn scopes(&self) -> Result<Scopes, Failure> {
        let report = self.report.iter().any(|pattern| pattern == "*");
        let chosen = [self.pull, self.push, self.sign, self.pin, self.delete, self.replace, report, self.admin];
        let chosen = Scope::ALL.into_iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(scope, _)| scope);
        let releases = self.release.iter().map(|pattern| format!("release:{pattern}"));
        let reports = self.report.iter().filter(|pattern| *pattern != "*").map(|pattern| format!("report:{pattern}"));
        let named = releases.chain(reports).collect::<Vec<_>>().join(",").parse().map_err(Failure::usage)?;
        chosen.collect::<Scopes>().and(&named).map_err(Failure::usage)
    }
}

/// Runs `narval token`.
///
/// # Errors
/// If the data folder or the server cannot be used, or the requested token is not possible.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Create(args) => create(&args),
        Command::Change(args) => change(&args),
        Command::List { place, json } => list(&place.open()?, json),
        Command::Revoke { place, id } => {
            place.open()?.ask(&Method::DELETE, &format!("tokens/{}", escaped(&id)), None).map(drop)
        }
    }
}

fn create(args: &CreateArgs) -> Result<(), Failure> {
    let scopes = args.allows.scopes()?;
    if scopes.is_empty() {
        return Err(Failure::usage("the token would allow nothing: give --push, --pull or another option of --help"));
    }
    // Before there is a token that nobody has.
    if let Some(out) = args.out.as_ref().filter(|out| out.symlink_metadata().is_ok()) {
        return Err(Failure::usage(format!("'{}' exists: give another file", out.display())));
    }
    let place = args.place.create()?;
    if let AdminTarget::Local(data) = &place {
        // A token can be created before the server's first start, so create the cache.
        data.create_cache(&Default::default(), &CacheSettings::default()).map_err(Failure::runtime)?;
    }
    let body = json!({"label": args.label, "caches": args.caches, "scopes": scopes.to_string(),
        "expiresIn": args.expires.map(|time| time.as_secs())});
    let made = place.ask(&Method::POST, "tokens", Some(&body))?;
    let (id, token) = (text(&made, "id"), text(&made, "token"));
    if token.is_empty() {
        return Err(Failure::runtime(format!(
            "the answer with the token was lost, and it is not shown again: revoke it with 'narval token revoke {id}', and create another"
        )));
    }
    match &args.out {
        Some(out) => write_secret(out, &token)?,
        None => out!("{token}"),
    }
    note!("token {id} '{}' allows {} in {}", text(&made, "label"), text(&made, "scopes"), caches_of(&made).join(", "));
    warn_of_unknown(&place, &args.caches)?;
    if scopes.has(Scope::Push) && !scopes.has(Scope::Sign) {
        note!(
            "paths that are pushed with it are not signed by the cache, so clients refuse them unless their builder has signed them: --sign \
             allows it"
        );
    }
    Ok(())
}

fn caches_of(token: &Value) -> Vec<String> {
    let caches = token.get("caches").and_then(Value::as_array);
    caches.into_iter().flatten().filter_map(|cache| Some(cache.as_str()?.to_owned())).collect()
}

/// Says so if a name or pattern matches no cache: it may be misspelt, or of a cache that the server will have later.
fn warn_of_unknown(place: &AdminTarget, patterns: &[String]) -> Result<(), Failure> {
    let mut names = Vec::new();
    place.each("caches", |cache| {
        names.push(text(&cache, "name"));
        Ok(())
    })?;
    for text in patterns {
        let pattern = CachePatterns::new(std::slice::from_ref(text)).map_err(Failure::usage)?;
        if !names.iter().any(|name| name.parse().is_ok_and(|name| pattern.matches(&name))) {
            note!("warning: no cache matches '{text}'; there is {}", names.join(", "));
        }
    }
    Ok(())
}

fn change(args: &ChangeArgs) -> Result<(), Failure> {
    let place = args.place.open()?;
    let mut before = None;
    place.each("tokens", |token| {
        if text(&token, "id") == args.id && number(&token, "revoked").is_none() {
            before = Some(token);
        }
        Ok(())
    })?;
    let unknown = || Failure::usage(format!("there is no valid token '{}'; 'narval token list' shows them", args.id));
    let before = before.ok_or_else(unknown)?;
    let mut caches = if args.caches.is_empty() { caches_of(&before) } else { args.caches.clone() };
    caches.extend(args.add_cache.iter().filter(|name| !caches.contains(name)).cloned().collect::<Vec<_>>());
    let scopes: Scopes = text(&before, "scopes").parse().map_err(Failure::runtime)?;
    let scopes = args.add_scope.iter().try_fold(scopes, |scopes, more| scopes.and(more)).map_err(Failure::usage)?;
    let scopes = args.remove_scope.iter().fold(scopes, |scopes, less| scopes.except(less));
    let body = json!({"caches": caches, "scopes": scopes.to_string()});
    let after = place.ask(&Method::PATCH, &format!("tokens/{}", escaped(&args.id)), Some(&body))?;
    note!("token {} '{}' allows {scopes} in {}", args.id, text(&after, "label"), caches.join(", "));
    warn_of_unknown(&place, &caches)
}

fn list(place: &AdminTarget, json: bool) -> Result<(), Failure> {
    let tokens = place.each("tokens", |token| {
        if json {
            json::event("token", token);
            return Ok(());
        }
        let state = match (number(&token, "revoked"), number(&token, "expires")) {
            (Some(time), _) => format!("revoked {}", ago(time)),
            (None, Some(time)) if time <= now() => "expired".to_owned(),
            (None, Some(time)) => format!("expires {}", ahead(time)),
            (None, None) => "valid".to_owned(),
        };
        let used =
            number(&token, "lastUsed").map_or_else(|| "never used".to_owned(), |time| format!("used {}", ago(time)));
        let [id, label, scopes] = ["id", "label", "scopes"].map(|name| text(&token, name));
        out!("{id}  {label}  {scopes}  {}  {state}, {used}", caches_of(&token).join(","));
        Ok(())
    })?;
    if json {
        json::summary(json!({"tokens": tokens}));
    }
    Ok(())
}
