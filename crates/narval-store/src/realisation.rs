//! Realisations: which path an output of a content-addressed derivation has.

use narval_nix::{Signature, StorePath};

/// The realisation of one output of a content-addressed derivation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Realisation {
    /// The path that was built.
    pub output_path: StorePath,
    /// Signatures of this realisation.
    pub signatures: Vec<Signature>,
}
