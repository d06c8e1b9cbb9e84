//! A content address that parses is written as a text that parses to the same value, and gives a path or an error.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use narval_nix::{ContentAddress, StoreDir, StorePath};

fuzz_target!(|text: &str| {
    if let Ok(address) = text.parse::<ContentAddress>() {
        assert_eq!(address.to_string().parse(), Ok(address));
        let (store_dir, name, none) = (StoreDir::default(), "name".parse().expect("valid"), BTreeSet::new());
        let path = address.store_path(&store_dir, &name, &none, false).expect("without references there is a path");
        assert!(address.names(&store_dir, &path, &none));
        let other = StorePath::parse("00bgd045z0d4icpbc2yyz4gx48ak44la-name").expect("valid");
        assert!(!address.names(&store_dir, &other, &none));
    }
});
