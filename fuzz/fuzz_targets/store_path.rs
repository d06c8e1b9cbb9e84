//! A name that parses is a safe base name, and is written the same way again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_nix::{StoreDir, StorePath, StorePathName};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(path) = StorePath::parse_bytes(bytes) {
        assert_eq!(path.base_name().as_bytes(), bytes);
        assert!(bytes.is_ascii() && !bytes.contains(&b'/') && !bytes.contains(&0) && bytes.len() <= 244);
        let name = StorePathName::parse(path.name()).expect("the name of a path is a name");
        assert_eq!(StorePath::from_parts(path.hash_part(), &name), path);
    }
    let store_dir = StoreDir::default();
    if let Ok(path) = store_dir.parse_bytes(bytes) {
        assert_eq!(store_dir.display(&path).to_string().as_bytes(), bytes);
    }
    if let Some(other) = std::str::from_utf8(bytes).ok().and_then(|text| StoreDir::parse_dir(text).ok()) {
        let path = StorePath::parse("00bgd045z0d4icpbc2yyz4gx48ak44la-a").expect("valid");
        assert_eq!(other.parse(&other.display(&path).to_string()), Ok(path));
    }
});
