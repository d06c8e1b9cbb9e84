//! The disk cache: files within a budget, and files that are read while they are fetched.

mod fill;
mod kept;
mod permits;
mod trouble;

pub(crate) use fill::Start;
pub use fill::{Fill, FillEnd, Progress};
pub(crate) use kept::Kept;
pub use permits::{Permit, Permits, WorksFor, client, work_for};
pub(crate) use trouble::Trouble;
