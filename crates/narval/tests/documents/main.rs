//! The commands of the documents, copied from the pages and run: by a shell for each terminal, with the built programs, real Nix and a real browser.
//!
//! A block of commands has the name of a terminal (` ```sh server `), or a comment on the line before it that says why it is not run: [`page::Mark`].

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod address;
#[path = "../page/browser.rs"]
#[allow(dead_code, unreachable_pub, reason = "it can do more than these pages need")]
mod browser;
#[path = "../support/machine.rs"]
mod machine;
mod marks;
mod newcomer;
mod page;
mod pages;
#[path = "../support/platform.rs"]
mod platform;
#[path = "../../../narval-s3/tests/ports/mod.rs"]
mod ports;
mod reader;
mod recipes;
#[path = "../support/mod.rs"]
mod support;
mod terminal;
