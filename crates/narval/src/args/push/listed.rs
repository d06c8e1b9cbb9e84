//! Paths from standard input.

use std::io::Read;

use crate::ui::failure::Failure;

/// The most that is read, in bytes: about a million paths.
const LEN_MAX: u64 = 64 << 20;

/// The paths of standard input: one a line, as `nix path-info` prints them, or each ended by NUL.
///
/// # Errors
/// It cannot be read, is too long, or no text.
pub(crate) fn read_paths(input: impl Read) -> Result<Vec<String>, Failure> {
    let mut text = String::new();
    let read = input.take(LEN_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| Failure::runtime(format!("--stdin: {error}")))?;
    if text.len() as u64 > LEN_MAX {
        return Err(Failure::usage(format!("--stdin: there are more than {} MiB of paths", LEN_MAX >> 20)));
    }
    let end = if text.contains('\0') { '\0' } else { '\n' };
    Ok(text.split(end).map(str::trim).filter(|path| !path.is_empty()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_nuls() {
        let read = |text: &str| read_paths(text.as_bytes());
        assert_eq!(read("a\nb\r\n\nc").unwrap(), ["a", "b", "c"]);
        assert_eq!(read("a b\0c\nd\0").unwrap(), ["a b", "c\nd"]);
        assert!(read("\n").unwrap().is_empty() && read_paths(&b"\xff\n"[..]).is_err());
    }
}
