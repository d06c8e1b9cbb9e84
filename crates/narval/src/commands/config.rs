//! `narval config`: checks a configuration file.

use std::path::{Path, PathBuf};

use crate::args::secret_key::read_secret_key;
use crate::config::{At, ConfigError, ConfigErrors, Options, ServeConfig};
use crate::ui::failure::Failure;
use crate::ui::output::out;

/// Check a configuration file of `narval serve`
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Check a configuration file, and the keys, certificates and netrc files that it names
    ///
    /// Prints a summary of what is effective. Secrets that systemd gives to the service are looked for in /etc/narval/keys, or checked when it starts. Errors are printed one per line, with their line of the file; the exit code is then 2.
    #[command(after_help = "\
Example:
  narval config check /etc/narval/serve.toml && systemctl reload narval-serve")]
    Check {
        /// Configuration file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Do not read the keys and certificates, for example for another machine's file
        #[arg(long)]
        no_files: bool,
        /// Data folder that the server gets as an option, if the file does not name one
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
    },
}

/// Runs `narval config`.
///
/// # Errors
/// A file that cannot be read, or has errors.
pub fn run(args: Args) -> Result<(), Failure> {
    let Command::Check { file, no_files, data } = args.command;
    let loaded = ServeConfig::read(&Options::default(), Some(&file)).map_err(Failure::usage)?;
    let config = &loaded.settings;
    let (readable, waiting) = readable(config, no_files);
    let mut wrong = ServeConfig { tls: config.tls.clone(), ..readable.clone() }.check(data.is_some());
    if !no_files {
        wrong.extend(files(&readable));
    }
    wrong.sort_by_key(|error| error.origin.line());
    if !wrong.is_empty() {
        return Err(Failure::usage(ConfigErrors(wrong)));
    }
    let name_of = |path: &Path| match key_at(path) {
        Some(at) if !no_files => read_secret_key(&at).ok().map(|key| key.name().to_owned()),
        _ => None,
    };
    for line in loaded.summary(&name_of) {
        out!("{line}");
    }
    for secret in waiting {
        out!("note: {} is there when the service runs: it is checked then", secret.display());
    }
    for warning in config.unsigned_caches(data.is_some()) {
        out!("warning: {warning}");
    }
    Ok(())
}

/// Where systemd puts the secrets of services while they run.
const CREDENTIALS: &str = "/run/credentials";

/// What the packaged unit reads them from: `LoadCredential=key:/etc/narval/keys` makes `key_NAME` of each file there.
const KEYS: (&str, &str) = ("key_", "/etc/narval/keys");

/// Where a key can be read now; `None` if that is not known before the service runs.
fn key_at(path: &Path) -> Option<PathBuf> {
    if !path.starts_with(CREDENTIALS) || std::fs::File::open(path).is_ok() {
        return Some(path.to_owned());
    }
    let name = path.file_name()?.to_str()?.strip_prefix(KEYS.0)?;
    let source = Path::new(KEYS.1).join(name);
    // Root only may read the folder; without it, this is not the machine of the service.
    let is_known = std::fs::read_dir(KEYS.1).is_ok();
    is_known.then_some(source)
}

/// The configuration with each secret where it can be read now, and without those of which that is not known: they are the second part.
fn readable(config: &ServeConfig, no_files: bool) -> (ServeConfig, Vec<PathBuf>) {
    let mut readable = config.clone();
    let mut waiting = Vec::new();
    let mut find = |path: &mut PathBuf| match key_at(path) {
        Some(at) if !no_files => {
            *path = at;
            true
        }
        Some(_) => false,
        None => {
            if !no_files {
                waiting.push(path.clone());
            }
            false
        }
    };
    readable.sign_keys.retain_mut(|key| find(&mut key.value));
    readable.tls.certificate.retain_mut(|pair| {
        let are_there = [find(&mut pair.cert), find(&mut pair.key), pair.ocsp.as_mut().is_none_or(&mut find)];
        are_there == [true; 3]
    });
    readable.tls.client_ca = readable.tls.client_ca.and_then(|mut at| find(&mut at.value).then_some(at));
    for cache in &mut readable.cache {
        cache.sign_keys.iter_mut().for_each(|keys| keys.retain_mut(|key| find(&mut key.value)));
    }
    let of_caches = readable.cache.iter_mut().flat_map(|cache| &mut cache.upstream);
    for upstream in readable.upstreams.upstream.iter_mut().chain(of_caches) {
        upstream.netrc_file = upstream.netrc_file.take().and_then(|mut at| find(&mut at.value).then_some(at));
    }
    (readable, waiting)
}

/// Checks the files that a configuration names.
fn files(config: &ServeConfig) -> Vec<ConfigError> {
    let sign_key = |at: &At<PathBuf>| Some(at.origin.error("sign-keys", read_secret_key(&at.value).err()?));
    config.all_sign_keys().filter_map(sign_key).chain(config.tls.check_files()).collect()
}
