use proptest::prelude::*;

use super::*;

const TABLE: usize = 4096;

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Fields, HpackError> {
    let mut fields = Vec::new();
    decoder.decode(block, |field| fields.push((field.name.to_vec(), field.value.to_vec())))?;
    Ok(fields)
}

fn encode(fields: &[(impl AsRef<[u8]>, impl AsRef<[u8]>)]) -> Vec<u8> {
    let mut block = Vec::new();
    encode_no_table(&mut block);
    for (name, value) in fields {
        encode_field(name.as_ref(), value.as_ref(), &mut block);
    }
    block
}

fn owned(fields: &[(&str, &str)]) -> Fields {
    fields.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|octet| *octet != b' ').collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// RFC 7541, appendices C.2 to C.6: blocks of one connection in turn.
fn check_examples(table_size: usize, blocks: &[(&str, &[(&str, &str)])]) {
    let mut decoder = Decoder::new(table_size, 1 << 16);
    for (block, fields) in blocks {
        assert_eq!(decode(&mut decoder, &hex(block)), Ok(owned(fields)), "{block}");
    }
}

#[test]
fn representations_of_appendix_c2() {
    check_examples(
        TABLE,
        &[("400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572", &[("custom-key", "custom-header")])],
    );
    check_examples(TABLE, &[("040c 2f73 616d 706c 652f 7061 7468", &[(":path", "/sample/path")])]);
    check_examples(TABLE, &[("1008 7061 7373 776f 7264 0673 6563 7265 74", &[("password", "secret")])]);
    check_examples(TABLE, &[("82", &[(":method", "GET")])]);
}

const REQUESTS: [&[(&str, &str)]; 3] = [
    &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")],
    &[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
        ("cache-control", "no-cache"),
    ],
    &[
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ],
];

#[test]
fn requests_of_appendix_c3_and_c4() {
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let huffman = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    for blocks in [plain, huffman] {
        check_examples(TABLE, &std::array::from_fn::<_, 3, _>(|index| (blocks[index], REQUESTS[index])));
    }
}

const RESPONSES: [&[(&str, &str)]; 3] = [
    &[
        (":status", "302"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ],
    &[
        (":status", "307"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ],
    &[
        (":status", "200"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
        ("location", "https://www.example.com"),
        ("content-encoding", "gzip"),
        ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
    ],
];

/// With a table of 256 octets, so that entries are evicted.
#[test]
fn responses_of_appendix_c5_and_c6() {
    let plain = [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d
         546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f
         6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b
         2076 6572 7369 6f6e 3d31",
    ];
    let huffman = [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7
         8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335
         dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ];
    for blocks in [plain, huffman] {
        let blocks = blocks.map(|block| block.replace(char::is_whitespace, ""));
        check_examples(256, &std::array::from_fn::<_, 3, _>(|index| (blocks[index].as_str(), RESPONSES[index])));
    }
}

#[test]
fn responses_are_encoded_from_the_static_table() {
    let mut block = Vec::new();
    encode_status(200, &mut block);
    encode_field(b"content-type", b"text/plain", &mut block);
    assert_eq!(block, hex("88 0f10 8749 7ca5 8ae8 19aa"));
    let mut decoder = Decoder::new(TABLE, 1000);
    for status in [200, 204, 206, 304, 400, 404, 500, 101, 201, 302, 503] {
        block.clear();
        encode_status(status, &mut block);
        assert_eq!(decode(&mut decoder, &block), Ok(owned(&[(":status", &status.to_string())])));
    }
}

#[test]
fn secrets_are_never_indexed() {
    let block = encode(&[("set-cookie", "a=b"), ("authorization", "x"), ("x-other", "y")]);
    let mut never_indexed = Vec::new();
    Decoder::new(TABLE, 1000).decode(&block, |field| never_indexed.push(field.never_indexed)).unwrap();
    assert_eq!(never_indexed, [true, true, false]);
}

#[test]
fn invalid_blocks_are_refused() {
    for (block, error) in [
        ("80", HpackError::Index),       // index 0
        ("be", HpackError::Index),       // 62, in an empty dynamic table
        ("7e 01 61", HpackError::Index), // 62 as the name of a literal
        ("ff 80 80 80 80 00", HpackError::Integer),
        ("ff", HpackError::Truncated),
        ("40", HpackError::Truncated),
        ("40 01", HpackError::Truncated),
        ("40 01 61", HpackError::Truncated),
        ("40 01 61 7f ff ff ff 7f", HpackError::Truncated), // a length that is only announced
        ("82 20", HpackError::SizeUpdate),                  // after a field
        ("3f e2 1f", HpackError::SizeUpdate),               // 4,097
        ("20 21 22 82", HpackError::SizeUpdate),            // more than the smallest and the final size
        ("3f e1 1f 20 82", HpackError::SizeUpdate),         // 4,096, and then a smaller one
        ("20 20 82", HpackError::SizeUpdate),               // the same again
        ("00 81 ff 00", HpackError::Huffman),               // eight bits of padding
        ("00 81 1e 00", HpackError::Huffman),               // padding that is a zero
        ("00 84 ff ff ff ff 00", HpackError::Huffman),      // the end-of-string symbol
        ("00 82 1f ff 00", HpackError::Huffman),            // a symbol, then eleven bits of padding
    ] {
        assert_eq!(decode(&mut Decoder::new(TABLE, 1000), &hex(block)), Err(error), "{block}");
    }
    assert_eq!(decode(&mut Decoder::new(TABLE, 1000), &hex("20 3f e1 1f 82")), Ok(owned(&[(":method", "GET")])));
}

/// A list that is too large is still decoded, and later blocks can refer to what it added to the table.
#[test]
fn a_list_that_is_too_large_keeps_the_table_in_step() {
    let mut decoder = Decoder::new(TABLE, 100);
    let block = hex("4001 6101 31 4001 6201 32 4001 6301 33");
    let mut seen = 0;
    assert_eq!(decoder.decode(&block, |_| seen += 1), Err(HpackError::TooLarge));
    assert_eq!(seen, 2, "34 octets each, of 100");
    assert_eq!(decode(&mut decoder, &hex("be c0")), Ok(owned(&[("c", "3"), ("a", "1")])));
}

/// One large entry, then thousands of references to it: a megabyte from a few kilobytes, of which no more than the
/// limit is delivered. A thousand empty fields count as well.
#[test]
fn a_bomb_delivers_no_more_than_the_limit() {
    let mut decoder = Decoder::new(TABLE, 16 * 1024);
    let mut bomb = hex("4001 61 7f a0 1e");
    bomb.resize(bomb.len() + 127 + 0xf20, b'x');
    let (mut octets, mut fields) = (0, 0);
    let count = |octets: &mut usize, fields: &mut usize, field: Field<'_>| {
        *octets += field.name.len() + field.value.len();
        *fields += 1;
    };
    decoder.decode(&bomb, |field| count(&mut octets, &mut fields, field)).unwrap();
    assert_eq!((octets, fields), (1 + 127 + 0xf20, 1));
    for references in [vec![0xbe; 8192], [0x10, 0, 0].repeat(2000)] {
        (octets, fields) = (0, 0);
        let result = decoder.decode(&references, |field| count(&mut octets, &mut fields, field));
        assert_eq!(result, Err(HpackError::TooLarge));
        assert!(octets <= 16 * 1024 && fields <= 512, "{octets} octets in {fields} fields");
    }
}

fn any_fields() -> impl Strategy<Value = Fields> {
    let name = prop_oneof![
        prop::sample::select(vec![":path", "content-type", "etag", "set-cookie", "x-a"]).prop_map(|name| name.into()),
        prop::collection::vec(any::<u8>(), 0..40),
    ];
    let value = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..300),
        "[ -~]{0,200}".prop_map(String::into_bytes),
        prop::sample::select(vec!["a", "b", "c"]).prop_map(|value| value.into()),
    ];
    prop::collection::vec((name, value), 0..20)
}

proptest! {
    #[test]
    fn what_is_encoded_decodes_here_and_at_the_peer(fields in any_fields()) {
        let mut block = encode(&fields);
        prop_assert_eq!(decode(&mut Decoder::new(TABLE, usize::MAX), &block), Ok(fields.clone()));
        // the peer takes a size update alone for an error
        block.push(0x82);
        let mut expected = fields;
        expected.push((b":method".to_vec(), b"GET".to_vec()));
        prop_assert_eq!(loona_hpack::Decoder::new().decode(&block), Ok(expected));
    }

    /// The peer's encoder uses the dynamic table, so lists of one connection refer to each other.
    #[test]
    fn what_the_peer_encodes_decodes(lists in prop::collection::vec(any_fields(), 1..10)) {
        let (mut peer, mut decoder) = (loona_hpack::Encoder::new(), Decoder::new(TABLE, usize::MAX));
        for fields in lists {
            let block = peer.encode(fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice())));
            prop_assert_eq!(decode(&mut decoder, &block), Ok(fields));
        }
    }

    /// Blocks made of valid and invalid pieces: accepted and refused as by the peer.
    #[test]
    fn any_blocks_as_at_the_peer(blocks in prop::collection::vec(any_block(), 1..8)) {
        let mut decoder = Decoder::new(TABLE, usize::MAX);
        let mut peer = loona_hpack::Decoder::new();
        peer.set_max_allowed_table_size(TABLE);
        for block in blocks {
            let (ours, theirs) = (decode(&mut decoder, &block), peer.decode(&block));
            prop_assert_eq!(ours.as_ref().ok(), theirs.as_ref().ok(), "{:?}, peer {:?}", ours, theirs);
            if ours.is_err() {
                break;
            }
        }
    }
}

/// A block of representations whose parts are chosen at random. Size updates are only at its start, since the peer
/// accepts them anywhere, and a field follows, since the peer rejects them alone.
fn any_block() -> impl Strategy<Value = Vec<u8>> {
    let string = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..100).prop_map(|text| plain_string(&text)),
        4 => prop::collection::vec(any::<u8>(), 0..100).prop_map(|text| huffman_string(&text)),
        1 => prop::collection::vec(any::<u8>(), 0..8).prop_map(|code| {
            let mut out = vec![0x80 | code.len() as u8];
            out.extend_from_slice(&code);
            out
        }),
    ];
    let representation = prop_oneof![
        6 => (0x80..=0xff_u8).prop_map(|octet| vec![octet]),
        6 => (prop::sample::select(vec![0x40, 0x00, 0x10]), string.clone(), string.clone())
            .prop_map(|(first, name, value)| [vec![first], name, value].concat()),
        6 => (prop::sample::select(vec![0x41, 0x7e, 0x7e, 0x44, 0x01, 0x18]), string)
            .prop_map(|(first, value)| [vec![first], value].concat()),
    ];
    let size_update = prop::option::weighted(0.3, 0..4200_usize).prop_map(|size| {
        let mut out = Vec::new();
        if let Some(size) = size {
            integer::encode(size, 5, 0x20, &mut out);
        }
        out
    });
    (size_update, prop::collection::vec(representation, 1..12))
        .prop_map(|(update, fields)| [update, fields.concat()].concat())
}

fn plain_string(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    integer::encode(text.len(), 7, 0, &mut out);
    [out, text.to_vec()].concat()
}

fn huffman_string(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    integer::encode(huffman::encoded_len(text), 7, 0x80, &mut out);
    huffman::encode(text, &mut out);
    out
}
