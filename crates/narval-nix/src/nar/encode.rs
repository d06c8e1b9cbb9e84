//! Encodes a NAR: events in, bytes out.

use super::rules::{DEPTH_MAX, FILE_SIZE_MAX, NarError, OpenDirectories, Rule, check_name, check_target};
use super::{Event, wire};

/// Encodes events as a NAR, and rejects those that would make an invalid one.
///
/// ```
/// use narval_nix::nar::{Encoder, Event};
/// use narval_nix::Sha256;
/// let mut nar = Vec::new();
/// let mut encoder = Encoder::new();
/// for event in [Event::Regular { executable: true, size: 3 }, Event::Contents(b"hi\n"), Event::EndRegular] {
///     encoder.push(event, &mut nar).unwrap();
/// }
/// encoder.finish().unwrap();
/// assert_eq!(Sha256::of(&nar).to_nix32(), "19qdn6jdp9i45l6wvas7q9cljnjp1kgm84a9ci9pd247ncdcwnxm");
/// ```
#[derive(Debug, Default)]
pub struct Encoder {
    state: State,
    /// Bytes written so far.
    offset: u64,
    directories: OpenDirectories,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Root,
    Node,
    Contents {
        size: u64,
        remaining: u64,
    },
    Entries,
    Done,
}

impl Encoder {
    /// Starts a NAR.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of bytes encoded so far; after [`Event::Regular`] that is the offset of the file's contents.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Appends the bytes of an event. The NAR cannot be continued after an error.
    pub fn push(&mut self, event: Event<'_>, out: &mut Vec<u8>) -> Result<(), NarError> {
        let before = out.len();
        let result = self.append(event, out);
        self.offset += (out.len() - before) as u64;
        result.map_err(|rule| NarError { offset: self.offset, rule })
    }

    /// Signals the end of the events. Returns an error if the NAR is incomplete.
    pub fn finish(&self) -> Result<(), NarError> {
        if self.state == State::Done { Ok(()) } else { Err(NarError { offset: self.offset, rule: Rule::Truncated }) }
    }

    fn append(&mut self, event: Event<'_>, out: &mut Vec<u8>) -> Result<(), Rule> {
        match (event, self.state) {
            (Event::Regular { executable, size }, State::Root | State::Node) => {
                if size > FILE_SIZE_MAX {
                    return Err(Rule::FileSize);
                }
                self.begin_node(out);
                wire::push_regular_head(out, executable, size);
                self.state = State::Contents { size, remaining: size };
            }
            (Event::Contents(piece), State::Contents { size, remaining }) => {
                let left = remaining.checked_sub(piece.len() as u64).ok_or(Rule::Sequence)?;
                out.extend_from_slice(piece);
                self.state = State::Contents { size, remaining: left };
            }
            (Event::EndRegular, State::Contents { size, remaining: 0 }) => {
                out.extend_from_slice(wire::padding(size));
                out.extend_from_slice(&wire::CLOSE);
                self.end_node(out);
            }
            (Event::Symlink { target }, State::Root | State::Node) => {
                check_target(target)?;
                self.begin_node(out);
                wire::push_symlink(out, target);
                self.end_node(out);
            }
            (Event::Directory, State::Root | State::Node) => {
                self.begin_node(out);
                out.extend_from_slice(&wire::DIRECTORY);
                self.directories.open();
                self.state = State::Entries;
            }
            (Event::Entry { name }, State::Entries) => {
                check_name(name, self.directories.previous())?;
                if self.directories.depth() >= DEPTH_MAX {
                    return Err(Rule::Depth);
                }
                wire::push_entry_head(out, name);
                self.directories.set_previous(name);
                self.state = State::Node;
            }
            (Event::EndDirectory, State::Entries) => {
                out.extend_from_slice(&wire::CLOSE);
                self.directories.close();
                self.end_node(out);
            }
            _ => return Err(Rule::Sequence),
        }
        Ok(())
    }

    fn begin_node(&self, out: &mut Vec<u8>) {
        if self.state == State::Root {
            out.extend_from_slice(&wire::HEAD);
        }
    }

    /// Called at the end of a node: ends the entry that contains it, or the NAR.
    fn end_node(&mut self, out: &mut Vec<u8>) {
        self.state = if self.directories.depth() > 0 {
            out.extend_from_slice(&wire::CLOSE);
            State::Entries
        } else {
            State::Done
        };
    }
}
