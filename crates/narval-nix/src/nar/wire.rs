//! The framing of a NAR: the constant tokens between names, targets and contents.
//!
//! The length of each token is a multiple of 8. They are combined as follows:
//!
//! ```text
//! nar       = HEAD node
//! node      = regular | symlink | directory
//! regular   = ( REGULAR | EXECUTABLE ) u64 size, contents, padding, CLOSE
//! symlink   = SYMLINK str(target) CLOSE
//! directory = DIRECTORY entry* CLOSE
//! entry     = ENTRY str(name) NODE node CLOSE
//! ```

/// `str("nix-archive-1") str("(") str("type")`: the start of every NAR.
pub const HEAD: [u8; 56] = token(&[b"nix-archive-1", b"(", b"type"]);
/// `str("regular") str("contents")`: a size and the contents follow.
pub const REGULAR: [u8; 32] = token(&[b"regular", b"contents"]);
/// [`REGULAR`] of an executable file.
pub const EXECUTABLE: [u8; 64] = token(&[b"regular", b"executable", b"", b"contents"]);
/// `str("symlink") str("target")`: the target follows.
pub const SYMLINK: [u8; 32] = token(&[b"symlink", b"target"]);
/// `str("directory")`: entries follow.
pub const DIRECTORY: [u8; 24] = token(&[b"directory"]);
/// `str("entry") str("(") str("name")`: the name follows.
pub const ENTRY: [u8; 48] = token(&[b"entry", b"(", b"name"]);
/// `str("node") str("(") str("type")`: the entry's node follows.
pub const NODE: [u8; 48] = token(&[b"node", b"(", b"type"]);
/// `str(")")`: the end of a node, and of an entry.
pub const CLOSE: [u8; 16] = token(&[b")"]);
/// [`CLOSE`] twice: the end of a node and of its entry.
pub const CLOSE_ENTRY: [u8; 32] = token(&[b")", b")"]);

/// Concatenates strings, each with its length and padding.
const fn token<const N: usize>(strings: &[&[u8]]) -> [u8; N] {
    let mut out = [0; N];
    let (mut at, mut string) = (0, 0);
    while string < strings.len() {
        let bytes = strings[string];
        out[at] = bytes.len() as u8;
        at += 8;
        let mut index = 0;
        while index < bytes.len() {
            out[at + index] = bytes[index];
            index += 1;
        }
        at += bytes.len().next_multiple_of(8);
        string += 1;
    }
    assert!(at == N);
    out
}

/// `len` rounded up to a multiple of 8. Saturates.
pub const fn padded_len(len: u64) -> u64 {
    len.saturating_add(7) & !7
}

/// The zeros after `len` bytes, 0 to 7 of them.
pub const fn padding(len: u64) -> &'static [u8] {
    const ZEROS: [u8; 8] = [0; 8];
    let (zeros, _) = ZEROS.split_at((len.wrapping_neg() & 7) as usize);
    zeros
}

/// The size of a NAR whose root has `root_len` bytes. Saturates, as do the functions below.
pub const fn nar_len(root_len: u64) -> u64 {
    root_len.saturating_add(HEAD.len() as u64)
}

/// The length of a regular file's head, which ends with its size.
pub const fn regular_head_len(executable: bool) -> u64 {
    (if executable { EXECUTABLE.len() } else { REGULAR.len() }) as u64 + 8
}

/// The length of a symlink.
pub const fn symlink_len(target_len: u64) -> u64 {
    padded_len(target_len).saturating_add((SYMLINK.len() + 8 + CLOSE.len()) as u64)
}

/// The length of an entry's head.
pub const fn entry_head_len(name_len: u64) -> u64 {
    padded_len(name_len).saturating_add((ENTRY.len() + 8 + NODE.len()) as u64)
}

/// Appends the head of a regular file; its contents, [`padding`] and [`CLOSE`] must follow.
pub fn push_regular_head(out: &mut Vec<u8>, executable: bool, size: u64) {
    out.extend_from_slice(if executable { &EXECUTABLE } else { &REGULAR });
    out.extend_from_slice(&size.to_le_bytes());
}

/// Appends a whole symlink.
pub fn push_symlink(out: &mut Vec<u8>, target: &[u8]) {
    out.extend_from_slice(&SYMLINK);
    push_str(out, target);
    out.extend_from_slice(&CLOSE);
}

/// Appends the head of an entry; the node and [`CLOSE`] must follow.
pub fn push_entry_head(out: &mut Vec<u8>, name: &[u8]) {
    out.extend_from_slice(&ENTRY);
    push_str(out, name);
    out.extend_from_slice(&NODE);
}

/// Appends a string: its length, its bytes and the padding.
pub fn push_str(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = bytes.len() as u64;
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(bytes);
    out.extend_from_slice(padding(len));
}
