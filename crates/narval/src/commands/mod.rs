//! The commands of `narval`, one file each: its arguments, and a function that runs it.

pub mod bench;
pub mod cat;
pub mod completions;
pub mod config;
pub mod copy;
pub mod demo;
pub mod doctor;
pub mod enter;
pub mod gc;
pub mod install;
pub mod key;
pub mod ls;
pub mod man;
pub mod nar;
pub mod path_info;
pub mod profiles;
pub mod push;
pub mod remove;
pub mod rollback;
pub mod run;
pub mod serve;
pub mod shell;
pub mod static_site;
pub mod use_cache;
pub mod verify;
pub mod warm;
