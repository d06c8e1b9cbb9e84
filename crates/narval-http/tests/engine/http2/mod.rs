//! HTTP/2 over TLS, by a client that writes frames: what no library would send.

mod abuse;
pub(crate) mod client;
mod flow;
mod many_uploads;
mod observed;
mod requests;
pub(crate) mod server;
mod slow;
mod stopping;
mod turns;
mod websocket;
