pub(crate) mod driver;
pub(crate) mod listen;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub(crate) mod socket;
