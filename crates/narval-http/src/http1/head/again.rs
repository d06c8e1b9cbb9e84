//! Heads that differ from the one before in their target only.
//!
//! A client that asks for one thing after the other sends the same field lines each time. What they say does not depend on the
//! target (its end is the first space), so where all bytes behind the target are those of a head that was read before, only
//! the target is read.

use http::{Method, Version};

use super::{Framing, HeadLimits, ParsedHead, has_bad_byte, path_and_query, span_in};
use crate::{HeadParts, Span};

/// Bytes behind the target that are kept, at most. Browsers send some 500 to 900.
const REST_MAX: usize = 2048;

/// What was read of the last head that may come again.
#[derive(Debug, Default)]
pub(crate) struct LastHead {
    /// All bytes behind the target. Empty: there is nothing to go by.
    rest: Vec<u8>,
    /// Where they began in the head.
    rest_at: u32,
    /// The length of the request line behind the target, its end included.
    line_rest: usize,
    version: Version,
    host: Option<Span>,
    fields: Vec<(Span, Span)>,
    keep_alive: bool,
    expect_continue: bool,
    /// Where the next head is put, so that it is not moved. It has the field lines of a head whose target ended at
    /// `spare_for`.
    spare: Option<Box<ParsedHead>>,
    spare_for: usize,
}

impl LastHead {
    /// Remembers a head that was read from `head`.
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

    /// Memory for the field lines of a head that is read as a whole.
    pub(crate) fn spare_fields(&mut self) -> Vec<(Span, Span)> {
        self.spare_for = 0;
        self.spare.as_mut().map(|spare| std::mem::take(&mut spare.parts.fields)).unwrap_or_default()
    }

    /// Puts a head that was read as a whole in the place of one that is read here.
    pub(crate) fn place(&mut self, head: ParsedHead) -> Box<ParsedHead> {
        match self.spare.take() {
            Some(mut place) => {
                *place = head;
                place
            }
            None => Box::new(head),
        }
    }

    /// Gets back the last head that was [read](Self::read) or [learned](Self::learn), when it is answered.
    pub(crate) fn give_back(&mut self, head: Box<ParsedHead>) {
        self.spare = Some(head);
    }

    /// Reads the head that `buf` starts with, if it is the last one again but for its target. `None`: it is to be read as a
    /// whole.
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
        // It begins with a slash.
        let (path, query) = path_and_query(target, span);
        let moved = (end as u32).wrapping_sub(self.rest_at);
        let shift = |span: &Span| match span.end {
            // Nothing, which lies nowhere.
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
        },
        head_len: 0,
        framing: Framing::None,
        keep_alive: false,
        expect_continue: false,
    }
}

const GET: &[u8] = b"GET ";
const HEAD: &[u8] = b"HEAD ";

/// Where the target of a GET or HEAD request begins, which is a path; `None` for all others.
fn request_start(head: &[u8]) -> Option<usize> {
    [GET, HEAD].into_iter().find_map(|method| head.strip_prefix(method)?.starts_with(b"/").then_some(method.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::parse_head;
    use super::*;

    /// As the shard reads a connection's heads; every answer is compared with that of a reader without memory.
    fn read_all(heads: &[&[u8]], limits: &HeadLimits) -> usize {
        let (mut last, mut known) = (LastHead::default(), 0);
        for head in heads {
            let alone = parse_head(head, limits);
            let again = last.read(head, limits);
            if let Some(again) = again {
                known += 1;
                let said = Ok::<_, crate::http1::ProtoError>(Some(again.clone()));
                assert_eq!(format!("{said:?}"), format!("{alone:?}"));
                // Some go to a worker, and take their fields along.
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
        // 27 bytes and the x's are at most 100; the first head is read as a whole.
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
