//! The Huffman code of strings (RFC 7541 §5.2, appendix B).
//!
//! The code is canonical: codes of one length are consecutive in the order of their symbols, and follow those of the
//! shorter lengths. So the lengths alone define it, and every table here is computed from them.

use super::HpackError;

/// Length in bits of each symbol's code; the last one is the end-of-string symbol.
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

const SYMBOLS: usize = 257;
const END_OF_STRING: usize = 256;
const LENGTH_MAX: usize = 30;
/// Codes up to this length are found with one lookup in [`SHORT`].
const SHORT_BITS: u32 = 8;

/// The code of each symbol, right-aligned.
const CODES: [u32; SYMBOLS] = codes();
/// For each value of the next [`SHORT_BITS`] bits, the symbol and the length of its code; length 0 for a longer code.
static SHORT: [(u8, u8); 1 << SHORT_BITS] = short_codes();
static LONG: LongCodes = long_codes();

/// Codes longer than [`SHORT_BITS`], by their length.
struct LongCodes {
    /// The last 32-bit window that starts with a code of this length; 0 if there are none.
    last_window: [u32; LENGTH_MAX + 1],
    /// The first code of this length, right-aligned.
    first_code: [u32; LENGTH_MAX + 1],
    /// The index of that code's symbol in `symbols`.
    first_symbol: [u16; LENGTH_MAX + 1],
    /// The symbols in the order of their codes.
    symbols: [u16; SYMBOLS],
}

/// Appends the string that `input` encodes to `out`, at most 8/5 times as long.
pub(super) fn decode(input: &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    out.reserve(input.len() * 8 / 5);
    let mut input = input.iter();
    // The next bits, left-aligned, and how many there are; below them is zero.
    let (mut bits, mut available) = (0_u64, 0_u32);
    loop {
        if available < LENGTH_MAX as u32 {
            for &octet in input.by_ref().take(4) {
                bits |= u64::from(octet) << (u64::BITS - 8 - available);
                available += 8;
            }
        }
        if available == 0 {
            return Ok(());
        }
        // Padding is ones, so the bits after the end look like more padding.
        let window = (bits >> 32) as u32 | u32::MAX.checked_shr(available).unwrap_or(0);
        let (symbol, length) = next_symbol(window);
        if length > available {
            // less than one octet, and the most significant bits of the end-of-string symbol
            let padding = available < 8 && window == u32::MAX;
            return if padding { Ok(()) } else { Err(HpackError::Huffman) };
        }
        out.push(u8::try_from(symbol).map_err(|_| HpackError::Huffman)?);
        bits <<= length;
        available -= length;
    }
}

/// The symbol at the start of the left-aligned bits of `window`, and the length of its code.
fn next_symbol(window: u32) -> (u16, u32) {
    if let Some(&(symbol, length @ 1..)) = SHORT.get((window >> (u32::BITS - SHORT_BITS)) as usize) {
        return (u16::from(symbol), u32::from(length));
    }
    let lengths = LONG.last_window.iter().zip(&LONG.first_code).zip(&LONG.first_symbol);
    for (length, ((&last_window, &first_code), &first_symbol)) in (0_u32..).zip(lengths).skip(SHORT_BITS as usize + 1) {
        if window <= last_window {
            let position = usize::from(first_symbol) + ((window >> (u32::BITS - length)) - first_code) as usize;
            if let Some(&symbol) = LONG.symbols.get(position) {
                return (symbol, length);
            }
        }
    }
    (END_OF_STRING as u16, LENGTH_MAX as u32)
}

/// Length in octets of the code of `string`.
pub(super) fn encoded_len(string: &[u8]) -> usize {
    let bits: usize = string.iter().map(|&octet| usize::from(length(octet))).sum();
    bits.div_ceil(8)
}

/// Appends the code of `string`, padded to whole octets.
pub(super) fn encode(string: &[u8], out: &mut Vec<u8>) {
    // the last bits that were not written yet, right-aligned
    let (mut bits, mut pending) = (0_u64, 0_u32);
    for &octet in string {
        let length = u32::from(length(octet));
        bits = bits << length | u64::from(code(octet));
        pending += length;
        if pending >= 32 {
            pending -= 32;
            out.extend_from_slice(&((bits >> pending) as u32).to_be_bytes());
        }
    }
    let padding = (8 - pending % 8) % 8;
    bits = bits << padding | ((1 << padding) - 1);
    pending += padding;
    while pending > 0 {
        pending -= 8;
        out.push((bits >> pending) as u8);
    }
}

fn length(octet: u8) -> u8 {
    LENGTHS[octet as usize]
}

fn code(octet: u8) -> u32 {
    CODES[octet as usize]
}

const fn codes() -> [u32; SYMBOLS] {
    let mut codes = [0; SYMBOLS];
    let (mut next, mut length) = (0_u32, 1);
    while length <= LENGTH_MAX {
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == length {
                codes[symbol] = next;
                next += 1;
            }
            symbol += 1;
        }
        next <<= 1;
        length += 1;
    }
    codes
}

const fn short_codes() -> [(u8, u8); 1 << SHORT_BITS] {
    let mut table = [(0, 0); 1 << SHORT_BITS];
    let mut symbol = 0;
    while symbol < END_OF_STRING {
        let length = LENGTHS[symbol] as u32;
        if length <= SHORT_BITS {
            let free = SHORT_BITS - length;
            let first = (CODES[symbol] as usize) << free;
            let mut rest = 0;
            while rest < 1 << free {
                table[first + rest] = (symbol as u8, length as u8);
                rest += 1;
            }
        }
        symbol += 1;
    }
    table
}

const fn long_codes() -> LongCodes {
    let mut table = LongCodes {
        last_window: [0; LENGTH_MAX + 1],
        first_code: [0; LENGTH_MAX + 1],
        first_symbol: [0; LENGTH_MAX + 1],
        symbols: [0; SYMBOLS],
    };
    let (mut position, mut length) = (0, 1);
    while length <= LENGTH_MAX {
        table.first_symbol[length] = position as u16;
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == length {
                if position == table.first_symbol[length] as usize {
                    table.first_code[length] = CODES[symbol];
                }
                table.last_window[length] = ((CODES[symbol] + 1) << (32 - length)).wrapping_sub(1);
                table.symbols[position] = symbol as u16;
                position += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    table
}
