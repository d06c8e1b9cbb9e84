use proptest::prelude::*;

use super::*;
use crate::nar::{DEPTH_MAX, Encoder, Event, Rule};

/// What Nix 2.34.8 wrote for a directory of an executable `bar`, empty directories and a symlink.
const BY_NIX: &str = r#"{"root":{"entries":{"bar":{"executable":true,"narOffset":264,"size":4,"type":"regular"},"d":{"entries":{},"type":"directory"},"empty":{"entries":{},"type":"directory"},"link":{"target":"xyzzy","type":"symlink"},"zero":{"narOffset":984,"size":0,"type":"regular"}},"type":"directory"},"version":1}"#;

fn nar(events: &[Event<'_>]) -> Vec<u8> {
    let (mut encoder, mut out) = (Encoder::new(), Vec::new());
    events.iter().for_each(|event| encoder.push(*event, &mut out).unwrap());
    encoder.finish().unwrap();
    out
}

fn root(json: &str) -> Result<Listing, ListingError> {
    Listing::parse(format!("{{\"version\":1,\"root\":{json}}}").as_bytes())
}

#[test]
fn as_nix_writes_it() {
    let nar = nar(&[
        Event::Directory,
        Event::Entry { name: b"bar" },
        Event::Regular { executable: true, size: 4 },
        Event::Contents(b"foo\n"),
        Event::EndRegular,
        Event::Entry { name: b"d" },
        Event::Directory,
        Event::EndDirectory,
        Event::Entry { name: b"empty" },
        Event::Directory,
        Event::EndDirectory,
        Event::Entry { name: b"link" },
        Event::Symlink { target: b"xyzzy" },
        Event::Entry { name: b"zero" },
        Event::Regular { executable: false, size: 0 },
        Event::EndRegular,
        Event::EndDirectory,
    ]);
    let listing = Listing::of_nar(&nar).unwrap();
    assert_eq!(listing.to_json().unwrap(), BY_NIX);
    assert_eq!(Listing::parse(BY_NIX.as_bytes()), Ok(listing));
}

#[test]
fn paths() {
    let json = r#"{"type":"directory","entries":{"a":{"type":"directory","entries":{"b":{"type":"regular","size":1}}},"l":{"type":"symlink","target":"a"}}}"#;
    let listing = root(json).unwrap();
    let expected = Node::Regular { executable: false, size: 1, nar_offset: None };
    for path in ["a/b", "/a/b", "a//b/"] {
        assert_eq!(listing.get(path.as_bytes()), Some(&expected));
    }
    for path in ["b", "a/b/c", "l/b", ".", "..", "a/../a"] {
        assert_eq!(listing.get(path.as_bytes()), None);
    }
    assert_eq!(listing.get(b""), Some(&listing.root));
    assert_eq!(listing.get(b"/"), Some(&listing.root));
}

#[test]
fn names_that_are_not_utf8() {
    let events = [Event::Entry { name: b"d" }, Event::Directory, Event::Entry { name: b"\xffa" }];
    let ends = [Event::Symlink { target: b"t" }, Event::EndDirectory, Event::EndDirectory];
    let listing = Listing::of_nar(&nar(&[&[Event::Directory][..], &events, &ends].concat())).unwrap();
    assert_eq!(listing.to_json(), Err(ListingError::NotUtf8 { path: "d/\u{fffd}a".into() }));
    let link = Listing::of_nar(&nar(&[Event::Symlink { target: b"\xff" }])).unwrap();
    assert!(matches!(link.to_json(), Err(ListingError::NotUtf8 { .. })));
}

#[test]
fn refused() {
    for bad in [
        r#"{}"#,
        r#"{"type":"fifo"}"#,
        r#"{"type":"regular"}"#,
        r#"{"type":"regular","size":-1}"#,
        r#"{"type":"regular","size":9223372036854775808}"#,
        r#"{"type":"regular","size":1,"size":2}"#,
        r#"{"type":"symlink"}"#,
        r#"{"type":"symlink","target":""}"#,
        r#"{"type":"symlink","target":"a\u0000"}"#,
        r#"{"type":"directory"}"#,
        r#"{"type":"directory","entries":[]}"#,
        r#"{"type":"directory","entries":{"..":{"type":"symlink","target":"a"}}}"#,
        r#"{"type":"directory","entries":{"a/b":{"type":"symlink","target":"a"}}}"#,
        r#"{"type":"directory","entries":{"":{"type":"symlink","target":"a"}}}"#,
        r#"{"type":"directory","entries":{"\ud800":{"type":"symlink","target":"a"}}}"#,
        r#"{"type":"directory","entries":{"a":{"type":"symlink","target":"a"},"a":{"type":"symlink","target":"b"}}}"#,
        "null",
        "",
    ] {
        assert!(matches!(root(bad), Err(ListingError::Json(_))), "{bad}");
    }
    for bad in [r#"{"version":2,"root":{"type":"symlink","target":"a"}}"#, r#"{"version":1}"#, "[]", ""] {
        assert!(matches!(Listing::parse(bad.as_bytes()), Err(ListingError::Json(_))), "{bad}");
    }
    let trailing = format!("{BY_NIX} x");
    assert!(matches!(Listing::parse(trailing.as_bytes()), Err(ListingError::Json(_))));
    assert!(matches!(Listing::of_nar(b""), Err(ListingError::Nar(error)) if error.rule == Rule::Truncated));
}

#[test]
fn unknown_keys_are_ignored_however_deep() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    root(&format!(r#"{{"type":"symlink","target":"a","x":{deep}}}"#)).unwrap();
}

#[test]
fn depth() {
    let nested = |depth: usize| {
        let mut json = r#"{"type":"directory","entries":{"d":"#.repeat(depth - 1);
        json.push_str(r#"{"type":"symlink","target":"t"}"#);
        json.push_str(&"}}".repeat(depth - 1));
        root(&json)
    };
    let listing = nested(DEPTH_MAX).unwrap();
    assert_eq!(Listing::parse(listing.to_json().unwrap().as_bytes()), Ok(listing));
    assert!(nested(DEPTH_MAX + 1).is_err());
    assert!(nested(100_000).is_err());
}

fn any_node() -> impl Strategy<Value = Node> {
    let leaf = prop_oneof![
        (any::<bool>(), 0..FILE_SIZES, proptest::option::of(any::<u64>()))
            .prop_map(|(executable, size, nar_offset)| Node::Regular { executable, size, nar_offset }),
        "[^\0]{1,20}".prop_map(|target| Node::Symlink { target: target.into_bytes().into() }),
    ];
    leaf.prop_recursive(4, 30, 5, |inner| {
        let name = "[^\0/.]{1,10}".prop_map(|name| name.into_bytes().into_boxed_slice());
        proptest::collection::btree_map(name, inner, 0..5).prop_map(Node::Directory)
    })
}

const FILE_SIZES: u64 = i64::MAX as u64;

proptest! {
    #[test]
    fn round_trip(root in any_node()) {
        let listing = Listing { root };
        prop_assert_eq!(Listing::parse(listing.to_json().unwrap().as_bytes()), Ok(listing));
    }
}
