//! Decodes header blocks.

use super::dynamic_table::DynamicTable;
use super::{FIELD_OVERHEAD, HpackError, huffman, integer, static_table};

/// Decodes the header blocks that one peer sends on one connection.
///
/// Memory: twice the size of the table plus 3/4 of it for at most `table_size / 32` entries, and while a block is
/// decoded 8/5 of its length.
pub(crate) struct Decoder {
    table: DynamicTable,
    /// The size that we announced; a size update may not exceed it.
    table_size_max: usize,
    list_size_max: usize,
}

/// A field of a header list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field<'a> {
    /// As sent: nothing is known about its octets.
    pub(crate) name: &'a [u8],
    /// As sent: nothing is known about its octets.
    pub(crate) value: &'a [u8],
    /// An intermediary must not index it either (RFC 7541 §6.2.3).
    pub(crate) never_indexed: bool,
}

/// The types of representations, by their first octet (RFC 7541 §6).
enum Representation {
    Indexed,
    Literal { prefix_bits: u32, incremental: bool, never_indexed: bool },
    SizeUpdate,
}

impl Representation {
    fn of(first: u8) -> Self {
        match first {
            0x80.. => Self::Indexed,
            0x40.. => Self::Literal { prefix_bits: 6, incremental: true, never_indexed: false },
            0x20.. => Self::SizeUpdate,
            0x10.. => Self::Literal { prefix_bits: 4, incremental: false, never_indexed: true },
            _ => Self::Literal { prefix_bits: 4, incremental: false, never_indexed: false },
        }
    }
}

/// Size updates in one block.
const SIZE_UPDATES_MAX: usize = 2;

impl Decoder {
    /// A decoder with a dynamic table of up to `table_size` octets, the SETTINGS_HEADER_TABLE_SIZE that we announce (or
    /// its default, 4,096), that rejects header lists of more than `max_list` octets, SETTINGS_MAX_HEADER_LIST_SIZE.
    pub(crate) fn new(table_size: usize, max_list: usize) -> Self {
        Self { table: DynamicTable::new(table_size), table_size_max: table_size, list_size_max: max_list }
    }

    /// Decodes a complete header block: all fragments of HEADERS and CONTINUATION frames together.
    ///
    /// `each` gets the fields in order, up to the first one that exceeds the limit on the list: a field counts its name,
    /// its value and [`FIELD_OVERHEAD`], so there are at most `max_list / 32`.
    ///
    /// # Errors
    /// [`HpackError::TooLarge`] after the whole block was decoded; any other error immediately.
    pub(crate) fn decode(&mut self, block: &[u8], mut each: impl FnMut(Field<'_>)) -> Result<(), HpackError> {
        let mut rest = block;
        let mut at_start = true;
        // At most the smallest size since the last block, and then the final one (RFC 7541 section 4.2). One update that changes
        // nothing is allowed, and is cheaper than any field.
        let (mut updated, mut updates_left) = (None, SIZE_UPDATES_MAX);
        let mut list_left = Some(self.list_size_max);
        let (mut name_buf, mut value_buf) = (Vec::new(), Vec::new());
        while let Some((&first, after)) = rest.split_first() {
            rest = after;
            let mut emit = |name: &[u8], value: &[u8], never_indexed| {
                list_left = list_left.and_then(|left| left.checked_sub(name.len() + value.len() + FIELD_OVERHEAD));
                if list_left.is_some() {
                    each(Field { name, value, never_indexed });
                }
            };
            match Representation::of(first) {
                Representation::Indexed => {
                    let (name, value) = self.entry(integer::decode(first, 7, &mut rest)?)?;
                    emit(name, value, false);
                }
                Representation::Literal { prefix_bits, incremental, never_indexed } => {
                    let name = match integer::decode(first, prefix_bits, &mut rest)? {
                        0 => string(&mut rest, &mut name_buf)?,
                        index => {
                            // copied, because inserting may evict the entry that it stands in
                            name_buf.clear();
                            name_buf.extend_from_slice(self.entry(index)?.0);
                            &name_buf
                        }
                    };
                    let value = string(&mut rest, &mut value_buf)?;
                    emit(name, value, never_indexed);
                    if incremental {
                        self.table.insert(name, value);
                    }
                }
                Representation::SizeUpdate => {
                    let size = integer::decode(first, 5, &mut rest)?;
                    let is_needed = updates_left > 0 && updated.is_none_or(|smallest| size > smallest);
                    if !at_start || size > self.table_size_max || !is_needed {
                        return Err(HpackError::SizeUpdate);
                    }
                    updated = Some(size);
                    updates_left -= 1;
                    self.table.set_size_max(size);
                    continue;
                }
            }
            at_start = false;
        }
        list_left.map(|_| ()).ok_or(HpackError::TooLarge)
    }

    fn entry(&self, index: usize) -> Result<(&[u8], &[u8]), HpackError> {
        match index.checked_sub(static_table::LEN + 1) {
            Some(dynamic) => self.table.get(dynamic),
            None => static_table::get(index),
        }
        .ok_or(HpackError::Index)
    }
}

/// Reads a string (RFC 7541 §5.2), decoded into `buf` if it is not plain.
fn string<'s, 'block: 's>(rest: &mut &'block [u8], buf: &'s mut Vec<u8>) -> Result<&'s [u8], HpackError> {
    let (&first, after) = rest.split_first().ok_or(HpackError::Truncated)?;
    *rest = after;
    let len = integer::decode(first, 7, rest)?;
    let (string, after) = rest.split_at_checked(len).ok_or(HpackError::Truncated)?;
    *rest = after;
    if first & 0x80 == 0 {
        return Ok(string);
    }
    buf.clear();
    huffman::decode(string, buf)?;
    Ok(buf)
}
