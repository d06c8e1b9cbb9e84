//! What a shard does with its connections, by what they speak.

mod handshake;
mod http1;
mod http2;
mod websocket;
