//! A filter that decodes encodes to the same bytes and can be asked, and files of a cache never panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_nix::StoreDir;
use narval_nix::presence::{Changes, Filter, Snapshot};

fuzz_target!(|input: &[u8]| {
    let Some((key, file)) = input.split_first_chunk() else { return };
    let key = u64::from_le_bytes(*key);
    if let Ok(filter) = Filter::decode(file) {
        assert_eq!(filter.encode(), file);
        let _ = filter.contains(key);
    }
    let store_dir = StoreDir::default();
    if let Ok(snapshot) = Snapshot::parse(file, &store_dir, None) {
        assert_eq!(Snapshot::parse(&snapshot.render(&store_dir, []).unwrap(), &store_dir, None), Ok(snapshot));
    }
    if let Ok(changes) = Changes::parse(file, &store_dir, None) {
        assert_eq!(Changes::parse(&changes.render(&store_dir, []).unwrap(), &store_dir, None), Ok(changes));
    }
});
