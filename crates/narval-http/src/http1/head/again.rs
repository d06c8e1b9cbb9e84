//! Heads that differ from the previous one only in their target.
//!
//! A client that sends one request after the other repeats the same field lines. Their meaning does not depend on the
//! target (which ends at the first space), so if all bytes after the target equal those of the previous head, only the
//! target is parsed.

use http::{Method, Version};

use super::{Framing, HeadLimits, ParsedHead, has_bad_byte, path_and_query, span_in};
use crate::http1::head_parts::{HandedOver, HeadParts, Span};

/// Most bytes kept of what follows the target. Browsers send 500 to 900.
const REST_MAX: usize = 2048;

/// The last parsed head, in case the next one repeats it.
#[derive(Debug, Default)]
pub(crate) struct LastHead {
    /// All bytes after the target; empty if there is no previous head.
    rest: Vec<u8>,
    /// Their offset in the head.
    rest_at: u32,
    /// The length of the rest of the request line after the target, including its end.
    line_rest: usize,
    version: Version,
    host: Option<Span>,
    fields: Vec<(Span, Span)>,
    keep_alive: bool,
    expect_continue: bool,
    /// The allocation for the next head. It has the field lines of a head whose target ended at `spare_for`.
    spare: Option<Box<ParsedHead>>,
    spare_for: usize,
}

impl LastHead {
    /// Remembers a head that was parsed from `head`.
    pub(crate) fn learn(&mut self, head: &[u8], parsed: &ParsedHead) {
        self.spare_for = 0;
        let parts = &parsed.parts;
        let at = parts.target.end as usize;
        let rest = head.get(at..parsed.head_len).unwrap_or_default();
        let begins = request_start(head).is_some_and(|from| from == parts.target.start as usize);
        let (Some(line), true) = (rest.iter().position(|&byte| byte == b'\n'), begins && rest.len() <= REST_MAX) else {
            return;
        };
        if parsed.framing != Framing::None {
            return;
        }
        self.rest.clear();
        self.rest.extend_from_slice(rest);
        self.rest_at = parts.target.end;
        self.line_rest = line + 1;
        self.version = parts.version;
        self.host = parts.host;
        self.fields.clone_from(&parts.fields);
        (self.keep_alive, self.expect_continue) = (parsed.keep_alive, parsed.expect_continue);
    }

    /// Memory for the field lines of a head that is parsed completely.
    pub(crate) fn spare_fields(&mut self) -> Vec<(Span, Span)> {
        self.spare_for = 0;
        self.spare.as_mut().map(|spare| std::mem::take(&mut spare.parts.fields)).unwrap_or_default()
    }

    /// Moves a completely parsed head into the spare allocation.
    pub(crate) fn place(&mut self, head: ParsedHead) -> Box<ParsedHead> {
        match self.spare.take() {
            Some(mut place) => {
                *place = head;
                place
            }
            None => Box::new(head),
        }
    }

    /// Returns the allocation of the last head that was [parsed](Self::read) or [learned](Self::learn), once it is
    /// answered.
    pub(crate) fn give_back(&mut self, head: Box<ParsedHead>) {
        self.spare = Some(head);
    }

    /// Parses the head at the start of `buf` if it differs from the last one only in its target; `None` if it must be
    /// parsed completely.
    #[inline(always)]
    pub(crate) fn read(&mut self, buf: &[u8], limits: &HeadLimits) -> Option<Box<ParsedHead>> {
        let from = request_start(buf).filter(|_| !self.rest.is_empty())?;
        let tail = buf.get(from..)?;
        let target = tail.get(..memchr::memchr(b' ', tail)?)?;
        let end = from + target.len();
        let head_len = end + self.rest.len();
        let fits = head_len <= limits.bytes_max && end + self.line_rest <= limits.request_line_bytes_max;
        if !fits || !buf.get(end..)?.starts_with(&self.rest) {
            return None;
        }
        let span = span_in(buf, target);
        if has_bad_byte(target) {
            return None;
        }
        // It starts with a slash.
        let (path, query) = path_and_query(target, span);
        let moved = (end as u32).wrapping_sub(self.rest_at);
        let shift = |span: &Span| match span.end {
            // An empty value, which has no position.
            0 => *span,
            _ => Span { start: span.start.wrapping_add(moved), end: span.end.wrapping_add(moved) },
        };
        let mut head = self.spare.take().unwrap_or_else(|| Box::new(blank()));
        let parts = &mut head.parts;
        if self.spare_for != end || parts.fields.len() != self.fields.len() {
            parts.fields.clear();
            parts.fields.extend(self.fields.iter().map(|(name, value)| (shift(name), shift(value))));
            self.spare_for = end;
        }
        parts.method = if from == GET.len() { Method::GET } else { Method::HEAD };
        parts.version = self.version;
        (parts.target, parts.path, parts.query) = (span, path, query);
        parts.host = self.host.as_ref().map(shift);
        parts.handed_over.clear();
        head.head_len = head_len;
        head.framing = Framing::None;
        (head.keep_alive, head.expect_continue) = (self.keep_alive, self.expect_continue);
        Some(head)
    }
}

fn blank() -> ParsedHead {
    let nothing = Span { start: 0, end: 0 };
    ParsedHead {
        parts: HeadParts {
            method: Method::GET,
            version: Version::HTTP_11,
            target: nothing,
            path: nothing,
            query: None,
            host: None,
            fields: Vec::new(),
            handed_over: HandedOver::default(),
        },
        head_len: 0,
        framing: Framing::None,
        keep_alive: false,
        expect_continue: false,
    }
}

const GET: &[u8] = b"GET ";
const HEAD: &[u8] = b"HEAD ";

/// The offset of the target of a GET or HEAD request, if it is a path; `None` otherwise.
fn request_start(head: &[u8]) -> Option<usize> {
    [GET, HEAD].into_iter().find_map(|method| head.strip_prefix(method)?.starts_with(b"/").then_some(method.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::parse_head;
    use super::*;

    /// Parses a connection's heads as the shard does, and compares every result with that of a parser without memory.
    fn read_all(heads: &[&[u8]], limits: &HeadLimits) -> usize {
        let (mut last, mut known) = (LastHead::default(), 0);
        for head in heads {
            let alone = parse_head(head, limits);
            let again = last.read(head, limits);
            if let Some(again) = again {
                known += 1;
                let said = Ok::<_, crate::http1::ProtoError>(Some(again.clone()));
                assert_eq!(format!("{said:?}"), format!("{alone:?}"));
                // Some go to a worker, with their fields.
                if known % 3 > 0 {
                    last.give_back(again);
                }
            } else if let Ok(Some(parsed)) = alone {
                last.learn(head, &parsed);
                let parsed = last.place(parsed);
                last.give_back(parsed);
            }
        }
        known
    }

    #[test]
    fn the_same_fields_are_read_once() {
        let head = |start: &str| format!("{start} HTTP/1.1\r\nHost: a:1\r\nX-Empty:\r\nAccept: */*\r\n\r\nGET / HT");
        let starts =
            ["GET /", "GET /a?b", "HEAD /c", "GET /a b", "GET /#", "GET /\u{7f}", "GET  /", "GET *", "PUT /", "GET /?"];
        let heads: Vec<String> = starts.into_iter().map(head).collect();
        let heads: Vec<&[u8]> = heads.iter().map(String::as_bytes).collect();
        assert_eq!(read_all(&heads, &HeadLimits::default()), 3);
    }

    #[test]
    fn limits_hold_for_known_heads() {
        let head = |length: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(length));
        let heads: Vec<String> = (0..200).map(head).collect();
        let heads: Vec<&[u8]> = heads.iter().map(String::as_bytes).collect();
        let limits = HeadLimits { bytes_max: 100, ..HeadLimits::default() };
        // 27 bytes and the x's are at most 100; the first head is parsed completely.
        assert_eq!(read_all(&heads, &limits), 73);
        let limits = HeadLimits { request_line_bytes_max: 100, ..HeadLimits::default() };
        assert_eq!(read_all(&heads, &limits), 84);
    }

    #[test]
    fn bodies_and_closing_are_seen() {
        let heads: [&[u8]; 6] = [
            b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            b"GET /1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            b"GET /1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            b"HEAD /2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        ];
        assert_eq!(read_all(&heads, &HeadLimits::default()), 2);
    }

    proptest! {
        #[test]
        fn any_heads(heads in prop::collection::vec("(GET|HEAD|PUT) (/[a-z?# ]{0,3}|\\*) HTTP/1.[01]\r\n(Host: [ab]\r\n)?(A:[ x]{0,2}\r\n){0,2}(Content-Length: [02]\r\n)?(Connection: close\r\n)?\r?\n(G)?", 1..20)) {
            let heads: Vec<&[u8]> = heads.iter().map(String::as_bytes).collect();
            read_all(&heads, &HeadLimits::default());
        }
    }
}
