//! `narval oidc test`: which rule grants what to an identity token of a CI platform, and why not.

use std::path::PathBuf;

use narval_oidc::Verifier;
use narval_serve::OidcGrant;
use serde_json::{Value, json};

use crate::args::push::read_token;
use crate::config::{Options, ServeConfig};
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::out;
use crate::values::time::written;

/// Test what a CI job may do, by its identity token
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show which rule of a configuration file grants what to a token, and why the others do not
    ///
    /// The keys of its issuer are fetched, as a server does. The token is not used up. Ends with 1 if it is refused, or no rule matches.
    #[command(after_help = "\
Example:
  narval oidc test /etc/narval/serve.toml --token-file jwt")]
    Test {
        /// Configuration file of `narval serve`
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// File with the identity token
        #[arg(long, value_name = "FILE")]
        token_file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs `narval oidc`.
///
/// # Errors
/// The file has errors, or the token is refused.
pub fn run(args: Args) -> Result<(), Failure> {
    let Command::Test { file, token_file, json } = args.command;
    let config = ServeConfig::read(&Options::default(), Some(&file)).map_err(Failure::usage)?.settings;
    let issuers: Vec<_> =
        config.oidc.iter().map(|oidc| oidc.issuer()).collect::<Result<_, _>>().map_err(Failure::usage)?;
    let token = read_token(&token_file)?;
    let verifier = Verifier::new(issuers);
    let (claims, issuer, rules) = verifier.claims(&token).map_err(Failure::runtime)?;
    let shown = |value: Option<&Value>| value.map_or_else(|| "missing".to_owned(), |value| value.to_string());
    let mut granted = None;
    let mut lines = Vec::new();
    for (number, rule) in std::iter::zip(1.., rules) {
        let unmet: Vec<_> = rule
            .unmet(&claims)
            .map(|(name, value, patterns)| {
                format!("{name} is {} and must match {}", shown(value), patterns.join(" or "))
            })
            .collect();
        if unmet.is_empty() && granted.is_none() {
            granted = Some((number, rule.allows()));
        }
        lines.push((number, unmet));
    }
    if json {
        let rules: Vec<_> = lines.iter().map(|(number, unmet)| json!({"rule": number, "unmet": unmet})).collect();
        let granted = granted.map(|(number, grant)| described(number, grant));
        json::summary(json!({"issuer": issuer, "claims": claims, "rules": rules, "granted": granted}));
    } else {
        out!("issuer {issuer}");
        claims.iter().for_each(|(name, value)| out!("claim  {name} = {value}"));
        for (number, unmet) in &lines {
            match (unmet.as_slice(), granted) {
                ([], Some((first, OidcGrant { caches, scopes, lifetime, .. }))) if first == *number => {
                    out!("rule {number} grants {scopes} for {} for {}", caches.texts().join(","), written(*lifetime));
                }
                ([], _) => out!("rule {number} matches, too; the first one counts"),
                (unmet, _) => out!("rule {number} does not match: {}", unmet.join("; ")),
            }
        }
    }
    granted.map(drop).ok_or_else(|| Failure::runtime("no rule matches this token"))
}

fn described(number: u32, grant: &OidcGrant) -> Value {
    json!({
        "rule": number, "scopes": grant.scopes.to_string(), "caches": grant.caches.texts(), "seconds": grant.lifetime.as_secs(),
    })
}
