//! Range requests (RFC 9110 section 14): which bytes of a representation are requested, and the framing of responses
//! with several ranges.

use std::hash::{BuildHasher, RandomState};

use http::HeaderValue;

/// Most ranges in one response; a request for more gets the whole representation.
pub const RANGES_MAX: usize = 16;

/// A run of bytes of a representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub start: u64,
    /// Number of bytes, more than zero.
    pub length: u64,
}

impl ByteRange {
    /// The value of `Content-Range`, for example `bytes 0-99/1000`, of a representation of `size` bytes.
    pub fn content_range(self, size: u64) -> HeaderValue {
        header_value(format!("bytes {}-{}/{size}", self.start, self.last()))
    }

    fn last(self) -> u64 {
        self.start + (self.length - 1)
    }
}

/// What a `Range` field selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The whole representation: 200. The field is absent, malformed, in other units, or asks for too much.
    Whole,
    /// One range: 206 with `Content-Range`.
    Single(ByteRange),
    /// Two to [`RANGES_MAX`] ranges, in the requested order: 206 as `multipart/byteranges`.
    Several(Vec<ByteRange>),
    /// No range overlaps the representation: 416 with `Content-Range: bytes */size`.
    Unsatisfiable,
}

/// Parses the value of a `Range` field for a representation of `size` bytes. Only for GET (RFC 9110 section 14.2).
///
/// ```
/// use narval_http::semantics::range::{ByteRange, Selection, select};
///
/// assert_eq!(select(b"bytes=-100", 1000), Selection::Single(ByteRange { start: 900, length: 100 }));
/// assert_eq!(select(b"bytes=1000-", 1000), Selection::Unsatisfiable);
/// assert_eq!(select(b"lines=1-2", 1000), Selection::Whole);
/// ```
pub fn select(value: &[u8], size: u64) -> Selection {
    let Some(set) =
        value.split_at_checked(6).filter(|(unit, _)| unit.eq_ignore_ascii_case(b"bytes=")).map(|(_, set)| set)
    else {
        return Selection::Whole;
    };
    let mut ranges = Vec::new();
    let (mut asked, mut total) = (0_usize, 0_u64);
    for spec in set.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).filter(|spec| !spec.is_empty()) {
        asked += 1;
        let Some(range) = parse_spec(spec, size) else {
            return Selection::Whole;
        };
        if asked > RANGES_MAX {
            return Selection::Whole;
        }
        if let Some(range) = range {
            total = total.saturating_add(range.length);
            ranges.push(range);
        }
    }
    match (ranges.as_slice(), asked) {
        (_, 0) => Selection::Whole,
        // A suffix of an empty representation is empty, which Content-Range cannot express.
        ([], _) if size == 0 && set.trim_ascii().starts_with(b"-") => Selection::Whole,
        ([], _) => Selection::Unsatisfiable,
        (&[range], _) => Selection::Single(range),
        // Overlapping ranges that make the response longer than the whole are an amplification attack (RFC 9110 section
        // 17.15).
        _ if total > size => Selection::Whole,
        _ => Selection::Several(ranges),
    }
}

/// One `first-last`, `first-` or `-suffix`. The outer `None`: malformed; the inner `None`: outside the representation.
fn parse_spec(spec: &[u8], size: u64) -> Option<Option<ByteRange>> {
    let dash = spec.iter().position(|&byte| byte == b'-')?;
    let (first, last) = (spec.get(..dash)?, spec.get(dash + 1..)?);
    if first.is_empty() {
        let length = decimal(last)?.min(size);
        return Some((length > 0).then(|| ByteRange { start: size - length, length }));
    }
    let start = decimal(first)?;
    let last = if last.is_empty() { u64::MAX } else { decimal(last)? };
    if last < start {
        return None;
    }
    let end = last.saturating_add(1).min(size);
    Some((start < size).then(|| ByteRange { start, length: end - start }))
}

/// A decimal number; one that does not fit into 64 bits counts as the largest.
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0_u64, |number, digit| number.saturating_mul(10).saturating_add(u64::from(digit - b'0'))))
}

/// The value of `Content-Range` for 416: `bytes */size`.
pub fn unsatisfied_content_range(size: u64) -> HeaderValue {
    header_value(format!("bytes */{size}"))
}

/// The framing of a `multipart/byteranges` body (RFC 9110 section 14.6): the bytes before, between and after the
/// ranges. They are known in advance, so the response has a `Content-Length`.
#[derive(Clone, Debug)]
pub struct MultipartRanges {
    boundary: String,
    content_type: Option<HeaderValue>,
    size: u64,
    ranges: Vec<ByteRange>,
}

impl MultipartRanges {
    /// The framing for `ranges` of a representation of `size` bytes, with an unpredictable boundary.
    pub fn new(ranges: Vec<ByteRange>, size: u64, content_type: Option<HeaderValue>) -> Self {
        // Each RandomState has its own keys, which std takes from the system's randomness.
        let boundary = format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1));
        Self { boundary, content_type, size, ranges }
    }

    /// The ranges, in order.
    pub fn ranges(&self) -> &[ByteRange] {
        &self.ranges
    }

    /// The response's `Content-Type`.
    pub fn content_type(&self) -> HeaderValue {
        header_value(format!("multipart/byteranges; boundary={}", self.boundary))
    }

    /// Appends what precedes the bytes of the range with this index.
    pub fn part_head(&self, index: usize, out: &mut Vec<u8>) {
        let Some(range) = self.ranges.get(index) else { return };
        out.extend_from_slice(if index == 0 { b"--" } else { b"\r\n--" });
        out.extend_from_slice(self.boundary.as_bytes());
        out.extend_from_slice(b"\r\n");
        if let Some(content_type) = &self.content_type {
            out.extend_from_slice(b"content-type: ");
            out.extend_from_slice(content_type.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"content-range: ");
        out.extend_from_slice(range.content_range(self.size).as_bytes());
        out.extend_from_slice(b"\r\n\r\n");
    }

    /// Appends what follows the bytes of the last range.
    pub fn end(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\r\n--");
        out.extend_from_slice(self.boundary.as_bytes());
        out.extend_from_slice(b"--\r\n");
    }

    /// The length of the whole body, in bytes.
    pub fn content_length(&self) -> u64 {
        let mut framing = Vec::with_capacity(RANGES_MAX * 128);
        for index in 0..self.ranges.len() {
            self.part_head(index, &mut framing);
        }
        self.end(&mut framing);
        self.ranges.iter().map(|range| range.length).sum::<u64>() + framing.len() as u64
    }
}

/// `text`, which is visible ASCII by construction, as a field value.
fn header_value(text: String) -> HeaderValue {
    let value = HeaderValue::try_from(text);
    debug_assert!(value.is_ok());
    value.unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn single(start: u64, length: u64) -> Selection {
        Selection::Single(ByteRange { start, length })
    }

    #[test]
    fn the_examples_of_rfc_9110() {
        assert_eq!(select(b"bytes=0-499", 10_000), single(0, 500));
        assert_eq!(select(b"bytes=500-999", 10_000), single(500, 500));
        assert_eq!(select(b"bytes=-500", 10_000), single(9500, 500));
        assert_eq!(select(b"bytes=9500-", 10_000), single(9500, 500));
        let first_and_last = vec![ByteRange { start: 0, length: 1 }, ByteRange { start: 9999, length: 1 }];
        assert_eq!(select(b"bytes=0-0,-1", 10_000), Selection::Several(first_and_last.clone()));
        assert_eq!(select(b"bytes= 0-0, , -1 ,", 10_000), Selection::Several(first_and_last));
    }

    #[test]
    fn ends_beyond_the_size_are_cut() {
        assert_eq!(select(b"bytes=5-99999999999999999999999", 10), single(5, 5));
        assert_eq!(select(b"bytes=-99999999999999999999999", 10), single(0, 10));
        assert_eq!(select(b"bytes=18446744073709551615-18446744073709551615", u64::MAX), Selection::Unsatisfiable);
        assert_eq!(select(b"bytes=0-18446744073709551615", u64::MAX), single(0, u64::MAX));
    }

    #[test]
    fn malformed_or_foreign_is_ignored() {
        for value in [
            "",
            "bytes",
            "bytes=",
            "bytes=,",
            "bytes 0-1",
            "bytes=a-b",
            "bytes=1",
            "bytes=-",
            "bytes=5-4",
            "bytes=+1-2",
            "bytes=1-2-3",
            "bytes=--1",
            "lines=0-1",
            "bytes=0-1,x",
            "bytes=0x1-2",
        ] {
            assert_eq!(select(value.as_bytes(), 10), Selection::Whole, "{value}");
        }
        assert_eq!(select(b"Bytes=0-1", 10), single(0, 2), "unit names are compared without regard to case");
    }

    #[test]
    fn outside_the_representation_is_unsatisfiable() {
        assert_eq!(select(b"bytes=10-", 10), Selection::Unsatisfiable);
        assert_eq!(select(b"bytes=-0", 10), Selection::Unsatisfiable);
        assert_eq!(select(b"bytes=20-30,40-", 10), Selection::Unsatisfiable);
        assert_eq!(select(b"bytes=20-30,0-1", 10), single(0, 2));
        assert_eq!(select(b"bytes=0-", 0), Selection::Unsatisfiable);
        assert_eq!(select(b"bytes=-5", 0), Selection::Whole);
        assert_eq!(unsatisfied_content_range(10), "bytes */10");
    }

    #[test]
    fn too_many_ranges_and_too_many_bytes_are_ignored() {
        let many = |n: usize| format!("bytes={}", vec!["0-0"; n].join(","));
        assert!(matches!(select(many(RANGES_MAX).as_bytes(), 100), Selection::Several(_)));
        assert_eq!(select(many(RANGES_MAX + 1).as_bytes(), 100), Selection::Whole);
        assert_eq!(select(b"bytes=0-,0-", 10), Selection::Whole);
        assert!(matches!(select(b"bytes=0-4,5-9", 10), Selection::Several(_)));
    }

    #[test]
    fn multipart_framing() {
        let Selection::Several(ranges) = select(b"bytes=0-1,5-7", 10) else { panic!("two ranges") };
        let mut multipart = MultipartRanges::new(ranges, 10, Some(HeaderValue::from_static("text/plain")));
        let content_type = multipart.content_type();
        let boundary = content_type.to_str().expect("ASCII").split_once("boundary=").expect("has one").1;
        assert_eq!(boundary.len(), 32);
        multipart.boundary = "B".into();
        let mut body = Vec::new();
        for (index, range) in multipart.ranges().iter().enumerate() {
            multipart.part_head(index, &mut body);
            body.extend_from_slice(&b"0123456789"[range.start as usize..][..range.length as usize]);
        }
        multipart.end(&mut body);
        assert_eq!(
            String::from_utf8_lossy(&body),
            "--B\r\ncontent-type: text/plain\r\ncontent-range: bytes 0-1/10\r\n\r\n01\r\n\
             --B\r\ncontent-type: text/plain\r\ncontent-range: bytes 5-7/10\r\n\r\n567\r\n--B--\r\n"
        );
        assert_eq!(multipart.content_length(), body.len() as u64);
    }

    proptest! {
        #[test]
        fn ranges_lie_inside(value in "bytes=[-0-9, ]{0,40}", size in 0_u64..200) {
            let ranges = match select(value.as_bytes(), size) {
                Selection::Single(range) => vec![range],
                Selection::Several(ranges) => ranges,
                Selection::Whole | Selection::Unsatisfiable => vec![],
            };
            prop_assert!(ranges.len() <= RANGES_MAX);
            prop_assert!(ranges.iter().all(|range| range.length > 0 && range.start + range.length <= size));
            prop_assert!(ranges.len() < 2 || ranges.iter().map(|range| range.length).sum::<u64>() <= size);
        }
    }
}
