//! A release that parses is written as JSON that parses to the same value, and has one canonical text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_nix::Release;

fuzz_target!(|json: &[u8]| {
    if let Ok(release) = Release::parse(json) {
        let again = Release::parse(release.to_json().as_bytes());
        assert_eq!(again.as_ref().map(Release::signed_text), Ok(release.signed_text()));
        assert_eq!(again, Ok(release));
    }
});
