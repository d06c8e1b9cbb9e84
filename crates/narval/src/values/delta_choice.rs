//! Whether `narval serve` sends deltas.

use narval_serve::DeltaMode;

/// Whether clients get a NAR as the difference to one that they have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DeltaChoice {
    /// Never
    Off,
    /// Only differences that `narval warm --deltas-from` has made
    Kept,
    /// Also those that are made on request
    #[default]
    On,
}

impl From<DeltaChoice> for DeltaMode {
    fn from(choice: DeltaChoice) -> Self {
        match choice {
            DeltaChoice::Off => Self::Off,
            DeltaChoice::Kept => Self::Kept,
            DeltaChoice::On => Self::On,
        }
    }
}
