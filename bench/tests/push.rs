//! The pushing client of the harness: what it sends, in which order, and what it makes of the answers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use narval_bench::client::BaseUrl;
use narval_bench::push::put::{Pushing, Sending};
use narval_bench::push::replay::replay;
use narval_bench::push::target::Target;
use narval_bench::push::trace::{Exchange, Trace};
use narval_http::{Listen, Request, Response, Server, StatusCode};

/// Store paths in a row, each of which refers to the one before.
const PATHS: usize = 40;

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("narval-bench-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn hash_part(number: usize) -> String {
    format!("{number:032}")
}

/// A trace as if recorded, NARs of a few bytes to some hundred kilobytes.
fn trace(folder: &std::path::Path) -> Trace {
    let put = |target: String, body: &[u8], fields: &[(&str, &str)]| {
        let name = target.trim_start_matches('/').replace('/', "_");
        fs::write(folder.join(&name), body).unwrap();
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let body_bytes = body.len() as u64;
        Exchange { method: "PUT".into(), fields, body: Some(name), body_bytes, ..Exchange::get(&target) }
    };
    let mut exchanges = vec![put("/nix-cache-info".into(), b"StoreDir: /nix/store\n", &[])];
    for number in 0..PATHS {
        let (nar, hash_part) = (format!("/nar/{number}.nar"), hash_part(number));
        let body = vec![b'x'; number * number * 300];
        let reference = number.checked_sub(1).map(|before| format!("{}-before", self::hash_part(before)));
        let narinfo = format!(
            "URL: nar/{number}.nar\nCompression: none\nNarSize: {}\nReferences: {}\n",
            body.len(),
            reference.unwrap_or_default()
        );
        exchanges.push(put(format!("/{hash_part}.ls"), b"{}", &[("content-type", "application/json")]));
        exchanges.push(Exchange { method: "HEAD".into(), ..Exchange::get(&nar) });
        exchanges.push(put(nar, &body, &[("expect", "100-continue")]));
        exchanges.push(put(format!("/{hash_part}.narinfo"), narinfo.as_bytes(), &[]));
    }
    Trace::of(folder, exchanges).unwrap()
}

#[test]
fn a_replay_keeps_references_first_and_sends_every_byte_with_the_credentials() {
    let folder = folder("replay");
    let trace = trace(&folder);
    let kept = Arc::new(Mutex::new((HashSet::new(), 0)));
    let keeping = Arc::clone(&kept);
    let server = Server::builder(move |mut request: Request| {
        if request.header("authorization") != Some("Basic secret") {
            return Response::new(StatusCode::UNAUTHORIZED);
        }
        let target = request.path().to_owned();
        if request.method().as_str() != "PUT" {
            return Response::new(StatusCode::NOT_FOUND);
        }
        let mut body = Vec::new();
        request.body().read_to_end(&mut body).unwrap();
        let mut kept = keeping.lock().unwrap();
        let reference =
            String::from_utf8_lossy(&body).lines().find_map(|line| Some(line.strip_prefix("References: ")?.to_owned()));
        let reference = reference.and_then(|names| Some(format!("/{}.narinfo", names.split_once('-')?.0)));
        if reference.is_some_and(|reference| !kept.0.contains(&reference)) {
            return Response::new(StatusCode::CONFLICT);
        }
        kept.1 += body.len() as u64;
        kept.0.insert(target);
        Response::new(StatusCode::CREATED)
    });
    let server = server.listen(Listen::Tcp(([127, 0, 0, 1], 0).into())).build().unwrap();
    let base: BaseUrl = server.addresses()[0].to_string().parse().unwrap();
    let handle = server.spawn().unwrap();
    let sending = Sending { authorization: Some("Basic secret".into()), ..Sending::default() };
    let replayed = replay(&base, &trace, 8, &sending).unwrap();
    assert_eq!(replayed.statuses[&("PUT".to_owned(), 201)], 1 + 3 * PATHS as u64);
    assert_eq!((replayed.bytes, kept.lock().unwrap().1), (trace.bytes(), trace.bytes()));
    let refused = replay(&base, &trace, 8, &Sending::default()).unwrap_err().to_string();
    assert!(refused.contains("status 401"), "{refused}");
    handle.shutdown(Duration::from_secs(5));
    handle.wait().unwrap();
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_nginx_has_been_sent_is_not_sent_again() {
    let (folder, work) = (folder("nginx-trace"), folder("nginx"));
    let trace = trace(&folder);
    let fresh = Target::Nginx.start(&work, false).unwrap();
    let first = replay(&fresh.server.base, &trace, 4, &fresh.sending()).unwrap();
    let again = replay(&fresh.server.base, &trace, 4, &fresh.sending()).unwrap();
    assert_eq!((first.bytes, again.bytes), (trace.bytes(), 0));
    assert_eq!(again.requests(), 1 + PATHS as u64);
    drop(fresh);
    for folder in [folder, work] {
        fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn a_final_answer_in_place_of_100_ends_a_request_without_its_body() {
    let folder = folder("expect");
    let trace = trace(&folder);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base: BaseUrl = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let server = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut head = vec![0; 4096];
        let count = client.read(&mut head).unwrap();
        assert!(head[..count].ends_with(b"\r\n\r\n"));
        client.write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 5\r\n\r\nwhy?\n").unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).unwrap();
        rest
    });
    let largest = trace.nars.first().and_then(|nar| trace.exchanges.get(nar.exchange)).unwrap();
    let mut connection = Pushing::new(&base, Sending::default());
    let answered = connection.send(largest, &folder).unwrap().unwrap();
    assert_eq!((answered.status, answered.body), (401, b"why?\n".to_vec()));
    assert!(server.join().unwrap().is_empty());
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_slow_client_stops_at_its_time_in_the_middle_of_the_body() {
    let folder = folder("slow");
    let trace = trace(&folder);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base: BaseUrl = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let server = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut head = vec![0; 4096];
        let count = client.read(&mut head).unwrap();
        assert!(head[..count].ends_with(b"\r\n\r\n"));
        client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        let mut body = Vec::new();
        client.read_to_end(&mut body).unwrap();
        body.len() as u64
    });
    let largest = trace.nars.first().and_then(|nar| trace.exchanges.get(nar.exchange)).unwrap();
    let until = Instant::now() + Duration::from_secs(3);
    let sending = Sending { bytes_per_second: Some(64 * 1024), until: Some(until), ..Sending::default() };
    let mut connection = Pushing::new(&base, sending);
    assert!(connection.send(largest, &folder).unwrap().is_none());
    drop(connection);
    assert!(Instant::now() >= until);
    let sent = server.join().unwrap();
    assert!(sent > 0 && sent < largest.body_bytes, "{sent}");
    fs::remove_dir_all(folder).unwrap();
}
