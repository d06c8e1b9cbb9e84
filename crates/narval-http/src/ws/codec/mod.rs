//! The WebSocket protocol without I/O: frames, masking, messages, UTF-8, and `permessage-deflate`.
//!
//! Everything here works on byte slices. [`Decoder`] turns received bytes, in pieces of any size, into messages and
//! control frames; [`frame`] and [`message`] encode.
//!
//! `close`, `decoder`, `frame` and `message` import each other: a protocol error has a close code, and decoding any of them may fail
//! with one.

pub mod close;
pub mod decoder;
pub mod deflate;
pub mod extension;
pub mod frame;
pub mod mask;
pub mod message;
pub mod utf8;

pub use close::{CloseCode, CloseFrame};
pub use decoder::{Decoder, Incoming, ProtocolError, WsLimits};
pub use message::{Frame, Message};
