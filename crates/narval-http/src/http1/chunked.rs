//! The chunked transfer coding (RFC 9112 section 7.1): a strict decoder and an encoder.
//!
//! The decoder borrows: the data of a chunk is a slice of the input. `httparse::parse_chunk_size` is not used because
//! it accepts an empty size line as 0, and a line feed inside a quoted extension.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::http1::ProtoError;
use crate::http1::head::is_token_byte;

/// Most bytes of chunk extensions (and the white space before them) in one body.
pub const EXTENSION_BYTES_MAX: u32 = 4 * 1024;
/// Most bytes in a body's trailer section.
pub const TRAILER_BYTES_MAX: usize = 8 * 1024;
/// Most field lines in a body's trailer section.
pub const TRAILER_FIELDS_MAX: usize = 32;
/// Most digits of a chunk size: as many as 64 bits have.
const SIZE_DIGITS_MAX: u8 = 16;

/// The result of one call of [`ChunkedDecoder::decode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded<'a> {
    /// Consumed bytes of the input, including `data`.
    pub consumed: usize,
    /// The next bytes of the body; empty when more input is needed or the body has ended.
    pub data: &'a [u8],
    /// Whether the body, including its trailers, has ended.
    pub done: bool,
}

/// Decodes a chunked body, passed in pieces of any size.
///
/// ```
/// use narval_http::codecs::chunked::ChunkedDecoder;
///
/// let mut decoder = ChunkedDecoder::new();
/// let (mut input, mut body) = (&b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\nGET /next"[..], Vec::new());
/// loop {
///     let step = decoder.decode(input)?;
///     body.extend_from_slice(step.data);
///     input = &input[step.consumed..];
///     if step.done || step.consumed == 0 {
///         break;
///     }
/// }
/// assert_eq!(body, b"hello world");
/// assert_eq!(input, b"GET /next");
/// # Ok::<(), narval_http::semantics::ProtoError>(())
/// ```
#[derive(Debug, Default)]
pub struct ChunkedDecoder {
    state: State,
    /// The size read so far, then the bytes of the chunk still to come.
    remaining: u64,
    digits: u8,
    extension_bytes: u32,
    trailer: Vec<u8>,
    trailers: HeaderMap,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Size,
    /// White space after the size; only a semicolon may follow (BWS of RFC 9112 section 7.1.1).
    SpaceBeforeExtension,
    /// After a semicolon, before the extension's name.
    NameStart,
    Name,
    /// White space after a name; only an equals sign or a semicolon may follow.
    NameEnd,
    /// After an equals sign, before the extension's value.
    ValueStart,
    Token,
    Quoted,
    /// After a backslash in a quoted string.
    Escaped,
    /// After a quoted string.
    QuotedEnd,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    Trailer,
    Done,
}

impl State {
    /// The state after one byte of chunk extensions, each `BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ]`.
    fn in_extension(self, byte: u8) -> Option<Self> {
        let is_space = matches!(byte, b' ' | b'\t');
        Some(match self {
            Self::Size | Self::SpaceBeforeExtension | Self::QuotedEnd | Self::Name | Self::NameEnd | Self::Token
                if byte == b';' =>
            {
                Self::NameStart
            }
            Self::Size | Self::SpaceBeforeExtension | Self::QuotedEnd | Self::Token if is_space => {
                Self::SpaceBeforeExtension
            }
            Self::Name | Self::NameEnd if is_space => Self::NameEnd,
            Self::Name | Self::NameEnd if byte == b'=' => Self::ValueStart,
            Self::NameStart | Self::ValueStart if is_space => self,
            Self::NameStart | Self::Name if is_token_byte(byte) => Self::Name,
            Self::ValueStart if byte == b'"' => Self::Quoted,
            Self::ValueStart | Self::Token if is_token_byte(byte) => Self::Token,
            Self::Quoted if byte == b'"' => Self::QuotedEnd,
            Self::Quoted if byte == b'\\' => Self::Escaped,
            Self::Quoted | Self::Escaped if matches!(byte, b'\t' | 0x20..=0x7e | 0x80..) => Self::Quoted,
            _ => return None,
        })
    }
}

impl ChunkedDecoder {
    /// A decoder at the start of a body.
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes up to the end of the next run of data, of the body, or of the input. Call it until nothing is consumed
    /// or the body is done; after the end it consumes nothing.
    ///
    /// # Errors
    /// The first rule that is broken. The decoder must not be used afterwards.
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> Result<Decoded<'a>, ProtoError> {
        let mut at = 0;
        while let Some(&byte) = input.get(at) {
            match self.state {
                State::Data => {
                    let rest = input.get(at..).unwrap_or_default();
                    let take = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(rest.len());
                    self.remaining -= take as u64;
                    if self.remaining == 0 {
                        self.state = State::DataCr;
                    }
                    return Ok(Decoded {
                        consumed: at + take,
                        data: rest.get(..take).unwrap_or_default(),
                        done: false,
                    });
                }
                State::Trailer => {
                    let rest = input.get(at..).unwrap_or_default();
                    at += self.trailer(rest)?;
                }
                State::Done => break,
                _ => {
                    self.framing_byte(byte)?;
                    at += 1;
                }
            }
        }
        Ok(Decoded { consumed: at, data: &[], done: self.state == State::Done })
    }

    /// Whether the body has ended.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The trailer fields, once the body is done. They are never merged into the request's fields, and those that would
    /// change framing or routing (RFC 9110 section 6.5.1) are left out.
    pub fn trailers(&self) -> &HeaderMap {
        &self.trailers
    }

    /// One byte of the framing around the data.
    fn framing_byte(&mut self, byte: u8) -> Result<(), ProtoError> {
        self.state = match (self.state, byte) {
            (State::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                if self.digits == SIZE_DIGITS_MAX {
                    return Err(ProtoError::bad_request("a chunk size has more than 16 digits"));
                }
                self.digits += 1;
                self.remaining = self.remaining << 4 | u64::from(hex_digit(byte));
                State::Size
            }
            (State::Size, _) if self.digits == 0 => {
                return Err(ProtoError::bad_request("a chunk size is missing or malformed"));
            }
            (State::Size | State::Name | State::Token | State::QuotedEnd, b'\r') => State::SizeLf,
            (State::SizeLf, b'\n') => {
                self.digits = 0;
                if self.remaining == 0 { State::Trailer } else { State::Data }
            }
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::Size,
            (State::SizeLf, _) => return Err(ProtoError::bad_request("a chunk size line does not end with CRLF")),
            (State::DataCr | State::DataLf, _) => {
                return Err(ProtoError::bad_request("the data of a chunk does not end with CRLF"));
            }
            (state @ (State::Data | State::Trailer | State::Done), _) => state,
            (state, byte) => {
                self.extension_bytes += 1;
                if self.extension_bytes > EXTENSION_BYTES_MAX {
                    return Err(ProtoError::bad_request("the chunk extensions are too long"));
                }
                state.in_extension(byte).ok_or(ProtoError::bad_request("a chunk size line is malformed"))?
            }
        };
        Ok(())
    }

    /// Consumes up to one line of the trailer section; returns the number of bytes.
    fn trailer(&mut self, input: &[u8]) -> Result<usize, ProtoError> {
        let line = memchr::memchr(b'\n', input).map(|lf| lf + 1);
        let taken = line.unwrap_or(input.len());
        if self.trailer.len() + taken > TRAILER_BYTES_MAX {
            return Err(TRAILER_TOO_LARGE);
        }
        self.trailer.extend_from_slice(input.get(..taken).unwrap_or_default());
        if line.is_some() {
            if !self.trailer.ends_with(b"\r\n") {
                return Err(ProtoError::bad_request("a line of the trailer section ends with LF alone"));
            }
            if self.trailer == b"\r\n" || self.trailer.ends_with(b"\n\r\n") {
                self.trailers = parse_trailers(&self.trailer)?;
                self.trailer = Vec::new();
                self.state = State::Done;
            }
        }
        Ok(taken)
    }
}

const TRAILER_TOO_LARGE: ProtoError =
    ProtoError::new(http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "the trailer section is too large");

fn hex_digit(byte: u8) -> u8 {
    match byte {
        b'0'..=b'9' => byte - b'0',
        _ => (byte | 0x20) - b'a' + 10,
    }
}

fn parse_trailers(section: &[u8]) -> Result<HeaderMap, ProtoError> {
    let mut trailers = HeaderMap::new();
    if section.len() <= 2 {
        return Ok(trailers);
    }
    let mut storage = [httparse::EMPTY_HEADER; TRAILER_FIELDS_MAX];
    let malformed = ProtoError::bad_request("the trailer section is malformed");
    let fields = match httparse::parse_headers(section, &mut storage) {
        Ok(httparse::Status::Complete((length, fields))) if length == section.len() => fields,
        Err(httparse::Error::TooManyHeaders) => return Err(TRAILER_TOO_LARGE),
        _ => return Err(malformed),
    };
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| malformed)?;
        let value = HeaderValue::from_bytes(field.value).map_err(|_| malformed)?;
        add_trailer(&mut trailers, name, value);
    }
    Ok(trailers)
}

/// Fields that are no trailers: those for framing and routing, and those of the connection (RFC 9110 section 6.5.1).
const NOT_IN_TRAILERS: [&str; 9] = [
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Adds a trailer field of a request in any version of HTTP. A field that is not allowed there is left out.
pub(crate) fn add_trailer(trailers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    if !NOT_IN_TRAILERS.contains(&name.as_str()) {
        trailers.append(name, value);
    }
}

/// Appends the size line of a chunk of `length` bytes. Not for `length` 0, which would end the body.
pub fn encode_size(length: u64, out: &mut Vec<u8>) {
    debug_assert!(length > 0);
    let mut digits = [0; 16];
    let mut at = digits.len();
    let mut rest = length;
    while let Some(slot) = at.checked_sub(1).and_then(|previous| digits.get_mut(previous)) {
        *slot = b"0123456789abcdef".get((rest & 15) as usize).copied().unwrap_or(b'0');
        at -= 1;
        rest >>= 4;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(at..).unwrap_or_default());
    out.extend_from_slice(b"\r\n");
}

/// What follows the data of every chunk.
pub const CHUNK_END: &[u8] = b"\r\n";

/// Appends one whole chunk; nothing for empty `data`, which would end the body.
pub fn encode_chunk(data: &[u8], out: &mut Vec<u8>) {
    if !data.is_empty() {
        encode_size(data.len() as u64, out);
        out.extend_from_slice(data);
        out.extend_from_slice(CHUNK_END);
    }
}

/// Appends the end of a chunked body: the last chunk and the trailer fields.
pub fn encode_end(trailers: &[(HeaderName, HeaderValue)], out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The body, the trailers and the number of bytes left after it, decoding `pieces` bytes at a time.
    fn decode(input: &[u8], pieces: usize) -> Result<Option<(Vec<u8>, HeaderMap, usize)>, ProtoError> {
        let mut decoder = ChunkedDecoder::new();
        let (mut body, mut start, mut end) = (Vec::new(), 0, 0);
        loop {
            let step = decoder.decode(&input[start..end])?;
            body.extend_from_slice(step.data);
            start += step.consumed;
            if step.done {
                return Ok(Some((body, decoder.trailers().clone(), start)));
            }
            if start == end {
                if end == input.len() {
                    return Ok(None);
                }
                end = (end + pieces).min(input.len());
            }
        }
    }

    #[track_caller]
    fn body(input: &str) -> Vec<u8> {
        let whole = decode(input.as_bytes(), usize::MAX).expect("well-formed").expect("complete");
        assert_eq!(Some(&whole), decode(input.as_bytes(), 1).expect("well-formed").as_ref());
        assert_eq!(whole.2, input.len());
        whole.0
    }

    #[track_caller]
    fn refused(input: &str) {
        assert!(decode(input.as_bytes(), usize::MAX).is_err(), "{input:?}");
        assert!(decode(input.as_bytes(), 1).is_err(), "{input:?}");
    }

    #[test]
    fn decodes_chunks() {
        assert_eq!(body("0\r\n\r\n"), b"");
        assert_eq!(body("000\r\n\r\n"), b"");
        assert_eq!(body("5\r\nhello\r\nA\r\n0123456789\r\n0\r\n\r\n"), b"hello0123456789");
        assert_eq!(body("0000000000000005\r\nhello\r\n0\r\n\r\n"), b"hello");
    }

    #[test]
    fn size_is_1_to_16_hex_digits_and_nothing_else() {
        for bad in ["\r\n", "x\r\n", "0x5\r\nhello\r\n", "+5\r\n", "-5\r\n", " 5\r\n", "5 \r\nhello\r\n", "5\t\r\n"] {
            refused(&format!("{bad}0\r\n\r\n"));
        }
        refused("00000000000000005\r\nhello\r\n0\r\n\r\n");
        refused("fffffffffffffffff\r\n");
        assert_eq!(decode(b"ffffffffffffffff\r\nx", 1), Ok(None));
    }

    #[test]
    fn white_space_only_before_a_semicolon() {
        assert_eq!(body("5 ;a=b\r\nhello\r\n0\r\n\r\n"), b"hello");
        refused("5 a\r\nhello\r\n0\r\n\r\n");
    }

    #[test]
    fn extensions_have_names_and_maybe_values() {
        for fine in [";a", ";a=b", " ; a = b ; c", ";a=\"\"", ";a=\"\\\"\\\\\";b", ";a=\"x\" ;b"] {
            assert_eq!(body(&format!("5{fine}\r\nhello\r\n0\r\n\r\n")), b"hello", "{fine:?}");
        }
        for bad in [
            ";",
            "; ",
            ";;a",
            ";=b",
            ";a=",
            ";a= ",
            ";a=b=c",
            ";a b",
            ";a ",
            ";a=b c",
            ";a=\"x",
            ";a=\"x\"y",
            ";a=\"\\\"",
            ";a;",
        ] {
            refused(&format!("5{bad}\r\nhello\r\n0\r\n\r\n"));
        }
    }

    #[test]
    fn extensions_are_ignored_but_bounded_and_free_of_controls() {
        assert_eq!(body("5;a=\"x;y\"\r\nhello\r\n0;last\r\n\r\n"), b"hello");
        refused("5;a=\"x\ny\"\r\nhello\r\n0\r\n\r\n");
        refused("5;a\rb\r\nhello\r\n0\r\n\r\n");
        refused("5;a\0b\r\nhello\r\n0\r\n\r\n");
        let total = EXTENSION_BYTES_MAX as usize;
        let one = format!("1;{}\r\nx\r\n", "e".repeat(total - 1));
        assert!(decode(format!("{one}0\r\n\r\n").as_bytes(), 7).is_ok());
        refused(&format!("{one}1;\r\nx\r\n0\r\n\r\n"));
    }

    #[test]
    fn lines_end_with_crlf() {
        refused("5\nhello\r\n0\r\n\r\n");
        refused("5\r\nhello\n0\r\n\r\n");
        refused("5\r\nhelloXX0\r\n\r\n");
        refused("5\r\nhello\r0\r\n\r\n");
        refused("5\r\nhello\r\n0\n\r\n");
        refused("5\r\nhello\r\n0\r\n\n");
        refused("5\r\nhello\r\n0\r\nA: b\n\r\n");
    }

    #[test]
    fn trailers_are_exposed() {
        let input = b"1\r\nx\r\n0\r\nDigest: abc\r\nContent-Length: 5\r\nHost: a\r\nTrailer: a\r\nTE: a\r\nUpgrade: a\r\n\r\nrest";
        for pieces in 1..input.len() {
            let (body, trailers, end) = decode(input, pieces).expect("well-formed").expect("complete");
            assert_eq!((body.as_slice(), &input[end..]), (&b"x"[..], &b"rest"[..]));
            assert_eq!(trailers.len(), 1, "fields for framing and routing are left out");
            assert_eq!(trailers["digest"], "abc");
        }
    }

    #[test]
    fn trailers_are_bounded_and_strict() {
        refused(&format!("0\r\nA: {}\r\n\r\n", "x".repeat(TRAILER_BYTES_MAX)));
        refused(&format!("0\r\n{}\r\n", "A: b\r\n".repeat(TRAILER_FIELDS_MAX + 1)));
        refused("0\r\nA : b\r\n\r\n");
        refused("0\r\nA: b\r\n c\r\n\r\n");
        refused("0\r\n: b\r\n\r\n");
        refused("0\r\nA: b\0\r\n\r\n");
        refused("0\r\nA: b\rc\r\n\r\n");
    }

    #[test]
    fn nothing_is_taken_behind_the_end() {
        let mut decoder = ChunkedDecoder::new();
        let step = decoder.decode(b"0\r\n\r\nnext").expect("well-formed");
        assert_eq!(step, Decoded { consumed: 5, data: b"", done: true });
        assert_eq!(decoder.decode(b"next"), Ok(Decoded { consumed: 0, data: b"", done: true }));
    }

    #[test]
    fn sizes_are_encoded_in_hex() {
        for (size, line) in [(1, "1\r\n"), (15, "f\r\n"), (16, "10\r\n"), (0x1234_abcd, "1234abcd\r\n")] {
            let mut out = Vec::new();
            encode_size(size, &mut out);
            assert_eq!(out, line.as_bytes());
        }
        let mut out = Vec::new();
        encode_size(u64::MAX, &mut out);
        assert_eq!(out, b"ffffffffffffffff\r\n");
    }

    proptest! {
        #[test]
        fn decodes_what_was_encoded(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
            pieces in 1_usize..50,
        ) {
            let mut wire = Vec::new();
            for chunk in &chunks {
                encode_chunk(chunk, &mut wire);
            }
            let trailer = (HeaderName::from_static("digest"), HeaderValue::from_static("abc"));
            encode_end(&[trailer], &mut wire);
            let (body, trailers, end) = decode(&wire, pieces).expect("well-formed").expect("complete");
            prop_assert_eq!(body, chunks.concat());
            prop_assert_eq!(&trailers["digest"], "abc");
            prop_assert_eq!(end, wire.len());
        }
    }
}
