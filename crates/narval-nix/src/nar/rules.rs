//! The rules of a NAR beyond its grammar, and the error that names one.

use thiserror::Error;

/// How deep nodes may be nested: the root is at depth 0, and a node at this depth is refused (Nix `archive.cc`,
/// CVE-2026-44028).
pub const DEPTH_MAX: usize = 64;

/// The longest name of an entry, in bytes (`NAME_MAX`).
pub const NAME_LEN_MAX: usize = 255;

/// The longest target of a symlink, in bytes (`PATH_MAX` without its NUL).
pub const TARGET_LEN_MAX: usize = 4095;

/// The largest regular file, in bytes: the largest `off_t`.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;

/// What Nix appends to names that differ only in case, on file systems that fold case.
const CASE_HACK: &[u8] = b"~nix~case~hack~";

/// Where a NAR breaks which rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("invalid NAR at byte {offset}: {rule}")]
pub struct NarError {
    /// Bytes of the NAR before the fault.
    pub offset: u64,
    /// The rule.
    pub rule: Rule,
}

/// The rules that a NAR can break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Rule {
    /// The first bytes are not those of a NAR.
    #[error("a NAR starts with 'nix-archive-1', '(', 'type'")]
    Magic,
    /// After `type`.
    #[error("a node is 'regular', 'symlink' or 'directory', its fields in their order and nothing else")]
    Type,
    /// The mark of an executable file has a value, or something other than `contents` follows.
    #[error("'executable' is followed by an empty string and 'contents'")]
    Executable,
    /// In a directory.
    #[error("a directory goes on with 'entry', '(', 'name', or ends with ')'")]
    Entry,
    /// After the name of an entry.
    #[error("a name is followed by 'node', '(', 'type'")]
    Node,
    /// After a node or an entry.
    #[error("expected ')'")]
    Close,
    /// After a name, target or contents.
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
    /// The mark that Nix appends on case-folding file systems, in a name. It never belongs into a NAR.
    #[error("a name may not contain '~nix~case~hack~'")]
    NameCaseHack,
    /// The same name twice in a directory (CVE-2024-45593).
    #[error("the same name twice in a directory")]
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
    /// The NAR goes on beyond its stated size.
    #[error("the NAR is larger than stated")]
    LargerThanStated,
    /// The NAR is complete before its stated size.
    #[error("the NAR is smaller than stated")]
    SmallerThanStated,
    /// Bytes after the end.
    #[error("nothing may follow the end of the NAR")]
    Trailing,
    /// The end is missing.
    #[error("the NAR is cut off")]
    Truncated,
    /// Encoding: events in an order that makes no NAR, or contents that are not of the announced size.
    #[error("these events do not make a NAR")]
    Sequence,
}

/// Checks a name against the one before it in the same directory, empty if it is the first.
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

/// Whether a name bears the mark of a case-folding file system.
pub(super) fn has_case_hack(name: &[u8]) -> bool {
    name.windows(CASE_HACK.len()).any(|window| window == CASE_HACK)
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
    /// Where the previous name of each open directory starts; it ends where the next one's starts.
    starts: Vec<usize>,
}

impl OpenDirectories {
    /// How many there are: the depth of the next node.
    pub(super) fn depth(&self) -> usize {
        self.starts.len()
    }

    pub(super) fn open(&mut self) {
        self.starts.push(self.names.len());
    }

    /// Closes the innermost one; false if there is none.
    pub(super) fn close(&mut self) -> bool {
        match self.starts.pop() {
            Some(start) => {
                self.names.truncate(start);
                true
            }
            None => false,
        }
    }

    /// The previous name in the innermost one, empty before the first.
    pub(super) fn previous(&self) -> &[u8] {
        self.starts.last().map_or(&[], |start| &self.names[*start..])
    }

    pub(super) fn set_previous(&mut self, name: &[u8]) {
        self.names.truncate(self.starts.last().copied().unwrap_or(0));
        self.names.extend_from_slice(name);
    }
}
