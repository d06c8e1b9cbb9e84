//! `store-paths`: one path a line, all systems of a channel mixed.

use std::io::{BufRead, Read};

use narval_nix::{StoreDir, StorePath};

use crate::bounded::{LINE_LEN_MAX, STORE_PATHS_LEN_MAX, STORE_PATHS_MAX};
use crate::builder::Builder;
use crate::error::NamesError;

/// Reads a list of store paths, as a channel's `store-paths.xz` has it once it is decompressed.
///
/// # Errors
/// If it cannot be read, a line is no store path, or a limit is exceeded.
pub fn read_store_paths(source: impl BufRead, builder: &mut Builder) -> Result<(), NamesError> {
    let mut source = source.take(STORE_PATHS_LEN_MAX + 1);
    let (mut line, mut number, mut length) = (Vec::with_capacity(256), 0_u64, 0_u64);
    loop {
        line.clear();
        let read = source.by_ref().take(LINE_LEN_MAX as u64 + 1).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(());
        }
        (number, length) = (number + 1, length + read as u64);
        if length > STORE_PATHS_LEN_MAX {
            let limit = STORE_PATHS_LEN_MAX;
            return Err(NamesError::Limit { what: "the list of store paths", limit, unit: "bytes" });
        }
        // Empty lines count: there is no other limit on what a small file becomes.
        if number > STORE_PATHS_MAX as u64 {
            let limit = STORE_PATHS_MAX as u64;
            return Err(NamesError::Limit { what: "the list of store paths", limit, unit: "lines" });
        }
        let path = line.strip_suffix(b"\n").unwrap_or(&line);
        if path.is_empty() {
            continue;
        }
        let below = path.strip_prefix(StoreDir::DEFAULT.as_bytes()).and_then(|rest| rest.strip_prefix(b"/"));
        let invalid =
            |reason: String| NamesError::Invalid { what: format!("line {number} of the store paths"), reason };
        let below = below.ok_or_else(|| invalid(format!("it does not begin with {}/", StoreDir::DEFAULT)))?;
        let path = StorePath::parse_bytes(below).map_err(|error| invalid(error.to_string()))?;
        builder.add_path(&path)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_no_store_path_is_an_error() {
        let read = |text: &[u8]| read_store_paths(text, &mut Builder::default()).map_err(|error| error.to_string());
        let good = b"/nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-hello-2.12\n";
        read(good).unwrap();
        read(&good[..good.len() - 1]).unwrap();
        let slash = read(b"\n/nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-hello/2.12\n").unwrap_err();
        assert!(slash.starts_with("line 2 of the store paths is not valid: byte 5 of the name"), "{slash}");
        read(b"/nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-hel\x07lo\n").unwrap_err();
        read(b"/etc/passwd\n").unwrap_err();
        read(&vec![b'a'; 1 << 20]).unwrap_err();
    }

    #[test]
    fn a_list_without_end_is_an_error() {
        let endless = std::io::BufReader::new(std::io::repeat(b'\n'));
        let message = read_store_paths(endless, &mut Builder::default()).unwrap_err().to_string();
        assert_eq!(message, "the list of store paths exceeds the limit of 8000000 lines");
    }
}
