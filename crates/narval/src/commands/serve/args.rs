//! The arguments of `narval serve`.

use std::path::PathBuf;

use crate::config::{Options, ServeConfig};

/// Serve a Nix store as a binary cache
///
/// Works with every client of binary caches: nix, `narval install`, a browser.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Configuration file (TOML); command-line options take precedence. Reloaded on SIGHUP
    ///
    /// docs/configuration.md describes it; `narval config check FILE` checks a file.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Only for measurements: do not verify uncompressed uploads, and do not sync them
    #[arg(long, hide = true, requires = "data")]
    pub(super) unsafe_no_verify: bool,
    #[command(flatten)]
    pub(super) settings: Options<ServeConfig>,
}

const EXAMPLES: &str = "\
Examples:
  narval serve
  narval serve --sign-key cache.sec --listen 127.0.0.1:8080
  narval serve --store ~/.local/share/narval
  narval serve --data /var/lib/narval
  narval serve --data 's3://cache?region=eu-central-1' \\
    --cache-dir /var/lib/narval --cache-size 2T --redirect auto
  narval serve --data 's3://cache?region=eu-central-1' \\
    --database postgres://db.example.org/narval --cache-size 2T \\
    --cache-dir /var/cache/narval --peer-url http://10.0.0.3:5000
  narval serve --data /var/lib/narval --upstream https://cache.nixos.org \\
    --neighbours --neighbours-on 192.168.1.1
  narval serve --config /etc/narval.toml

Then, on a client:
  nix copy --from http://HOST:5000 PATH \\
    --option trusted-public-keys \"$(narval key public cache.sec)\"";
