//! Handles received frames.

use super::stream::How;
use super::{Block, Conn, ConnError, DataLeft, Going, Phase};
use crate::http2::flow::SendWindow;
use crate::http2::frame::{self, ErrorCode, FrameHeader, HEADER_LENGTH, Kind, PAYLOAD_MAX, PREFACE, flag};
use crate::io::clock::millis;
use crate::limits::{HTTP2_CONTINUATIONS_MAX, HTTP2_HEADER_BLOCK_MAX, HTTP2_SMALL_INCREMENT};
use crate::run::http2::service::Ending;
use crate::run::service::Service;

type Taken = Result<(), ConnError>;

/// The result of one step through the input.
enum Step {
    /// This many bytes were used.
    Used(usize),
    /// More input is needed.
    More,
}

impl Conn {
    /// Handles received bytes.
    pub(super) fn received(&mut self, bytes: &[u8], service: &mut Service<'_>) {
        if self.end.is_some() {
            return;
        }
        let mut kept = std::mem::take(&mut self.input);
        if kept.is_empty() {
            let used = self.take_frames(bytes, service);
            self.keep(bytes.get(used..).unwrap_or_default().to_vec(), service);
        } else {
            kept.extend_from_slice(bytes);
            let used = self.take_frames(&kept, service);
            kept.drain(..used);
            self.keep(kept, service);
        }
    }

    fn keep(&mut self, rest: Vec<u8>, service: &Service<'_>) {
        if self.end.is_some() {
            return;
        }
        let has_begun = !rest.is_empty() || self.block.is_some() || self.phase != Phase::Open;
        if !has_begun {
            self.frame_until = 0;
        } else if self.frame_until == 0 {
            // Absolute: trickling bytes do not postpone it.
            self.frame_until = service.now + millis(service.limits().head_timeout);
            self.look_at(self.frame_until);
        }
        self.input = rest;
    }

    fn take_frames(&mut self, input: &[u8], service: &mut Service<'_>) -> usize {
        let mut used = 0;
        loop {
            let rest = input.get(used..).unwrap_or_default();
            if self.end.is_some() {
                return input.len();
            }
            match self.step(rest, service) {
                Ok(Step::Used(n)) => {
                    used += n;
                    if self.block.is_none() && self.phase == Phase::Open {
                        self.frame_until = 0;
                    }
                }
                Ok(Step::More) => return used,
                Err(ConnError(code, reason)) => {
                    self.fail(code, reason, service);
                    return input.len();
                }
            }
        }
    }

    fn step(&mut self, rest: &[u8], service: &mut Service<'_>) -> Result<Step, ConnError> {
        if self.phase == Phase::Preface {
            return self.preface(rest);
        }
        if let Some(data) = self.data {
            return Ok(self.step_data(data, rest, service));
        }
        let Some(header) = FrameHeader::read(rest) else { return Ok(Step::More) };
        self.check(&header)?;
        let payload = rest.get(HEADER_LENGTH..).unwrap_or_default();
        if header.kind == Kind::Data {
            return self.begin_data(&header, payload, service);
        }
        let Some(payload) = payload.get(..header.length) else { return Ok(Step::More) };
        self.frame(&header, payload, service)?;
        Ok(Step::Used(HEADER_LENGTH + header.length))
    }

    fn preface(&mut self, rest: &[u8]) -> Result<Step, ConnError> {
        let there = rest.len().min(PREFACE.len());
        if rest.get(..there) != PREFACE.get(..there) {
            return Err(ConnError(ErrorCode::ProtocolError, "the connection preface is wrong"));
        }
        if there < PREFACE.len() {
            return Ok(Step::More);
        }
        self.phase = Phase::Settings;
        Ok(Step::Used(there))
    }

    /// Checks a frame's header.
    fn check(&mut self, header: &FrameHeader) -> Taken {
        if header.length > PAYLOAD_MAX {
            return Err(ConnError(ErrorCode::FrameSizeError, "a frame is longer than SETTINGS_MAX_FRAME_SIZE"));
        }
        if self.phase == Phase::Settings && (header.kind != Kind::Settings || header.has(flag::ACK)) {
            return Err(ConnError(ErrorCode::ProtocolError, "the first frame is not SETTINGS"));
        }
        let goes_on = self.block.as_ref().map(|block| block.stream);
        let is_continuation = header.kind == Kind::Continuation;
        if goes_on.is_some() != is_continuation || goes_on.is_some_and(|stream| stream != header.stream) {
            return Err(ConnError(ErrorCode::ProtocolError, "a header block is not continuous"));
        }
        let of_connection = matches!(header.kind, Kind::Settings | Kind::Ping | Kind::GoAway);
        let of_any = matches!(header.kind, Kind::WindowUpdate | Kind::Unknown);
        if !of_any && of_connection != (header.stream == 0) {
            return Err(ConnError(ErrorCode::ProtocolError, "a frame is on a stream where it is not allowed"));
        }
        Ok(())
    }

    fn frame(&mut self, header: &FrameHeader, payload: &[u8], service: &mut Service<'_>) -> Taken {
        match header.kind {
            // Handled piece by piece as they arrive.
            Kind::Data => Ok(()),
            Kind::Headers => self.headers(header, payload, service),
            Kind::Continuation => self.continuation(header, payload, service),
            Kind::Priority => {
                self.spend_frame("PRIORITY frames", service)?;
                let Some(dependency) = payload.first_chunk::<4>().filter(|_| payload.len() == 5) else {
                    return Err(ConnError(ErrorCode::FrameSizeError, "a PRIORITY frame is not 5 bytes long"));
                };
                check_dependency(header.stream, *dependency)
            }
            Kind::Reset => self.reset_by_client(header, payload, service),
            Kind::Settings => self.settings(header, payload, service),
            Kind::PushPromise => Err(ConnError(ErrorCode::ProtocolError, "clients do not push")),
            Kind::Ping => self.ping(header, payload, service),
            Kind::GoAway if payload.len() < 8 => {
                Err(ConnError(ErrorCode::FrameSizeError, "a GOAWAY frame is too short"))
            }
            // Its open requests are still answered; then it closes the connection.
            Kind::GoAway => self.spend_frame("GOAWAY frames", service),
            Kind::WindowUpdate => self.window_update(header, payload, service),
            Kind::Unknown => self.spend_frame("unknown frames", service),
        }
    }

    /// A frame that does nothing for a request.
    pub(super) fn spend_frame(&mut self, what: &'static str, service: &Service<'_>) -> Taken {
        if self.idle_frames.spend(service.now) {
            return Ok(());
        }
        service.count_abuse(what);
        Err(ConnError(ErrorCode::EnhanceYourCalm, "too many frames that do nothing for a request"))
    }

    fn headers(&mut self, header: &FrameHeader, payload: &[u8], service: &mut Service<'_>) -> Taken {
        let mut fragment = payload;
        if header.has(flag::PADDED) {
            let Some((&padding, rest)) = fragment.split_first() else {
                return Err(ConnError(ErrorCode::FrameSizeError, "a padded frame has no padding length"));
            };
            let Some(length) = rest.len().checked_sub(usize::from(padding)) else {
                return Err(ConnError(ErrorCode::ProtocolError, "a frame is all padding, and more"));
            };
            fragment = rest.get(..length).unwrap_or_default();
        }
        if header.has(flag::PRIORITY) {
            let Some((dependency, rest)) = fragment.split_first_chunk::<5>() else {
                return Err(ConnError(ErrorCode::FrameSizeError, "a HEADERS frame has no room for its priority"));
            };
            let &[d0, d1, d2, d3, _] = dependency;
            check_dependency(header.stream, [d0, d1, d2, d3])?;
            fragment = rest;
        }
        self.may_open(header.stream)?;
        let is_last = header.has(flag::END_STREAM);
        if header.has(flag::END_HEADERS) {
            return self.header_block(header.stream, fragment, is_last, service);
        }
        self.block = Some(Block { stream: header.stream, bytes: fragment.to_vec(), is_last, frames: 0 });
        Ok(())
    }

    /// Whether a header block may be on this stream.
    fn may_open(&self, stream: u32) -> Taken {
        if stream.is_multiple_of(2) {
            return Err(ConnError(ErrorCode::ProtocolError, "a stream of the client has an even number"));
        }
        if stream > self.last || self.streams.contains_key(&stream) {
            return Ok(());
        }
        match self.closed.how(stream) {
            // The client sent this before it knew.
            Some(How::ByUs) => Ok(()),
            Some(_) => Err(ConnError(ErrorCode::StreamClosed, "a header block on a closed stream")),
            None => Err(ConnError(ErrorCode::ProtocolError, "the numbers of streams do not ascend")),
        }
    }

    fn continuation(&mut self, header: &FrameHeader, payload: &[u8], service: &mut Service<'_>) -> Taken {
        let Some(mut block) = self.block.take() else { return Ok(()) };
        block.frames += 1;
        if block.frames > HTTP2_CONTINUATIONS_MAX || block.bytes.len() + payload.len() > HTTP2_HEADER_BLOCK_MAX {
            service.count_abuse("CONTINUATION frames");
            return Err(ConnError(ErrorCode::EnhanceYourCalm, "a header block is too long"));
        }
        block.bytes.extend_from_slice(payload);
        if header.has(flag::END_HEADERS) {
            return self.header_block(block.stream, &block.bytes, block.is_last, service);
        }
        self.block = Some(block);
        Ok(())
    }

    fn reset_by_client(&mut self, header: &FrameHeader, payload: &[u8], service: &mut Service<'_>) -> Taken {
        if payload.len() != 4 {
            return Err(ConnError(ErrorCode::FrameSizeError, "a RST_STREAM frame is not 4 bytes long"));
        }
        if header.stream > self.last {
            return Err(ConnError(ErrorCode::ProtocolError, "RST_STREAM on an idle stream"));
        }
        self.spend_reset(service)?;
        self.drop_stream(header.stream, How::ByClient, Ending::Aborted, service);
        Ok(())
    }

    fn settings(&mut self, header: &FrameHeader, payload: &[u8], service: &mut Service<'_>) -> Taken {
        if header.has(flag::ACK) {
            if !payload.is_empty() {
                return Err(ConnError(ErrorCode::FrameSizeError, "an acknowledgement of SETTINGS is not empty"));
            }
            return self.spend_frame("SETTINGS frames", service);
        }
        self.spend_frame("SETTINGS frames", service)?;
        let before = self.peer.initial_window;
        self.peer.apply(payload).map_err(|code| ConnError(code, "a SETTINGS frame is malformed"))?;
        if self.phase == Phase::Settings {
            self.phase = Phase::Open;
        }
        let by = self.peer.initial_window - before;
        if by != 0 {
            for stream in self.streams.values_mut() {
                let changed = stream.window.change(by);
                changed.map_err(|_| ConnError(ErrorCode::FlowControlError, "a window is too large"))?;
            }
            self.queue_all();
        }
        frame::push_settings_ack(&mut self.out);
        Ok(())
    }

    fn ping(&mut self, header: &FrameHeader, payload: &[u8], service: &Service<'_>) -> Taken {
        let Ok(payload) = <[u8; 8]>::try_from(payload) else {
            return Err(ConnError(ErrorCode::FrameSizeError, "a PING frame is not 8 bytes long"));
        };
        self.spend_frame("PING frames", service)?;
        if !header.has(flag::ACK) {
            frame::push_ping(&mut self.out, true, payload);
        } else if matches!(self.going, Going::Warned { .. }) {
            // Everything that the client sent before it knew has arrived.
            self.tell_last();
        }
        Ok(())
    }

    fn window_update(&mut self, header: &FrameHeader, payload: &[u8], service: &mut Service<'_>) -> Taken {
        let Ok(increment) = <[u8; 4]>::try_from(payload) else {
            return Err(ConnError(ErrorCode::FrameSizeError, "a WINDOW_UPDATE frame is not 4 bytes long"));
        };
        let increment = u32::from_be_bytes(increment) & frame::STREAM_MAX;
        if increment < HTTP2_SMALL_INCREMENT {
            self.spend_frame("small WINDOW_UPDATE frames", service)?;
        }
        if header.stream == 0 {
            if increment == 0 {
                return Err(ConnError(ErrorCode::ProtocolError, "a WINDOW_UPDATE of zero"));
            }
            let changed = self.window.change(i64::from(increment));
            changed.map_err(|_| ConnError(ErrorCode::FlowControlError, "the connection's window is too large"))?;
            // Beyond the return of what was used it does nothing, unless something waits for it.
            let left = self.unreturned.checked_sub(u64::from(increment));
            self.unreturned = left.unwrap_or(0);
            if left.is_none() && !self.turns.has_windowless() {
                self.spend_frame("WINDOW_UPDATE frames", service)?;
            }
            return Ok(());
        }
        if header.stream > self.last {
            return Err(ConnError(ErrorCode::ProtocolError, "WINDOW_UPDATE on an idle stream"));
        }
        let Some(stream) = self.streams.get_mut(&header.stream) else { return Ok(()) };
        if increment == 0 {
            return self.reset(header.stream, ErrorCode::ProtocolError, service);
        }
        if stream.window.change(i64::from(increment)).is_err() {
            return self.reset(header.stream, ErrorCode::FlowControlError, service);
        }
        self.queue(header.stream);
        Ok(())
    }

    fn begin_data(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        service: &mut Service<'_>,
    ) -> Result<Step, ConnError> {
        let (mut prefix, mut padding) = (0, 0);
        if header.has(flag::PADDED) {
            if header.length == 0 {
                return Err(ConnError(ErrorCode::FrameSizeError, "a padded frame has no padding length"));
            }
            let Some(&length) = payload.first() else { return Ok(Step::More) };
            (prefix, padding) = (1, usize::from(length));
        }
        let Some(left) = header.length.checked_sub(prefix + padding) else {
            return Err(ConnError(ErrorCode::ProtocolError, "a frame is all padding, and more"));
        };
        if !self.receive.received(header.length) {
            return Err(ConnError(ErrorCode::FlowControlError, "more data than the connection's window allows"));
        }
        let is_last = header.has(flag::END_STREAM);
        if left == 0 && !is_last {
            self.spend_frame("empty DATA frames", service)?;
        }
        self.may_have_data(header, service)?;
        self.credit_connection(prefix + padding);
        self.credit_stream(header.stream, prefix + padding);
        self.data = Some(DataLeft { stream: header.stream, left, padding, is_last });
        if left == 0 {
            self.end_data(service);
        }
        Ok(Step::Used(HEADER_LENGTH + prefix))
    }

    /// Whether DATA may be on this stream. The rest of a stream that was reset is received and discarded.
    fn may_have_data(&mut self, header: &FrameHeader, service: &mut Service<'_>) -> Taken {
        let Some(stream) = self.streams.get_mut(&header.stream).filter(|stream| !stream.is_reset) else {
            return match self.closed.how(header.stream) {
                _ if header.stream > self.last => Err(ConnError(ErrorCode::ProtocolError, "DATA on an idle stream")),
                Some(How::ByUs) if self.closed.may_be_late(header.length) => Ok(()),
                Some(How::ByUs) => self.spend_frame("DATA frames on closed streams", service),
                _ => Err(ConnError(ErrorCode::StreamClosed, "DATA on a closed stream")),
            };
        };
        if stream.is_received() {
            return self.reset(header.stream, ErrorCode::StreamClosed, service);
        }
        if !stream.receive.received(header.length) {
            return self.reset(header.stream, ErrorCode::FlowControlError, service);
        }
        Ok(())
    }

    fn step_data(&mut self, data: DataLeft, rest: &[u8], service: &mut Service<'_>) -> Step {
        if rest.is_empty() && data.left + data.padding > 0 {
            return Step::More;
        }
        let (piece, behind) = rest.split_at(rest.len().min(data.left));
        let padding = behind.len().min(data.padding);
        let left = DataLeft { left: data.left - piece.len(), padding: data.padding - padding, ..data };
        self.data = Some(left).filter(|left| left.left + left.padding > 0);
        if !piece.is_empty() {
            self.body_data(data.stream, piece, service);
            if left.left == 0 && data.is_last {
                self.body_end(data.stream, None, service);
            }
        }
        Step::Used(piece.len() + padding)
    }

    /// A DATA frame without data.
    fn end_data(&mut self, service: &mut Service<'_>) {
        let Some(data) = self.data else { return };
        self.data = Some(data).filter(|data| data.padding > 0);
        if data.is_last {
            self.body_end(data.stream, None, service);
        }
    }

    /// The client has ended its input. It may still read.
    pub(super) fn input_ended(&mut self, is_broken: bool, service: &mut Service<'_>) {
        self.has_ended = true;
        self.input = Vec::new();
        let cut: Vec<u32> = self.streams.iter().filter(|(_, s)| !s.is_received()).map(|(id, _)| *id).collect();
        for stream in cut {
            self.drop_stream(stream, How::ByClient, Ending::Aborted, service);
        }
        self.hang_up_all();
        if !is_broken && self.is_busy() {
            // TCP tells only when something is sent whether the client has closed the connection or still reads.
            frame::push_ping(&mut self.out, false, *b"still-on");
        }
        if is_broken {
            self.end = Some(crate::io::over::Close::Abort);
        } else {
            self.look_for_end();
        }
    }
}

/// A stream cannot depend on itself (RFC 7540 section 5.3.1); priorities are otherwise ignored.
fn check_dependency(stream: u32, dependency: [u8; 4]) -> Taken {
    if u32::from_be_bytes(dependency) & frame::STREAM_MAX == stream {
        return Err(ConnError(ErrorCode::ProtocolError, "a stream depends on itself"));
    }
    Ok(())
}

impl SendWindow {
    /// Whether nothing may be sent.
    pub(super) fn is_closed(self) -> bool {
        self.open() == 0
    }
}
