//! HTTP/2 over TLS, by a client that writes frames: what no library would send.

mod abuse;
mod client;
mod flow;
mod observed;
mod requests;
mod server;
mod slow;
mod stopping;
mod websocket;
