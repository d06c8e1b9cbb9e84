//! Decoders for every compression of narinfos that is still in use: pull-based, directly from the source's buffer into
//! the caller's.
//!
//! A decoder ends exactly where its format ends: later bytes stay in the source, and the caller can reject them.

mod brotli;
mod compress;
mod decoder;
mod delta;
mod error;
mod frame_index;
mod lz4;
mod memory;
mod xz;
mod zstd;
mod zstd_context;
mod zstd_frames;

pub use decoder::Decoder;
pub use delta::DeltaDecoder;
pub use error::DecodeError;
pub use frame_index::{FrameIndex, FrameStart};
pub use memory::{
    DECODE_MEMORY, DECODE_MEMORY_MIN, INPUT_LEN, NoWindow, OUTPUT_LEN, PARALLEL_MEMORY_MAX, Window, WindowMemory,
    WindowStats, XZ_MEMORY_MAX, is_no_window,
};
pub use zstd_context::WINDOW_LOG_MAX;

#[cfg(test)]
mod tests;
