//! What servers do to clients: each of these once broke an installer, or made it hang.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use narval_client::{CONNECTIONS_PER_ORIGIN_MAX, IDLE_AGE_MAX, RetryPolicy};

use crate::support::{
    Act, FOREVER, Server, client_that, client_with_patience, file_nar, install_from, install_with, names_in,
};

/// Larger than all buffers on the way.
fn large() -> Vec<u8> {
    file_nar(&(0..500_000u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>())
}

/// Installs a path whose NAR's first requests are met by `acts`, and says how often it was asked for.
fn survives(acts: &[Act]) -> usize {
    let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
    let nar = large();
    let path = server.add("large", &nar, &[], |narinfo| narinfo);
    server.script("/nar/large.nar", acts);
    install_from(&[&server.url], root.path(), &[&path]).unwrap_or_else(|error| panic!("{acts:?}: {error}"));
    let file = std::fs::read(root.path().join("nix/store").join(&path)).unwrap();
    assert_eq!(file_nar(&file), nar, "{acts:?}");
    server.requests_for("/nar/large.nar")
}

#[test]
fn broken_transfers_are_resumed() {
    assert_eq!(survives(&[Act::Serve]), 1);
    assert_eq!(survives(&[Act::CutAt(700_000)]), 2);
    assert_eq!(survives(&[Act::CutAt(0), Act::CutAt(10), Act::CutAt(1_900_000)]), 4);
    assert_eq!(survives(&[Act::CutAt(700_000), Act::Whole]), 2);
    assert_eq!(survives(&[Act::Chunked { complete: true }]), 1);
    assert_eq!(survives(&[Act::Chunked { complete: false }]), 2);
    assert_eq!(survives(&[Act::UntilClose]), 1);
    assert_eq!(survives(&[Act::Close, Act::Close]), 3);
    assert_eq!(survives(&[Act::Garbage]), 2);
}

#[test]
fn a_resumed_download_asks_for_the_rest_only() {
    let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
    let path = server.add("large", &large(), &[], |narinfo| narinfo);
    server.script("/nar/large.nar", &[Act::CutAt(700_000)]);
    install_from(&[&server.url], root.path(), &[&path]).unwrap();
    let resumed = server.requests().into_iter().rfind(|request| request.contains("/nar/large.nar")).unwrap();
    assert!(resumed.contains("Range: bytes=700000-") && resumed.contains("If-Range: \"1\""), "{resumed}");
}

#[test]
fn overload_is_retried_later() {
    let start = Instant::now();
    assert_eq!(survives(&[Act::Status(503, "Retry-After: 1\r\n"), Act::Status(429, "")]), 3);
    assert!(start.elapsed() >= Duration::from_secs(1), "Retry-After counts");
    assert_eq!(survives(&[Act::Status(500, ""), Act::Status(502, ""), Act::Status(408, "")]), 4);
}

/// More failures than there are attempts, of a server that has answered before.
#[test]
fn a_server_that_was_there_is_waited_for() {
    let brief = Duration::from_millis(1);
    let retry = RetryPolicy { base: brief, overload_base: brief, patience: FOREVER, ..RetryPolicy::default() };
    let fails = |count: usize, act: &Act| vec![act.clone(); count];
    let acts = [Act::Close, Act::Status(502, ""), Act::Status(503, ""), Act::Status(504, ""), Act::CutAt(10)];
    for act in acts.iter().chain([&Act::Status(500, "")]) {
        let server = Server::start();
        let path = server.add("large", &large(), &[], |narinfo| narinfo);
        server.script(&format!("/{}.narinfo", &path[..32]), &fails(9, act));
        // Another cache that does not have it changes nothing.
        let other = Server::start();
        for urls in [&[server.url.as_str()][..], &[other.url.as_str(), &server.url]] {
            server.script("/nar/large.nar", &fails(9, act));
            let root = tempfile::tempdir().unwrap();
            let result = install_with(&client_that(retry, FOREVER, FOREVER), urls, root.path(), &[&path]);
            assert_eq!(result.is_err(), matches!(act, Act::Status(500, _)), "{act:?}: {result:?}");
        }
    }
    // One that has never answered is not.
    let server = Server::start();
    let path = server.add("large", &large(), &[], |narinfo| narinfo);
    for file in ["/nix-cache-info".to_owned(), format!("/{}.narinfo", &path[..32])] {
        server.script(&file, &fails(9, &Act::Status(502, "")));
    }
    let root = tempfile::tempdir().unwrap();
    let client = client_that(retry, FOREVER, FOREVER);
    assert_eq!(install_with(&client, &[&server.url], root.path(), &[&path]).unwrap_err().exit_code(), 5);
    assert_eq!(server.requests_for(&format!("/{}.narinfo", &path[..32])), 5);
}

/// A few bytes a second are no stall. What is small must not take for ever, and is not waited for without a word.
#[test]
fn a_server_that_drips_is_given_up() {
    let once = RetryPolicy { attempts: 1, ..RetryPolicy::default() };
    let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
    let path = server.add("small", &file_nar(b"x"), &[], |narinfo| narinfo);
    // Slower than a kilobyte a second, after the second that a single read may take.
    server.script(&format!("/{}.narinfo", &path[..32]), &[Act::Drip(Duration::from_millis(100))]);
    let client = client_that(once, Duration::from_secs(1), FOREVER);
    let error = install_with(&client, &[&server.url], root.path(), &[&path]).unwrap_err();
    assert!(error.to_string().contains("too slow: ") && error.exit_code() == 5, "{error}");
}

#[test]
fn redirects_are_followed_and_not_for_ever() {
    let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
    let path = server.add("a", &file_nar(b"a"), &[], |narinfo| narinfo);
    server.put("/elsewhere", file_nar(b"a"));
    server.script("/nar/a.nar", &[Act::Status(302, "Location: /elsewhere\r\n")]);
    install_from(&[&server.url], root.path(), &[&path]).unwrap();
    let path = server.add("b", &file_nar(b"b"), &[], |narinfo| narinfo);
    server.script("/nar/b.nar", &vec![Act::Status(301, "Location: b.nar\r\n"); 20]);
    let error = install_from(&[&server.url], root.path(), &[&path]).unwrap_err();
    assert!(error.to_string().contains("redirect"), "{error}");
    assert_eq!(names_in(root.path()).len(), 1);
}

#[test]
fn bytes_that_nobody_asked_for_poison_no_connection() {
    let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
    let names: Vec<String> = (0..40).map(|n| format!("p{n}")).collect();
    let mut paths = Vec::new();
    for name in &names {
        paths.push(server.add(name, &file_nar(name.as_bytes()), &[], |narinfo| narinfo));
        server.script(&format!("/nar/{name}.nar"), &[Act::Trailing(1024)]);
    }
    let paths: Vec<_> = paths.iter().map(String::as_str).collect();
    install_from(&[&server.url], root.path(), &paths).unwrap();
    for (name, path) in names.iter().zip(&paths) {
        assert_eq!(std::fs::read_to_string(root.path().join("nix/store").join(path)).unwrap(), *name);
    }
}

#[test]
fn connections_are_used_again() {
    let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
    let paths: Vec<String> =
        (0..300).map(|n| server.add(&format!("p{n}"), &file_nar(b"x"), &[], |narinfo| narinfo)).collect();
    let paths: Vec<_> = paths.iter().map(String::as_str).collect();
    let start = Instant::now();
    install_from(&[&server.url], root.path(), &paths).unwrap();
    let opened = server.counts.connections.load(Ordering::SeqCst);
    // On a machine so busy that connections lie idle for long, they are closed and made again.
    let generations = 1 + start.elapsed().as_secs() / IDLE_AGE_MAX.as_secs();
    let most = CONNECTIONS_PER_ORIGIN_MAX * usize::try_from(generations).unwrap();
    assert!(opened <= most, "{opened} connections for 601 requests");
    assert_eq!(server.requests().len(), 601);
}

#[test]
fn present_paths_need_no_request() {
    let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
    let path = server.add("a", &file_nar(b"a"), &[], |narinfo| narinfo);
    install_from(&[&server.url], root.path(), &[&path]).unwrap();
    let before = server.requests().len();
    assert_eq!(install_from(&[&server.url], root.path(), &[&path]).unwrap().already, 1);
    assert_eq!(server.requests().len(), before);
}

#[test]
fn a_slow_or_dead_cache_delays_no_other() {
    let (good, bad, root) = (Server::start(), Server::start(), tempfile::tempdir().unwrap());
    bad.put("/nix-cache-info", b"StoreDir: /nix/store\nPriority: 1\n".to_vec());
    let mut paths = Vec::new();
    for n in 0..20 {
        let name = format!("p{n}");
        paths.push(good.add(&name, &file_nar(b"x"), &[], |narinfo| narinfo));
        bad.add(&name, &file_nar(b"x"), &[], |narinfo| narinfo);
        let narinfo = format!("/{}.narinfo", &paths[n][..32]);
        bad.script(&narinfo, &[Act::TooLate]);
    }
    let paths: Vec<_> = paths.iter().map(String::as_str).collect();
    // Waiting for the slow cache would take ten minutes.
    install_from(&[&bad.url, &good.url, "http://127.0.0.1:1"], root.path(), &paths).unwrap();
}

#[test]
fn the_next_cache_serves_what_is_damaged_in_the_first() {
    let (first, second, root) = (Server::start(), Server::start(), tempfile::tempdir().unwrap());
    let path = first.add("a", &file_nar(b"a"), &[], |narinfo| narinfo);
    second.add("a", &file_nar(b"a"), &[], |narinfo| narinfo);
    first.script("/nar/a.nar", &vec![Act::Instead(file_nar(b"b")); 10]);
    install_from(&[&first.url, &second.url], root.path(), &[&path]).unwrap();
    assert_eq!(std::fs::read(root.path().join("nix/store").join(path)).unwrap(), b"a");
}

#[test]
fn a_file_that_changes_during_the_download_is_fetched_anew() {
    // Gone, of another length from a server without ranges, and shorter.
    for second in [Act::Status(404, ""), Act::With("", file_nar(b"another")), Act::Status(416, "")] {
        assert_eq!(survives(&[Act::CutAt(700_000), second.clone()]), 3);
        let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
        let path = server.add("large", &large(), &[], |narinfo| narinfo);
        server.script("/nar/large.nar", &vec![[Act::CutAt(700_000), second]; 17].concat());
        let error = install_from(&[&server.url], root.path(), &[&path]).unwrap_err().to_string();
        assert!(error.contains("changed on the server") && !error.contains("redirect"), "{error}");
    }
}

fn compressed(with: &str, bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut out = Vec::new();
    match with {
        "zlib" => flate2::write::ZlibEncoder::new(&mut out, flate2::Compression::fast()).write_all(bytes).unwrap(),
        "deflate" => {
            flate2::write::DeflateEncoder::new(&mut out, flate2::Compression::fast()).write_all(bytes).unwrap()
        }
        "gzip" => flate2::write::GzEncoder::new(&mut out, flate2::Compression::fast()).write_all(bytes).unwrap(),
        other => panic!("{other}"),
    }
    out
}

/// As servers spell them, on narinfos and on NARs, where none was asked for: some always send what they have stored.
#[test]
fn content_codings_in_every_spelling() {
    for (fields, applied) in [
        ("Content-Encoding: GZIP\r\n", &["gzip"][..]),
        ("Content-Encoding: none\r\n", &[]),
        ("Content-Encoding: Identity\r\n", &[]),
        ("Content-Encoding: \r\n", &[]),
        ("Content-Encoding: deflate\r\n", &["zlib"]),
        ("Content-Encoding: deflate\r\n", &["deflate"]),
        ("Content-Encoding: deflate, X-Gzip\r\n", &["zlib", "gzip"]),
        ("Content-Encoding: identity, deflate\r\nContent-Encoding: gzip , none\r\n", &["zlib", "gzip"]),
    ] {
        let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
        let nar = large();
        let path = server.add("large", &nar, &[], |narinfo| narinfo);
        let encode = |bytes: &[u8]| applied.iter().fold(bytes.to_vec(), |bytes, with| compressed(with, &bytes));
        server.script("/nar/large.nar", &[Act::With(fields, encode(&nar))]);
        let narinfo = format!("/{}.narinfo", &path[..32]);
        server.script(&narinfo, &[Act::With(fields, encode(&server.file(&narinfo)))]);
        install_from(&[&server.url], root.path(), &[&path]).unwrap_or_else(|error| panic!("{fields:?}: {error}"));
        assert_eq!((server.requests_for(&narinfo), server.requests_for("/nar/large.nar")), (1, 1));
    }
    let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
    let path = server.add("a", &file_nar(b"a"), &[], |narinfo| narinfo);
    server.script("/nar/a.nar", &[Act::With("Content-Encoding: rot13\r\n", file_nar(b"a"))]);
    let error = install_from(&[&server.url], root.path(), &[&path]).unwrap_err();
    assert!(error.to_string().contains("rot13"), "{error}");
}

/// It accepts connections and never responds; waiting for it would take ten minutes.
#[test]
fn a_cache_that_does_not_respond_is_skipped() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (dead, good) = (format!("http://{}", listener.local_addr().unwrap()), Server::start());
    let root = tempfile::tempdir().unwrap();
    let path = good.add("a", &file_nar(b"a"), &[], |narinfo| narinfo);
    // As much as the good one may take on a busy machine.
    let client = client_with_patience(Duration::from_secs(5));
    let urls = [dead.as_str(), &good.url];
    install_with(&client, &urls, root.path(), &[&path]).unwrap();
    // What nobody else has it may have.
    let error = install_with(&client, &urls, root.path(), &["0000000000000000000000000000000a-b"]).unwrap_err();
    assert_eq!(error.exit_code(), 5, "{error}");
    assert!(error.to_string().contains(&dead) && error.to_string().contains("did not respond"), "{error}");
    let error = install_with(&client, &[&good.url], root.path(), &["0000000000000000000000000000000a-b"]).unwrap_err();
    assert_eq!(error.exit_code(), 3, "{error}");
}
