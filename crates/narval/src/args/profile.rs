//! The profile that a command works on.

use std::path::PathBuf;
use std::time::Duration;

use narval_install::Profile;

use super::own_folder;
use crate::args::client::StoreArgs;
use crate::ui::failure::Failure;

/// A profile.
#[derive(Clone, Debug, clap::Args)]
pub struct ProfileArgs {
    /// Profile: a folder of links to what is installed, kept in generations [default: ~/.local/state/narval/profile]
    #[arg(long, value_name = "DIR", env = "NARVAL_PROFILE", hide_env_values = true)]
    pub profile: Option<PathBuf>,
}

impl ProfileArgs {
    /// The given profile, or the user's own.
    pub(crate) fn open(&self, lock_timeout: Duration) -> Result<Profile, Failure> {
        let path = self.profile.clone().map_or_else(default_profile, Ok)?;
        Ok(Profile::at(&path, lock_timeout)?)
    }

    /// The given profile. The user's own one if none is given, and the store is theirs or the machine's: what is put into another folder is not to be found
    /// in it.
    pub(crate) fn for_store(&self, store: &StoreArgs) -> Result<Option<Profile>, Failure> {
        let is_folder = store.store.as_ref().is_some_and(|store| !["auto", "daemon", "local"].contains(&&**store));
        let is_used = self.profile.is_some() || !is_folder;
        is_used.then(|| self.open(store.lock.timeout())).transpose()
    }
}

/// `$XDG_STATE_HOME/narval/profile`, which is `~/.local/state/narval/profile`.
pub(crate) fn default_profile() -> Result<PathBuf, Failure> {
    own_folder("XDG_STATE_HOME", ".local/state", "narval/profile", "give the profile with --profile DIR")
}
