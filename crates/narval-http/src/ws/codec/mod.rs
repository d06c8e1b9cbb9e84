//! The WebSocket protocol without I/O: frames, masking, messages, UTF-8, and `permessage-deflate`.
//!
//! Everything here works on byte slices. [`Decoder`] takes what a socket delivers, in pieces of any size, and gives
//! messages and control frames; [`frame`] and [`message`] make what is to be sent.

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
