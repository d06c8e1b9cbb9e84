//! `narval use`: makes this user's Nix and Narval use a cache.

use std::collections::BTreeSet;
use std::io::{self, BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use narval_client::{Client, ClientOptions, Credentials, HttpError, Method, Netrc, Request, Scheme, Url};
use narval_install::settings::{CacheBlock, NearBlock, NetrcEntry, Settled, UserTrust, user_trust};
use narval_nix::{CacheInfo, PublicKey};
use narval_store::{Environment, StoreConfig, SubstituterSettings, system_nix_folder, user_nix_conf};

use super::change::{Change, in_file};
use super::use_near::{self, NearArgs};
use crate::args::push::read_token;
use crate::ui::failure::Failure;
use crate::ui::output::note;
use crate::ui::output_args::OutputArgs;

/// The user name for a token; only the password matters.
const LOGIN: &str = "narval";

/// The maximum size of a `nix-cache-info` in bytes.
const CACHE_INFO_LEN_MAX: u64 = 64 * 1024;

/// The key of the lines with a cache's public keys.
const PUBLIC_KEY: &str = "PublicKey";

/// Make this user's Nix and Narval use a cache
///
/// Adds the cache and its public key to your nix.conf, and a token to your netrc file. Shows the change first, and asks
/// before making it. Nothing else in these files is changed.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The cache: an http://, https://, s3:// or file:// URL
    #[arg(value_name = "URL", required_unless_present = "near", conflicts_with = "near")]
    url: Option<String>,
    /// Public key of its signatures [default: those that the cache publishes]. Repeatable
    #[arg(long, value_name = "NAME:KEY", conflicts_with = "near")]
    public_key: Vec<String>,
    /// File with a token for the cache; `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["remove", "near"])]
    token_file: Option<PathBuf>,
    /// Replace the token of the host, although caches in nix.conf would no longer work with the new one
    #[arg(long, requires = "token_file")]
    replace_token: bool,
    /// Remove the cache from the files again
    #[arg(long, alias = "undo", conflicts_with = "public_key")]
    remove: bool,
    /// Make the change without asking
    #[arg(long, short)]
    yes: bool,
    /// Only show the change
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    #[command(flatten, next_help_heading = "Near cache")]
    near: NearArgs,
}

const EXAMPLES: &str = "\
Examples:
  narval use http://cache:5000
  narval use https://cache.example.org --token-file token --yes
  narval use --remove http://cache:5000

  A cache of your own in front of those that you use:
  narval use --near
  narval use --near --neighbours-on 192.168.1.1
  narval use --near --remove";

/// The files to change, and notes for the user.
struct Plan {
    conf: Change,
    netrc: Change,
    block: Option<CacheBlock>,
    notes: Vec<String>,
}

/// Runs `narval use`.
///
/// # Errors
/// If the cache does not respond, the files cannot be changed, or the user does not agree.
pub fn run(args: Args) -> Result<(), Failure> {
    OutputArgs { quiet: false, json: false }.start_log();
    let Some(given) = &args.url else {
        return use_near::run(&args.near, args.remove, || {
            if !args.dry_run && !args.yes {
                agree()?;
            }
            Ok(!args.dry_run)
        });
    };
    let (url, parsed) = address(given)?;
    let plan = if args.remove { plan_remove(&url, &parsed)? } else { plan_use(&args, &url, &parsed)? };
    let changes: Vec<&Change> = [&plan.netrc, &plan.conf].into_iter().filter(|change| change.is_one()).collect();
    changes.iter().for_each(|change| change.print());
    plan.notes.iter().for_each(|text| note!("Note: {text}"));
    if changes.is_empty() {
        note!("Nothing to change: {url} is {}", if args.remove { "not in your settings" } else { "in your settings" });
    } else if args.dry_run {
        note!("Nothing was changed (--dry-run)");
    } else {
        if !args.yes {
            agree()?;
        }
        for change in changes {
            change.make()?;
        }
        note!("{} {url}", if args.remove { "No longer uses" } else { "Uses" });
    }
    if let Some(block) = &plan.block {
        advise(block)?;
    }
    Ok(())
}

/// The address to write into the file.
fn address(text: &str) -> Result<(String, Url), Failure> {
    let parsed = crate::args::client::parse_cache(text)?;
    if parsed.userinfo().is_some() {
        return Err(Failure::usage(format!(
            "{parsed}: a password in the address would be readable by everyone; give it with --token-file"
        )));
    }
    let written = if parsed.scheme() == Scheme::File { parsed.to_string() } else { text.to_owned() };
    Ok((written.trim_end_matches('/').to_owned(), parsed))
}

fn nix_conf() -> Result<Settled, Failure> {
    let path = user_nix_conf()
        .ok_or_else(|| Failure::usage("HOME is not set: set NIX_USER_CONF_FILES to the path of your nix.conf"))?;
    Ok(Settled::read(&path)?)
}

/// Your own netrc file, beside your nix.conf.
fn own_netrc(conf: &Settled) -> PathBuf {
    conf.path.with_file_name("netrc")
}

/// The netrc file for a token: the one that Nix already reads if this user may write it, otherwise the user's own.
fn netrc_place(own: &Path, settings: &SubstituterSettings, notes: &mut Vec<String>) -> PathBuf {
    let read_now = settings.netrc_file.clone().unwrap_or_else(|| system_nix_folder().join("netrc"));
    let may = |access| rustix::fs::access(&read_now, access).is_ok();
    if read_now == own || may(rustix::fs::Access::WRITE_OK) {
        return read_now;
    }
    if may(rustix::fs::Access::READ_OK) {
        let (read_now, own) = (read_now.display(), own.display());
        notes.push(format!("your Nix now reads {own} instead of {read_now}; copy the entries that you need"));
    }
    own.to_owned()
}

fn plan_use(args: &Args, url: &str, parsed: &Url) -> Result<Plan, Failure> {
    let (conf, settings, mut notes) = (nix_conf()?, SubstituterSettings::of_process(), Vec::new());
    if NearBlock::is_in(&conf.text).map_err(|error| in_file(&conf, error))? {
        notes.push("'narval use --near' once more puts it behind the near cache".to_owned());
    }
    let own = own_netrc(&conf);
    let host = &parsed.origin().host;
    let token = args.token_file.as_deref().map(read_token).transpose()?;
    let place = match &token {
        Some(_) => netrc_place(&own, &settings, &mut notes),
        None => own.clone(),
    };
    let netrc = Settled::read(&place)?;
    let after = match token {
        Some(token) => NetrcEntry { host: host.clone(), login: LOGIN.to_owned(), password: token.as_str().to_owned() }
            .put_into(&netrc.text)
            .ok_or_else(|| Failure::usage("the token contains an invalid character: check the file"))?,
        None => netrc.text.clone(),
    };
    if args.token_file.is_some() && !args.replace_token {
        keep_others_working((&conf, &settings), url, parsed, (&netrc.text, &after))?;
    }
    let is_needed = place == own && Netrc::parse(&after).login(host).is_some();
    let netrc_file = is_needed.then(|| own.display().to_string());
    let client = client(parsed, &after, &settings)?;
    let info = ask(&client, parsed, args.token_file.is_some())?;
    let public_keys = public_keys(&args.public_key, &info, parsed, &mut notes)?;
    let block = CacheBlock { url: url.to_owned(), public_keys, netrc_file };
    let text = block.put_into(&conf.text).map_err(|error| in_file(&conf, error))?;
    let conf = Change { file: conf, after: text, mode: 0o644, show: str::to_owned };
    let netrc = Change { file: netrc, after, mode: 0o600, show: NetrcEntry::masked };
    Ok(Plan { conf, netrc, block: Some(block), notes })
}

/// Refuses a token with which another cache of the host would no longer work: a netrc file has one entry for each host.
fn keep_others_working(
    (conf, settings): (&Settled, &SubstituterSettings),
    url: &str,
    parsed: &Url,
    (before, after): (&str, &str),
) -> Result<(), Failure> {
    let host = &parsed.origin().host;
    if before == after || Netrc::parse(before).login(host).is_none() {
        return Ok(());
    }
    let used = CacheBlock::urls_in(&conf.text).map_err(|error| in_file(conf, error))?;
    let others = used
        .iter()
        .map(String::as_str)
        .chain(settings.caches().map(String::as_str))
        .map(|url| url.trim_end_matches('/'));
    let others: BTreeSet<&str> = others.filter(|other| *other != url).collect();
    let mut lost = Vec::new();
    for other in others {
        let Ok(other) = Url::parse(other) else { continue };
        if other.origin().host == *host && may_less(&other, settings, (before, after))? {
            lost.push(other.to_string());
        }
    }
    if lost.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = lost.iter().map(String::as_str).chain([url]).map(cache_name).collect();
    Err(Failure::usage(format!(
        "{host} has one token for all its caches, and with this one {} would no longer work: have one made for all of them ('narval token create \
         --cache {} …'), or this one changed ('narval token change ID --add-cache …'); --replace-token replaces it all the same",
        lost.join(" and "),
        names.join(",")
    )))
}

/// The name of the cache at an address: its path, as Narval serves caches.
fn cache_name(url: &str) -> String {
    let path = url.split("://").last().and_then(|rest| rest.split_once('/')).map_or("", |(_, path)| path);
    if path.is_empty() { "default".to_owned() } else { path.to_owned() }
}

/// Whether a cache allows less with the second netrc than with the first: reading, or pushing.
fn may_less(url: &Url, settings: &SubstituterSettings, (before, after): (&str, &str)) -> Result<bool, Failure> {
    let info = url.child("nix-cache-info").map_err(Failure::usage)?;
    let missing = url.child("_narval/v1/missing").map_err(Failure::usage)?;
    let may = |netrc: &str| -> Result<[bool; 2], Failure> {
        let client = client(url, netrc, settings)?;
        let is_good = |request: &Request<'_>| client.send(request).is_ok_and(|answer| answer.head.status == 200);
        // A push of nothing.
        let push = Request { method: Method::Post, body: b"", ..Request::get(&missing) };
        Ok([is_good(&Request::get(&info)), is_good(&push)])
    };
    let (old, new) = (may(before)?, may(after)?);
    Ok(old.iter().zip(new).any(|(old, new)| *old && !new))
}

fn plan_remove(url: &str, parsed: &Url) -> Result<Plan, Failure> {
    let (conf, settings) = (nix_conf()?, SubstituterSettings::of_process());
    let text = CacheBlock::take_from(&conf.text, url).map_err(|error| in_file(&conf, error))?;
    let place = netrc_place(&own_netrc(&conf), &settings, &mut Vec::new());
    let netrc = Settled::read(&place)?;
    let left = CacheBlock::urls_in(&text).map_err(|error| in_file(&conf, error))?;
    let host = &parsed.origin().host;
    // One entry serves all caches of a host.
    let is_shared = left.iter().any(|other| Url::parse(other).is_ok_and(|other| other.origin().host == *host));
    let was_used = text != conf.text;
    let after = match was_used && !is_shared {
        true => NetrcEntry::take_from(&netrc.text, host, LOGIN),
        false => netrc.text.clone(),
    };
    let conf = Change { file: conf, after: text, mode: 0o644, show: str::to_owned };
    let netrc = Change { file: netrc, after, mode: 0o600, show: NetrcEntry::masked };
    Ok(Plan { conf, netrc, block: None, notes: Vec::new() })
}

/// A client with the new credentials.
fn client(url: &Url, netrc: &str, settings: &SubstituterSettings) -> Result<Arc<Client>, Failure> {
    let usual = Netrc::load(None, settings.netrc_file.as_deref());
    let usual = usual.map_err(|error| Failure::usage(format!("netrc: {error}")))?;
    let credentials = Credentials::new(Netrc::parse(netrc).or(usual), std::slice::from_ref(url));
    Ok(Arc::new(narval_s3::client(ClientOptions { credentials, ..ClientOptions::default() })))
}

/// Reads the `nix-cache-info`.
fn ask(client: &Client, url: &Url, has_token: bool) -> Result<CacheInfo, Failure> {
    let text = cache_info(client, url)?.map_err(|error| {
        let hint = match (error.is_auth(), has_token) {
            (true, false) => "; give a token with --token-file",
            (true, true) => "; the cache does not accept this token",
            _ => "",
        };
        Failure::Coded(if matches!(error, HttpError::File { .. }) { 2 } else { 5 }, format!("{url}: {error}{hint}"))
    })?;
    parse_cache_info(url, text)
}

/// The `nix-cache-info` of a cache.
pub(crate) fn cache_info(client: &Client, url: &Url) -> Result<Result<Option<Vec<u8>>, HttpError>, Failure> {
    let place = url.child("nix-cache-info").map_err(Failure::usage)?;
    Ok(narval_cache::read_small(client, &place, CACHE_INFO_LEN_MAX))
}

/// What it says. It must be for the store of this machine.
pub(crate) fn parse_cache_info(url: &Url, text: Option<Vec<u8>>) -> Result<CacheInfo, Failure> {
    let text = text.ok_or_else(|| Failure::Coded(3, format!("{url}: has no nix-cache-info; is it a cache?")))?;
    let info = CacheInfo::parse(&text).map_err(|error| Failure::runtime(format!("{url}: {error}")))?;
    let ours = StoreConfig::from_environment(&Environment::of_process()).map_err(Failure::usage)?.store_dir;
    if info.store_dir != ours {
        let theirs = &info.store_dir;
        return Err(Failure::runtime(format!(
            "{url}: is a cache for the store {theirs}, and this machine's is {ours}"
        )));
    }
    Ok(info)
}

/// The given keys, otherwise those that the cache publishes.
pub(crate) fn public_keys(
    given: &[String],
    info: &CacheInfo,
    url: &Url,
    notes: &mut Vec<String>,
) -> Result<Vec<String>, Failure> {
    let parse = |text: &String| match text.parse::<PublicKey>() {
        Ok(key) => Ok(key.to_string()),
        Err(error) => Err(Failure::usage(format!("public key '{text}': {error}"))),
    };
    if !given.is_empty() {
        return given.iter().map(parse).collect();
    }
    let keys = info.unknown.iter().filter(|(key, _)| key == PUBLIC_KEY).map(|(_, value)| value);
    let keys: Vec<String> = keys.map(parse).collect::<Result<_, _>>()?;
    if keys.is_empty() {
        notes.push(format!(
            "{url} does not publish a public key; give it with --public-key if the cache signs its paths"
        ));
    } else if url.scheme() == Scheme::Http {
        notes.push(
            "the public key came over an unencrypted connection; compare it with 'narval key public' on the server"
                .to_owned(),
        );
    }
    Ok(keys)
}

/// Asks on the terminal.
fn agree() -> Result<(), Failure> {
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Err(Failure::usage("nothing was changed: give --yes to make this change without a terminal"));
    }
    crate::ui::output::to_stderr(format_args!("Make this change? [y/N] "));
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(|error| Failure::runtime(format!("standard input: {error}")))?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::runtime("nothing was changed")),
    }
}

/// Prints what an administrator must do if the daemon ignores the user's settings.
fn advise(block: &CacheBlock) -> Result<(), Failure> {
    let system = SubstituterSettings::of_system();
    let config = StoreConfig::from_environment(&Environment::of_process()).map_err(Failure::usage)?;
    match user_trust(&config, &system) {
        Ok(UserTrust::NotTrusted(_)) if !is_allowed(block, &system) => {}
        Ok(_) => return Ok(()),
        Err(error) => {
            note!("Note: cannot find out whether the Nix daemon accepts your settings: {error}");
            return Ok(());
        }
    }
    let folder = system_nix_folder();
    note!("The Nix daemon does not trust you and ignores these settings. An administrator can add them to");
    note!("{} and restart it (systemctl restart nix-daemon):", folder.join("nix.conf").display());
    let lines = CacheBlock { netrc_file: None, ..block.clone() }.lines();
    lines.lines().for_each(|line| note!("  {line}"));
    if block.netrc_file.is_some() {
        note!("and the line of your netrc file to {}.", folder.join("netrc").display());
    }
    Ok(())
}

/// Whether the system's settings have the cache and its keys.
fn is_allowed(block: &CacheBlock, system: &SubstituterSettings) -> bool {
    let mut listed = system.caches().chain(&system.trusted_substituters).map(|url| url.trim_end_matches('/'));
    listed.any(|url| url == block.url)
        && block.public_keys.iter().all(|key| system.public_keys().any(|other| other == key))
}
