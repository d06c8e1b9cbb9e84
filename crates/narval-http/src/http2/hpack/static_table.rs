//! The static table (RFC 7541, appendix A).

/// Number of entries; indices start at 1.
pub(super) const LEN: usize = ENTRIES.len();

/// The entry of a 1-based index.
pub(super) fn get(index: usize) -> Option<(&'static [u8], &'static [u8])> {
    ENTRIES.get(index.checked_sub(1)?).copied()
}

/// The index of the first entry with this name.
pub(super) fn find_name(name: &[u8]) -> Option<usize> {
    let first = name.first()?;
    let from = usize::from(*STARTS.get(usize::from(*first))?);
    let mut same =
        ENTRIES.get(from..)?.iter().map(|(entry, _)| *entry).take_while(|entry| entry.first() == Some(first));
    Some(from + 1 + same.position(|entry| entry == name)?)
}

/// Where the names begin that start with a byte: entries whose names do are next to each other.
const STARTS: [u8; 128] = {
    let (mut starts, mut at) = ([0; 128], LEN);
    while at > 0 {
        at -= 1;
        starts[ENTRIES[at].0[0] as usize] = at as u8;
    }
    starts
};

const ENTRIES: [(&[u8], &[u8]); 61] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_at_its_first_index() {
        for (position, (name, _)) in ENTRIES.iter().enumerate() {
            let first = ENTRIES.iter().position(|(other, _)| other == name).unwrap();
            assert_eq!(find_name(name), Some(first + 1), "entry {}", position + 1);
        }
        assert_eq!(find_name(b"x-unknown"), None);
        assert_eq!((get(0), get(LEN), get(LEN + 1)), (None, Some((&b"www-authenticate"[..], &b""[..])), None));
    }
}
