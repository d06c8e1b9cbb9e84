//! Encodes header blocks with the static table alone.
//!
//! A server's responses repeat little that a dynamic table would keep, and a field encoded without one can be reused
//! for all connections, on any thread.

use super::{huffman, integer, static_table};

/// Appends the size update that a block starts with to acknowledge that the other side announced a smaller table (RFC
/// 7541 §4.2): we use none, so once is enough.
pub(crate) fn encode_no_table(out: &mut Vec<u8>) {
    integer::encode(0, 5, 0x20, out);
}

/// Appends the field `:status`, the first of a response.
pub(crate) fn encode_status(status: u16, out: &mut Vec<u8>) {
    let index = match status {
        200 => 8,
        204 => 9,
        206 => 10,
        304 => 11,
        400 => 12,
        404 => 13,
        500 => 14,
        _ => {
            integer::encode(8, 4, 0, out);
            encode_string(itoa::Buffer::new().format(status).as_bytes(), out);
            return;
        }
    };
    integer::encode(index, 7, 0x80, out);
}

/// Appends a field. The name must be in lower case (RFC 9113 §8.2).
pub(crate) fn encode_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    // Secrets are kept out of every table on the way: compressed sizes would reveal whether a guess is right (RFC 7541
    // §7.1).
    let never_indexed = matches!(name, b"set-cookie" | b"cookie" | b"authorization" | b"proxy-authorization");
    let flags = if never_indexed { 0x10 } else { 0 };
    match static_table::find_name(name) {
        Some(index) => integer::encode(index, 4, flags, out),
        None => {
            out.push(flags);
            encode_string(name, out);
        }
    }
    encode_string(value, out);
}

/// Appends a string, Huffman-coded if that is shorter.
fn encode_string(string: &[u8], out: &mut Vec<u8>) {
    let encoded_len = huffman::encoded_len(string);
    if encoded_len < string.len() {
        integer::encode(encoded_len, 7, 0x80, out);
        huffman::encode(string, out);
    } else {
        integer::encode(string.len(), 7, 0, out);
        out.extend_from_slice(string);
    }
}
