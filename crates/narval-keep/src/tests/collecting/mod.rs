//! What a collection may remove, and what is found to be lost.

pub(super) mod killed;
pub(super) mod lost;
mod quota;
pub(super) mod racing;
mod releases;
pub(super) mod retention;
pub(super) mod survey;
