//! The body of a commit in the push protocol: many narinfos, each with its hash part and its length (`docs/push-protocol.md`).

use narval_nix::HashPart;
use narval_nix::narinfo::NARINFO_LEN_MAX;

use super::{Refusal, RefusalKind};

/// The maximum number of narinfos in one body.
const NARINFOS_MAX: usize = 65_536;

/// Parses repeated `<hash part> <length>` lines, each followed by that many bytes, and a final `end <number>`. The
/// narinfos are slices of the body.
///
/// # Errors
/// If the body does not have this format, or has too many narinfos or one that is too long.
pub fn read_commit(mut body: &[u8]) -> Result<Vec<(HashPart, &[u8])>, Refusal> {
    let wrong = || {
        let form = "a commit is '<hash part> <length>', the narinfo, … and 'end <number of narinfos>'";
        Refusal::new(RefusalKind::Malformed, form)
    };
    let mut all = Vec::new();
    loop {
        let end = body.iter().position(|byte| *byte == b'\n').ok_or_else(wrong)?;
        let (line, rest) = body.split_at(end);
        let (word, number) = std::str::from_utf8(line).ok().and_then(|line| line.split_once(' ')).ok_or_else(wrong)?;
        let number: usize = number.parse().map_err(|_| wrong())?;
        let rest = rest.get(1..).unwrap_or_default();
        if word == "end" {
            return if number == all.len() && rest.is_empty() { Ok(all) } else { Err(wrong()) };
        }
        let hash_part = HashPart::parse(word.as_bytes()).map_err(|_| wrong())?;
        if all.len() >= NARINFOS_MAX || number > NARINFO_LEN_MAX {
            let message = format!("a commit has at most {NARINFOS_MAX} narinfos of {NARINFO_LEN_MAX} bytes each");
            return Err(Refusal::new(RefusalKind::TooLarge, message));
        }
        let (narinfo, rest) = rest.split_at_checked(number).ok_or_else(wrong)?;
        all.push((hash_part, narinfo));
        body = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "0i4073ldk2aplbmaarmp5c8gf3wmbl84";

    #[test]
    fn commits_are_read() {
        let two = format!("{HASH} 4\nabc\n{HASH} 0\nend 2\n");
        let read = read_commit(two.as_bytes()).unwrap();
        assert_eq!(read.iter().map(|(_, text)| *text).collect::<Vec<_>>(), [&b"abc\n"[..], b""]);
        assert!(read_commit(b"end 0\n").unwrap().is_empty());
        for wrong in [
            "",
            "end 1\n",
            "end 0\nx",
            &two[..two.len() - 1],
            &format!("{HASH} 5\nabc\nend 1\n"),
            &format!("{HASH} -1\nend 1\n"),
            "short 0\nend 1\n",
        ] {
            assert!(read_commit(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }
}
