//! The commands of `narval`: each has its arguments and a function that runs it.

pub mod bench;
pub mod copy;
pub mod demo;
pub mod doctor;
pub mod inspect;
pub mod install;
pub mod key;
pub mod maintain;
pub mod manual;
pub mod nar;
pub mod remove;
pub mod run;
pub mod serve;
pub mod static_site;
pub mod warm;
