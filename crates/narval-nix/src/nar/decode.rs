//! Decodes a NAR: bytes in, events out.

use super::rules::{
    DEPTH_MAX, FILE_SIZE_MAX, NAME_LEN_MAX, NarError, OpenDirectories, Rule, TARGET_LEN_MAX, check_name, check_target,
};
use super::{Event, wire};

/// A streaming decoder that does no I/O: it is fed bytes in pieces of any size and returns events.
///
/// Contents are borrowed from the input and never copied; names and targets are copied only if they span two pieces. The
/// decoder holds at most about 25 KB, whatever sizes the NAR declares.
///
/// ```
/// use narval_nix::nar::{Decoder, Event, wire};
/// let nar = [&wire::HEAD[..], &wire::DIRECTORY, &wire::CLOSE].concat();
/// let mut decoder = Decoder::new();
/// for piece in nar.chunks(10) {
///     let mut input = piece;
///     loop {
///         let (used, event) = decoder.next(input).unwrap();
///         match event {
///             Some(event) => assert!(matches!(event, Event::Directory | Event::EndDirectory)),
///             None => break, // the piece is used up
///         }
///         input = &input[used..];
///     }
/// }
/// decoder.finish().unwrap();
/// ```
#[derive(Debug)]
pub struct Decoder {
    state: State,
    /// The offset in the NAR of the token being read.
    offset: u64,
    /// The declared size of the NAR.
    size: Option<u64>,
    /// The start of a token that spans two pieces, or the whole token of the last event.
    pending: Vec<u8>,
    /// The last event borrowed from `pending`, which must be cleared before the next one.
    pending_used: bool,
    directories: OpenDirectories,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The magic and the root node.
    Root,
    /// A node after its `type`.
    Node,
    /// The contents of a regular file.
    Contents { size: u64, remaining: u64 },
    /// The next entry of a directory, or its end.
    Entries,
    /// The NAR is complete.
    Done,
    /// An error was found. It is returned again by every call.
    Failed(NarError),
}

/// Where the bytes of a token are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Input,
    Pending,
}

/// A complete token: its event, with ranges in place of slices, and where it ends.
struct Token {
    kind: Kind,
    len: usize,
    place: Place,
}

enum Kind {
    Regular { executable: bool, size: u64 },
    EndRegular,
    Symlink { from: usize, len: usize },
    Directory,
    Entry { len: usize },
    EndDirectory,
}

/// The range of the name in an entry's token.
const NAME_FROM: usize = wire::ENTRY.len() + 8;

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// A decoder for a NAR of unknown size.
    pub fn new() -> Self {
        Self {
            state: State::Root,
            offset: 0,
            size: None,
            pending: Vec::new(),
            pending_used: false,
            directories: OpenDirectories::default(),
        }
    }

    /// A decoder for a NAR of exactly `size` bytes. A file that cannot fit is rejected before its first byte.
    pub fn with_nar_size(size: u64) -> Self {
        Self { size: Some(size), ..Self::new() }
    }

    /// The offset in the NAR of the next token; after [`Event::Regular`] that is the offset of the file's contents.
    /// Bytes of an incomplete token are not counted.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether the NAR is complete.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Signals the end of the input. Returns an error if the NAR is incomplete.
    pub fn finish(&self) -> Result<(), NarError> {
        match (self.state, self.size) {
            (State::Failed(error), _) => Err(error),
            (State::Done, Some(size)) if size != self.offset => Err(self.error(0, Rule::SmallerThanStated)),
            (State::Done, _) => Ok(()),
            _ => Err(self.error(if self.pending_used { 0 } else { self.pending.len() }, Rule::Truncated)),
        }
    }

    /// Consumes bytes from the front of `input`. Returns how many, and the event if one is complete. Without an event
    /// all of `input` was consumed, and more is needed unless [`Decoder::is_done`]. Once it has failed, every call
    /// returns the same error.
    pub fn next<'a>(&'a mut self, input: &'a [u8]) -> Result<(usize, Option<Event<'a>>), NarError> {
        if std::mem::take(&mut self.pending_used) {
            self.pending.clear();
        }
        if let State::Contents { size, remaining: remaining @ 1.. } = self.state {
            return Ok(self.contents(input, size, remaining));
        }
        let mut used = 0;
        match self.token(input, &mut used) {
            Ok(None) => Ok((used, None)),
            Ok(Some(token)) => {
                self.offset += token.len as u64;
                let bytes: &[u8] = match token.place {
                    Place::Input => {
                        used = token.len;
                        input
                    }
                    Place::Pending => {
                        self.pending_used = true;
                        &self.pending
                    }
                };
                Ok((used, Some(token.kind.event(bytes))))
            }
            Err(error) => {
                self.state = State::Failed(error);
                Err(error)
            }
        }
    }

    /// The contents of a regular file that is not complete.
    fn contents<'a>(&mut self, input: &'a [u8], size: u64, remaining: u64) -> (usize, Option<Event<'a>>) {
        let len = usize::try_from(remaining).unwrap_or(usize::MAX).min(input.len());
        if len == 0 {
            return (0, None);
        }
        self.offset += len as u64;
        self.state = State::Contents { size, remaining: remaining - len as u64 };
        (len, Some(Event::Contents(&input[..len])))
    }

    /// The next token, if it is complete. `used` is increased by the bytes that were moved from `input` to `pending`.
    fn token(&mut self, input: &[u8], used: &mut usize) -> Result<Option<Token>, NarError> {
        match self.state {
            State::Failed(error) => Err(error),
            State::Root => self.node(input, used, wire::HEAD.len()),
            State::Node => self.node(input, used, 0),
            State::Contents { size, .. } => self.end_regular(input, used, wire::padding(size).len()),
            State::Entries => self.entry(input, used),
            State::Done if input.is_empty() => Ok(None),
            State::Done => Err(self.error(0, Rule::Trailing)),
        }
    }

    /// A node after its `type`, preceded by `head` bytes of magic.
    fn node(&mut self, input: &[u8], used: &mut usize, head: usize) -> Result<Option<Token>, NarError> {
        // Every type has at least as many bytes as a directory, and byte 16 differs between types.
        let Some(place) = self.gather(input, used, head + wire::DIRECTORY.len())? else { return Ok(None) };
        let bytes = self.bytes(input, place);
        if head > 0 {
            self.expect(bytes, 0, &wire::HEAD, Rule::Magic)?;
        }
        match bytes[head + 16] {
            b'y' => {
                self.expect(bytes, head, &wire::DIRECTORY, Rule::Type)?;
                self.directories.open();
                self.state = State::Entries;
                Ok(Some(Token { kind: Kind::Directory, len: head + wire::DIRECTORY.len(), place }))
            }
            8 => self.regular(input, used, head, false),
            10 => self.regular(input, used, head, true),
            6 => self.symlink(input, used, head),
            _ => {
                self.expect(bytes, head, &wire::DIRECTORY, Rule::Type)?;
                Err(self.error(head, Rule::Type))
            }
        }
    }

    fn regular(
        &mut self,
        input: &[u8],
        used: &mut usize,
        head: usize,
        executable: bool,
    ) -> Result<Option<Token>, NarError> {
        let (token, rule) =
            if executable { (&wire::EXECUTABLE[..], Rule::Executable) } else { (&wire::REGULAR[..], Rule::Type) };
        let len = head + token.len() + 8;
        let Some(place) = self.gather(input, used, len)? else { return Ok(None) };
        let bytes = self.bytes(input, place);
        self.expect(bytes, head, token, rule)?;
        let size = u64_at(bytes, len - 8);
        let end = self.offset.checked_add(len as u64).and_then(|from| from.checked_add(size));
        let end = end.and_then(|end| end.checked_add((wire::padding(size).len() + self.close().len()) as u64));
        match end {
            Some(end) if size <= FILE_SIZE_MAX && self.size.is_none_or(|nar| end <= nar) => {}
            _ => return Err(self.error(len - 8, Rule::FileSize)),
        }
        self.state = State::Contents { size, remaining: size };
        Ok(Some(Token { kind: Kind::Regular { executable, size }, len, place }))
    }

    /// The padding after contents, and the end of the file.
    fn end_regular(&mut self, input: &[u8], used: &mut usize, padding: usize) -> Result<Option<Token>, NarError> {
        let len = padding + self.close().len();
        let Some(place) = self.gather(input, used, len)? else { return Ok(None) };
        let bytes = self.bytes(input, place);
        self.expect_zeros(bytes, 0, padding)?;
        self.expect(bytes, padding, self.close(), Rule::Close)?;
        self.state = self.after_node();
        Ok(Some(Token { kind: Kind::EndRegular, len, place }))
    }

    fn symlink(&mut self, input: &[u8], used: &mut usize, head: usize) -> Result<Option<Token>, NarError> {
        let from = head + wire::SYMLINK.len() + 8;
        let Some(place) = self.gather(input, used, from)? else { return Ok(None) };
        let bytes = self.bytes(input, place);
        self.expect(bytes, head, &wire::SYMLINK, Rule::Type)?;
        let Some(len) = short_len(bytes, from - 8, TARGET_LEN_MAX) else {
            return Err(self.error(from - 8, Rule::TargetTooLong));
        };
        let padded = len.next_multiple_of(8);
        let end = from + padded + self.close().len();
        let Some(place) = self.gather(input, used, end)? else { return Ok(None) };
        let bytes = self.bytes(input, place);
        check_target(&bytes[from..from + len]).map_err(|rule| self.error(from, rule))?;
        self.expect_zeros(bytes, from + len, padded - len)?;
        self.expect(bytes, from + padded, self.close(), Rule::Close)?;
        self.state = self.after_node();
        Ok(Some(Token { kind: Kind::Symlink { from, len }, len: end, place }))
    }

    /// The next entry of a directory, or its end.
    fn entry(&mut self, input: &[u8], used: &mut usize) -> Result<Option<Token>, NarError> {
        let Some(place) = self.gather(input, used, wire::CLOSE.len())? else { return Ok(None) };
        // The length of the first string distinguishes ')' from 'entry'.
        if self.bytes(input, place)[0] == 1 {
            return self.end_directory(input, used);
        }
        let Some(place) = self.gather(input, used, NAME_FROM)? else { return Ok(None) };
        let bytes = self.bytes(input, place);
        self.expect(bytes, 0, &wire::ENTRY, Rule::Entry)?;
        let Some(len) = short_len(bytes, NAME_FROM - 8, NAME_LEN_MAX) else {
            return Err(self.error(NAME_FROM - 8, Rule::NameTooLong));
        };
        let padded = len.next_multiple_of(8);
        let end = NAME_FROM + padded + wire::NODE.len();
        let Some(place) = self.gather(input, used, end)? else { return Ok(None) };
        let bytes = self.bytes(input, place);
        let name = &bytes[NAME_FROM..NAME_FROM + len];
        check_name(name, self.directories.previous()).map_err(|rule| self.error(NAME_FROM, rule))?;
        self.expect_zeros(bytes, NAME_FROM + len, padded - len)?;
        self.expect(bytes, NAME_FROM + padded, &wire::NODE, Rule::Node)?;
        if self.directories.depth() >= DEPTH_MAX {
            return Err(self.error(NAME_FROM + padded, Rule::Depth));
        }
        // Not through `bytes`: that borrows all of `self`.
        let name = match place {
            Place::Input => &input[NAME_FROM..NAME_FROM + len],
            Place::Pending => &self.pending[NAME_FROM..NAME_FROM + len],
        };
        self.directories.set_previous(name);
        self.state = State::Node;
        Ok(Some(Token { kind: Kind::Entry { len }, len: end, place }))
    }

    fn end_directory(&mut self, input: &[u8], used: &mut usize) -> Result<Option<Token>, NarError> {
        let close: &[u8] = if self.directories.depth() > 1 { &wire::CLOSE_ENTRY } else { &wire::CLOSE };
        let Some(place) = self.gather(input, used, close.len())? else { return Ok(None) };
        let bytes = self.bytes(input, place);
        self.expect(bytes, 0, close, Rule::Entry)?;
        self.directories.close();
        self.state = self.after_node();
        Ok(Some(Token { kind: Kind::EndDirectory, len: close.len(), place }))
    }

    /// The end of a regular file or symlink, and of the entry that contains it.
    fn close(&self) -> &'static [u8] {
        if self.directories.depth() > 0 { &wire::CLOSE_ENTRY } else { &wire::CLOSE }
    }

    fn after_node(&self) -> State {
        if self.directories.depth() > 0 { State::Entries } else { State::Done }
    }

    /// Makes the next `len` bytes of the NAR contiguous and returns where they are, or `None` until they have arrived.
    ///
    /// Can be called repeatedly with a growing `len` for one token: `pending` never holds more than was requested.
    fn gather(&mut self, input: &[u8], used: &mut usize, len: usize) -> Result<Option<Place>, NarError> {
        if self.size.is_some_and(|size| size.saturating_sub(self.offset) < len as u64) {
            let offset = self.size.unwrap_or_default();
            return Err(NarError { offset, rule: Rule::LargerThanStated });
        }
        if self.pending.is_empty() && input.len() >= len {
            return Ok(Some(Place::Input));
        }
        let missing = len.saturating_sub(self.pending.len());
        let fresh = &input[*used..];
        let take = missing.min(fresh.len());
        self.pending.extend_from_slice(&fresh[..take]);
        *used += take;
        Ok((take == missing).then_some(Place::Pending))
    }

    fn bytes<'a>(&'a self, input: &'a [u8], place: Place) -> &'a [u8] {
        match place {
            Place::Input => input,
            Place::Pending => &self.pending,
        }
    }

    /// Compares the bytes at `at` with a token. The error's offset is that of the first byte that differs.
    fn expect(&self, bytes: &[u8], at: usize, token: &[u8], rule: Rule) -> Result<(), NarError> {
        let found = &bytes[at..at + token.len()];
        if found == token {
            return Ok(());
        }
        let same = found.iter().zip(token).take_while(|(found, expected)| found == expected).count();
        Err(self.error(at + same, rule))
    }

    fn expect_zeros(&self, bytes: &[u8], at: usize, len: usize) -> Result<(), NarError> {
        match bytes[at..at + len].iter().position(|byte| *byte != 0) {
            Some(index) => Err(self.error(at + index, Rule::Padding)),
            None => Ok(()),
        }
    }

    /// An error at an offset in the current token.
    fn error(&self, at: usize, rule: Rule) -> NarError {
        NarError { offset: self.offset.saturating_add(at as u64), rule }
    }
}

impl Kind {
    fn event(self, bytes: &[u8]) -> Event<'_> {
        match self {
            Self::Regular { executable, size } => Event::Regular { executable, size },
            Self::EndRegular => Event::EndRegular,
            Self::Symlink { from, len } => Event::Symlink { target: &bytes[from..from + len] },
            Self::Directory => Event::Directory,
            Self::Entry { len } => Event::Entry { name: &bytes[NAME_FROM..NAME_FROM + len] },
            Self::EndDirectory => Event::EndDirectory,
        }
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

/// Reads the length at `at`, which must not exceed `max`.
fn short_len(bytes: &[u8], at: usize, max: usize) -> Option<usize> {
    usize::try_from(u64_at(bytes, at)).ok().filter(|len| *len <= max)
}
