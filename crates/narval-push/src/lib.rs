//! Pushes paths of a store to caches that take them: to a Narval server, to any server that Nix can write to, to a
//! bucket, or to a folder.
//!
//! - [`Target`] is an open cache, and [`push()`] sends it what it lacks. A NAR that was interrupted continues where it
//!   broke, if the server can do that; paths become visible after their references, or all at once.
//! - [`Selection`] decides what is pushed: a [`Filter`], and what other caches ([`OtherCaches`]) have anyway.
//! - [`Administered`] asks a Narval server for what is no upload: releases, reports, tokens.
//! - [`watch`] pushes what a store builds. A post-build hook only writes to its [`Queue`](watch::Queue); whatever was
//!   queued, or became valid while the watcher follows the database, is pushed or remains recorded: nothing is lost if
//!   the cache is away or a process is killed.
//!
//! Begin at `push/mod.rs`: `push/narval.rs` speaks the push protocol, `push/plain.rs` what Nix speaks. The watcher
//! begins at `watch/watcher.rs`, and delivers in `watch/deliver.rs`.

#![forbid(unsafe_code)]

mod push;
pub mod watch;

pub use push::{
    Administered, Exchanged, Excluded, Filter, Missing, OtherCaches, PushOptions, Pushed, Selection, Target,
    UPLOADS_MAX, push, send,
};
