//! Forms (`multipart/form-data`), read part by part as they arrive.

use std::io::{self, Read};

use crate::http1::multipart::{MultipartDecoder, MultipartEvent, MultipartLimits, PartHead, Step, boundary};
use crate::message::reject::Reject;
use crate::message::request::Request;

/// Bytes of a form that are in memory at a time.
const WINDOW: usize = 64 * 1024;

/// The parts of a form, as they arrive: however large the form is, only 64 KiB of it are in memory.
///
/// ```
/// use std::io::{copy, sink};
/// use narval_http::{Request, Router};
///
/// fn upload(mut request: Request) -> std::io::Result<String> {
///     let mut form = request.multipart()?;
///     let mut answer = String::new();
///     while let Some(mut part) = form.next_part()? {
///         let name = part.head().name.clone();
///         let bytes = copy(&mut part, &mut sink())?;
///         answer += &format!("{name}: {bytes} bytes\n");
///     }
///     Ok(answer)
/// }
///
/// let app = Router::new().post("/upload", upload).build()?;
/// # Ok::<(), narval_http::RouteError>(())
/// ```
#[derive(Debug)]
pub struct Multipart<R> {
    source: R,
    decoder: MultipartDecoder,
    window: Vec<u8>,
    /// The bytes of the window that are not consumed yet.
    start: usize,
    end: usize,
    at_end: bool,
    in_part: bool,
    finished: bool,
}

impl Request {
    /// Reads the body as a form, with the default [`MultipartLimits`].
    ///
    /// # Errors
    /// The request is not a form (415), or its boundary is missing or invalid (400).
    pub fn multipart(&mut self) -> Result<Multipart<impl Read + '_>, Reject> {
        let boundary = boundary(self.header_bytes("content-type").unwrap_or_default())?.to_vec();
        Ok(Multipart::new(self.body(), &boundary, MultipartLimits::default()))
    }
}

impl<R: Read> Multipart<R> {
    /// The parts of the form in `source`.
    pub fn new(source: R, boundary: &[u8], limits: MultipartLimits) -> Self {
        let decoder = MultipartDecoder::new(boundary, limits);
        let window = vec![0; WINDOW.max(decoder.input_max())];
        Self { source, decoder, window, start: 0, end: 0, at_end: false, in_part: false, finished: false }
    }

    /// Returns the next part; the unread rest of the previous one is skipped.
    ///
    /// # Errors
    /// Those of the source, and [`io::ErrorKind::InvalidData`] with a [`Reject`] for a malformed form. If a handler
    /// returns the error, the response is a 400.
    pub fn next_part(&mut self) -> io::Result<Option<PartReader<'_, R>>> {
        while !self.finished {
            let step = self.decode()?;
            match step {
                Found::Part(head) => {
                    self.in_part = true;
                    return Ok(Some(PartReader { form: self, head }));
                }
                Found::End => self.finished = true,
                Found::PartEnd => self.in_part = false,
                Found::Data(length) => self.start += length,
            }
        }
        Ok(None)
    }

    /// The next event. The bytes of `Data` are at the start of the unconsumed window.
    fn decode(&mut self) -> io::Result<Found> {
        loop {
            let input = self.window.get(self.start..self.end).unwrap_or_default();
            let Step { consumed, event } = self.decoder.decode(input, self.at_end).map_err(io::Error::from)?;
            let found = match event {
                MultipartEvent::Data(data) => {
                    self.start += consumed - data.len();
                    return Ok(Found::Data(data.len()));
                }
                MultipartEvent::Part(head) => Some(Found::Part(head)),
                MultipartEvent::PartEnd => Some(Found::PartEnd),
                MultipartEvent::End => Some(Found::End),
                MultipartEvent::NeedMore => None,
            };
            self.start += consumed;
            match found {
                Some(found) => return Ok(found),
                None => self.receive()?,
            }
        }
    }

    /// Reads more of the source into the window.
    fn receive(&mut self) -> io::Result<()> {
        self.window.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        // The window is larger than anything the decoder needs at once, so there is room.
        let received = self.source.read(self.window.get_mut(self.end..).unwrap_or_default())?;
        self.end += received;
        self.at_end = received == 0;
        Ok(())
    }
}

/// The result of [`Multipart::decode`]; like [`MultipartEvent`], without the borrow.
enum Found {
    Part(PartHead),
    Data(usize),
    PartEnd,
    End,
}

/// A part of a form; read it with [`Read`].
#[derive(Debug)]
pub struct PartReader<'a, R> {
    form: &'a mut Multipart<R>,
    head: PartHead,
}

impl<R> PartReader<'_, R> {
    /// Name, file name and field lines.
    pub fn head(&self) -> &PartHead {
        &self.head
    }
}

impl<R: Read> Read for PartReader<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if !self.form.in_part || out.is_empty() {
            return Ok(0);
        }
        let Found::Data(length) = self.form.decode()? else {
            self.form.in_part = false;
            return Ok(0);
        };
        let taken = length.min(out.len());
        let data = self.form.window.get(self.form.start..self.form.start + taken).unwrap_or_default();
        if let Some(out) = out.get_mut(..taken) {
            out.copy_from_slice(data);
        }
        // Data that was not taken is decoded again: the decoder is still within the part.
        self.form.start += taken;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::handler::Handler;
    use bytes::Bytes;
    use http::StatusCode;

    /// Gives one byte at a time.
    struct Trickle<'a>(&'a [u8]);

    impl Read for Trickle<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let taken = out.len().min(1);
            self.0.read(&mut out[..taken])
        }
    }

    fn form() -> Vec<u8> {
        let mut form = b"--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\none\r\n".to_vec();
        form.extend_from_slice(b"--B\r\nContent-Disposition: form-data; name=\"big\"; filename=\"f\"\r\n\r\n");
        form.extend((0..300_000_u32).map(|n| b"\r\n--C?"[n as usize % 6]));
        form.extend_from_slice(b"!\r\n--B\r\nContent-Disposition: form-data; name=\"c\"\r\n\r\n\r\n--B--\r\n");
        form
    }

    fn read_all<R: Read>(mut form: Multipart<R>) -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut parts = Vec::new();
        while let Some(mut part) = form.next_part()? {
            let mut data = Vec::new();
            part.read_to_end(&mut data)?;
            parts.push((part.head().name.clone(), data));
        }
        Ok(parts)
    }

    #[test]
    fn streams_what_is_there_whole() {
        let form = form();
        let limits = MultipartLimits::default();
        let whole = read_all(Multipart::new(form.as_slice(), b"B", limits)).expect("well-formed");
        assert_eq!(whole.len(), 3);
        assert_eq!(whole[1].1.len(), 300_001);
        assert_eq!(read_all(Multipart::new(Trickle(&form), b"B", limits)).expect("well-formed"), whole);
    }

    #[test]
    fn parts_can_be_passed_over() {
        let form = "--B\r\nContent-Disposition: form-data; name=a\r\n\r\nskip me\r\n\
                    --B\r\nContent-Disposition: form-data; name=b\r\n\r\nread me\r\n--B--";
        let mut parts = Multipart::new(form.as_bytes(), b"B", MultipartLimits::default());
        let mut first = [0; 2];
        parts.next_part().expect("fine").expect("first").read_exact(&mut first).expect("fine");
        let mut second = parts.next_part().expect("fine").expect("second");
        let mut text = String::new();
        second.read_to_string(&mut text).expect("text");
        assert_eq!(text, "read me");
        assert_eq!(second.read(&mut first).expect("at the end"), 0);
        assert!(parts.next_part().expect("fine").is_none());
        assert!(parts.next_part().expect("fine").is_none());
    }

    #[test]
    fn a_malformed_form_is_answered_400() {
        fn count(mut request: Request) -> io::Result<String> {
            let mut form = request.multipart()?;
            let mut count = 0;
            while form.next_part()?.is_some() {
                count += 1;
            }
            Ok(count.to_string())
        }
        let answer = |content_type: &str, body: &'static str| {
            let head = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Type: {content_type}\r\n\r\n");
            count.handle(Request::parse(head, Bytes::from(body)).expect("well-formed"))
        };
        let form = "--B\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n--B--";
        assert_eq!(answer("multipart/form-data; boundary=B", form).body_bytes(), "1");
        let status = |content_type, body| answer(content_type, body).status();
        assert_eq!(status("multipart/form-data; boundary=B", "--B\r\n"), StatusCode::BAD_REQUEST);
        assert_eq!(status("multipart/form-data; boundary=C", form), StatusCode::BAD_REQUEST);
        assert_eq!(status("text/plain", form), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
}
