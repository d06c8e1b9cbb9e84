//! `narval config`: checks a configuration file.

use std::path::{Path, PathBuf};

use crate::Failure;
use crate::args::secret_key::read_secret_key;
use crate::args::tls;
use crate::args::upstream::UpstreamSettings;
use crate::commands::serve::oidc::issuers;
use crate::config::{At, CertificateSection, ConfigError, ConfigErrors, ServeConfig, UpstreamSection};
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
    /// Prints a summary. Errors are printed one per line, with their line of the file; the exit code is then 2.
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
    let config = ServeConfig::load(&file).map_err(Failure::usage)?;
    let mut wrong = sections(&file, &config);
    if config.data.is_none() && data.is_none() {
        wrong.extend(config.needs_data(&file.display().to_string()));
    }
    if !no_files {
        wrong.extend(files(&file, &config));
    }
    wrong.sort_by_key(|error| error.line);
    if !wrong.is_empty() {
        return Err(Failure::usage(ConfigErrors(wrong)));
    }
    for line in config.summary() {
        out!("{line}");
    }
    Ok(())
}

/// Checks the files that a configuration names.
fn files(file: &Path, config: &ServeConfig) -> Vec<ConfigError> {
    let error = |line, message| ConfigError { file: file.display().to_string(), line: Some(line), message };
    let sign_key = |at: &At<PathBuf>| {
        let failure = read_secret_key(&at.value).err()?;
        Some(error(at.line, format!("sign-keys: {failure}")))
    };
    // Each on its own, to report its line; the server loads them together.
    let certificate = |pair: &CertificateSection| {
        let failure = tls::check_certificate(pair).err()?;
        Some(error(pair.line, format!("tls.certificate: {failure}")))
    };
    let of_caches = config.caches.iter().flat_map(|cache| cache.sign_keys.iter().flatten());
    let keys = config.sign_keys.iter().chain(of_caches).filter_map(sign_key);
    let certificates: Vec<_> = config.tls.certificates.iter().filter_map(certificate).collect();
    // Only together with certificates that can be loaded is it known that an error is about the authorities.
    let are_good = certificates.is_empty() && !config.tls.certificates.is_empty();
    let authorities = config.tls.client_ca.as_ref().filter(|_| are_good).and_then(|at| {
        let failure = tls::check_authorities(&config.tls).err()?;
        Some(error(at.line, format!("tls.client-ca: {failure}")))
    });
    keys.chain(certificates).chain(authorities).collect()
}

/// Errors of the file itself, even if each of its keys is valid.
fn sections(file: &Path, config: &ServeConfig) -> Vec<ConfigError> {
    let of_caches = config.caches.iter().flat_map(|cache| &cache.upstreams);
    // Each on its own, to report its line.
    let upstream = |section: &UpstreamSection| {
        let settings = UpstreamSettings::of_file(std::slice::from_ref(section), &file.display().to_string(), None);
        settings.and_then(|settings| settings.check()).err()
    };
    let upstreams = config.upstreams.iter().chain(of_caches).filter_map(upstream);
    let oidc = issuers(&file.display().to_string(), &config.oidc).err();
    let alone = config.tls.client_ca.as_ref().filter(|_| config.tls.certificates.is_empty()).map(|at| ConfigError {
        file: file.display().to_string(),
        line: Some(at.line),
        message: "tls.client-ca: needs a certificate: give a [[tls.certificate]]".to_owned(),
    });
    upstreams.chain(oidc).chain(alone).collect()
}
