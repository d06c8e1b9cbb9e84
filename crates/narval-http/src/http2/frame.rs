//! Frames (RFC 9113 sections 4 and 6): parses and encodes headers, and encodes small frames as a whole.

/// Length of a frame's header.
pub(crate) const HEADER_LENGTH: usize = 9;

/// The largest payload that we accept: the initial SETTINGS_MAX_FRAME_SIZE, which we do not raise. A frame with its
/// header is then little more than a TLS record.
pub(crate) const PAYLOAD_MAX: usize = 1 << 14;

/// The connection preface of a client (RFC 9113 section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The largest stream identifier.
pub(crate) const STREAM_MAX: u32 = (1 << 31) - 1;

/// Type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Data,
    Headers,
    Priority,
    Reset,
    Settings,
    PushPromise,
    Ping,
    GoAway,
    WindowUpdate,
    Continuation,
    /// Any other: ignored.
    Unknown,
}

/// Flags of frames; which of them apply depends on the type.
pub(crate) mod flag {
    /// Of SETTINGS and PING.
    pub(crate) const ACK: u8 = 0x1;
    /// Of DATA and HEADERS.
    pub(crate) const END_STREAM: u8 = 0x1;
    /// Of HEADERS and CONTINUATION.
    pub(crate) const END_HEADERS: u8 = 0x4;
    /// Of DATA and HEADERS.
    pub(crate) const PADDED: u8 = 0x8;
    /// Of HEADERS.
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// Error codes (RFC 9113 section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorCode {
    NoError = 0x0,
    ProtocolError = 0x1,
    InternalError = 0x2,
    FlowControlError = 0x3,
    SettingsTimeout = 0x4,
    StreamClosed = 0x5,
    FrameSizeError = 0x6,
    RefusedStream = 0x7,
    Cancel = 0x8,
    CompressionError = 0x9,
    EnhanceYourCalm = 0xb,
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Bytes of the payload.
    pub(crate) length: usize,
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    /// 0 for the connection.
    pub(crate) stream: u32,
}

impl FrameHeader {
    /// Parses a header at the start of `input`; `None` if it is not complete.
    pub(crate) fn read(input: &[u8]) -> Option<Self> {
        let &[l0, l1, l2, kind, flags, s0, s1, s2, s3] = input.first_chunk::<HEADER_LENGTH>()?;
        let kind = match kind {
            0x0 => Kind::Data,
            0x1 => Kind::Headers,
            0x2 => Kind::Priority,
            0x3 => Kind::Reset,
            0x4 => Kind::Settings,
            0x5 => Kind::PushPromise,
            0x6 => Kind::Ping,
            0x7 => Kind::GoAway,
            0x8 => Kind::WindowUpdate,
            0x9 => Kind::Continuation,
            _ => Kind::Unknown,
        };
        // The reserved bit is ignored (section 4.1).
        let stream = u32::from_be_bytes([s0, s1, s2, s3]) & STREAM_MAX;
        Some(Self { length: u32::from_be_bytes([0, l0, l1, l2]) as usize, kind, flags, stream })
    }

    /// The encoded header.
    pub(crate) fn to_bytes(self) -> [u8; HEADER_LENGTH] {
        let [_, l0, l1, l2] = (self.length as u32).to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        let kind = match self.kind {
            Kind::Data => 0x0,
            Kind::Headers => 0x1,
            Kind::Priority => 0x2,
            Kind::Reset => 0x3,
            Kind::Settings => 0x4,
            Kind::PushPromise => 0x5,
            Kind::Ping => 0x6,
            Kind::GoAway => 0x7,
            Kind::WindowUpdate => 0x8,
            Kind::Continuation => 0x9,
            Kind::Unknown => 0xff,
        };
        [l0, l1, l2, kind, self.flags, s0, s1, s2, s3]
    }

    /// Whether `flag` is set.
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The header of a DATA frame.
pub(crate) fn data_header(stream: u32, length: usize, is_last: bool) -> [u8; HEADER_LENGTH] {
    let flags = if is_last { flag::END_STREAM } else { 0 };
    FrameHeader { length, kind: Kind::Data, flags, stream }.to_bytes()
}

fn push(out: &mut Vec<u8>, kind: Kind, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&FrameHeader { length: payload.len(), kind, flags, stream }.to_bytes());
    out.extend_from_slice(payload);
}

/// Appends a header block as HEADERS and, if it exceeds a frame, CONTINUATION frames.
pub(crate) fn push_headers(out: &mut Vec<u8>, stream: u32, block: &[u8], is_last: bool) {
    let end_stream = if is_last { flag::END_STREAM } else { 0 };
    let (first, mut rest) = block.split_at(block.len().min(PAYLOAD_MAX));
    let end_headers = |rest: &[u8]| if rest.is_empty() { flag::END_HEADERS } else { 0 };
    push(out, Kind::Headers, end_stream | end_headers(rest), stream, first);
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rest.len().min(PAYLOAD_MAX));
        push(out, Kind::Continuation, end_headers(behind), stream, piece);
        rest = behind;
    }
}

/// Appends a SETTINGS frame with these parameters.
pub(crate) fn push_settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    let payload: Vec<u8> =
        settings.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()[..]].concat()).collect();
    push(out, Kind::Settings, 0, 0, &payload);
}

/// Appends the acknowledgement of SETTINGS.
pub(crate) fn push_settings_ack(out: &mut Vec<u8>) {
    push(out, Kind::Settings, flag::ACK, 0, &[]);
}

/// Appends a PING, or (`ack`) the answer to one.
pub(crate) fn push_ping(out: &mut Vec<u8>, ack: bool, payload: [u8; 8]) {
    push(out, Kind::Ping, if ack { flag::ACK } else { 0 }, 0, &payload);
}

/// Appends a RST_STREAM.
pub(crate) fn push_reset(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    push(out, Kind::Reset, 0, stream, &(code as u32).to_be_bytes());
}

/// Appends a WINDOW_UPDATE; `stream` 0 is the connection.
pub(crate) fn push_window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    push(out, Kind::WindowUpdate, 0, stream, &increment.to_be_bytes());
}

/// Appends a GOAWAY: no stream after `last` was or will be handled.
pub(crate) fn push_go_away(out: &mut Vec<u8>, last: u32, code: ErrorCode) {
    let payload = [last.to_be_bytes(), (code as u32).to_be_bytes()].concat();
    push(out, Kind::GoAway, 0, 0, &payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_are_written() {
        for kind in [Kind::Data, Kind::Headers, Kind::Reset, Kind::Settings, Kind::Ping, Kind::Continuation] {
            let header = FrameHeader { length: 0x01_02_03, kind, flags: 5, stream: STREAM_MAX };
            assert_eq!(FrameHeader::read(&header.to_bytes()), Some(header));
        }
        assert_eq!(FrameHeader::read(&[0; 8]), None);
        // The reserved bit, and an unknown type.
        let header = FrameHeader::read(&[0, 0, 0, 0x42, 0, 0x80, 0, 0, 7]).unwrap();
        assert_eq!((header.kind, header.stream), (Kind::Unknown, 7));
    }

    #[test]
    fn a_long_header_block_is_continued() {
        for length in [0, 1, PAYLOAD_MAX, PAYLOAD_MAX + 1, 3 * PAYLOAD_MAX] {
            let block: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let mut out = Vec::new();
            push_headers(&mut out, 3, &block, true);
            let (mut rest, mut joined, mut ends) = (&out[..], Vec::new(), Vec::new());
            while let Some(header) = FrameHeader::read(rest) {
                assert_eq!(header.kind, if ends.is_empty() { Kind::Headers } else { Kind::Continuation });
                assert_eq!(header.has(flag::END_STREAM), ends.is_empty());
                joined.extend_from_slice(&rest[HEADER_LENGTH..HEADER_LENGTH + header.length]);
                ends.push(header.has(flag::END_HEADERS));
                rest = &rest[HEADER_LENGTH + header.length..];
            }
            assert_eq!(joined, block);
            assert_eq!(ends.pop(), Some(true));
            assert!(ends.iter().all(|end| !end) && ends.len() == length.max(1).div_ceil(PAYLOAD_MAX) - 1);
        }
    }
}
