//! `narval logout`: forgets the token of a server.

use std::sync::Arc;

use narval_client::{Method, Url};
use narval_install::Error;
use narval_push::Administered;

use crate::args::client::{RequestArgs, parse_cache};
use crate::args::logins::{Login, Logins, Renewal};
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::note;

/// Forget a server that 'narval login' has saved
///
/// The token of somebody who has signed in with a browser is revoked at the server, too. A token that was pasted may be in use elsewhere:
/// 'narval token revoke' revokes it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  narval logout work")]
pub struct Args {
    /// Name of the server, or its URL
    #[arg(value_name = "NAME")]
    name: String,
    /// How requests are sent.
    #[command(flatten)]
    requests: RequestArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `narval logout`.
///
/// # Errors
/// There is no such server, or the file cannot be written.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut logins = Logins::load()?;
    let unknown = || Failure::usage(format!("no server is saved as '{}'; 'narval login' shows all of them", args.name));
    let at = logins.position(&args.name).ok_or_else(unknown)?;
    let login = logins.all.remove(at);
    // It is forgotten, whatever the server says.
    logins.save()?;
    let mut revoked = false;
    if login.issuer.is_some() && !login.has_expired() {
        let url: Url = parse_cache(&login.url)?;
        let client = super::client(&args.requests, &url, Some(&login.token))?;
        match Administered::new(url, Arc::clone(&client)).ask(Method::Delete, "token", None) {
            Ok(_) => revoked = true,
            // It was revoked before.
            Err(Error::Refused { status: 401, .. }) => {}
            Err(error) => note!("the token could not be revoked, and can be used until it expires: {error}"),
        }
    }
    let mut signed_out = false;
    if let Some(Renewal { how, refresh }) = &login.renewal {
        match narval_oidc::revoke(&parse_cache(&login.url)?, how, refresh) {
            Ok(done) => signed_out = done,
            Err(error) => note!("{} still lets this machine in: sign out there ({error})", how.issuer),
        }
    }
    if args.json {
        let Login { name, url, .. } = &login;
        json::summary(serde_json::json!({"name": name, "url": url, "revoked": revoked, "signed_out": signed_out}));
    } else {
        let (token, issuer) = (", and revoked its token", ", and signed out at the issuer");
        note!("forgot '{}'{}{}", login.name, if revoked { token } else { "" }, if signed_out { issuer } else { "" });
    }
    Ok(())
}
