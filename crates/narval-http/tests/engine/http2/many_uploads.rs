//! The same over HTTP/2: windows are not opened further for bodies that wait.

use std::collections::BTreeMap;
use std::thread;

use super::client::*;
use super::server::serve;
use crate::harness::on_each_driver;
use crate::many_uploads::{LENGTH, beside_reads, count, measure, small};

/// Uploads of one connection.
const STREAMS: usize = 60;

struct Upload {
    left: usize,
    window: usize,
    answer: Option<String>,
}

/// Uploads on as many streams as asked for, as far as the windows allow.
fn upload(address: std::net::SocketAddr, count: usize) {
    let mut client = Client::start(address);
    let mut connection = 65_535;
    let mut uploads = BTreeMap::new();
    for _ in 0..count {
        let stream = client.open(&post("/"), false);
        let window = client.initial_window as usize;
        uploads.insert(stream, Upload { left: LENGTH, window, answer: None });
    }
    while uploads.values().any(|upload| upload.answer.is_none()) {
        let mut has_sent = false;
        for (stream, upload) in &mut uploads {
            let piece = upload.left.min(upload.window).min(connection).min(16_000);
            if piece > 0 {
                upload.left -= piece;
                upload.window -= piece;
                connection -= piece;
                let flags = if upload.left == 0 { END_STREAM } else { 0 };
                client.send(frame(DATA, flags, *stream, vec![b'x'; piece]));
                has_sent = true;
            }
        }
        if has_sent {
            continue;
        }
        let next = client.frame();
        let upload = uploads.get_mut(&next.stream);
        match (next.kind, upload) {
            (WINDOW_UPDATE, None) => connection += increment(&next),
            (WINDOW_UPDATE, Some(upload)) => upload.window += increment(&next),
            (HEADERS, Some(_)) => {
                let fields = client.fields(&next);
                assert_eq!(fields[0], (":status".to_owned(), "200".to_owned()));
            }
            (DATA, Some(upload)) if !next.payload.is_empty() => {
                upload.answer = Some(String::from_utf8(next.payload).unwrap());
            }
            (RST_STREAM | GOAWAY, _) => panic!("{next:?}"),
            _ => {}
        }
    }
    for upload in uploads.values() {
        assert_eq!(upload.answer.as_deref(), Some("200000"));
    }
}

fn increment(update: &Frame) -> usize {
    u32::from_be_bytes(update.payload[..4].try_into().unwrap()) as usize
}

#[test]
fn every_one_of_many_uploads_is_answered() {
    on_each_driver(|driver| {
        let (count, limits) = (count(), small(count()));
        let server = serve(driver, limits.clone(), measure);
        let address = server.address;
        let uploads = move || {
            thread::scope(|scope| {
                let connections = (0..count.div_ceil(STREAMS)).map(|number| {
                    let streams = STREAMS.min(count - number * STREAMS);
                    scope.spawn(move || upload(address, streams))
                });
                for connection in connections.collect::<Vec<_>>() {
                    connection.join().unwrap();
                }
            });
        };
        beside_reads(&server, &limits, uploads, || {
            let mut client = Client::start(address);
            let stream = client.get("/");
            assert_eq!(client.response(stream).text(), "0");
        });
    });
}
