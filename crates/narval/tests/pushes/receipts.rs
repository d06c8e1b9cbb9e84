//! NARs that are stored before they are recorded: what becomes of them when servers are killed, and which receipts count.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::in_bucket::Place;
use crate::lab::{Lab, Nar};
use crate::postgres::PostgresServer;
use crate::support::{Answer, NARVAL, Nix, Store, hash_part};

const ONE: &str = "00bgd045z0d4icpbc2yyz4gx48ak44la-one";

/// Two servers over one bucket, and a token for both.
struct Two {
    place: Place,
    one: Lab,
    other: Lab,
    token: String,
}

impl Two {
    fn new() -> Option<Self> {
        let place = Place::new(true)?;
        let one = place.lab();
        let other = Lab { server: place.serve(&one.store, "other-node"), store: Store::new() };
        let token = place.narval(&one, &["token", "create", "--push", "--pull", "ci"]);
        Some(Self { place, one, other, token })
    }

    fn sql(&self, statement: &str) -> String {
        let postgres: &PostgresServer = self.place.postgres.as_ref().unwrap();
        let database = self.place.database.as_deref().unwrap().split(['/', '?']).nth(3).unwrap();
        postgres.sql(database, statement).unwrap()
    }

    fn names(&self) -> String {
        self.sql("select count(*) from narval.files").trim().to_owned()
    }

    fn is_object(&self, nar: &Nar) -> bool {
        self.place.s3.root().join("the-cache/a/prefix").join(nar.url().trim_start_matches('/')).exists()
    }
}

/// Uploads a NAR as a client that brings receipts.
fn upload(lab: &Lab, token: &str, nar: &Nar) -> Answer {
    let url = format!("/_narval/v1/nar/{}.nar", nar.hash.to_nix32());
    let answer = lab.send("PUT", &url, token, &["Narval-Receipts: 1"], &nar.bytes);
    assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
    answer
}

fn commit(lab: &Lab, token: &str, path: &str, lines: &str) -> Answer {
    let text = format!("StorePath: /nix/store/{path}\n{lines}References: \n");
    let body = format!("{} {}\n{text}end 1\n", hash_part(path), text.len());
    lab.post("/_narval/v1/commit", token, body.as_bytes())
}

fn receipt_of(answer: &Answer) -> &str {
    crate::support::value(answer.text(), "NarvalReceipt").unwrap()
}

#[test]
fn a_receipt_counts_at_another_server_when_the_one_that_gave_it_is_killed() {
    let Some(two) = Two::new() else { return };
    let Two { one, other, token, .. } = &two;
    let nar = Nar::of(b"stored, and not recorded");
    let uploaded = upload(one, token, &nar);
    assert_eq!(uploaded.status, 201);
    assert!(two.is_object(&nar));
    assert_eq!(two.names(), "0", "it is not recorded");
    assert_eq!(other.get(&nar.url()).status, 404, "nor served");
    // The same server knows it, and the receipt is the same.
    let again = upload(one, token, &nar);
    assert_eq!((again.status, again.text()), (200, uploaded.text()));
    // It is not taken for a stray by a check, which may be on another machine.
    assert_eq!(two.place.narval(one, &["cache", "fsck", "--repair"]), "");
    assert!(two.is_object(&nar));
    assert!(Command::new("kill").args(["-9", &one.server.pid().to_string()]).status().unwrap().success());
    for _ in 0..2 {
        // The second time as a client that has not got the answer.
        let answer = commit(other, token, ONE, uploaded.text());
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(two.names(), "1");
    let narinfo = other.get(&format!("/{}.narinfo", hash_part(ONE)));
    assert!(narinfo.status == 200 && !narinfo.text().contains("Receipt"), "{}", narinfo.text());
    assert_eq!(other.get(&nar.url()).body, nar.bytes);
    assert_eq!(two.place.narval(other, &["cache", "fsck", "--contents"]), "");
}

#[test]
fn receipts_that_are_altered_or_of_nobody_are_refused() {
    let Some(two) = Two::new() else { return };
    let Two { one, other, token, .. } = &two;
    let (nar, fake) = (Nar::of(b"this NAR"), Nar::of(b"a NAR that nobody has sent"));
    let uploaded = upload(one, token, &nar);
    let receipt = receipt_of(&uploaded);
    let refused = |lines: &str| {
        let answer = commit(other, token, ONE, lines);
        assert_eq!(answer.status, 409, "{lines}: {}", answer.text());
        assert!(answer.text().contains("is missing; push the path again"), "{}", answer.text());
        assert_eq!(answer.field("Narval-Receipts"), Some("1"), "the client need not wait");
    };
    let without = uploaded.text().lines().filter(|line| !line.starts_with("NarvalReceipt")).collect::<Vec<_>>();
    refused(&format!("{}\n", without.join("\n")));
    // The receipt of a NAR says nothing about another one, neither as it is nor with the other one's hashes.
    let hashes = |text: &str| text.replace(&nar.hash.to_nix32(), &fake.hash.to_nix32());
    refused(&hashes(uploaded.text()));
    refused(&hashes(uploaded.text()).replace(&hashes(receipt), receipt));
    let sizes = format!(" {} ", nar.bytes.len());
    refused(&uploaded.text().replace(receipt, &receipt.replace(&sizes, &format!(" {} ", nar.bytes.len() + 1))));
    refused(&uploaded.text().replace(receipt, &receipt[..receipt.len() - 1]));
    refused(&uploaded.text().replace(receipt, "1"));
    assert_eq!(two.names(), "0");
    // One of a server that counts as dead, whose objects were collected.
    two.sql("delete from narval.writers");
    refused(uploaded.text());
    // What it stored then is recorded as before.
    assert_eq!(upload(one, token, &Nar::of(b"another one")).status, 201);
    assert_eq!(two.names(), "1");
}

#[test]
fn what_a_killed_server_has_stored_is_collected() {
    let Some(two) = Two::new() else { return };
    let Two { place, one, other, token } = &two;
    let (lost, kept) = (Nar::of(b"of a push that was given up"), Nar::of(b"of a push that was not"));
    let uploaded = upload(one, token, &lost);
    let committed = upload(one, token, &kept);
    assert_eq!(commit(other, token, ONE, committed.text()).status, 200);
    assert!(Command::new("kill").args(["-9", &one.server.pid().to_string()]).status().unwrap().success());
    // The server may be alive.
    place.narval(other, &["cache", "gc"]);
    assert!(two.is_object(&lost));
    // Four hours pass.
    two.sql("update narval.writers set begun = begun - 4 * 3600, seen = seen - 4 * 3600");
    for nar in [&lost, &kept] {
        let object = place.s3.root().join("the-cache/a/prefix").join(nar.url().trim_start_matches('/'));
        assert!(Command::new("touch").args(["-d", "4 hours ago"]).arg(object).status().unwrap().success());
    }
    let problems = place.narval(other, &["cache", "gc"]);
    assert!(!two.is_object(&lost) && two.is_object(&kept), "{problems}");
    assert_eq!(two.sql("select count(*) from narval.writers").trim(), "0");
    let answer = commit(other, token, "7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-two", uploaded.text());
    assert_eq!(answer.status, 409, "{}", answer.text());
    assert_eq!(other.get(&kept.url()).body, kept.bytes);
    assert_eq!(place.narval(other, &["cache", "fsck", "--contents"]), "");
}

/// A server that is ended in time records everything.
#[test]
fn a_server_that_ends_records_what_it_has_stored() {
    let Some(two) = Two::new() else { return };
    let Two { place, one, other, token } = two;
    let nar = Nar::of(b"of a client that is gone");
    upload(&one, &token, &nar);
    let Lab { server, store } = one;
    server.end("-TERM");
    let count = |table: &str| {
        let database = place.database.as_deref().unwrap().split(['/', '?']).nth(3).unwrap();
        place.postgres.as_ref().unwrap().sql(database, &format!("select count(*) from narval.{table}")).unwrap()
    };
    assert_eq!((count("files").trim(), count("writers").trim()), ("1", "0"));
    // Another client need not send it.
    let again = other.put(&format!("/_narval/v1/nar/{}.nar", nar.hash.to_nix32()), &token, &nar.bytes);
    assert_eq!(again.status, 200);
    assert_eq!(commit(&other, &token, ONE, again.text()).status, 200);
    drop(store);
}

/// Requests go to one server, and commits to another, for which receipts are lines of a key that it does not know, as for a server of the version
/// before. Counts the commits that were refused.
struct Mixed {
    port: u16,
    refused: Arc<AtomicUsize>,
}

impl Mixed {
    fn new(one: SocketAddr, old: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let refused = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&refused);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let count = Arc::clone(&count);
                std::thread::spawn(move || pass_on(stream.unwrap(), one, old, &count));
            }
        });
        Self { port, refused }
    }
}

fn pass_on(mut client: TcpStream, one: SocketAddr, old: SocketAddr, refused: &AtomicUsize) {
    let (mut request, mut piece) = (Vec::new(), [0; 4096]);
    let mut read = |request: &mut Vec<u8>| {
        let got = client.read(&mut piece).unwrap_or(0);
        request.extend_from_slice(&piece[..got]);
        got > 0
    };
    let head_len = loop {
        if let Some(at) = request.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if !read(&mut request) {
            return;
        }
    };
    let head = String::from_utf8(request[..head_len].to_vec()).unwrap();
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    while request.len() < head_len + 4 + length.unwrap_or(0) {
        assert!(read(&mut request), "the request ends early");
    }
    let (is_commit, mut body) = (head.contains("/commit "), request.split_off(head_len + 4));
    let replace = |bytes: &mut Vec<u8>, from: &[u8], to: &[u8]| {
        assert_eq!(from.len(), to.len());
        while let Some(at) = bytes.windows(from.len()).position(|window| window.eq_ignore_ascii_case(from)) {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    };
    if is_commit {
        replace(&mut body, b"NarvalReceipt: ", b"Narval-of-now: ");
    }
    let mut server = TcpStream::connect(if is_commit { old } else { one }).unwrap();
    let lines = head.lines().filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    let head: Vec<&str> = lines.collect();
    server.write_all(format!("{}\r\nConnection: close\r\n\r\n", head.join("\r\n")).as_bytes()).unwrap();
    server.write_all(&body).unwrap();
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).unwrap();
    if is_commit {
        replace(&mut answer, b"narval-receipts", b"narval-of-later");
        refused.fetch_add(usize::from(answer.starts_with(b"HTTP/1.1 409")), Ordering::SeqCst);
    }
    client.write_all(&answer).ok();
}

/// While servers of two versions run: the one that gets the commit knows no receipts.
#[test]
fn a_client_waits_until_the_nars_are_recorded() {
    let Some(two) = Two::new() else { return };
    let Two { place, one, other, token } = two;
    let path = one.store.add_file("file", "pushed while servers are replaced");
    let mixed = Mixed::new(one.server.address, other.server.address);
    let mut push = Command::new(NARVAL);
    push.args(["push", "--store", &one.store.uri(), "--to", &format!("http://127.0.0.1:{}", mixed.port)]);
    push.arg("--netrc-file").arg(one.netrc(&token)).arg(&path).env("HOME", one.store.dir.path());
    let mut push = push.env("NO_PROXY", "127.0.0.1").stderr(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while mixed.refused.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < until, "nothing is committed");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(push.try_wait().unwrap().is_none(), "it waits");
    let Lab { server, store } = one;
    server.end("-TERM");
    let output = push.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let pulled = Lab { server: other.server, store };
    pulled.pull(Nix::Newest, &path);
    assert_eq!(place.narval(&pulled, &["cache", "fsck", "--contents"]), "");
}
