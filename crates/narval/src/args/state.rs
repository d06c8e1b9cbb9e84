//! The state shared by hooks and watchers.

use std::path::PathBuf;

use super::own_folder;
use crate::ui::failure::Failure;

/// The folder for root, as which the daemon runs the hook.
const OF_ROOT: &str = "/var/lib/narval-push";

/// The folder with the queue of the hook, and the state of the watcher.
#[derive(Clone, Debug, clap::Args)]
pub struct StateArgs {
    /// Folder with the queue and the state of pushes; the same for hook and watch-store [default: /var/lib/narval-push
    /// for root, otherwise ~/.local/state/narval/push]
    #[arg(long, value_name = "DIR", env = "NARVAL_STATE", hide_env_values = true)]
    pub state: Option<PathBuf>,
}

impl StateArgs {
    /// The folder.
    pub fn folder(&self) -> Result<PathBuf, Failure> {
        if let Some(folder) = &self.state {
            return Ok(folder.clone());
        }
        if rustix::process::geteuid().is_root() {
            return Ok(OF_ROOT.into());
        }
        own_folder("XDG_STATE_HOME", ".local/state", "narval/push", "give the folder of the state with --state DIR")
    }
}
