//! Files with secret keys, or with the commands that sign.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use narval_nix::SecretKey;

use crate::args::signing_command;
use crate::ui::failure::Failure;

/// The largest key file that is read, in bytes; a real one has about 120.
const KEY_FILE_LEN_MAX: u64 = 4096;

/// Reads a secret key from a file: `name:base64`, surrounding white space is ignored; or the command that has the key, in TOML.
///
/// # Errors
/// The file cannot be read or contains neither; the message names it.
pub fn read_secret_key(path: &Path) -> Result<SecretKey, Failure> {
    let shown = format!("'{}'", path.display());
    let file = std::fs::File::open(path)
        .map_err(|error| Failure::usage(format!("cannot read secret key {shown}: {error}")))?;
    parse_secret_key(file, &shown)
}

/// Reads a secret key; `shown` is what messages call its source.
///
/// # Errors
/// The source cannot be read or contains no secret key.
pub fn parse_secret_key(input: impl Read, shown: &str) -> Result<SecretKey, Failure> {
    let mut text = String::new();
    input
        .take(KEY_FILE_LEN_MAX)
        .read_to_string(&mut text)
        .map_err(|error| Failure::usage(format!("cannot read secret key {shown}: {error}")))?;
    if let Some(key) = signing_command::parse(&text) {
        return key.map_err(|error| Failure::usage(format!("no signing command in {shown}: {error}")));
    }
    SecretKey::parse_file(&text).map_err(|error| Failure::usage(format!("no secret key in {shown}: {error}")))
}

/// Writes a secret to a new file that only its owner can read.
///
/// # Errors
/// The file exists, or cannot be written.
pub fn write_secret(path: &Path, secret: &str) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::runtime(format!("cannot write '{}': {error}", path.display()));
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    writeln!(file, "{secret}").and_then(|()| file.sync_all()).map_err(failed)
}
