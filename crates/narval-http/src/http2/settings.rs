//! Settings (RFC 9113 section 6.5): ours, and the client's.

use super::frame::ErrorCode;
use crate::limits::{HTTP2_STREAM_WINDOW, HTTP2_STREAMS_MAX};

const HEADER_TABLE_SIZE: u16 = 0x1;
const ENABLE_PUSH: u16 = 0x2;
const MAX_CONCURRENT_STREAMS: u16 = 0x3;
const INITIAL_WINDOW_SIZE: u16 = 0x4;
const MAX_FRAME_SIZE: u16 = 0x5;
const MAX_HEADER_LIST_SIZE: u16 = 0x6;
/// RFC 8441 section 3.
const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;

/// The largest flow-control window.
pub(crate) const WINDOW_MAX: i64 = (1 << 31) - 1;

/// The client's settings for what we send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerSettings {
    /// The initial window of each stream.
    pub(crate) initial_window: i64,
    /// The header table may be smaller than HPACK's initial 4096 bytes: the next block must announce that we use none.
    pub(crate) lowers_table: bool,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self { initial_window: 65_535, lowers_table: false }
    }
}

impl PeerSettings {
    /// Applies the payload of a SETTINGS frame, in order; unknown parameters are ignored.
    ///
    /// # Errors
    /// Connection errors.
    pub(crate) fn apply(&mut self, payload: &[u8]) -> Result<(), ErrorCode> {
        let (parameters, []) = payload.as_chunks::<6>() else { return Err(ErrorCode::FrameSizeError) };
        for &[i0, i1, v0, v1, v2, v3] in parameters {
            let value = u32::from_be_bytes([v0, v1, v2, v3]);
            match u16::from_be_bytes([i0, i1]) {
                HEADER_TABLE_SIZE => self.lowers_table |= value < 4096,
                ENABLE_PUSH if value > 1 => return Err(ErrorCode::ProtocolError),
                INITIAL_WINDOW_SIZE if i64::from(value) > WINDOW_MAX => return Err(ErrorCode::FlowControlError),
                INITIAL_WINDOW_SIZE => self.initial_window = i64::from(value),
                // We send no frame that is longer than the smallest maximum.
                MAX_FRAME_SIZE if !(1 << 14..1 << 24).contains(&value) => return Err(ErrorCode::ProtocolError),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The parameters that we send. `list_max`: the limit of header lists; `websockets`: whether extended CONNECT is offered.
pub(crate) fn ours(list_max: usize, websockets: bool) -> Vec<(u16, u32)> {
    let mut settings = vec![
        (MAX_CONCURRENT_STREAMS, HTTP2_STREAMS_MAX as u32),
        (INITIAL_WINDOW_SIZE, HTTP2_STREAM_WINDOW),
        (MAX_HEADER_LIST_SIZE, u32::try_from(list_max).unwrap_or(u32::MAX)),
    ];
    if websockets {
        settings.push((ENABLE_CONNECT_PROTOCOL, 1));
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(parameters: &[(u16, u32)]) -> Result<PeerSettings, ErrorCode> {
        let mut frame = Vec::new();
        super::super::frame::push_settings(&mut frame, parameters);
        let mut settings = PeerSettings::default();
        settings.apply(&frame[9..]).map(|()| settings)
    }

    #[test]
    fn rfc_9113_6_5_2_values_are_checked() {
        assert_eq!(applied(&[(4, 7), (4, 9), (99, 1)]).unwrap().initial_window, 9);
        assert!(applied(&[(1, 0)]).unwrap().lowers_table && !applied(&[(1, 9000)]).unwrap().lowers_table);
        assert_eq!(applied(&[(2, 2)]), Err(ErrorCode::ProtocolError));
        assert_eq!(applied(&[(4, 1 << 31)]), Err(ErrorCode::FlowControlError));
        for wrong in [16_383, 1 << 24] {
            assert_eq!(applied(&[(5, wrong)]), Err(ErrorCode::ProtocolError));
        }
        assert_eq!(PeerSettings::default().apply(&[0; 5]), Err(ErrorCode::FrameSizeError));
    }
}
