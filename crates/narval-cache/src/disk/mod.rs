//! The disk cache: files within a budget, and files that are read while they are fetched.

mod fill;
mod kept;
mod permits;
mod trouble;

pub(crate) use fill::Start;
pub use fill::{Fill, FillEnd, Progress};
pub(crate) use kept::Kept;
pub(crate) use permits::{Permit, Permits};
pub(crate) use trouble::Trouble;
