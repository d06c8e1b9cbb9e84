//! NAR, the archive format that Nix hashes: the canonical serialisation of a file, a symlink, or a directory tree.
//!
//! ```text
//! nar = str("nix-archive-1") obj
//! obj = str("(") str("type") ( reg | lnk | dir ) str(")")
//! reg = str("regular") [ str("executable") str("") ] str("contents") str(bytes)
//! lnk = str("symlink") str("target") str(target)
//! dir = str("directory") { str("entry") str("(") str("name") str(name) str("node") obj str(")") }
//! str(s) = length as u64, little endian; the bytes; zeros up to a multiple of 8
//! ```
//! Format: Nix `libutil/archive.cc`. [`Decoder`] turns bytes into [`Event`]s, and [`Encoder`] turns events into bytes.
//! [`wire`] has the framing, for code that lays out a NAR itself.

mod decode;
mod encode;
mod rules;
pub mod wire;

pub use decode::Decoder;
pub use encode::Encoder;
pub use rules::{DEPTH_MAX, FILE_SIZE_MAX, NAME_LEN_MAX, NarError, Rule, TARGET_LEN_MAX};
pub(crate) use rules::{check_name, check_target};

/// A NAR is a sequence of these events.
///
/// A regular file is `Regular`, any number of `Contents`, `EndRegular`. A directory is `Directory`, then for each entry
/// `Entry` and the events of its node, then `EndDirectory`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// Start of a regular file. The decoder's offset is now that of its contents.
    Regular {
        /// Whether it is executable.
        executable: bool,
        /// Size of its contents in bytes.
        size: u64,
    },
    /// The next piece of the contents. Never empty.
    Contents(&'a [u8]),
    /// End of the regular file.
    EndRegular,
    /// A symlink.
    Symlink {
        /// Its target: 1 to 4095 bytes, none of them NUL.
        target: &'a [u8],
    },
    /// Start of a directory.
    Directory,
    /// Start of the directory's next entry, followed by the events of its node.
    Entry {
        /// Its name: 1 to 255 bytes, none of them NUL or `/`, not `.` or `..`, and greater than the previous entry's.
        name: &'a [u8],
    },
    /// End of the directory.
    EndDirectory,
}

#[cfg(test)]
mod tests;
