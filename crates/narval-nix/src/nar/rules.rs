//! The rules of a NAR beyond its grammar, and the error that names the broken rule.

use thiserror::Error;

/// The maximum nesting depth: the root is at depth 0, and a node at this depth is rejected (Nix `archive.cc`,
/// CVE-2026-44028).
pub const DEPTH_MAX: usize = 64;

/// The maximum length of an entry's name, in bytes (`NAME_MAX`).
pub const NAME_LEN_MAX: usize = 255;

/// The maximum length of a symlink target, in bytes (`PATH_MAX` without its NUL).
pub const TARGET_LEN_MAX: usize = 4095;

/// The maximum size of a regular file, in bytes: the largest `off_t`.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;

/// An invalid NAR: the rule that it breaks, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("invalid NAR at byte {offset}: {rule}")]
pub struct NarError {
    /// Offset of the error in the NAR, in bytes.
    pub offset: u64,
    /// The broken rule.
    pub rule: Rule,
}

/// The rules that NARs must follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Rule {
    /// The first bytes are not those of a NAR.
    #[error("a NAR starts with 'nix-archive-1', '(', 'type'")]
    Magic,
    /// A node is malformed after `type`.
    #[error("a node must be 'regular', 'symlink' or 'directory', followed by its fields in order")]
    Type,
    /// `executable` has a value, or is not followed by `contents`.
    #[error("'executable' must be followed by an empty string and 'contents'")]
    Executable,
    /// A directory is malformed.
    #[error("a directory must continue with 'entry', '(', 'name', or end with ')'")]
    Entry,
    /// An entry is malformed after its name.
    #[error("a name must be followed by 'node', '(', 'type'")]
    Node,
    /// A node or an entry does not end where it must.
    #[error("expected ')'")]
    Close,
    /// The padding after a name, target or contents is not zero.
    #[error("padding must be zero")]
    Padding,
    /// An empty name.
    #[error("a name may not be empty")]
    NameEmpty,
    /// A name longer than [`NAME_LEN_MAX`].
    #[error("a name has at most {NAME_LEN_MAX} bytes")]
    NameTooLong,
    /// `.` or `..`.
    #[error("a name may not be '.' or '..'")]
    NameDots,
    /// `/` in a name.
    #[error("a name may not contain '/'")]
    NameSlash,
    /// NUL in a name.
    #[error("a name may not contain NUL")]
    NameNul,
    /// The same name twice in a directory (CVE-2024-45593).
    #[error("a directory may not contain the same name twice")]
    NameDuplicate,
    /// A name smaller than the one before.
    #[error("names in a directory must be sorted by their bytes")]
    NameOrder,
    /// An empty target.
    #[error("the target of a symlink may not be empty")]
    TargetEmpty,
    /// A target longer than [`TARGET_LEN_MAX`].
    #[error("the target of a symlink has at most {TARGET_LEN_MAX} bytes")]
    TargetTooLong,
    /// NUL in a target.
    #[error("the target of a symlink may not contain NUL")]
    TargetNul,
    /// A node at depth [`DEPTH_MAX`].
    #[error("nodes are nested at most {DEPTH_MAX} deep")]
    Depth,
    /// A file size beyond [`FILE_SIZE_MAX`], or beyond what is left of the NAR's size.
    #[error("the size of a file is larger than what is left of the NAR, or than {FILE_SIZE_MAX}")]
    FileSize,
    /// The NAR is larger than its declared size.
    #[error("the NAR is larger than declared")]
    LargerThanStated,
    /// The NAR is smaller than its declared size.
    #[error("the NAR is smaller than declared")]
    SmallerThanStated,
    /// There is data after the end.
    #[error("nothing may follow the end of the NAR")]
    Trailing,
    /// The NAR is truncated.
    #[error("the NAR is truncated")]
    Truncated,
    /// Encoding: the events are in an invalid order, or the contents do not have the declared size.
    #[error("the events are not those of a NAR")]
    Sequence,
}

/// Checks a name, and that it is greater than the previous one in the directory (empty for the first).
pub(crate) fn check_name(name: &[u8], previous: &[u8]) -> Result<(), Rule> {
    match name {
        [] => return Err(Rule::NameEmpty),
        b"." | b".." => return Err(Rule::NameDots),
        _ if name.len() > NAME_LEN_MAX => return Err(Rule::NameTooLong),
        _ => {}
    }
    if name.contains(&b'/') {
        return Err(Rule::NameSlash);
    }
    if name.contains(&0) {
        return Err(Rule::NameNul);
    }
    match name.cmp(previous) {
        std::cmp::Ordering::Less => Err(Rule::NameOrder),
        std::cmp::Ordering::Equal => Err(Rule::NameDuplicate),
        std::cmp::Ordering::Greater => Ok(()),
    }
}

/// Checks the target of a symlink.
pub(crate) fn check_target(target: &[u8]) -> Result<(), Rule> {
    if target.is_empty() {
        Err(Rule::TargetEmpty)
    } else if target.len() > TARGET_LEN_MAX {
        Err(Rule::TargetTooLong)
    } else if target.contains(&0) {
        Err(Rule::TargetNul)
    } else {
        Ok(())
    }
}

/// The previous name in each open directory: at most [`DEPTH_MAX`] names of [`NAME_LEN_MAX`] bytes, in one buffer.
#[derive(Debug, Default)]
pub(super) struct OpenDirectories {
    names: Vec<u8>,
    /// The start of each open directory's previous name; it ends where the next one starts.
    starts: Vec<usize>,
}

impl OpenDirectories {
    /// The number of open directories, which is the depth of the next node.
    pub(super) fn depth(&self) -> usize {
        self.starts.len()
    }

    pub(super) fn open(&mut self) {
        self.starts.push(self.names.len());
    }

    /// Closes the innermost directory. Returns `false` if none is open.
    pub(super) fn close(&mut self) -> bool {
        match self.starts.pop() {
            Some(start) => {
                self.names.truncate(start);
                true
            }
            None => false,
        }
    }

    /// The previous name in the innermost directory, empty before the first.
    pub(super) fn previous(&self) -> &[u8] {
        self.starts.last().map_or(&[], |start| &self.names[*start..])
    }

    pub(super) fn set_previous(&mut self, name: &[u8]) {
        self.names.truncate(self.starts.last().copied().unwrap_or(0));
        self.names.extend_from_slice(name);
    }
}
