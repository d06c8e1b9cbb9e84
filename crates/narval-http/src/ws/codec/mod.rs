//! The WebSocket protocol without I/O: frames, masking, messages, UTF-8, and `permessage-deflate`.
//!
//! Everything here works on byte slices. [`Decoder`] turns received bytes, in pieces of any size, into messages and
//! control frames; [`frame`] and [`message`] encode.

pub mod close;
pub mod decoder;
pub mod deflate;
pub mod error;
pub mod extension;
pub mod frame;
pub mod mask;
pub mod message;
pub mod utf8;

pub use close::CloseFrame;
pub use decoder::{Decoder, Incoming, WsLimits};
pub use error::{CloseCode, ProtocolError};
pub use message::{Frame, Message};
