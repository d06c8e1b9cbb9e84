//! The body of a commit is read as it was written, and anything else is refused.
#![no_main]

use std::io::Write;

use libfuzzer_sys::fuzz_target;
use narval_keep::read_commit;

fuzz_target!(|body: &[u8]| {
    let Ok(narinfos) = read_commit(body) else { return };
    let mut written = Vec::new();
    for (part, text) in &narinfos {
        write!(written, "{part} {}\n", text.len()).expect("memory");
        written.extend_from_slice(text);
    }
    write!(written, "end {}\n", narinfos.len()).expect("memory");
    assert_eq!(read_commit(&written).expect("what was read can be read again"), narinfos);
    // Only the notation of its numbers may differ.
    assert!(written.len() <= body.len());
    for cut in [0, body.len() / 2, body.len() - 1] {
        assert!(read_commit(&body[..cut]).is_err(), "a part of a commit is none");
    }
});
