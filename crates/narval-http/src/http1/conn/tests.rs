//! Any input, split anywhere, with any sequence of answers; see [`connection`].

use proptest::prelude::*;

use crate::sim::connection;

/// Pieces of requests, valid and invalid.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => "(GET|HEAD) /[a-z]{1,8} HTTP/1\\.1\r\nHost: a\r\n\r\n".prop_map(String::into_bytes),
        2 => (0usize..9000).prop_map(|n| {
            let mut request = format!("POST /{n} HTTP/1.1\r\nHost: a\r\nContent-Length: {n}\r\n\r\n").into_bytes();
            request.extend((0..n).map(|at| at as u8));
            request
        }),
        2 => prop::collection::vec(1usize..3000, 0..6).prop_map(|chunks| {
            let mut request = b"PUT /chunks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            for n in chunks {
                request.extend(format!("{n:x}\r\n").bytes());
                request.extend((0..n).map(|at| at as u8));
                request.extend(b"\r\n");
            }
            request.extend(b"0\r\n\r\n");
            request
        }),
        1 => Just(b"POST /e HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc".to_vec()),
        1 => Just(b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_vec()),
        1 => Just(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        1 => Just(b"POST /huge HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\nx".to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_client_sends_the_connection_keeps_its_promises(
        seed in any::<u64>(),
        pieces in prop::collection::vec(piece(), 0..12),
    ) {
        connection(seed, &pieces.concat());
    }
}
