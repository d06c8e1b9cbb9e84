//! `narval config`: checks a configuration file.

use std::path::{Path, PathBuf};

use crate::Failure;
use crate::args::tls;
use crate::commands::key;
use crate::commands::serve::oidc::issuers;
use crate::config::{At, CertificateSection, ConfigError, ConfigErrors, ServeConfig};
use crate::ui::output::out;

/// Check a configuration file of `narval serve`
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Check a configuration file, and the keys and certificates that it names
    ///
    /// Prints a summary. Errors are printed one per line, with their line of the file; the exit code is then 2.
    #[command(after_help = "\
Example:
  narval config check /etc/narval.toml && systemctl reload narval")]
    Check {
        /// Configuration file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Runs `narval config`.
///
/// # Errors
/// A file that can't be read, or says what it may not.
pub fn run(args: Args) -> Result<(), Failure> {
    let Command::Check { file } = args.command;
    let config = ServeConfig::load(&file).map_err(Failure::usage)?;
    let mut wrong = files(&file, &config);
    wrong.sort_by_key(|error| error.line);
    if !wrong.is_empty() {
        return Err(Failure::usage(ConfigErrors(wrong)));
    }
    for line in config.summary() {
        out!("{line}");
    }
    Ok(())
}

/// What is wrong with the files that a configuration names.
fn files(file: &Path, config: &ServeConfig) -> Vec<ConfigError> {
    let error = |line, message| ConfigError { file: file.display().to_string(), line: Some(line), message };
    let sign_key = |at: &At<PathBuf>| {
        let failure = key::read_secret_key(&at.value).err()?;
        Some(error(at.line, format!("sign-keys: {failure}")))
    };
    // Each alone, so that each has its line; together they are loaded by the server.
    let certificate = |pair: &CertificateSection| {
        let failure = tls::check_certificate(pair).err()?;
        Some(error(pair.line, format!("tls.certificate: {failure}")))
    };
    let keys = config.sign_keys.iter().filter_map(sign_key);
    let oidc = issuers(&file.display().to_string(), &config.oidc).err();
    keys.chain(oidc).chain(config.tls.certificates.iter().filter_map(certificate)).collect()
}
