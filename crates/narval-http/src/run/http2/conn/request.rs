//! Turns header blocks into requests and trailers.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::stream::{How, Receiving, Stream};
use super::{Conn, ConnError, Going};
use crate::http1::head::{Framing, ParsedHead, is_token_byte};
use crate::http1::{ProtoError, chunked};
use crate::http2::flow::{ReceiveWindow, SendWindow};
use crate::http2::frame::{self, ErrorCode};
use crate::http2::head::{HeadBuilder, HeadError, is_field_value};
use crate::http2::hpack::HpackError;
use crate::http2::response;
use crate::io::clock::Millis;
use crate::io::progress::Progress;
use crate::limits::{HTTP2_STREAM_WINDOW, HTTP2_STREAMS_MAX};
use crate::message::departure::Departure;
use crate::run::http2::service::Inline;
use crate::run::intake::{Begun, InMemory, Request};
use crate::run::job::Work;
use crate::run::service::Service;

type Taken = Result<(), ConnError>;

impl Conn {
    /// A header block is complete.
    pub(super) fn header_block(&mut self, id: u32, block: &[u8], is_last: bool, service: &mut Service<'_>) -> Taken {
        if id <= self.last {
            return self.trailers(id, block, is_last, service);
        }
        let mut head = std::mem::take(&mut service.head);
        head.begin(&service.limits().head);
        let decoded = self.decoder.decode(block, |field| head.field(field));
        let taken = self.open(id, decoded, &mut head, is_last, service);
        service.head = head;
        taken
    }

    /// The client opens a stream.
    fn open(
        &mut self,
        id: u32,
        decoded: Result<(), HpackError>,
        head: &mut HeadBuilder,
        is_last: bool,
        service: &mut Service<'_>,
    ) -> Taken {
        let finished = match decoded {
            Ok(()) => head.finish(is_last, self.websockets, &service.limits().head),
            Err(HpackError::TooLarge) => Err(HeadError::Answered(ProtoError::new(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "the request head is too large",
            ))),
            Err(_) => return Err(ConnError(ErrorCode::CompressionError, "a header block cannot be decoded")),
        };
        if self.going == Going::Told {
            // The client was told that this stream would not be handled.
            return self.spend_frame("streams after GOAWAY", service);
        }
        self.last = id;
        if self.streams.len() >= HTTP2_STREAMS_MAX {
            self.closed.push(id, How::ByUs, HTTP2_STREAM_WINDOW);
            frame::push_reset(&mut self.out, id, ErrorCode::RefusedStream);
            return self.spend_reset(service);
        }
        let window = SendWindow::new(self.peer.initial_window);
        let mut stream = Box::new(Stream::new(window, ReceiveWindow::new(HTTP2_STREAM_WINDOW), head.is_head()));
        stream.is_connect = head.is_extended_connect();
        if stream.is_connect {
            stream.receiving = Receiving::Ahead { bytes: Vec::new(), has_ended: is_last };
        } else if !is_last {
            stream.receiving = Receiving::Unread;
        }
        stream.progress = Progress::new(service.now, 0);
        stream.credited = service.now;
        match finished {
            Ok(parsed) => self.begin(id, stream, parsed, head, service),
            Err(HeadError::Malformed(reason)) => {
                tracing::debug!(reason, "a malformed request was reset");
                service.counters.rejected.add(1);
                self.streams.insert(id, stream);
                self.reset(id, ErrorCode::ProtocolError, service)
            }
            Err(HeadError::Answered(error)) => {
                let answer = service.reject_on_stream(error, stream.is_head);
                self.streams.insert(id, stream);
                self.answer(id, answer, service);
                Ok(())
            }
        }
    }

    /// Starts a request.
    fn begin(
        &mut self,
        id: u32,
        stream: Box<Stream>,
        parsed: ParsedHead,
        head: &mut HeadBuilder,
        service: &mut Service<'_>,
    ) -> Taken {
        if parsed.framing != Framing::None {
            self.streams.insert(id, stream);
            self.begin_body(id, parsed, head, service);
            return Ok(());
        }
        let asks_server = parsed.parts.method == Method::OPTIONS && parsed.parts.target.of(head.bytes()) == b"*";
        let for_engine = asks_server && !service.limits().head.asterisk_allowed;
        let inline = service.inline_on_stream(&parsed, head.bytes(), for_engine);
        self.streams.insert(id, stream);
        match inline {
            Inline::Answer(answer) => {
                head.give_back(parsed);
                self.answer(id, answer, service);
            }
            Inline::Later(later) => {
                head.give_back(parsed);
                let departure = self.set_away(id);
                service.work.push_back(Work::Later { stream: id, later, departure });
            }
            Inline::Job => {
                let bytes = Bytes::copy_from_slice(head.bytes());
                self.ask(id, Request { bytes, head: Box::new(parsed), body: None }, service);
            }
        }
        Ok(())
    }

    /// Has a worker answer a request.
    pub(super) fn ask(&mut self, id: u32, request: Request, service: &mut Service<'_>) {
        let departure = self.set_away(id);
        service.work.push_back(Work::Request { stream: id, request, departure });
    }

    fn set_away(&mut self, id: u32) -> Departure {
        let Some(stream) = self.streams.get_mut(&id) else { return Departure::default() };
        stream.is_away = true;
        stream.departure()
    }

    /// Starts a request with a body.
    fn begin_body(&mut self, id: u32, parsed: ParsedHead, head: &HeadBuilder, service: &mut Service<'_>) {
        let framing = match parsed.framing {
            // The end of the stream ends it.
            Framing::Chunked | Framing::None => Framing::Length(u64::MAX),
            length => length,
        };
        let is_head = parsed.parts.method == Method::HEAD;
        let bytes = Bytes::copy_from_slice(head.bytes());
        match InMemory::begin(bytes, Box::new(parsed), framing, true, service) {
            Begun::Rejected(error) => {
                let answer = service.reject_on_stream(error, is_head);
                self.answer(id, answer, service);
            }
            Begun::Refused => {
                let answer = service.overloaded(is_head);
                self.answer(id, answer, service);
            }
            Begun::Stream(request) => {
                self.check_body_at(id, request.incoming.next_check(service.now, service.limits()));
                let continue_due = request.expects_continue();
                self.stream(id, request, continue_due, service);
            }
            Begun::Receive(request) => {
                if request.expects_continue() {
                    self.inform(id, &response::continue_block());
                }
                self.check_body_at(id, request.first_look(service));
                self.set_receiving(id, Receiving::Memory(Box::new(request)));
                self.enlarge_window(id);
            }
        }
    }

    fn check_body_at(&mut self, id: u32, at: Millis) {
        self.look_at(at);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.body_check = at;
        }
    }

    pub(super) fn set_receiving(&mut self, id: u32, receiving: Receiving) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.receiving = receiving;
        }
    }

    /// A header block on a stream that was opened before: the trailers of its body.
    fn trailers(&mut self, id: u32, block: &[u8], is_last: bool, service: &mut Service<'_>) -> Taken {
        let mut trailers = Ok(HeaderMap::new());
        let mut count = 0;
        let fields_max = service.limits().head.fields_max;
        let decoded = self.decoder.decode(block, |field| {
            count += 1;
            if let Ok(map) = &mut trailers
                && let Err(reason) = add_trailer(map, field.name, field.value)
            {
                trailers = Err(reason);
            }
        });
        match decoded {
            Ok(()) => {}
            Err(HpackError::TooLarge) => trailers = Err("the trailers are too large"),
            Err(_) => return Err(ConnError(ErrorCode::CompressionError, "a header block cannot be decoded")),
        }
        let Some(stream) = self.streams.get(&id).filter(|stream| !stream.is_reset) else {
            return self.spend_frame("HEADERS frames on closed streams", service);
        };
        if stream.is_received() {
            return self.reset(id, ErrorCode::StreamClosed, service);
        }
        match trailers {
            // A WebSocket has none (RFC 9113 section 8.5).
            Ok(trailers) if is_last && count <= fields_max && !stream.is_connect => {
                self.body_end(id, Some(trailers), service);
                Ok(())
            }
            _ => {
                service.counters.rejected.add(1);
                self.reset(id, ErrorCode::ProtocolError, service)
            }
        }
    }
}

/// Adds a trailer field. One of HTTP/1 connections makes the request malformed (RFC 9113 section 8.2.2).
fn add_trailer(map: &mut HeaderMap, name: &[u8], value: &[u8]) -> Result<(), &'static str> {
    let is_name = !name.is_empty() && name.iter().all(|&byte| is_token_byte(byte) && !byte.is_ascii_uppercase());
    if !is_name || !is_field_value(value) {
        return Err("a trailer field is malformed");
    }
    match name {
        b"connection" | b"proxy-connection" | b"keep-alive" | b"transfer-encoding" | b"upgrade" => {
            Err("a field of HTTP/1 connections")
        }
        _ => {
            let name = HeaderName::from_bytes(name).map_err(|_| "a trailer field is malformed")?;
            let value = HeaderValue::from_bytes(value).map_err(|_| "a trailer field is malformed")?;
            chunked::add_trailer(map, name, value);
            Ok(())
        }
    }
}
