//! `narval login`: tokens of servers, so that they are administered by their names.

use std::io::{IsTerminal, Read, stdin};
use std::path::PathBuf;
use std::sync::Arc;

use narval_client::{Client, Url};
use narval_install::Administered;
use rustix::termios::{self, LocalModes, OptionalActions, Termios};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::Failure;
use crate::args::administered::text;
use crate::args::client::{RequestArgs, parse_cache};
use crate::args::logins::{Login, Logins};
use crate::args::push::read_token;
use crate::ui::json;
use crate::ui::output::{note, out};

/// The longest token, in bytes.
const TOKEN_LEN_MAX: u64 = 64 * 1024;

/// Save the token of a server, to administer it with --at NAME
///
/// The token is that of --token-file, or it is read from standard input. It is asked what it allows before it is saved in
/// $XDG_CONFIG_HOME/narval/logins.json, which only you can read. Without a URL, the servers that are saved are listed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval login https://cache.example.org
  narval login https://cache.example.org --name work --token-file token
  narval token list --at work
  narval login --remove work")]
pub struct Args {
    /// URL of a cache of the server
    #[arg(value_name = "URL")]
    url: Option<String>,
    /// Name to save it under [default: the host]
    #[arg(long, value_name = "NAME", requires = "url")]
    name: Option<String>,
    /// File with the token
    #[arg(long, value_name = "FILE", requires = "url")]
    token_file: Option<PathBuf>,
    /// Forget the server of this name
    #[arg(long, value_name = "NAME", conflicts_with = "url")]
    remove: Option<String>,
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
/// The server does not know the token, or cannot be asked; or the file cannot be written.
pub fn run(args: &Args) -> Result<(), Failure> {
    match (&args.url, &args.remove) {
        (Some(url), _) => login(args, url),
        (None, Some(name)) => remove(name),
        (None, None) => list(args.json),
    }
}

fn login(args: &Args, url: &str) -> Result<(), Failure> {
    let url: Url = parse_cache(url)?;
    let mut logins = Logins::load()?;
    let name = args.name.clone().unwrap_or_else(|| url.origin().host_field());
    if name.is_empty() || name.contains('/') {
        return Err(Failure::usage(format!("--name '{name}': a name has no '/'")));
    }
    let token = match &args.token_file {
        Some(file) => Zeroizing::new(read_token(file)?),
        None => pasted()?,
    };
    let mut options = args.requests.options(std::slice::from_ref(&url))?;
    let unfit = |_| Failure::usage("this is no token");
    options.credentials.add_header(&format!("Authorization: Bearer {}", token.as_str())).map_err(unfit)?;
    let client: Arc<Client> = Arc::new(narval_s3::client(options));
    let server = Administered::new(url.clone(), client).ask(narval_client::Method::Get, "", None)?;
    let rights = server.get("token").cloned().unwrap_or_default();
    logins.all.retain(|login| login.name != name);
    logins.all.push(Login { name: name.clone(), url: url.to_string(), token });
    let file = logins.save()?;
    let caches = rights.get("caches").and_then(Value::as_array).into_iter().flatten();
    let caches: Vec<&str> = caches.filter_map(Value::as_str).collect();
    if args.json {
        json::summary(json!({"name": name, "url": url.to_string(), "token": rights}));
    } else {
        note!(
            "saved '{name}' in '{file}': token {} '{}' allows {} in {}",
            text(&rights, "id"),
            text(&rights, "label"),
            text(&rights, "scopes"),
            caches.join(", ")
        );
    }
    Ok(())
}

/// A token from standard input: the first line.
fn pasted() -> Result<Zeroizing<String>, Failure> {
    let mut input = stdin();
    if input.is_terminal() {
        note!("paste a token ('narval token create --admin' creates one on the server), then Enter:");
    }
    let failed = |error: std::io::Error| Failure::runtime(format!("cannot read the token: {error}"));
    let mut token = Zeroizing::new(String::new());
    if input.is_terminal() {
        let shown = hide_input(&input).map_err(|error| failed(error.into()))?;
        let read = input.read_line(&mut token);
        // Whatever was read, the terminal is as it was.
        let restored = termios::tcsetattr(&input, OptionalActions::Flush, &shown);
        read.and_then(|_| restored.map_err(Into::into)).map_err(failed)?;
    } else {
        Read::by_ref(&mut input).take(TOKEN_LEN_MAX).read_to_string(&mut token).map_err(failed)?;
    }
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

fn remove(name: &str) -> Result<(), Failure> {
    let mut logins = Logins::load()?;
    let before = logins.all.len();
    logins.all.retain(|login| login.name != name);
    if logins.all.len() == before {
        return Err(Failure::usage(format!("no server is saved as '{name}'; 'narval login' shows all of them")));
    }
    logins.save().map(drop)
}

fn list(as_json: bool) -> Result<(), Failure> {
    let logins = Logins::load()?;
    for login in &logins.all {
        if as_json {
            json::event("login", json!({"name": login.name, "url": login.url}));
        } else {
            out!("{}  {}", login.name, login.url);
        }
    }
    if as_json {
        json::summary(json!({"logins": logins.all.len()}));
    }
    Ok(())
}
