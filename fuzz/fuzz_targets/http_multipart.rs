//! Forms: pieces decode as the whole does, and a form made of the decoded parts decodes to the same parts.

#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_http::codecs::multipart::{MultipartDecoder, MultipartEvent, MultipartLimits, boundary};

type Parts = Vec<(String, Option<String>, Vec<u8>)>;

const LIMITS: MultipartLimits = MultipartLimits { parts_max: 8, part_head_bytes_max: 256 };

fn in_pieces(form: &[u8], piece: usize) -> Result<Parts, ()> {
    let mut decoder = MultipartDecoder::new(b"B", LIMITS);
    let (mut found, mut start, mut end) = (Parts::new(), 0, 0);
    loop {
        let step = decoder.decode(&form[start..end], end == form.len()).map_err(|_| ())?;
        match step.event {
            MultipartEvent::NeedMore => {
                assert!(end - start - step.consumed < decoder.input_max());
                end = (end + piece).min(form.len());
            }
            MultipartEvent::Part(head) => found.push((head.name, head.filename, Vec::new())),
            MultipartEvent::Data(data) => {
                assert!(!data.is_empty() && data.len() <= step.consumed);
                found.last_mut().expect("in a part").2.extend_from_slice(data);
            }
            MultipartEvent::PartEnd => {}
            MultipartEvent::End => return Ok(found),
        }
        start += step.consumed;
    }
}

fn whole(form: &[u8]) -> Result<Parts, ()> {
    in_pieces(form, form.len())
}

fuzz_target!(|data: &[u8]| {
    let _ = boundary(data);
    let Some((&piece, form)) = data.split_first() else { return };
    let found = whole(form);
    assert_eq!(found, in_pieces(form, usize::from(piece) + 1));
    let Ok(found) = found else { return };
    assert!(found.len() <= LIMITS.parts_max);
    let mut again = Vec::new();
    for (_, _, data) in &found {
        assert!(!data.windows(5).any(|window| window == b"\r\n--B"));
        again.extend_from_slice(b"--B\r\nContent-Disposition: form-data; name=n\r\n\r\n");
        again.extend_from_slice(data);
        again.extend_from_slice(b"\r\n");
    }
    again.extend_from_slice(b"--B--");
    let again = whole(&again).expect("well-formed");
    assert!(again.iter().map(|part| &part.2).eq(found.iter().map(|part| &part.2)));
});
