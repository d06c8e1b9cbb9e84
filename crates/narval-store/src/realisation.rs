//! Which path an output of a content-addressed derivation turned out to be.

use narval_nix::{Signature, StorePath};

/// What a store knows of one output of a content-addressed derivation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Realisation {
    /// The path that was built.
    pub output_path: StorePath,
    /// Signatures of this realisation.
    pub signatures: Vec<Signature>,
}
