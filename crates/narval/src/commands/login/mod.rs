//! `narval login`: tokens of servers, so that they are administered by their names.

pub mod logout;

use std::io::{IsTerminal, stdin};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use narval_client::{Client, Url};
use narval_oidc::{Device, SignIn, SignedIn, is_safe};
use narval_push::Administered;
use rustix::termios::{self, LocalModes, OptionalActions, Termios};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::args::administered::{number, text};
use crate::args::client::{RequestArgs, parse_cache};
use crate::args::data::ahead;
use crate::args::logins::{Login, Logins, Renewal};
use crate::args::push::read_token;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{note, out};
use crate::values::time::written;

/// Sign in to a server, to administer it with --at NAME
///
/// If the server says with which issuer people sign in, an address and a code are shown: enter the code there in any browser, also on another machine.
/// Otherwise, or with --paste, a token is read from standard input. The server is asked what the token allows before it is saved in
/// $XDG_CONFIG_HOME/narval/logins.json, which only you can read. Without a URL, the servers that are saved are listed; with the name of one, you sign in
/// there again.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval login https://cache.example.org --name work
  narval token list --at work
  narval login work
  narval login https://cache.example.org --token-file token
  narval logout work")]
pub struct Args {
    /// URL of a cache of the server, or the name of a server that is saved
    #[arg(value_name = "URL|NAME")]
    server: Option<String>,
    /// Name to save it under [default: the host]
    #[arg(long, value_name = "NAME", requires = "server")]
    name: Option<String>,
    /// File with a token, instead of signing in
    #[arg(long, value_name = "FILE", requires = "server")]
    token_file: Option<PathBuf>,
    /// Read a token from standard input, instead of signing in
    #[arg(long, requires = "server", conflicts_with = "token_file")]
    paste: bool,
    /// How requests are sent.
    #[command(flatten)]
    requests: RequestArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `narval login`.
///
/// # Errors
/// Nobody signs in, the server does not know the token, or cannot be asked; or the file cannot be written.
pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.server {
        Some(server) => login(args, server),
        None => list(args.json),
    }
}

fn login(args: &Args, server: &str) -> Result<(), Failure> {
    let mut logins = Logins::load()?;
    let before = logins.find(server);
    let url: Url = parse_cache(before.map_or(server, |login| &login.url))?;
    let name = args.name.clone().or_else(|| before.map(|login| login.name.clone()));
    let name = name.unwrap_or_else(|| url.origin().host_field());
    if name.is_empty() || name.contains('/') {
        return Err(Failure::usage(format!("--name '{name}': a name has no '/'")));
    }
    let (token, issuer, renewal) = match &args.token_file {
        Some(file) => (read_token(file)?, None, None),
        None if args.paste => (pasted()?, None, None),
        None => {
            let cache = Administered::new(url.clone(), client(&args.requests, &url, None)?);
            match cache.sign_in()? {
                Some(answer) => {
                    let (token, how, refresh) = signed_in(args, &cache, &answer)?;
                    let issuer = how.issuer.clone();
                    (token, Some(issuer), refresh.map(|refresh| Renewal { how, refresh }))
                }
                None => (pasted()?, None, None),
            }
        }
    };
    let client = client(&args.requests, &url, Some(&token))?;
    let server = Administered::new(url.clone(), client).ask(narval_client::Method::Get, "", None)?;
    let rights = server.get("token").cloned().unwrap_or_default();
    let expires = number(&rights, "expires");
    logins.all.retain(|login| login.name != name);
    let is_renewed = renewal.is_some();
    logins.all.push(Login { name: name.clone(), url: url.to_string(), token, expires, issuer, renewal });
    let file = logins.save()?;
    let caches = rights.get("caches").and_then(Value::as_array).into_iter().flatten();
    let caches: Vec<&str> = caches.filter_map(Value::as_str).collect();
    if args.json {
        json::summary(json!({"name": name, "url": url.to_string(), "token": rights}));
    } else {
        note!(
            "saved '{name}' in '{file}': token {} '{}' allows {} in {}{}{}",
            text(&rights, "id"),
            text(&rights, "label"),
            text(&rights, "scopes"),
            caches.join(", "),
            expires.map(|expires| format!(", and ends {}", ahead(expires))).unwrap_or_default(),
            if is_renewed { "; it is renewed when it is used after that" } else { "" },
        );
    }
    Ok(())
}

/// A client for a server, with a token.
fn client(requests: &RequestArgs, url: &Url, token: Option<&str>) -> Result<Arc<Client>, Failure> {
    let mut options = requests.options(std::slice::from_ref(url))?;
    if let Some(token) = token {
        let unfit = |_| Failure::usage("this is no token");
        options.credentials.add_header(&format!("Authorization: Bearer {token}")).map_err(unfit)?;
    }
    Ok(Arc::new(narval_s3::client(options)))
}

/// A token of a server, how its owner has signed in, and what gets the next one.
type OfPerson = (Zeroizing<String>, SignIn, Option<Zeroizing<String>>);

/// Has a person sign in with a browser.
fn signed_in(args: &Args, cache: &Administered, answer: &[u8]) -> Result<OfPerson, Failure> {
    let url = cache.url();
    if !is_safe(url) {
        return Err(Failure::usage(format!(
            "{url}: an identity token is sent over https:// alone; --paste takes another token"
        )));
    }
    let how = SignIn::parse(answer);
    let how = how.ok_or_else(|| Failure::runtime(format!("{url}: does not say with which issuer people sign in")))?;
    let device = Device::begin(url, &how).map_err(Failure::runtime)?;
    let code = device.code();
    if args.json {
        let fields = json!({
            "issuer": how.issuer, "verification_uri": code.address, "verification_uri_complete": code.complete,
            "user_code": code.code, "expires_in": code.valid_for.as_secs(),
        });
        json::event("sign_in", fields);
    } else {
        note!("sign in to {url} with {}, in a browser on any machine:", how.issuer);
        note!("  open {}", code.address);
        note!("  enter the code {}", code.code);
        if let Some(complete) = &code.complete {
            note!("or open {complete}, and compare the code");
        }
        note!("waiting for it, for up to {}", written(code.valid_for));
    }
    let SignedIn { identity, refresh } = device.wait().map_err(Failure::runtime)?;
    Ok((cache.exchange(&identity)?.token, how, refresh))
}

/// A token from standard input; a terminal does not show it.
fn pasted() -> Result<Zeroizing<String>, Failure> {
    let input = stdin();
    if !input.is_terminal() {
        return read_token(Path::new("-"));
    }
    note!("paste a token ('narval token create --admin' creates one on the server), then Enter:");
    let failed = |error: std::io::Error| Failure::runtime(format!("cannot read the token: {error}"));
    let mut token = Zeroizing::new(String::new());
    let shown = hide_input(&input).map_err(|error| failed(error.into()))?;
    let read = input.read_line(&mut token);
    // Whatever was read, the terminal is as it was.
    let restored = termios::tcsetattr(&input, OptionalActions::Flush, &shown);
    read.and_then(|_| restored.map_err(Into::into)).map_err(failed)?;
    match token.trim() {
        "" => Err(Failure::usage("no token was given: paste it, or name a file with --token-file")),
        trimmed => Ok(Zeroizing::new(trimmed.to_owned())),
    }
}

/// Stops a terminal from showing what is typed; its settings before.
fn hide_input(terminal: &std::io::Stdin) -> rustix::io::Result<Termios> {
    let shown = termios::tcgetattr(terminal)?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    hidden.local_modes.insert(LocalModes::ECHONL);
    termios::tcsetattr(terminal, OptionalActions::Flush, &hidden)?;
    Ok(shown)
}

fn list(as_json: bool) -> Result<(), Failure> {
    let logins = Logins::load()?;
    for login in &logins.all {
        if as_json {
            let Login { name, url, expires, issuer, .. } = login;
            json::event("login", json!({"name": name, "url": url, "expires": expires, "issuer": issuer}));
        } else {
            let until = match login.expires {
                Some(_) if login.has_expired() && login.renewal.is_some() => "  is renewed when it is used".to_owned(),
                Some(_) if login.has_expired() => format!("  expired: narval login {}", login.name),
                Some(expires) => format!("  ends {}", ahead(expires)),
                None => String::new(),
            };
            out!("{}  {}{until}", login.name, login.url);
        }
    }
    if as_json {
        json::summary(json!({"logins": logins.all.len()}));
    }
    Ok(())
}
