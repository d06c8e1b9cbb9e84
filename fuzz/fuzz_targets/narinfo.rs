//! A narinfo that parses is written as a text that parses to the same value.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_nix::{NarInfo, StoreDir};

fuzz_target!(|text: &[u8]| {
    let store_dir = StoreDir::default();
    if let Ok(info) = NarInfo::parse(text, &store_dir) {
        let again = info.render(&store_dir);
        assert_eq!(NarInfo::parse(again.as_bytes(), &store_dir).as_ref(), Ok(&info));
        assert_eq!(NarInfo::parse(again.as_bytes(), &store_dir).map(|info| info.render(&store_dir)), Ok(again));
        let _ = info.fingerprint(&store_dir);
        let _ = info.path_info(0).check_by_contents(&store_dir);
    }
});
