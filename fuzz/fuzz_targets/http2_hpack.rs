//! Header blocks of one connection, each after its length in two bytes, are decoded as by another decoder.
#![no_main]

use narval_http::sim::header_lists;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let blocks = blocks(data);
    let mut peer = loona_hpack::Decoder::new();
    peer.set_max_allowed_table_size(4096);
    for (list, block) in header_lists(&blocks).into_iter().zip(blocks) {
        match (list, peer.decode(block)) {
            (Ok(ours), Ok(theirs)) => assert_eq!(ours, theirs),
            // the other decoder refuses a block that consists of size updates only
            (Ok(ours), Err(loona_hpack::decoder::DecoderError::SizeUpdateAtEnd)) => assert!(ours.is_empty()),
            (Ok(_), Err(error)) => panic!("the peer refuses it: {error}"),
            // the other decoder accepts size updates between fields
            (Err(refused), Ok(_)) => assert!(refused.is_size_update),
            (Err(_), Err(_)) => {}
        }
    }
});

/// The rest of the input is the last block.
fn blocks(mut data: &[u8]) -> Vec<&[u8]> {
    let mut blocks = Vec::new();
    while let Some((length, rest)) = data.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
        let (block, rest) = rest.split_at(length);
        blocks.push(block);
        data = rest;
    }
    blocks
}
