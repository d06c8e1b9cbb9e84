//! Whether `narval serve` sends clients to the object store.

use narval_keep::Redirect;

/// When clients get large NARs from the object store itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum RedirectChoice {
    /// Never
    #[default]
    Off,
    /// The first time that a NAR is requested which is not in the disk cache
    Auto,
    /// Always
    On,
}

impl From<RedirectChoice> for Redirect {
    fn from(choice: RedirectChoice) -> Self {
        match choice {
            RedirectChoice::Off => Self::Off,
            RedirectChoice::Auto => Self::Auto,
            RedirectChoice::On => Self::On,
        }
    }
}
