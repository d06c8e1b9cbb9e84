//! Paths and queries are decoded once, and file paths never leave their folder.

#![no_main]

use std::path::Component;

use libfuzzer_sys::fuzz_target;
use narval_http::semantics::path::{FilePath, percent_decode, percent_decode_text, query_pairs};

fuzz_target!(|text: &str| {
    if let Ok(decoded) = percent_decode(text) {
        assert_eq!(text.len() - decoded.len(), 2 * text.matches('%').count());
        assert_eq!(percent_decode_text(text).is_ok(), std::str::from_utf8(&decoded).is_ok());
    }
    if let Ok(path) = FilePath::decode(text) {
        assert!(path.relative().components().all(|part| matches!(part, Component::Normal(_))));
        assert!(!path.relative().as_os_str().as_encoded_bytes().contains(&0));
        assert!(path.relative().is_relative());
    }
    assert!(query_pairs(text).count() <= text.split('&').count());
});
