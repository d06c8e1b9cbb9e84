//! HTTP/2 connections: each is the counterpart of one of HTTP/1, whose requests become the same heads, and are answered by the same handlers.

#![forbid(unsafe_code)]

pub(crate) mod conn;
mod encode;
pub(crate) mod service;

pub(crate) use self::encode::{Answer, encode};
