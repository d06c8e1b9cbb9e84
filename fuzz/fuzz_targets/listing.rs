//! A listing that parses is written as a text that parses to the same value; names and depth are those of a NAR.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_nix::listing::{Listing, Node};

fn check(node: &Node, depth: usize) {
    assert!(depth < 64);
    if let Node::Directory(entries) = node {
        for (name, node) in entries {
            assert!(!name.is_empty() && !name.contains(&b'/') && !name.contains(&0) && **name != *b"..");
            check(node, depth + 1);
        }
    }
}

fuzz_target!(|input: &[u8]| {
    if let Ok(listing) = Listing::parse(input) {
        check(&listing.root, 0);
        let json = listing.to_json().expect("what was JSON is UTF-8");
        assert_eq!(Listing::parse(json.as_bytes()).as_ref(), Ok(&listing));
        let _ = listing.get(input);
    }
    if let Ok(listing) = Listing::of_nar(input) {
        check(&listing.root, 0);
        if let Ok(json) = listing.to_json() {
            assert_eq!(Listing::parse(json.as_bytes()), Ok(listing));
        }
    }
});
