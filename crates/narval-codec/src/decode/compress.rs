//! compress (`.Z`): LZW with codes of 9 to 16 bits, as libarchive writes it for Nix. No maintained crate reads it.
//!
//! Format: `compress(1)` 4.0. Codes are in groups of eight, so a group has as many bytes as a code has bits; when the
//! width changes, the rest of the group is padding. Code 256 clears the table, if the head enables that.

use std::io::{self, BufRead, Read};

use super::error::{corrupt, truncated};

const NAME: &str = "compress";
const MAGIC: [u8; 2] = [0x1f, 0x9d];
const WIDTH_MIN: u32 = 9;
const WIDTH_MAX: u32 = 16;
const CLEAR: u16 = 256;

pub(super) struct Compress<R> {
    source: R,
    started: bool,
    /// The widest codes, from the head.
    width_max: u32,
    can_clear: bool,
    width: u32,
    /// The current group of codes, and its next bit.
    group: [u8; WIDTH_MAX as usize],
    group_bits: u32,
    group_at: u32,
    /// For each code from 257 on: its prefix code and its last byte.
    prefix: Vec<u16>,
    suffix: Vec<u8>,
    /// The code of the next table entry.
    free: u32,
    before: Option<u16>,
    /// The first byte of the previous code's string.
    first: u8,
    /// Decoded bytes, the next one last.
    stack: Vec<u8>,
}

impl<R: BufRead> Compress<R> {
    pub(super) fn new(source: R) -> Self {
        let len = 1 << WIDTH_MAX;
        Self {
            source,
            started: false,
            width_max: WIDTH_MAX,
            can_clear: true,
            width: WIDTH_MIN,
            group: [0; WIDTH_MAX as usize],
            group_bits: 0,
            group_at: 0,
            prefix: vec![0; len],
            suffix: vec![0; len],
            free: 257,
            before: None,
            first: 0,
            stack: Vec::new(),
        }
    }

    pub(super) const fn source_mut(&mut self) -> &mut R {
        &mut self.source
    }

    fn start(&mut self) -> io::Result<()> {
        let mut head = [0; 3];
        if read_up_to(&mut self.source, &mut head)? < head.len() {
            return Err(truncated(NAME));
        }
        let [magic @ .., flags] = head;
        (self.width_max, self.can_clear) = (u32::from(flags & 0x1f), flags & 0x80 != 0);
        if magic != MAGIC || !(WIDTH_MIN..=WIDTH_MAX).contains(&self.width_max) {
            return Err(corrupt(NAME, "the head is not one"));
        }
        self.free = self.first_free();
        self.started = true;
        Ok(())
    }

    const fn first_free(&self) -> u32 {
        if self.can_clear { 257 } else { 256 }
    }

    /// The next code; `None` at the end.
    fn next_code(&mut self) -> io::Result<Option<u16>> {
        // The table is full at the maximum width: nothing is added then.
        let full = self.free >= 1 << self.width;
        if full && self.width < self.width_max {
            self.width += 1;
            self.group_bits = 0;
        }
        if self.group_at + self.width > self.group_bits || self.group_bits == 0 {
            let wanted = self.group.get_mut(..self.width as usize).unwrap_or_default();
            let len = read_up_to(&mut self.source, wanted)?;
            (self.group_at, self.group_bits) = (0, u32::try_from(len * 8).unwrap_or(0));
            if self.group_bits < self.width {
                return Ok(None);
            }
        }
        let byte = |index: u32| u32::from(self.group.get(index as usize).copied().unwrap_or(0));
        let at = self.group_at / 8;
        let bits = byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16;
        let code = bits >> (self.group_at % 8) & ((1 << self.width) - 1);
        self.group_at += self.width;
        Ok(u16::try_from(code).ok())
    }

    /// Decodes the next code to the stack; `false` at the end.
    fn decode(&mut self) -> io::Result<bool> {
        let Some(code) = self.next_code()? else { return Ok(false) };
        if code == CLEAR && self.can_clear {
            (self.free, self.before, self.width, self.group_bits) = (self.first_free(), None, WIDTH_MIN, 0);
            return Ok(true);
        }
        let Some(before) = self.before else {
            self.first = u8::try_from(code).map_err(|_| corrupt(NAME, "a code is not defined yet"))?;
            self.before = Some(code);
            self.stack.push(self.first);
            return Ok(true);
        };
        let mut at = code;
        if u32::from(code) >= self.free {
            if u32::from(code) > self.free {
                return Err(corrupt(NAME, "a code is not defined yet"));
            }
            self.stack.push(self.first);
            at = before;
        }
        while at >= CLEAR {
            let (Some(prefix), Some(suffix)) = (self.prefix.get(usize::from(at)), self.suffix.get(usize::from(at)))
            else {
                return Err(corrupt(NAME, "a code is too large"));
            };
            self.stack.push(*suffix);
            // Each entry refers to an older one, so this ends.
            at = *prefix;
        }
        self.first = u8::try_from(at).unwrap_or_default();
        self.stack.push(self.first);
        if self.free < 1 << self.width_max {
            if let (Some(prefix), Some(suffix)) =
                (self.prefix.get_mut(self.free as usize), self.suffix.get_mut(self.free as usize))
            {
                (*prefix, *suffix) = (before, self.first);
            }
            self.free += 1;
        }
        self.before = Some(code);
        Ok(true)
    }
}

impl<R: BufRead> Read for Compress<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if !self.started {
            self.start()?;
        }
        let mut len = 0;
        for to in out.iter_mut() {
            while self.stack.is_empty() {
                if !self.decode()? {
                    return Ok(len);
                }
            }
            *to = self.stack.pop().unwrap_or_default();
            len += 1;
        }
        Ok(len)
    }
}

/// Fills the buffer as far as possible; returns the number of bytes.
fn read_up_to(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while let Some(rest) = buffer.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match source.read(rest) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
