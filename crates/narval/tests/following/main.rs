//! `narval follow`: a machine that follows a release switches to what works, and is never left with anything else.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod disk;
mod full_disk;
mod kills;
mod machine;
mod power;
mod power_cuts;
mod rounds;
mod site;
