//! The running server: shards that multiplex connections, workers that run handlers, and the messages between them.

pub(crate) mod admission;
pub(crate) mod answer_context;
pub(crate) mod closing;
pub(crate) mod connection;
pub(crate) mod event;
pub(crate) mod http1;
pub(crate) mod http2;
pub(crate) mod intake;
pub(crate) mod job;
pub(crate) mod late;
pub(crate) mod lease;
pub(crate) mod mailbox;
pub(crate) mod pool;
pub(crate) mod reply;
pub(crate) mod send_piece;
pub(crate) mod server;
pub(crate) mod service;
pub(crate) mod shard;
pub(crate) mod transmit;
pub(crate) mod worker;
