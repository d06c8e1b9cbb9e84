//! `Range` fields: selected ranges lie inside the representation and are bounded in number.

#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_http::semantics::range::{ByteRange, MultipartRanges, RANGES_MAX, Selection, select};

fuzz_target!(|data: &[u8]| {
    let Some((size, value)) = data.split_first_chunk::<8>() else { return };
    // Small sizes are the interesting ones, and every one of them must work.
    let size = u64::from_le_bytes(*size) >> (size[7] & 63);
    let inside = |range: &ByteRange| range.length > 0 && range.length <= size && range.start <= size - range.length;
    match select(value, size) {
        Selection::Whole | Selection::Unsatisfiable => {}
        Selection::Single(range) => {
            assert!(inside(&range));
            assert!(range.content_range(size).to_str().expect("ASCII").ends_with(&format!("/{size}")));
        }
        Selection::Several(ranges) => {
            assert!((2..=RANGES_MAX).contains(&ranges.len()) && ranges.iter().all(inside));
            let bytes: u64 = ranges.iter().map(|range| range.length).sum();
            assert!(bytes <= size);
            if bytes < u64::MAX / 2 {
                assert!(MultipartRanges::new(ranges, size, None).content_length() > bytes);
            }
        }
    }
});
