use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::hash::Sha256;

/// A tree as a NAR has it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Tree {
    File { executable: bool, contents: Vec<u8> },
    Link(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, Tree>),
}

fn file(contents: &[u8]) -> Tree {
    Tree::File { executable: false, contents: contents.to_vec() }
}

fn link(target: &[u8]) -> Tree {
    Tree::Link(target.to_vec())
}

fn directory<const N: usize>(entries: [(&[u8], Tree); N]) -> Tree {
    Tree::Directory(entries.into_iter().map(|(name, tree)| (name.to_vec(), tree)).collect())
}

impl Tree {
    fn encode(&self) -> Vec<u8> {
        let (mut encoder, mut out) = (Encoder::new(), Vec::new());
        self.push(&mut encoder, &mut out);
        encoder.finish().unwrap();
        assert_eq!(encoder.offset(), out.len() as u64);
        assert_eq!(wire::nar_len(self.len()), out.len() as u64);
        out
    }

    fn push(&self, encoder: &mut Encoder, out: &mut Vec<u8>) {
        let mut push = |event| encoder.push(event, out).unwrap();
        match self {
            Self::File { executable, contents } => {
                push(Event::Regular { executable: *executable, size: contents.len() as u64 });
                contents.chunks(7).for_each(|piece| push(Event::Contents(piece)));
                push(Event::EndRegular);
            }
            Self::Link(target) => push(Event::Symlink { target }),
            Self::Directory(entries) => {
                push(Event::Directory);
                for (name, tree) in entries {
                    encoder.push(Event::Entry { name }, out).unwrap();
                    tree.push(encoder, out);
                }
                encoder.push(Event::EndDirectory, out).unwrap();
            }
        }
    }

    /// The size by arithmetic alone.
    fn len(&self) -> u64 {
        let close = wire::CLOSE.len() as u64;
        match self {
            Self::File { executable, contents } => {
                wire::regular_head_len(*executable) + wire::padded_len(contents.len() as u64) + close
            }
            Self::Link(target) => wire::symlink_len(target.len() as u64),
            Self::Directory(entries) => {
                let entry =
                    |(name, tree): (&Vec<u8>, &Tree)| wire::entry_head_len(name.len() as u64) + tree.len() + close;
                wire::DIRECTORY.len() as u64 + entries.iter().map(entry).sum::<u64>() + close
            }
        }
    }
}

/// An event that owns what it holds; the pieces of contents joined.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Owned {
    Contents(Vec<u8>),
    Name(Vec<u8>),
    Target(Vec<u8>),
    Other(Event<'static>),
}

fn decode_with(
    mut decoder: Decoder,
    pieces: impl IntoIterator<Item = impl AsRef<[u8]>>,
) -> Result<Vec<Owned>, NarError> {
    let mut events = Vec::new();
    for piece in pieces {
        let mut input = piece.as_ref();
        loop {
            let (used, event) = decoder.next(input)?;
            match event {
                None => {
                    assert_eq!(used, input.len(), "without an event all input is used");
                    break;
                }
                Some(Event::Contents(more)) => {
                    assert!(!more.is_empty());
                    match events.last_mut() {
                        Some(Owned::Contents(contents)) => contents.extend_from_slice(more),
                        _ => events.push(Owned::Contents(more.to_vec())),
                    }
                }
                Some(Event::Entry { name }) => events.push(Owned::Name(name.to_vec())),
                Some(Event::Symlink { target }) => events.push(Owned::Target(target.to_vec())),
                Some(Event::Regular { executable, size }) => {
                    events.push(Owned::Other(Event::Regular { executable, size }));
                }
                Some(Event::EndRegular) => events.push(Owned::Other(Event::EndRegular)),
                Some(Event::Directory) => events.push(Owned::Other(Event::Directory)),
                Some(Event::EndDirectory) => events.push(Owned::Other(Event::EndDirectory)),
            }
            input = &input[used..];
        }
    }
    decoder.finish()?;
    Ok(events)
}

fn decode(nar: &[u8]) -> Result<Vec<Owned>, NarError> {
    let whole = decode_with(Decoder::new(), [nar]);
    // Every split finds the same events, or the same fault.
    assert_eq!(decode_with(Decoder::new(), nar.chunks(1)), whole);
    whole
}

fn fault(nar: &[u8]) -> (u64, Rule) {
    let error = decode(nar).unwrap_err();
    (error.offset, error.rule)
}

/// A NAR from strings, each framed, as the grammar has it: for NARs that the encoder refuses to make.
fn strings(strings: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    strings.iter().for_each(|string| wire::push_str(&mut out, string));
    out
}

/// The strings of an empty file as an entry of a directory.
fn entry(name: &[u8]) -> Vec<&[u8]> {
    vec![b"entry", b"(", b"name", name, b"node", b"(", b"type", b"regular", b"contents", b"", b")", b")"]
}

/// A directory of empty files with these names, in this order.
fn directory_of(names: &[&[u8]]) -> Vec<u8> {
    let mut all: Vec<&[u8]> = vec![b"nix-archive-1", b"(", b"type", b"directory"];
    names.iter().for_each(|name| all.extend(entry(name)));
    all.push(b")");
    strings(&all)
}

/// Where the first name of [`directory_of`] is.
const FIRST_NAME: u64 = (wire::HEAD.len() + wire::DIRECTORY.len() + wire::ENTRY.len() + 8) as u64;

fn nested(depth: usize) -> Vec<u8> {
    let mut all: Vec<&[u8]> = vec![b"nix-archive-1", b"(", b"type"];
    for _ in 1..depth {
        all.extend([&b"directory"[..], b"entry", b"(", b"name", b"d", b"node", b"(", b"type"]);
    }
    all.extend([&b"symlink"[..], b"target", b"t", b")"]);
    for _ in 1..depth {
        all.extend([&b")"[..], b")"]);
    }
    strings(&all)
}

#[test]
fn golden_vectors() {
    let tree = directory([(b"bar", file(b"foo\n")), (b"link", link(b"xyzzy"))]);
    let executable = Tree::File { executable: true, contents: b"hi\n".to_vec() };
    for (tree, size, hash) in [
        (file(b""), 112, "0ip26j2h11n1kgkz36rl4akv694yz65hr72q4kv4b3lxcbi65b3p"),
        (executable, 152, "19qdn6jdp9i45l6wvas7q9cljnjp1kgm84a9ci9pd247ncdcwnxm"),
        (link(b"foo"), 120, "0kw8hbg9msr3l50k3kd52h295n0j17p4v4qawjfppba1spwg9c9p"),
        (directory([]), 96, "0sjjj9z1dhilhpc8pq4154czrb79z9cm044jvn75kxcjv6v5l2m5"),
        (tree, 480, "13qyb0yiqm0lwbvcxyd86wrmj468vggaymza21s4fv64bf4p8n7j"),
    ] {
        let nar = tree.encode();
        assert_eq!((nar.len(), Sha256::of(&nar).to_nix32().as_str()), (size, hash));
        decode(&nar).unwrap();
    }
}

#[test]
fn offset_of_contents() {
    let nar = directory([(b"bar", file(b"foo\n"))]).encode();
    let mut decoder = Decoder::new();
    let mut at = 0;
    loop {
        let (used, event) = decoder.next(&nar[at..]).unwrap();
        let begins = matches!(event, Some(Event::Regular { .. }));
        at += used;
        if begins {
            break;
        }
    }
    assert_eq!((decoder.offset(), &nar[at..at + 4]), (232, &b"foo\n"[..]));
}

#[test]
fn contents_are_borrowed_from_the_input() {
    let nar = file(&[b'x'; 1000]).encode();
    let mut decoder = Decoder::new();
    let (used, _) = decoder.next(&nar).unwrap();
    let (_, event) = decoder.next(&nar[used..]).unwrap();
    let Some(Event::Contents(contents)) = event else { panic!("{event:?}") };
    assert_eq!((contents.as_ptr(), contents.len()), (nar[used..].as_ptr(), 1000));
}

#[test]
fn every_prefix_is_cut_off() {
    let nar = directory([(b"a", file(b"foo\n")), (b"b", link(b"xyzzy")), (b"c", directory([]))]).encode();
    for len in 0..nar.len() {
        assert_eq!(fault(&nar[..len]), (len as u64, Rule::Truncated));
    }
}

#[test]
fn every_changed_byte_is_found_or_changes_an_event() {
    let nar = directory([(b"a", file(b"foo\n")), (b"b", link(b"xyzzy")), (b"c", directory([]))]).encode();
    let events = decode(&nar).unwrap();
    for index in 0..nar.len() {
        for flip in [1, 0x20, 0x80] {
            let mut changed = nar.clone();
            changed[index] ^= flip;
            assert_ne!(decode(&changed).as_ref(), Ok(&events), "byte {index}");
        }
    }
}

#[test]
fn trailing_bytes() {
    let mut nar = file(b"").encode();
    nar.push(0);
    assert_eq!(fault(&nar), (112, Rule::Trailing));
}

#[test]
fn cve_2024_45593_duplicate_names() {
    assert_eq!(fault(&directory_of(&[b"a", b"a"])).1, Rule::NameDuplicate);
    // The symlink and the directory that would be written through it.
    let mut all: Vec<&[u8]> = vec![b"nix-archive-1", b"(", b"type", b"directory"];
    all.extend([
        &b"entry"[..],
        b"(",
        b"name",
        b"a",
        b"node",
        b"(",
        b"type",
        b"symlink",
        b"target",
        b"/etc",
        b")",
        b")",
    ]);
    all.extend([&b"entry"[..], b"(", b"name", b"a", b"node", b"(", b"type", b"directory"]);
    all.extend(entry(b"passwd"));
    all.extend([&b")"[..], b")", b")"]);
    assert_eq!(fault(&strings(&all)).1, Rule::NameDuplicate);
}

#[test]
fn cve_2026_44028_depth() {
    decode(&nested(DEPTH_MAX)).unwrap();
    assert_eq!(fault(&nested(DEPTH_MAX + 1)).1, Rule::Depth);
    assert_eq!(fault(&nested(100_000)).1, Rule::Depth);
}

#[test]
fn names_that_leave_the_directory() {
    for (name, rule) in [
        (&b""[..], Rule::NameEmpty),
        (b".", Rule::NameDots),
        (b"..", Rule::NameDots),
        (b"/", Rule::NameSlash),
        (b"a/b", Rule::NameSlash),
        (b"../a", Rule::NameSlash),
        (b"a\0b", Rule::NameNul),
        (b"\0", Rule::NameNul),
    ] {
        assert_eq!(fault(&directory_of(&[name])), (FIRST_NAME, rule), "{name:?}");
    }
    for name in [&b"..."[..], b".a", b"..a", b"\xff\xfe", b"a~nix~case~hack~1", b"~nix~case~hack~", b" ", b"\n"] {
        decode(&directory_of(&[name])).unwrap();
    }
}

#[test]
fn order_of_names() {
    assert_eq!(fault(&directory_of(&[b"b", b"a"])).1, Rule::NameOrder);
    assert_eq!(fault(&directory_of(&[b"ab", b"a"])).1, Rule::NameOrder);
    assert_eq!(fault(&directory_of(&[b"\xff", b"a"])).1, Rule::NameOrder);
    decode(&directory_of(&[b"A", b"B", b"a", b"a.", b"ab", b"\x80", b"\xff"])).unwrap();
    // What came before is forgotten inside of an inner directory, and remembered behind it.
    let inner = directory([(b"a", directory([])), (b"m", directory([(b"a", file(b""))])), (b"z", file(b""))]);
    decode(&inner.encode()).unwrap();
    let mut all: Vec<&[u8]> = vec![b"nix-archive-1", b"(", b"type", b"directory"];
    all.extend([&b"entry"[..], b"(", b"name", b"m", b"node", b"(", b"type", b"directory"]);
    all.extend(entry(b"z"));
    all.extend([&b")"[..], b")"]);
    all.extend(entry(b"m"));
    all.push(b")");
    assert_eq!(fault(&strings(&all)).1, Rule::NameDuplicate);
}

#[test]
fn lengths_of_names_and_targets() {
    decode(&directory_of(&[&[b'n'; NAME_LEN_MAX]])).unwrap();
    assert_eq!(fault(&directory_of(&[&[b'n'; NAME_LEN_MAX + 1]])), (FIRST_NAME - 8, Rule::NameTooLong));
    let to = |target: &[u8]| strings(&[b"nix-archive-1", b"(", b"type", b"symlink", b"target", target, b")"]);
    decode(&to(&[b't'; TARGET_LEN_MAX])).unwrap();
    assert_eq!(fault(&to(&[b't'; TARGET_LEN_MAX + 1])), (56 + 32, Rule::TargetTooLong));
    assert_eq!(fault(&to(b"")), (56 + 40, Rule::TargetEmpty));
    assert_eq!(fault(&to(b"a\0b")), (56 + 40, Rule::TargetNul));
}

#[test]
fn absurd_lengths_are_refused_before_a_byte_of_them() {
    for len in [u64::MAX, 1 << 63, u64::MAX - 7, 1 << 32] {
        let name = [&wire::HEAD[..], &wire::DIRECTORY, &wire::ENTRY, &len.to_le_bytes()].concat();
        assert_eq!(fault(&name), (FIRST_NAME - 8, Rule::NameTooLong));
        let target = [&wire::HEAD[..], &wire::SYMLINK, &len.to_le_bytes()].concat();
        assert_eq!(fault(&target), (88, Rule::TargetTooLong));
    }
    for size in [u64::MAX, 1 << 63, u64::MAX - 7] {
        let contents = [&wire::HEAD[..], &wire::REGULAR, &size.to_le_bytes()].concat();
        assert_eq!(fault(&contents), (88, Rule::FileSize));
    }
    let contents = [&wire::HEAD[..], &wire::REGULAR, &FILE_SIZE_MAX.to_le_bytes()].concat();
    assert_eq!(fault(&contents), (96, Rule::Truncated));
}

#[test]
fn stated_size() {
    let nar = file(b"hello").encode();
    let size = nar.len() as u64;
    let with = |stated, nar: &[u8]| decode_with(Decoder::with_nar_size(stated), nar.chunks(5));
    with(size, &nar).unwrap();
    for stated in 0..size {
        let error = with(stated, &nar).unwrap_err();
        let expected = if stated >= 96 { (88, Rule::FileSize) } else { (stated, Rule::LargerThanStated) };
        assert_eq!((error.offset, error.rule), expected, "{stated}");
    }
    assert_eq!(with(size + 8, &nar), Err(NarError { offset: size, rule: Rule::SmallerThanStated }));
    assert_eq!(with(size, &[&nar[..], b"x"].concat()), Err(NarError { offset: size, rule: Rule::Trailing }));
}

#[test]
fn padding_must_be_zero() {
    for (tree, at) in
        [(file(b"abc"), 99), (link(b"abc"), 99), (directory([(b"abc", file(b""))]), FIRST_NAME as usize + 3)]
    {
        let mut nar = tree.encode();
        assert_eq!(&nar[at - 3..at + 5], b"abc\0\0\0\0\0");
        nar[at + 4] = 1;
        assert_eq!(fault(&nar), (at as u64 + 4, Rule::Padding));
    }
}

#[test]
fn executable_with_a_value() {
    let nar = strings(&[b"nix-archive-1", b"(", b"type", b"regular", b"executable", b"1", b"contents", b"", b")"]);
    assert_eq!(fault(&nar), (56 + 40, Rule::Executable));
}

#[test]
fn wrong_order_of_fields() {
    for (nar, rule) in [
        (strings(&[b"nix-archive-2", b"(", b"type", b"directory", b")"]), Rule::Magic),
        (strings(&[b"nix-archive-1", b"(", b"kind", b"directory", b")"]), Rule::Magic),
        (strings(&[b"nix-archive-1", b"(", b"type", b"fifo", b")", b")", b")"]), Rule::Type),
        (strings(&[b"nix-archive-1", b"(", b"type", b"regular", b")", b")", b")"]), Rule::Type),
        (
            strings(&[b"nix-archive-1", b"(", b"type", b"regular", b"contents", b"", b"executable", b"", b")"]),
            Rule::Close,
        ),
        (strings(&[b"nix-archive-1", b"(", b"type", b"symlink", b"target", b"a", b"target", b"b", b")"]), Rule::Close),
        (
            strings(&[b"nix-archive-1", b"(", b"type", b"directory", b"entry", b"(", b"node", b"a", b"name"]),
            Rule::Entry,
        ),
        (
            strings(&[
                b"nix-archive-1",
                b"(",
                b"type",
                b"directory",
                b"entry",
                b"(",
                b"name",
                b"a",
                b")",
                b")",
                b")",
                b")",
                b")",
                b")",
            ]),
            Rule::Node,
        ),
        (strings(&[b"nix-archive-1", b"(", b"type", b"directory", b"x", b")"]), Rule::Entry),
    ] {
        assert_eq!(fault(&nar).1, rule);
    }
}

#[test]
fn the_encoder_refuses_what_the_decoder_would() {
    let refused = |events: &[Event<'_>]| {
        let (mut encoder, mut out) = (Encoder::new(), Vec::new());
        let result: Result<(), NarError> = events.iter().try_for_each(|event| encoder.push(*event, &mut out));
        result.and_then(|()| encoder.finish()).unwrap_err().rule
    };
    let (dir, end, file) = (Event::Directory, Event::EndDirectory, Event::Regular { executable: false, size: 0 });
    let entry = |name| Event::Entry { name };
    assert_eq!(refused(&[]), Rule::Truncated);
    assert_eq!(refused(&[dir]), Rule::Truncated);
    assert_eq!(refused(&[end]), Rule::Sequence);
    assert_eq!(refused(&[dir, end, dir]), Rule::Sequence);
    assert_eq!(refused(&[dir, file]), Rule::Sequence);
    assert_eq!(refused(&[dir, entry(b"a"), end]), Rule::Sequence);
    assert_eq!(refused(&[dir, entry(b"")]), Rule::NameEmpty);
    assert_eq!(refused(&[dir, entry(b"a/b")]), Rule::NameSlash);
    assert_eq!(refused(&[dir, entry(b"a"), file, Event::EndRegular, entry(b"a")]), Rule::NameDuplicate);
    assert_eq!(refused(&[Event::Symlink { target: b"" }]), Rule::TargetEmpty);
    assert_eq!(refused(&[file, Event::Contents(b"x")]), Rule::Sequence);
    assert_eq!(refused(&[Event::Regular { executable: false, size: 1 }, Event::EndRegular]), Rule::Sequence);
    assert_eq!(refused(&[Event::Regular { executable: false, size: u64::MAX }]), Rule::FileSize);
    assert_eq!(refused(&[[dir, entry(b"a")]; DEPTH_MAX].concat()), Rule::Depth);
}

fn any_name() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![1 => 1..=255_u8, 4 => b'a'..=b'd'], 1..12)
        .prop_filter("is no name", |name| !name.contains(&b'/') && name != b"." && name != b"..")
}

fn any_tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        (any::<bool>(), proptest::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(executable, contents)| Tree::File { executable, contents }),
        proptest::collection::vec(1..=255_u8, 1..40).prop_map(Tree::Link),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        proptest::collection::btree_map(any_name(), inner, 0..6).prop_map(Tree::Directory)
    })
}

/// The tree that events make.
fn tree_of(events: &mut impl Iterator<Item = Owned>) -> Tree {
    match events.next().unwrap() {
        Owned::Target(target) => Tree::Link(target),
        Owned::Other(Event::Regular { executable, size }) => {
            let mut contents = Vec::new();
            loop {
                match events.next().unwrap() {
                    Owned::Contents(piece) => contents.extend(piece),
                    Owned::Other(Event::EndRegular) => break,
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(contents.len() as u64, size);
            Tree::File { executable, contents }
        }
        Owned::Other(Event::Directory) => {
            let mut entries = BTreeMap::new();
            loop {
                match events.next().unwrap() {
                    Owned::Name(name) => entries.insert(name, tree_of(events)),
                    Owned::Other(Event::EndDirectory) => break Tree::Directory(entries),
                    other => panic!("{other:?}"),
                };
            }
        }
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn round_trip(tree in any_tree()) {
        let events = decode(&tree.encode()).unwrap();
        prop_assert_eq!(tree_of(&mut events.into_iter()), tree);
    }

    #[test]
    fn any_split_gives_the_same_events(tree in any_tree(), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8)) {
        let nar = tree.encode();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(nar.len() + 1)).chain([0, nar.len()]).collect();
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|pair| &nar[pair[0]..pair[1]]);
        prop_assert_eq!(decode_with(Decoder::with_nar_size(nar.len() as u64), pieces), decode(&nar));
    }

    #[test]
    fn a_changed_byte_fails_or_changes_the_events(tree in any_tree(), at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let nar = tree.encode();
        let mut changed = nar.clone();
        changed[at.index(nar.len())] ^= flip;
        prop_assert_ne!(decode(&changed), decode(&nar));
    }

    #[test]
    fn a_prefix_fails(tree in any_tree(), at in any::<prop::sample::Index>()) {
        let nar = tree.encode();
        prop_assert_eq!(fault(&nar[..at.index(nar.len())]).1, Rule::Truncated);
    }
}
