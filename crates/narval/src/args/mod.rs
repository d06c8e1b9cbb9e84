//! Options shared by several commands.

use std::path::PathBuf;

use crate::ui::failure::Failure;
use crate::values::folders::user_folder;

pub mod administered;
pub mod channels;
pub mod client;
pub mod data;
pub(crate) mod logins;
pub mod names;
pub mod paths;
pub mod profile;
pub mod push;
pub mod released;
pub mod releases;
pub mod secret_key;
mod signing_command;
pub mod state;

/// The folder `place` in one of these. Without a home, `advice` says what to do.
pub(crate) fn own_folder(variable: &str, below: &str, place: &str, advice: &str) -> Result<PathBuf, Failure> {
    let folder = user_folder(variable, below).map(|folder| folder.join(place));
    folder.ok_or_else(|| Failure::usage(format!("HOME is not set: {advice}")))
}
