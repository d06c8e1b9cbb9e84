//! HPACK, the header compression of HTTP/2 (RFC 7541).
//!
//! A [`Decoder`] belongs to one direction of one connection, and sees every header block of it in order. The encoder is
//! three functions: it uses the static table only, so it has no state.

mod decoder;
mod dynamic_table;
mod encoder;
mod huffman;
mod integer;
mod static_table;
#[cfg(test)]
mod tests;

pub(crate) use decoder::{Decoder, Field};
pub(crate) use encoder::{encode_field, encode_no_table, encode_status};

/// What an entry of a header list or of the dynamic table counts besides its name and value (RFC 7541 §4.1).
pub(crate) const FIELD_OVERHEAD: usize = 32;

/// Why a header block was rejected.
///
/// All but [`TooLarge`](Self::TooLarge) leave the dynamic table unknown, so the connection must be closed with
/// COMPRESSION_ERROR (RFC 9113 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HpackError {
    /// The block ends within a field.
    #[error("the header block ends within a field")]
    Truncated,
    /// An integer has more than five octets.
    #[error("an integer of the header block is too large")]
    Integer,
    /// An index is 0 or beyond the tables.
    #[error("the header block refers to an entry that does not exist")]
    Index,
    /// A string holds the end-of-string symbol, or padding that is longer than 7 bits or not all ones.
    #[error("a string of the header block is not valid Huffman code")]
    Huffman,
    /// A size update after a field, or beyond the announced size.
    #[error("the header block has an invalid size update of the dynamic table")]
    SizeUpdate,
    /// The header list exceeds its limit. The dynamic table is intact, and the connection may continue.
    #[error("the header list is too large")]
    TooLarge,
}
