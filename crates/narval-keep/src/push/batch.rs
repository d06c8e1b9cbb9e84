//! Bodies of the push protocol that have many narinfos or NARs, each with its name and its length (`docs/push-protocol.md`).

use narval_nix::HashPart;
use narval_nix::narinfo::NARINFO_LEN_MAX;

use crate::rejection::Rejection;

/// The maximum number of narinfos in one body.
const NARINFOS_MAX: usize = 65_536;

/// The maximum number of NARs in one body.
pub const NARS_MAX: usize = 1024;

/// Parses the body of a commit: repeated `<hash part> <length>` lines, each followed by that many bytes, and a final `end <number>`. The
/// narinfos are slices of the body.
///
/// # Errors
/// If the body does not have this format, or has too many narinfos or one that is too long.
pub fn read_commit(body: &[u8]) -> Result<Vec<(HashPart, &[u8])>, Rejection> {
    let form = "a commit is '<hash part> <length>', the narinfo, … and 'end <number of narinfos>'";
    let pieces = pieces(body, form, (NARINFOS_MAX, NARINFO_LEN_MAX))?;
    let part = |word: &str| HashPart::parse(word.as_bytes()).map_err(|_| Rejection::malformed(form));
    pieces.into_iter().map(|(word, narinfo)| Ok((part(word)?, narinfo))).collect()
}

/// Parses a body of NARs, in the same form: `<NAR hash>.nar… <length>` lines. The files are slices of the body.
///
/// # Errors
/// If the body does not have this format, or has too many NARs.
pub fn read_nars(body: &[u8]) -> Result<Vec<(&str, &[u8])>, Rejection> {
    let form = "NARs are '<NAR hash>.nar… <length>', the file, … and 'end <number of NARs>'";
    pieces(body, form, (NARS_MAX, usize::MAX))
}

fn pieces<'a>(
    mut body: &'a [u8],
    form: &'static str,
    (number_max, len_max): (usize, usize),
) -> Result<Vec<(&'a str, &'a [u8])>, Rejection> {
    let wrong = || Rejection::malformed(form);
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
        if all.len() >= number_max || number > len_max {
            let message = format!("a body has at most {number_max} of them, and narinfos of {NARINFO_LEN_MAX} bytes");
            return Err(Rejection::too_large(message));
        }
        let (piece, rest) = rest.split_at_checked(number).ok_or_else(wrong)?;
        all.push((word, piece));
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

    #[test]
    fn bodies_of_nars_are_read() {
        let two = b"a.nar 4\nabc\nb.nar.zst 0\nend 2\n";
        assert_eq!(read_nars(two).unwrap(), [("a.nar", &b"abc\n"[..]), ("b.nar.zst", b"")]);
        assert!(read_nars(&two[..two.len() - 1]).is_err());
        let many = |number: usize| format!("{}end {number}\n", "a.nar 0\n".repeat(number));
        assert_eq!(read_nars(many(NARS_MAX).as_bytes()).unwrap().len(), NARS_MAX);
        assert!(read_nars(many(NARS_MAX + 1).as_bytes()).is_err());
    }
}
