//! Any split of the input gives the same events or the same error, and a decoded NAR encodes to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_nix::nar::{Decoder, Encoder, Event, NarError};

/// Decodes in pieces whose lengths cycle through `lens`, and encodes the events.
fn recode(nar: &[u8], lens: &[u8], size: Option<u64>) -> Result<Vec<u8>, NarError> {
    let mut decoder = size.map_or_else(Decoder::new, Decoder::with_nar_size);
    let (mut encoder, mut out) = (Encoder::new(), Vec::new());
    let mut at = 0;
    for len in lens.iter().cycle() {
        if at == nar.len() {
            break;
        }
        let end = nar.len().min(at + usize::from(*len) + 1);
        let mut input = &nar[at..end];
        at = end;
        loop {
            let (used, event) = decoder.next(input)?;
            let Some(event) = event else { break };
            if let Event::Entry { name } = event {
                assert!(
                    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
                );
            }
            encoder.push(event, &mut out).expect("what is decoded can be encoded");
            input = &input[used..];
        }
    }
    decoder.finish()?;
    encoder.finish().expect("what is decoded can be encoded");
    assert_eq!(out, nar);
    Ok(out)
}

fuzz_target!(|input: &[u8]| {
    let Some((first, nar)) = input.split_first() else { return };
    let whole = recode(nar, &[255], None);
    assert_eq!(recode(nar, &[0], None), whole);
    assert_eq!(recode(nar, &[*first, 7, 200], None), whole);
    if whole.is_ok() {
        let size = nar.len() as u64;
        assert!(recode(nar, &[*first], Some(size)).is_ok());
        assert!(recode(nar, &[*first], Some(size - 1)).is_err());
        assert!(recode(nar, &[*first], Some(size + 1)).is_err());
    }
});
