//! `narval hook`: run by Nix after a build.

use std::fs::File;
use std::io::Read;
use std::os::unix::net::UnixDatagram;

use narval_nix::StorePath;
use narval_nix::derivation::parse_outputs;
use narval_push::watch::Queue;
use narval_store::{Environment, StoreConfig};

use crate::args::state::StateArgs;
use crate::ui::failure::Failure;
use crate::ui::output::note;

/// The maximum size of a derivation in bytes.
const DERIVATION_LEN_MAX: u64 = 64 << 20;

/// The socket of the system log.
const SYSLOG: &str = "/dev/log";
/// The priority of a user-level error (RFC 3164 section 4.1.1: facility 1, severity 3).
const SYSLOG_ERROR: u8 = 11;

/// Queue paths that Nix has built, for watch-store to push
///
/// Nix's `post-build-hook` runs this after each build, with the paths in OUT_PATHS. It takes milliseconds, needs no
/// network, and always exits with 0, so it never makes a build fail. Errors go to standard error and to the system log.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  In nix.conf: post-build-hook = /etc/nix/post-build-hook

  The file /etc/nix/post-build-hook, executable:
  #!/bin/sh
  exec /usr/bin/narval hook

  To push the queued paths:
  narval watch-store --to http://cache:5000")]
pub struct Args {
    #[command(flatten)]
    state: StateArgs,
}

/// Runs `narval hook`.
///
/// # Errors
/// Never: errors are reported, and the build continues.
pub fn run(args: &Args) -> Result<(), Failure> {
    if let Err(failure) = queue(args) {
        complain(&failure.to_string());
    }
    Ok(())
}

fn queue(args: &Args) -> Result<(), Failure> {
    let Some(list) = std::env::var_os("OUT_PATHS") else {
        return Err(Failure::usage("OUT_PATHS is not set: Nix sets it for its post-build-hook"));
    };
    let store = StoreConfig::from_environment(&Environment::of_process()).map_err(Failure::usage)?;
    let mut paths: Vec<StorePath> = Vec::new();
    for text in list.to_string_lossy().split_ascii_whitespace() {
        match store.store_dir.parse(text) {
            Ok(path) => paths.push(path),
            // The others are still queued.
            Err(error) => complain(&format!("OUT_PATHS: '{text}': {error}")),
        }
    }
    if list.is_empty() {
        paths = outputs(&store)?;
    }
    Ok(Queue::new(&args.state.folder()?).add(&paths)?)
}

/// The outputs of the derivation in DRV_PATH: Nix 2.8.0 leaves OUT_PATHS empty (NixOS/nix#6446), and 2.30 and 2.31 do
/// after `--rebuild` (#14287). Empty if the outputs are not known in advance.
fn outputs(store: &StoreConfig) -> Result<Vec<StorePath>, Failure> {
    let Some(derivation) = std::env::var("DRV_PATH").ok().filter(|path| !path.is_empty()) else {
        return Err(Failure::usage("OUT_PATHS and DRV_PATH are empty"));
    };
    let failed = |error: &dyn std::fmt::Display| Failure::runtime(format!("DRV_PATH: {derivation}: {error}"));
    let path = store.store_dir.parse(&derivation).map_err(|error| failed(&error))?;
    let mut text = Vec::new();
    let file = File::open(store.real_store_dir.join(path.base_name())).map_err(|error| failed(&error))?;
    file.take(DERIVATION_LEN_MAX).read_to_end(&mut text).map_err(|error| failed(&error))?;
    let outputs = parse_outputs(&text, &store.store_dir).map_err(|error| failed(&error))?;
    Ok(outputs.into_iter().filter_map(|output| output.path).collect())
}

/// Reports an error in the build's output and in the system log.
fn complain(message: &str) {
    note!("narval hook: {message}");
    let line = format!("<{SYSLOG_ERROR}>narval-hook[{}]: {message}", std::process::id());
    // Without a system log, it cannot be reported elsewhere.
    let _ = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to(line.as_bytes(), SYSLOG)
    });
}
