//! NAR, the archive format that Nix hashes: a file, a symlink, or a tree of them, in exactly one serialisation.
//!
//! ```text
//! nar = str("nix-archive-1") obj
//! obj = str("(") str("type") ( reg | lnk | dir ) str(")")
//! reg = str("regular") [ str("executable") str("") ] str("contents") str(bytes)
//! lnk = str("symlink") str("target") str(target)
//! dir = str("directory") { str("entry") str("(") str("name") str(name) str("node") obj str(")") }
//! str(s) = length as u64, little endian; the bytes; zeros up to a multiple of 8
//! ```
//! Format: Nix `libutil/archive.cc`. Both directions speak in [`Event`]s: [`Decoder`] takes bytes in any pieces and gives
//! events, [`Encoder`] takes events and gives bytes. [`wire`] has the framing for those who lay out a NAR themselves.

mod decode;
mod encode;
mod rules;
pub mod wire;

pub use decode::Decoder;
pub use encode::Encoder;
pub use rules::{DEPTH_MAX, FILE_SIZE_MAX, NAME_LEN_MAX, NarError, Rule, TARGET_LEN_MAX};
pub(crate) use rules::{check_name, check_target};

/// What a NAR consists of, in its order.
///
/// A regular file is `Regular`, `Contents` as often as it takes, `EndRegular`. A directory is `Directory`, for each entry
/// `Entry` and what it is, `EndDirectory`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// A regular file begins. The decoder's offset is then that of its contents.
    Regular {
        /// Whether it is executable.
        executable: bool,
        /// Bytes of contents that follow.
        size: u64,
    },
    /// The next piece of the contents, never empty.
    Contents(&'a [u8]),
    /// The regular file is complete.
    EndRegular,
    /// A symlink.
    Symlink {
        /// Where it points: 1 to 4095 bytes, none of them NUL.
        target: &'a [u8],
    },
    /// A directory begins.
    Directory,
    /// The next entry of the directory begins: what it is follows.
    Entry {
        /// Its name: 1 to 255 bytes, none of them NUL or `/`, not `.` or `..`, greater than the one before.
        name: &'a [u8],
    },
    /// The directory is complete.
    EndDirectory,
}

#[cfg(test)]
mod tests;
