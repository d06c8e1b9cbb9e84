//! What users of other caches complain of, one test for each complaint that is about HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use crate::lab::{Lab, Nar, object_of};
use crate::support::{Answer, NARVAL, Nix, Store, hash_part, noise};

const PATH: &str = "00bgd045z0d4icpbc2yyz4gx48ak44la-test";

fn narinfo_url() -> String {
    format!("/{}.narinfo", hash_part(PATH))
}

fn publish(lab: &Lab, token: &str, nar: &Nar) {
    for (url, body) in [(nar.url(), nar.bytes.clone()), (narinfo_url(), nar.narinfo(PATH, &[]).into_bytes())] {
        let put = lab.put(&url, token, &body);
        assert!(matches!(put.status, 200 | 201), "{}: {}", put.status, put.text());
    }
}

/// The kept file of a NAR.
fn file_of(lab: &Lab, nar: &Nar) -> std::path::PathBuf {
    object_of(&lab.data_path().join("caches/default"), &nar.url())
}

/// attic#101, attic#349
#[test]
fn truncated_nar_under_200() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(&vec![1; 200_000]);
    publish(&lab, &token, &nar);
    std::fs::OpenOptions::new().write(true).open(file_of(&lab, &nar)).unwrap().set_len(1000).unwrap();
    assert_eq!(lab.get(&nar.url()).status, 404);
    assert_eq!(lab.get(&narinfo_url()).status, 404, "its path is not there either");
    publish(&lab, &token, &nar);
    assert_eq!(lab.get(&nar.url()).body, nar.bytes);
}

/// attic#110, attic#155, attic#211
#[test]
fn the_database_says_present_storage_lost_it_and_pushing_again_is_refused() {
    let lab = Lab::new();
    let token = lab.token("push");
    let path = lab.store.add_tree("tree");
    lab.push(Nix::Newest, &token, "compression=none", &path).unwrap();
    let nars = lab.data_path().join("caches/default/nar");
    for entry in std::fs::read_dir(&nars).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    // As a client notices: the NAR is asked for.
    let narinfo = lab.get(&format!("/{}.narinfo", hash_part(&path)));
    let url = crate::support::value(narinfo.text(), "URL").unwrap().to_owned();
    assert_eq!(lab.get(&format!("/{url}")).status, 404);
    lab.push(Nix::Newest, &token, "compression=none", &path).unwrap();
    lab.pull(Nix::Newest, &path);
}

/// ncps#50, ncps#1296, cachix#271
#[test]
fn narinfo_200_but_nar_404() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(b"x");
    // Never: a narinfo without its NAR.
    assert_ne!(lab.put(&narinfo_url(), &token, nar.narinfo(PATH, &[]).as_bytes()).status, 201);
    assert_eq!(lab.get(&narinfo_url()).status, 404);
    publish(&lab, &token, &nar);
    std::fs::remove_file(file_of(&lab, &nar)).unwrap();
    assert_eq!(lab.get(&nar.url()).status, 404);
    assert_eq!(lab.get(&narinfo_url()).status, 404);
}

/// cachix#251
#[test]
fn corrupt_or_truncated_uploads_are_accepted() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(&vec![3; 100_000]);
    let compressed = zstd::bulk::compress(&nar.bytes, 3).unwrap();
    let url = format!("/nar/{}.nar.zst", narval_nix::Sha256::of(&compressed).to_nix32());
    assert_eq!(lab.put(&url, &token, &compressed[..compressed.len() - 1]).status, 422);
    let cut = &compressed[..compressed.len() / 2];
    let cut_url = format!("/nar/{}.nar.zst", narval_nix::Sha256::of(cut).to_nix32());
    assert_eq!(lab.put(&cut_url, &token, cut).status, 422, "the hash is right, the contents are not");
    assert_eq!(lab.send("HEAD", &cut_url, "", &[], b"").status, 404);
    assert_eq!(lab.put(&url, &token, &compressed).status, 201);
}

/// attic#141, attic#281, attic#290: proxies send bodies chunked, in small pieces, and slowly.
#[test]
fn bad_nar_hash_or_size_on_large_or_proxied_pushes() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(&vec![5; 3 << 20]);
    let mut stream = lab.server.connect();
    let head = format!(
        "PUT {} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {token}\r\nTransfer-Encoding: chunked\r\n\r\n",
        nar.url()
    );
    stream.write_all(head.as_bytes()).unwrap();
    for piece in nar.bytes.chunks(77_777) {
        stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).unwrap();
        stream.write_all(piece).unwrap();
        stream.write_all(b"\r\n").unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    let mut raw = Vec::new();
    stream.read_to_end(&mut raw).unwrap();
    let answer = Answer::parse(&raw).unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text());
    assert_eq!(lab.get(&nar.url()).body, nar.bytes);
}

/// nix#4445: Nix takes a 401 for a narinfo as "missing"; the first request tells it that the token is wrong.
#[test]
fn a_401_is_cached_as_missing() {
    let lab = Lab::with(&["--private"]);
    let path = lab.store.add_file("file", "x");
    let token = lab.token("push,pull");
    lab.push(Nix::Newest, &token, "", &path).unwrap();
    let wrong = format!("{}0", &token[..token.len() - 1]);
    let wrong = if wrong == token { format!("{}1", &token[..token.len() - 1]) } else { wrong };
    let url = lab.server.url();
    for nix in Nix::BOTH {
        let error = lab.nix(nix, &wrong, &["path-info", "--refresh", "--store", &url, &path]).unwrap_err();
        let is_told = ["401", "token", "does not appear to be a binary cache"].iter().any(|text| error.contains(text));
        assert!(is_told, "{nix:?}: {error}");
        let info = lab.nix(nix, &token, &["path-info", "--store", &url, &path]).unwrap();
        assert!(info.contains(&path), "{nix:?}: {info}");
    }
}

/// nix#4028, nix#4478: the server, at least, remembers no absence, and lets nobody else do so.
#[test]
fn a_fresh_push_is_invisible_for_an_hour() {
    let lab = Lab::new();
    let token = lab.token("push");
    for round in 0..20_u8 {
        let nar = Nar::of(&[round]);
        if round == 0 {
            for _ in 0..3 {
                let absent = lab.get(&narinfo_url());
                assert_eq!((absent.status, absent.field("cache-control")), (404, Some("no-store")));
            }
            publish(&lab, &token, &nar);
        } else {
            publish(&lab, &lab.token("push,replace"), &nar);
        }
        assert!(lab.get(&narinfo_url()).text().contains(&nar.hash.to_nix32()), "{round}");
    }
}

/// nix#2035, nix#2210, nix#6056: Nix remembers that a dependency is there, and does not send it; the refusal says what to do.
#[test]
fn never_pushed_again_after_deletion() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(b"x");
    assert_eq!(lab.put(&nar.url(), &token, &nar.bytes).status, 201);
    let gone = "7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-deleted";
    let answer = lab.put(&narinfo_url(), &token, nar.narinfo(PATH, &[gone]).as_bytes());
    assert_eq!(answer.status, 409);
    assert!(answer.text().contains(gone) && answer.text().contains("nix copy --refresh"), "{}", answer.text());
    assert!(answer.body.len() < 1024, "Nix shows it");
}

/// attic#34, attic#248, attic#285
#[test]
fn a_token_cannot_be_revoked() {
    let lab = Lab::new();
    let token = lab.token("push");
    let path = lab.store.add_file("file", "x");
    lab.push(Nix::Newest, &token, "", &path).unwrap();
    lab.revoke(&token);
    let other = lab.store.add_file("other", "y");
    let error = lab.push(Nix::Newest, &token, "", &other).unwrap_err();
    assert!(error.contains("401") || error.contains("revoked"), "{error}");
}

/// cachix#406, nix#2641: the login does not matter; an entry without a usable password is distinguished from a missing one.
#[test]
fn netrc_traps() {
    let lab = Lab::new();
    let token = lab.token("push");
    let path = lab.store.add_file("file", "x");
    let netrc = lab.store.path("other-netrc");
    let url = lab.server.url();
    let run = |entry: String| {
        std::fs::write(&netrc, entry).unwrap();
        let netrc = netrc.to_str().unwrap();
        let args =
            ["copy", "--refresh", "--to", &url, "--from", &lab.store.uri(), &path, "--option", "netrc-file", netrc];
        let output = Nix::Newest.nix(lab.store.dir.path(), &args);
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    };
    let host = lab.server.address.ip();
    assert!(run(format!("machine {host} login me password wrong\n")).unwrap_err().contains("401"));
    assert!(run(format!("machine other.example login me password {token}\n")).is_err());
    run(format!("machine {host}\nlogin whatever\npassword {token}\n")).unwrap();
    // The token may stand in the URL, too.
    let with_token = format!("http://me:{token}@{}", lab.server.address);
    let other = lab.store.add_file("other", "y");
    let args = ["copy", "--refresh", "--to", &with_token, "--from", &lab.store.uri(), &other];
    let output = Nix::Newest.nix(lab.store.dir.path(), &args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// ncps#1152
#[test]
fn an_unknown_put_fails_the_whole_copy() {
    let lab = Lab::new();
    let token = lab.token("push");
    for path in ["/some-later-kind/x.json", "/x", "/nar-v2/abc", "/_other/v9", "/a/b/c+d=~@1!2.doi"] {
        assert_eq!(lab.get(path).status, 404, "{path}");
        assert_eq!(lab.put(path, &token, path.as_bytes()).status, 201, "{path}");
        // It stays as it was.
        assert_eq!(lab.put(path, &token, b"other").status, 200, "{path}");
        let got = lab.get(path);
        assert_eq!((got.status, got.body.as_slice()), (200, path.as_bytes()), "{path}");
        assert_eq!(got.field("content-type"), Some("application/octet-stream"));
    }
    // What can be no file fails nothing either, and leaves nothing.
    for path in ["/x/y", "/nar-v2", "/../x", "/%2e%2e/x", "/.hidden", "/a//b", "/_narval/x", "/a%20b", "/nar/x"] {
        assert_eq!(lab.put(path, &token, b"{}").status, 200, "{path}");
        assert_eq!(lab.get(path).status, 404, "{path}");
    }
    let large = lab.put("/large", &token, &vec![0; (16 << 20) + 1]);
    assert_eq!((large.status, lab.get("/large").status), (200, 404));
    assert!(lab.data_path().join("caches/default/other/some-later-kind/x.json").exists());
}

/// attic#220, attic#287: no body is larger than a part.
#[test]
fn body_limits_of_proxies() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(&vec![8; 100_000]);
    let url = format!("/_narval/v1/nar/{}.nar", nar.hash.to_nix32());
    let parts: Vec<_> = nar.bytes.chunks(30_000).collect();
    for (number, part) in parts.iter().enumerate() {
        let last = if number + 1 == parts.len() { "&last=1" } else { "" };
        let answer = lab.put(&format!("{url}?offset={}{last}", number * 30_000), &token, part);
        assert!(matches!(answer.status, 201 | 202), "{}: {}", answer.status, answer.text());
    }
    assert_eq!(lab.get(&nar.url()).body, nar.bytes);
}

/// attic#296, attic#370: what is compressed stays compressed, on disk and on the wire.
#[test]
fn uploads_are_uncompressed() {
    let lab = Lab::new();
    let path = lab.store.add_file("file", vec![b'a'; 1 << 20]);
    lab.push(Nix::Newest, &lab.token("push"), "compression=zstd", &path).unwrap();
    let narinfo = lab.get(&format!("/{}.narinfo", hash_part(&path)));
    let size: u64 = crate::support::value(narinfo.text(), "FileSize").unwrap().parse().unwrap();
    assert!(size < 10_000, "{}", narinfo.text());
    let url = crate::support::value(narinfo.text(), "URL").unwrap().to_owned();
    assert_eq!(lab.get(&format!("/{url}")).body.len() as u64, size);
}

/// Bytes that a process has passed to `write` and its like.
fn written(lab: &Lab) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{}/io", lab.server.pid())).unwrap();
    io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap().parse().unwrap()
}

/// attic#139, attic#156: a NAR was cut into chunks, each with its rows in the database, and each download wrote to it, too.
#[test]
fn attic_139_attic_156_writes_are_amplified_by_chunks_and_sqlite() {
    let lab = Lab::new();
    let token = lab.token("push");
    publish(&lab, &token, &Nar::of(b"the first one makes folders and tables"));
    let nar = Nar::of(&noise(1, 32 << 20));
    let files = || {
        let files = std::fs::read_dir(lab.data_path().join("caches/default/nar")).unwrap();
        files.filter(|file| !file.as_ref().unwrap().file_name().to_string_lossy().ends_with(".ls")).count()
    };
    let (before, files_before) = (written(&lab), files());
    assert_eq!(lab.put(&nar.url(), &token, &nar.bytes).status, 201);
    let (took, len) = (written(&lab) - before, nar.bytes.len() as u64);
    assert_eq!(files() - files_before, 1, "one NAR, one file");
    assert!(took >= len && took - len < INDEX_BYTES_MAX, "{took} bytes were written for {len}");
    // Downloads are noted in memory.
    let before = written(&lab);
    for _ in 0..200 {
        assert_eq!(lab.send("HEAD", &nar.url(), "", &[], b"").status, 200);
        assert_eq!(lab.get(&narinfo_url()).status, 200);
    }
    let took = written(&lab) - before;
    assert!(took < INDEX_BYTES_MAX, "{took} bytes were written for 400 requests");
}

/// What the index may write for one upload, or for all uses within a few seconds.
const INDEX_BYTES_MAX: u64 = 200_000;

/// attic#250, attic#308, attic#322: the client is linked with Nix's libraries, and each version of Nix breaks it.
#[test]
fn attic_250_attic_308_attic_322_clients_break_with_each_nix() {
    let linked = Command::new("ldd").arg(NARVAL).output().unwrap();
    let linked = String::from_utf8_lossy(&linked.stdout).into_owned();
    assert!(linked.contains("libc") && !linked.contains("nix"), "{linked}");
    for nix in Nix::BOTH {
        let lab = Lab::of(Store::made_by(nix));
        let path = lab.store.add_tree("tree");
        let token = lab.store.path("token");
        std::fs::write(&token, lab.token("push")).unwrap();
        let mut push = Command::new(NARVAL);
        push.args(["push", "--quiet", "--store", &lab.store.uri(), "--to", &lab.server.url(), "--token-file"])
            .arg(&token);
        let pushed = push.arg(&path).env("HOME", lab.store.dir.path()).env_remove("NARVAL_STORE").output().unwrap();
        assert!(pushed.status.success(), "{nix:?}: {}", String::from_utf8_lossy(&pushed.stderr));
        Nix::BOTH.iter().for_each(|puller| lab.pull(*puller, &path));
    }
}

/// A client that sends all of its body before it reads the refusal must get to read it: a server that closes on what it has not read resets
/// the connection, and the client reports that and not the reason.
#[test]
fn refusals_reach_clients_that_are_still_sending() {
    let lab = Lab::new();
    let (push, pull) = (lab.token("push"), lab.token("pull"));
    let nar = Nar::of(&vec![4; 24 << 20]);
    publish(&lab, &push, &Nar::of(b"another one"));
    let known = Nar::of(&vec![5; 3 << 20]);
    assert_eq!(lab.put(&known.url(), &push, &known.bytes).status, 201);
    let too_long = vec![b'x'; (16 << 20) + 100_000];
    let narinfo = nar.narinfo(PATH, &[]);
    for round in 0..50 {
        for (status, method, path, token, body) in [
            (200, "PUT", known.url(), &*push, &known.bytes[..]),
            (401, "PUT", nar.url(), "", &nar.bytes[..]),
            (401, "PUT", nar.url(), "nv1_wrong_wrong", &nar.bytes[..3_000_000]),
            (403, "PUT", nar.url(), &pull, &nar.bytes[..]),
            (403, "PUT", narinfo_url(), &pull, narinfo.as_bytes()),
            (405, "PUT", "/metrics".to_owned(), &push, &nar.bytes[..1_000_000]),
            (409, "PUT", narinfo_url(), &push, narinfo.as_bytes()),
            (413, "POST", "/_narval/v1/commit".to_owned(), &push, &too_long[..]),
        ] {
            // Wrong tokens make the address wait, which is 401, too.
            let mut stream = lab.server.connect();
            let credentials =
                if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
            let head = format!(
                "{method} {path} HTTP/1.1\r\nHost: test\r\n{credentials}Content-Length: {}\r\n\r\n",
                body.len()
            );
            let sent = stream.write_all(&[head.as_bytes(), body].concat());
            let mut raw = Vec::new();
            let mut piece = [0; 4096];
            while Answer::parse(&raw).is_none_or(|answer| !answer.complete) {
                match stream.read(&mut piece) {
                    Ok(0) => break,
                    Ok(got) => raw.extend_from_slice(&piece[..got]),
                    Err(error) => panic!("round {round}: {status} {path}: {error} (sent: {sent:?})"),
                }
            }
            let answer = Answer::parse(&raw).unwrap_or_else(|| panic!("round {round}: no answer for {status} {path}"));
            assert_eq!(answer.status, status, "round {round}: {path}: {}", answer.text());
        }
    }
}

/// Slow uploads must not hold the threads that answer reads: 100 clients begin one, and send hardly anything.
#[test]
fn clients_that_dribble_leave_reads_unharmed() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(&vec![2; 300_000]);
    publish(&lab, &token, &nar);
    let other = Nar::of(b"another");
    let mut dribbling: Vec<TcpStream> = Vec::new();
    for number in 0..100 {
        let mut stream = lab.server.connect();
        let expect = if number % 2 == 0 { "Expect: 100-continue\r\n" } else { "" };
        let head = format!(
            "PUT {} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {token}\r\n{expect}Content-Length: 10000000\r\n\r\n",
            other.url()
        );
        stream.write_all(head.as_bytes()).unwrap();
        if number % 2 == 1 {
            stream.write_all(&vec![0; 70_000]).unwrap();
        }
        dribbling.push(stream);
    }
    for round in 0..20 {
        for stream in &mut dribbling {
            // Those that were ended for being too slow are gone.
            let _ = stream.write_all(b"x");
        }
        assert_eq!(lab.get(&nar.url()).body, nar.bytes, "{round}");
        assert_eq!(lab.get(&narinfo_url()).status, 200, "{round}");
        assert_eq!(lab.get("/health").status, 200, "{round}");
    }
}

/// 64 clients that push at once, small and large.
#[test]
fn sixty_four_clients_push_at_once() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nars: Vec<_> =
        (0..64_u32).map(|number| Nar::of(&number.to_le_bytes().repeat(1 + number as usize * 5_000))).collect();
    std::thread::scope(|scope| {
        for nar in &nars {
            scope.spawn(|| assert_eq!(lab.put(&nar.url(), &token, &nar.bytes).status, 201));
        }
    });
    for nar in &nars {
        assert_eq!(lab.get(&nar.url()).body, nar.bytes);
    }
}
