//! Forms as `multipart/form-data` (RFC 7578, RFC 2046 section 5.1), decoded strictly and without copying the data.
//!
//! [`MultipartDecoder`] takes a body in pieces.

use http::HeaderMap;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HeaderName, HeaderValue};
use memchr::memmem::{Finder, find};

use crate::http1::ProtoError;

/// Most field lines in the head of one part.
const PART_FIELDS_MAX: usize = 16;
/// Longest boundary (RFC 2046 section 5.1.1).
const BOUNDARY_LENGTH_MAX: usize = 70;

/// Limits on forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultipartLimits {
    /// Most parts.
    pub parts_max: usize,
    /// Most bytes in the head of one part.
    pub part_head_bytes_max: usize,
}

impl Default for MultipartLimits {
    fn default() -> Self {
        Self { parts_max: 256, part_head_bytes_max: 4 * 1024 }
    }
}

/// The head of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartHead {
    /// The name of the form field.
    pub name: String,
    /// The file name as sent by the client; not safe to use as a path.
    pub filename: Option<String>,
    /// All field lines of the part.
    pub headers: HeaderMap,
}

impl PartHead {
    /// The media type of the data, if given.
    pub fn content_type(&self) -> Option<&HeaderValue> {
        self.headers.get(CONTENT_TYPE)
    }
}

/// The boundary of a form, from the value of the request's `Content-Type`.
///
/// # Errors
/// 415 for another media type, 400 for a boundary that is missing or malformed.
///
/// ```
/// use narval_http::codecs::multipart::boundary;
///
/// assert_eq!(boundary(b"multipart/form-data; boundary=\"x y\"")?, b"x y");
/// # Ok::<(), narval_http::semantics::ProtoError>(())
/// ```
pub fn boundary(content_type: &[u8]) -> Result<&[u8], ProtoError> {
    const OTHER: ProtoError =
        ProtoError::new(http::StatusCode::UNSUPPORTED_MEDIA_TYPE, "the request is not a multipart/form-data form");
    const MALFORMED: ProtoError = ProtoError::bad_request("the boundary of the form is missing or malformed");
    let (media_type, rest) = content_type.split_at_checked(b"multipart/form-data".len()).ok_or(OTHER)?;
    if !media_type.eq_ignore_ascii_case(b"multipart/form-data") {
        return Err(OTHER);
    }
    // The HTTP client of the Wolfram language puts a comma where the semicolon belongs.
    let parameters = match rest.trim_ascii_start() {
        [b';' | b',', parameters @ ..] => parameters,
        [] => return Err(MALFORMED),
        _ => return Err(OTHER),
    };
    let value = raw_parameter(parameters, b"boundary").ok_or(MALFORMED)?;
    let is_boundary_byte = |byte: &u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(byte);
    let fine = (1..=BOUNDARY_LENGTH_MAX).contains(&value.len())
        && value.iter().all(is_boundary_byte)
        && value.last() != Some(&b' ');
    if fine { Ok(value) } else { Err(MALFORMED) }
}

/// One step of [`MultipartDecoder::decode`].
#[derive(Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// Consumed bytes of the input.
    pub consumed: usize,
    /// What was found in them.
    pub event: MultipartEvent<'a>,
}

/// An event while decoding a form.
#[derive(Debug, PartialEq, Eq)]
pub enum MultipartEvent<'a> {
    /// Nothing yet: call again with the unconsumed input, and more after it.
    NeedMore,
    /// A part begins.
    Part(PartHead),
    /// Data of the part.
    Data(&'a [u8]),
    /// The part's data has ended.
    PartEnd,
    /// The form and the input have ended.
    End,
}

/// Decodes a form in pieces. The input of each call starts where the previous call stopped consuming.
#[derive(Debug)]
pub struct MultipartDecoder {
    /// `\r\n--boundary`.
    delimiter: Finder<'static>,
    state: State,
    parts: usize,
    limits: MultipartLimits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    BehindDelimiter,
    Head,
    Data,
    Epilogue,
}

impl MultipartDecoder {
    /// A decoder for a form with this boundary; see [`boundary`].
    pub fn new(boundary: &[u8], limits: MultipartLimits) -> Self {
        let delimiter = Finder::new(&[b"\r\n--", boundary].concat()).into_owned();
        Self { delimiter, state: State::Start, parts: 0, limits }
    }

    /// The most bytes of input that it may need before it consumes any.
    pub fn input_max(&self) -> usize {
        self.limits.part_head_bytes_max.max(self.delimiter.needle().len()) + 4
    }

    /// Decodes the next event. `at_end`: there is no more input.
    ///
    /// # Errors
    /// 400 with the rule that is broken, also for a form that ends early.
    pub fn decode<'a>(&mut self, input: &'a [u8], at_end: bool) -> Result<Step<'a>, ProtoError> {
        let mut consumed = 0;
        loop {
            let rest = input.get(consumed..).unwrap_or_default();
            let step = self.step(rest)?;
            consumed += step.consumed;
            match step.event {
                MultipartEvent::NeedMore if step.consumed > 0 => {}
                MultipartEvent::NeedMore if at_end => {
                    let rest = input.get(consumed..).unwrap_or_default();
                    if self.state != State::Epilogue || !matches!(rest, b"" | b"\r\n") {
                        return Err(ProtoError::bad_request("the form ends early"));
                    }
                    return Ok(Step { consumed: consumed + rest.len(), event: MultipartEvent::End });
                }
                event => return Ok(Step { consumed, event }),
            }
        }
    }

    /// Advances by one state. `NeedMore` with consumed bytes only means that the state has changed.
    fn step<'a>(&mut self, input: &'a [u8]) -> Result<Step<'a>, ProtoError> {
        let more = Step { consumed: 0, event: MultipartEvent::NeedMore };
        match self.state {
            State::Start => {
                let first = self.delimiter.needle().get(2..).unwrap_or_default();
                if !first.starts_with(input.get(..first.len()).unwrap_or(input)) {
                    return Err(ProtoError::bad_request("the form does not begin with its boundary"));
                }
                if input.len() < first.len() {
                    return Ok(more);
                }
                self.state = State::BehindDelimiter;
                Ok(Step { consumed: first.len(), event: MultipartEvent::NeedMore })
            }
            State::BehindDelimiter => match input {
                [b'-', b'-', ..] => {
                    self.state = State::Epilogue;
                    Ok(Step { consumed: 2, event: MultipartEvent::NeedMore })
                }
                [b'\r', b'\n', ..] => {
                    self.parts += 1;
                    if self.parts > self.limits.parts_max {
                        return Err(ProtoError::new(
                            http::StatusCode::PAYLOAD_TOO_LARGE,
                            "the form has too many parts",
                        ));
                    }
                    self.state = State::Head;
                    Ok(Step { consumed: 2, event: MultipartEvent::NeedMore })
                }
                [] | [b'-' | b'\r'] => Ok(more),
                _ => Err(ProtoError::bad_request("a boundary line of the form is malformed")),
            },
            State::Head => self.head(input),
            State::Data => Ok(self.data(input)),
            State::Epilogue if b"\r\n".starts_with(input) => Ok(more),
            State::Epilogue => Err(ProtoError::bad_request("there are bytes after the end of the form")),
        }
    }

    fn head<'a>(&mut self, input: &'a [u8]) -> Result<Step<'a>, ProtoError> {
        let limited = input.get(..self.limits.part_head_bytes_max).unwrap_or(input);
        let Some(at) = find(limited, b"\r\n\r\n") else {
            if input.len() >= self.limits.part_head_bytes_max {
                return Err(ProtoError::bad_request("the head of a part of the form is too long"));
            }
            return Ok(Step { consumed: 0, event: MultipartEvent::NeedMore });
        };
        let head = parse_part_head(input.get(..at + 4).unwrap_or_default())?;
        self.state = State::Data;
        Ok(Step { consumed: at + 4, event: MultipartEvent::Part(head) })
    }

    fn data<'a>(&mut self, input: &'a [u8]) -> Step<'a> {
        let length = self.delimiter.needle().len();
        match self.delimiter.find(input) {
            Some(0) => {
                self.state = State::BehindDelimiter;
                Step { consumed: length, event: MultipartEvent::PartEnd }
            }
            Some(at) => Step { consumed: at, event: MultipartEvent::Data(input.get(..at).unwrap_or_default()) },
            // The last bytes may be the beginning of a delimiter.
            None => match input.len().saturating_sub(length - 1) {
                0 => Step { consumed: 0, event: MultipartEvent::NeedMore },
                certain => {
                    Step { consumed: certain, event: MultipartEvent::Data(input.get(..certain).unwrap_or_default()) }
                }
            },
        }
    }
}

/// Parses the head of a part, including the empty line.
fn parse_part_head(head: &[u8]) -> Result<PartHead, ProtoError> {
    const MALFORMED: ProtoError = ProtoError::bad_request("the head of a part of the form is malformed");
    const NO_NAME: ProtoError = ProtoError::bad_request("a part of the form has no form-data name");
    if memchr::memchr_iter(b'\n', head).any(|at| at == 0 || head.get(at - 1) != Some(&b'\r')) {
        return Err(MALFORMED);
    }
    let mut storage = [httparse::EMPTY_HEADER; PART_FIELDS_MAX];
    let fields = match httparse::parse_headers(head, &mut storage) {
        Ok(httparse::Status::Complete((length, fields))) if length == head.len() => fields,
        _ => return Err(MALFORMED),
    };
    let mut headers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| MALFORMED)?;
        headers.append(name, HeaderValue::from_bytes(field.value).map_err(|_| MALFORMED)?);
    }
    let disposition = headers.get(CONTENT_DISPOSITION).ok_or(NO_NAME)?.as_bytes();
    let (kind, parameters) = disposition.split_at_checked(b"form-data".len()).ok_or(NO_NAME)?;
    let parameters = parameters.trim_ascii_start().strip_prefix(b";").ok_or(NO_NAME)?;
    if !kind.eq_ignore_ascii_case(b"form-data") {
        return Err(NO_NAME);
    }
    let name = parameter(parameters, b"name").ok_or(NO_NAME)?;
    let filename = parameter(parameters, b"filename");
    Ok(PartHead { name, filename, headers })
}

/// The value of a parameter, quoted or not, as text; of several with this name, the first.
fn parameter(parameters: &[u8], wanted: &[u8]) -> Option<String> {
    let raw = raw_parameter(parameters, wanted)?;
    let mut value = Vec::with_capacity(raw.len());
    let mut bytes = raw.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        // Only what clients actually escape: elsewhere, a backslash may be part of a path (Internet Explorer).
        match bytes.next_if(|next| byte == b'\\' && matches!(next, b'"' | b'\\')) {
            Some(escaped) => value.push(escaped),
            None => value.push(byte),
        }
    }
    Some(match String::from_utf8(value) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}

/// The bytes of a parameter's value, without the quotes, escapes as sent.
fn raw_parameter<'a>(parameters: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    let mut rest = parameters;
    loop {
        rest = rest.trim_ascii_start();
        let equals = rest.iter().position(|&byte| byte == b'=')?;
        let (name, after) = (rest.get(..equals)?.trim_ascii(), rest.get(equals + 1..)?.trim_ascii_start());
        let (value, after) = match after.strip_prefix(b"\"") {
            Some(quoted) => {
                let end = closing_quote(quoted)?;
                (quoted.get(..end)?, quoted.get(end + 1..)?)
            }
            None => {
                let end = after.iter().position(|&byte| byte == b';').unwrap_or(after.len());
                (after.get(..end)?.trim_ascii_end(), after.get(end..)?)
            }
        };
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = after.trim_ascii_start().strip_prefix(b";")?;
    }
}

fn closing_quote(quoted: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match (quoted.get(at)?, quoted.get(at + 1)) {
            (b'"', _) => return Some(at),
            (b'\\', Some(b'"' | b'\\')) => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests;
