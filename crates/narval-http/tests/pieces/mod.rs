//! Bodies that come in pieces, for the tests over TLS.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use narval_http::{Body, BodySource, Event, EventOptions, FileRange, Fill, Response, SegmentBuf, header};

/// The length of the file that the tests serve.
pub(crate) const FILE_LENGTH: u32 = 3_000_000;

/// Bytes that depend on their offset.
pub(crate) fn content(length: u32) -> Vec<u8> {
    (0..length).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Framing and file ranges in turn, as a NAR stream has them.
pub(crate) struct Mixed {
    pub(crate) file: Arc<File>,
    pub(crate) left: u32,
    pub(crate) has_trailers: bool,
}

impl BodySource for Mixed {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        out.memory().extend_from_slice(b"<frame>");
        out.push_file(FileRange { file: self.file.clone(), offset: 1000, length: 1_500_000 });
        out.memory().extend_from_slice(b"</frame>");
        self.left -= 1;
        Ok(if self.left == 0 { Fill::Done } else { Fill::More })
    }

    fn trailers(&mut self) -> Vec<(header::HeaderName, header::HeaderValue)> {
        let trailer = (header::HeaderName::from_static("x-end"), header::HeaderValue::from_static("reached"));
        self.has_trailers.then_some(trailer).into_iter().collect()
    }
}

/// Three pieces of a digit each, written by another thread.
pub(crate) fn pushed() -> Body {
    let (body, mut writer) = Body::writer(None);
    std::thread::spawn(move || {
        for number in 0..3 {
            // Usually long enough for the connection to wait. The result is the same if it does not.
            std::thread::sleep(Duration::from_millis(20));
            writer.write_all(&vec![b'0' + number; 100_000]).unwrap();
            writer.flush().unwrap();
        }
        writer.finish().unwrap();
    });
    body
}

/// Three server-sent events, sent by another thread.
pub(crate) fn events() -> Response {
    let (response, events) = Response::events(EventOptions::default());
    std::thread::spawn(move || {
        for number in 0..3 {
            std::thread::sleep(Duration::from_millis(20));
            assert!(events.send(&Event::new(number.to_string())).is_accepted());
        }
    });
    response
}
