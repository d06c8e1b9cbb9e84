//! `narval doctor`: tests whether this machine can install and run packages, or whether a server can be used.

mod finding;
mod server;

use narval_client::{Proxies, TrustedCertificates};
use narval_install::settings::{UserTrust, user_trust};
use narval_store::{Environment, StoreConfig, SubstituterSettings, system_nix_folder};

use self::finding::{Finding, report};
use crate::args::client::{ClientArgs, human_bytes};
use crate::commands::running::enter::try_to_enter;
use crate::ui::failure::Failure;

/// Check that this machine can install and run packages
///
/// Tries namespaces, disk space, proxies, certificates and every cache. With --server, checks one server instead, as a
/// client sees it: TLS, clock, nix-cache-info, keys, responses and speed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  narval doctor --from https://cache.example.org\n  narval doctor --server https://cache.example.org --path …-hello-2.12"
)]
pub struct Args {
    /// Check this server: an http:// or https:// URL
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Store path that the server has: its signature, compression, ranges and download speed are checked as well
    #[arg(long, value_name = "PATH", requires = "server")]
    path: Option<String>,
    /// Only request /health of the server, which needs no token: for the health check of a container
    #[arg(long, requires = "server", conflicts_with = "path")]
    health: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// Runs `narval doctor`.
///
/// # Errors
/// Exit code 1 if a check fails.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.client.output.start_log();
    let json = args.client.output.json;
    if let Some(server) = args.server.as_ref().filter(|_| args.health) {
        return report(&[server::health(&args.client.caches, server)?], json);
    }
    if let Some(server) = &args.server {
        return report(&server::check(&args.client.caches, server, args.path.as_deref())?, json);
    }
    let mut findings = vec![disk(args)?, namespaces(args)?, certificates()];
    findings.extend(daemon());
    findings.extend(caches(args)?);
    report(&findings, json)
}

fn disk(args: &Args) -> Result<Finding, Failure> {
    let config = args.client.store.config()?;
    // The disk of the nearest folder that exists.
    let nearest = config.real_store_dir.ancestors().find(|path| path.is_dir()).unwrap_or(std::path::Path::new("/"));
    let text = |free: u64| format!("{} free for {}", human_bytes(free), config.real_store_dir.display());
    Ok(match rustix::fs::statvfs(nearest) {
        Ok(stats) => Finding {
            what: "disk",
            good: stats.f_bavail > 0,
            text: text(stats.f_bavail.saturating_mul(stats.f_frsize)),
        },
        Err(error) => Finding::bad("disk", format!("{}: {error}", nearest.display())),
    })
}

/// Enters a namespace with an empty store.
fn namespaces(args: &Args) -> Result<Finding, Failure> {
    let config = args.client.store.config()?;
    let works = match rustix::process::getuid().is_root() {
        true => "narval run works",
        false => "narval run works without root",
    };
    Ok(Finding::of("namespaces", try_to_enter(config.store_dir.as_str()).map(|()| works.to_owned())))
}

/// Loads the certificates, as a client does before its first HTTPS connection.
fn certificates() -> Finding {
    let trusted = match TrustedCertificates::load(SubstituterSettings::of_process().ssl_cert_file.as_deref()) {
        Ok(trusted) => trusted,
        Err(error) => return Finding::bad("certificates", error.to_string()),
    };
    if trusted.sources.is_empty() {
        let text = format!(
            "Mozilla's {}, compiled in; programs find none on this system: 'narval install cacert' has some",
            trusted.usable
        );
        return Finding::good("certificates", text);
    }
    let sources = trusted.sources.iter().map(|(name, path)| format!("{} ({name})", path.display()));
    let mut text = format!("{} of {}", trusted.usable, sources.collect::<Vec<_>>().join(", "));
    for (count, what) in [(trusted.expired, "expired"), (trusted.unusable, "unusable")] {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    Finding { what: "certificates", good: trusted.expired < trusted.usable, text }
}

/// Whether this machine's Nix daemon, if there is one, accepts the caches of this user's `nix.conf`.
fn daemon() -> Option<Finding> {
    let finding = |good, text: String| Some(Finding { what: "nix daemon", good, text });
    let config = match StoreConfig::from_environment(&Environment::of_process()) {
        Ok(config) => config,
        Err(error) => return finding(false, error.to_string()),
    };
    let system = SubstituterSettings::of_system();
    let version = match user_trust(&config, &system) {
        Ok(UserTrust::NoDaemon) => return None,
        Ok(UserTrust::Trusted(version)) => return finding(true, format!("{version} trusts you")),
        Ok(UserTrust::NotTrusted(version)) => version,
        Err(error) => return finding(false, error.to_string()),
    };
    let allowed = system.caches().chain(system.trusted_substituters.iter()).collect::<Vec<_>>();
    let settings = SubstituterSettings::of_process();
    let ignored: Vec<&str> = settings.caches().filter(|url| !allowed.contains(url)).map(String::as_str).collect();
    if ignored.is_empty() {
        return finding(true, format!("{version} does not trust you, and you have no caches of your own"));
    }
    let file = system_nix_folder().join("nix.conf");
    let (ignored, file) = (ignored.join(", "), file.display());
    finding(false, format!("{version} does not trust you and ignores {ignored}: an administrator can add it in {file}"))
}

fn caches(args: &Args) -> Result<Vec<Finding>, Failure> {
    let (client, proxies) = (args.client.caches.client()?, Proxies::from_env());
    let look = |url: &narval_client::Url| {
        let proxy =
            proxies.describe(url.origin()).map(|proxy| format!(" through the proxy {proxy}")).unwrap_or_default();
        let start = std::time::Instant::now();
        let answer = url.child("nix-cache-info").map(|info| narval_cache::read_small_once(&client, &info, 64 * 1024));
        let millis = start.elapsed().as_millis();
        let outcome = match answer {
            Ok(Ok(Some(_))) => Ok(format!("{url}{proxy}: responds in {millis} ms")),
            Ok(Ok(None)) => Err(format!("{url}{proxy}: has no nix-cache-info; is it a cache?")),
            Ok(Err(error)) => Err(format!("{url}{proxy}: {error}")),
            Err(error) => Err(format!("{url}: {error}")),
        };
        Finding::of("cache", outcome)
    };
    Ok(args.client.caches.urls()?.iter().map(look).collect())
}
