//! HTTP/2 connections: each is the counterpart of one of HTTP/1, whose requests become the same heads, and are answered by the same handlers. Here
//! are also the bodies of their responses, which the shard sends frame by frame.

#![forbid(unsafe_code)]

mod body;
pub(crate) mod conn;
mod encode;
pub(crate) mod service;

pub(crate) use self::body::{Made, Maker};
pub(crate) use self::encode::{Answer, encode};
