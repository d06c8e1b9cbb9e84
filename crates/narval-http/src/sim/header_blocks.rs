//! The header blocks of one HTTP/2 connection, for comparing the decoder with another.

use crate::http2::hpack::{Decoder, FIELD_OVERHEAD, HpackError, encode_field, encode_no_table};

/// The names and values of a header list.
pub type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// The error for a refused header block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedBlock {
    /// A size update was misplaced or too large.
    pub is_size_update: bool,
}

/// Decodes header blocks in turn, with a dynamic table of 4,096 octets, up to and including the first one that is refused.
///
/// # Panics
/// A list exceeds its limit, or differs after it was encoded and decoded.
pub fn header_lists(blocks: &[&[u8]]) -> Vec<Result<Fields, RefusedBlock>> {
    let mut decoder = Decoder::new(4096, usize::MAX);
    let mut lists = Vec::new();
    for block in blocks {
        let list = decode(&mut decoder, block);
        lists.push(list.clone().map_err(|error| RefusedBlock { is_size_update: error == HpackError::SizeUpdate }));
        let Ok(fields) = list else { break };
        check_limits(block, &fields);
        let mut encoded = Vec::new();
        encode_no_table(&mut encoded);
        fields.iter().for_each(|(name, value)| encode_field(name, value, &mut encoded));
        assert_eq!(decode(&mut Decoder::new(0, usize::MAX), &encoded), Ok(fields));
    }
    lists
}

/// The first block of a connection. Its list is exactly as large as the limit.
fn check_limits(block: &[u8], fields: &Fields) {
    let size: usize = fields.iter().map(|(name, value)| name.len() + value.len() + FIELD_OVERHEAD).sum();
    let first = |list_max| decode(&mut Decoder::new(4096, list_max), block);
    if first(usize::MAX).is_ok_and(|alone| alone == *fields) && size > 0 {
        assert!(first(size).is_ok());
        assert_eq!(first(size - 1), Err(HpackError::TooLarge));
    }
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Fields, HpackError> {
    let mut fields = Vec::new();
    decoder.decode(block, |field| fields.push((field.name.to_vec(), field.value.to_vec())))?;
    Ok(fields)
}
