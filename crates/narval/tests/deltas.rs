//! Deltas of NARs: asked for, made once, kept, undone, verified; and what happens if any of that goes wrong.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use narval_nix::Sha256;
use serde_json::Value;
use support::{NARVAL, Nix, Server, Store, hash_part, stdout, value};

/// A program: bytes that compress to half.
fn program(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        b"0123456789abcdef"[(state >> 60) as usize]
    };
    (0..len).map(next).collect()
}

/// Bytes that do not compress.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let nibble = |letter: u8| if letter < b'a' { letter - b'0' } else { letter - b'a' + 10 };
    program(seed, 2 * len).chunks(2).map(|pair| nibble(pair[0]) << 4 | nibble(pair[1])).collect()
}

/// The same after a rebuild: hash parts have changed.
fn rebuilt(program: &[u8]) -> Vec<u8> {
    let mut new = program.to_vec();
    for at in (1000..new.len() - 32).step_by(300_000) {
        new[at..at + 32].fill(b'x');
    }
    new
}

/// A store with two versions of a program.
struct Versions {
    store: Store,
    old: String,
    new: String,
}

impl Versions {
    fn new() -> Self {
        let store = Store::new();
        let first = program(1, 3_000_000);
        let old = store.add_file("tool-1.0", &first);
        let new = store.add_file("tool-1.1", rebuilt(&first));
        Self { store, old, new }
    }

    /// The fields that ask for a delta from the old version.
    fn fields(&self) -> [String; 4] {
        let hash = Sha256::of(&self.store.dump(&self.old));
        [
            "Accept-Encoding: dcz".to_owned(),
            format!("Available-Dictionary: :{}:", STANDARD.encode(hash.as_bytes())),
            format!("Dictionary-ID: \"{}\"", hash_part(&self.old)),
            "Prefer: wait=25".to_owned(),
        ]
    }
}

fn installing(from: &str, root: &Path, path: &str, args: &[&str]) -> Command {
    let mut command = Command::new(NARVAL);
    command.args(["install", "--from", from, "--no-check-sigs", "--json", "--store"]).arg(root).arg(path).args(args);
    command.env("HOME", root.parent().unwrap());
    command
}

fn install(from: &str, root: &Path, path: &str, args: &[&str]) -> Output {
    installing(from, root, path, args).output().unwrap()
}

/// The summary of an install.
fn summary(output: Output) -> Value {
    let text = stdout(output);
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.into_iter().find(|line| line["type"] == "summary").unwrap()
}

fn installed(root: &Path, path: &str) -> Vec<u8> {
    fs::read(root.join(&path[1..])).unwrap()
}

fn metric(server: &Server, name: &str) -> u64 {
    let metrics = server.get("/metrics");
    metrics.figure(name).unwrap_or_else(|| panic!("no {name} in {}", metrics.text()))
}

#[test]
fn an_upgrade_downloads_a_delta_that_is_made_once_for_all_clients() {
    let versions = Versions::new();
    let server = Server::narval(&versions.store, &[]);
    let info = server.get("/nix-cache-info");
    assert_eq!(value(info.text(), "NarDeltas"), Some("dcz"));
    let home = tempfile::tempdir().unwrap();
    for client in ["one", "two"] {
        let root = home.path().join(client);
        assert_eq!(summary(install(&server.url(), &root, &versions.old, &["--deltas"]))["deltas"], 0);
        let report = summary(install(&server.url(), &root, &versions.new, &["--deltas"]));
        assert_eq!(report["deltas"], 1);
        assert!(report["downloaded"].as_u64().unwrap() < 20_000, "{report}");
        assert!(report["saved"].as_u64().unwrap() > 1_000_000, "{report}");
        assert_eq!(installed(&root, &versions.new), installed(&versions.store.path("root"), &versions.new));
    }
    assert_eq!(metric(&server, "narval_nar_deltas_made_total"), 1);
    assert_eq!(metric(&server, "narval_nar_deltas_sent_total"), 2);
    // The other way round is a delta, too, and so is a delta after a restart.
    let root = home.path().join("three");
    install(&server.url(), &root, &versions.new, &[]);
    assert_eq!(summary(install(&server.url(), &root, &versions.old, &["--deltas"]))["deltas"], 1);
    assert_eq!(server.terminate(), Some(0));
    let server = Server::narval(&versions.store, &["--deltas", "kept"]);
    let root = home.path().join("four");
    install(&server.url(), &root, &versions.old, &[]);
    assert_eq!(summary(install(&server.url(), &root, &versions.new, &["--deltas"]))["deltas"], 1);
    assert_eq!(metric(&server, "narval_nar_deltas_made_total"), 0);
}

/// What `docs/deltas.md` records: a request, the head of its answer without the fields that are not about deltas, and how its body
/// begins. Another version of zstd changes lengths, the tag and the frame.
fn recorded(url: &str, fields: &[&str], delta: &support::Answer, frame_len: usize) -> String {
    let mut text = format!("GET {url} HTTP/1.1\n{}\n\nHTTP/1.1 200 OK\n", fields.join("\n"));
    for name in ["Content-Type", "Content-Encoding", "Content-Length", "ETag", "Vary", "Accept-Ranges"] {
        let value = delta.field(&name.to_lowercase()).unwrap();
        text += &format!("{name}: {value}\n");
    }
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
    text + &format!(
        "\n{}\n{}\n{}\n{} … ({frame_len} bytes)\n",
        hex(&delta.body[..8]),
        hex(&delta.body[8..24]),
        hex(&delta.body[24..40]),
        hex(&delta.body[40..48])
    )
}

#[test]
fn the_documented_bytes_go_over_the_wire() {
    let versions = Versions::new();
    let server = Server::narval(&versions.store, &[]);
    let url = format!("/nar/{}.nar", hash_part(&versions.new));
    let fields = versions.fields();
    let fields: Vec<_> = fields.iter().map(String::as_str).collect();
    let delta = server.ask("GET", &url, &fields);
    let record = recorded(&url, &fields, &delta, delta.body.len() - 40);
    let docs = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/deltas.md")).unwrap();
    assert!(docs.contains(&format!("```\n{record}```")), "docs/deltas.md should have:\n{record}");
    assert_eq!((delta.status, delta.field("content-encoding")), (200, Some("dcz")));
    assert_eq!(delta.field("vary"), Some("accept-encoding, available-dictionary"));
    assert_eq!(delta.field("content-type"), Some("application/x-nix-nar"));
    assert!(delta.complete && delta.body.len() < 20_000);
    // The header of RFC 9842, section 5, and a frame of RFC 8878 with that dictionary.
    let (old, new) = (versions.store.dump(&versions.old), versions.store.dump(&versions.new));
    assert_eq!(delta.body[..8], [0x5e, 0x2a, 0x4d, 0x18, 0x20, 0, 0, 0]);
    assert_eq!(delta.body[8..40], *Sha256::of(&old).as_bytes());
    let mut decoder = zstd::stream::read::Decoder::with_dictionary(&delta.body[40..], &old).unwrap();
    decoder.window_log_max(27).unwrap();
    let mut undone = Vec::new();
    std::io::copy(&mut decoder, &mut undone).unwrap();
    assert!(undone == new);
    // It can be resumed.
    let tag = delta.field("etag").unwrap();
    let rest =
        server.ask("GET", &url, &[fields[0], fields[1], fields[2], "Range: bytes=100-", &format!("If-Range: {tag}")]);
    assert_eq!((rest.status, rest.field("content-encoding")), (206, Some("dcz")));
    assert!(rest.body == delta.body[100..]);
    // Whoever does not ask for it, or asks for it in vain, gets what was always sent.
    let plain = server.get(&url);
    assert!(plain.body == new && plain.field("vary") == Some("accept-encoding"));
    let other_hash = format!("Available-Dictionary: :{}:", STANDARD.encode(Sha256::of(b"x").as_bytes()));
    for wrong in [
        [fields[0], &other_hash, fields[2]],
        [fields[0], fields[1], "Dictionary-ID: \"00000000000000000000000000000000\""],
        [fields[0], fields[1], "Dictionary-ID: \"../../etc/passwd\""],
        [fields[0], "Available-Dictionary: :AAAA:", fields[2]],
        ["Accept-Encoding: identity", fields[1], fields[2]],
        ["Accept-Encoding: dcz;q=0", fields[1], fields[2]],
    ] {
        let whole = server.ask("GET", &url, &wrong);
        assert!(whole.status == 200 && whole.field("content-encoding").is_none() && whole.body == new, "{wrong:?}");
    }
    assert_eq!(metric(&server, "narval_nar_deltas_sent_total"), 2);
}

#[test]
fn a_nar_is_sent_whole_if_its_delta_is_not_smaller() {
    let store = Store::new();
    let old = store.add_file("tool-1.0", program(1, 1_000_000));
    let new = store.add_file("tool-1.1", program(2, 1_000_000));
    let versions = Versions { store, old, new };
    let server = Server::narval(&versions.store, &[]);
    let fields = versions.fields();
    let fields: Vec<_> = fields.iter().map(String::as_str).collect();
    for _ in 0..2 {
        let whole = server.ask("GET", &format!("/nar/{}.nar", hash_part(&versions.new)), &fields);
        assert!(whole.field("content-encoding").is_none() && whole.body == versions.store.dump(&versions.new));
    }
    assert_eq!(metric(&server, "narval_nar_deltas_made_total"), 0);
}

/// The whole NAR would be half of its size when compressed. A delta of less than a third is worth it, before anybody has compressed it.
#[test]
fn a_release_that_changes_more_than_half_is_still_sent_as_a_delta() {
    let (first, other) = (program(1, 1_000_000), program(2, 600_000));
    let store = Store::new();
    let old = store.add_file("tool-1.0", &first);
    let new = store.add_file("tool-1.1", [&first[..400_000], &other].concat());
    let versions = Versions { store, old, new };
    let server = Server::narval(&versions.store, &[]);
    let fields = versions.fields();
    let fields: Vec<_> = fields.iter().map(String::as_str).collect();
    let delta = server.ask("GET", &format!("/nar/{}.nar", hash_part(&versions.new)), &fields);
    assert_eq!(delta.field("content-encoding"), Some("dcz"));
    assert!((280_000..340_000).contains(&delta.body.len()), "{}", delta.body.len());
}

/// What a delta is compared with is the real size of the compressed NAR: all of one that does not compress, nearly nothing of another.
#[test]
fn a_delta_is_compared_with_the_compressed_nar_before_there_is_one() {
    let sent = |old: Vec<u8>, new: Vec<u8>| {
        let store = Store::new();
        let (old, new) = (store.add_file("tool-1.0", old), store.add_file("tool-1.1", new));
        let versions = Versions { store, old, new };
        let server = Server::narval(&versions.store, &[]);
        let fields = versions.fields();
        let fields: Vec<_> = fields.iter().map(String::as_str).collect();
        let answer = server.ask("GET", &format!("/nar/{}.nar", hash_part(&versions.new)), &fields);
        (answer.field("content-encoding").map(str::to_owned), answer.body.len())
    };
    let (first, other) = (noise(1, 1_000_000), noise(2, 600_000));
    let (coding, len) = sent(first.clone(), [&first[..400_000], &other].concat());
    assert_eq!(coding.as_deref(), Some("dcz"));
    assert!((590_000..700_000).contains(&len), "{len}");
    // The delta has a tenth of the NAR, and so has the compressed NAR.
    let text = |seed| [&program(seed, 100_000)[..], &[b' '; 500_000]].concat();
    let (coding, _) = sent(text(1), text(2));
    assert_eq!(coding, None);
}

/// A client that does not wait gets the whole NAR at once. The next one gets the delta.
#[test]
fn a_delta_that_would_come_too_late_is_made_for_the_next_client() {
    let versions = Versions::new();
    let server = Server::narval(&versions.store, &[]);
    let (fields, url) = (versions.fields(), format!("/nar/{}.nar", hash_part(&versions.new)));
    let at_once: Vec<_> = fields[..3].iter().map(String::as_str).chain(["Prefer: respond-async, wait=0"]).collect();
    let whole = server.ask("GET", &url, &at_once);
    assert_eq!(whole.field("content-encoding"), None);
    assert!(whole.body == versions.store.dump(&versions.new));
    let until = Instant::now() + Duration::from_secs(60);
    while metric(&server, "narval_nar_deltas_made_total") == 0 {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(10));
    }
    let delta = server.ask("GET", &url, &at_once);
    assert_eq!(delta.field("content-encoding"), Some("dcz"));
    assert_eq!(metric(&server, "narval_nar_deltas_made_total"), 1);
}

/// More requests than the server has workers wait for one delta: all of them get it.
#[test]
fn many_requests_wait_for_a_delta_without_holding_workers() {
    const REQUESTS: usize = 24;
    let versions = Versions::new();
    let server = Server::narval(&versions.store, &[]);
    let (fields, url) = (versions.fields(), format!("/nar/{}.nar", hash_part(&versions.new)));
    let fields: Vec<_> = fields.iter().map(String::as_str).collect();
    let ask = || server.ask("GET", &url, &fields).field("content-encoding").map(str::to_owned);
    let codings: Vec<_> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..REQUESTS).map(|_| scope.spawn(ask)).collect();
        asking.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(codings, vec![Some("dcz".to_owned()); REQUESTS]);
    assert_eq!(metric(&server, "narval_nar_deltas_made_total"), 1);
}

#[test]
fn deltas_can_be_switched_off_on_either_side() {
    let versions = Versions::new();
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("root");
    let server = Server::narval(&versions.store, &["--deltas", "off"]);
    assert_eq!(value(server.get("/nix-cache-info").text(), "NarDeltas"), None);
    install(&server.url(), &root, &versions.old, &[]);
    assert_eq!(summary(install(&server.url(), &root, &versions.new, &["--deltas"]))["deltas"], 0);
    assert_eq!(server.terminate(), Some(0));
    let server = Server::narval(&versions.store, &["--deltas", "on"]);
    let root = home.path().join("other");
    install(&server.url(), &root, &versions.old, &[]);
    assert_eq!(summary(install(&server.url(), &root, &versions.new, &["--no-deltas"]))["deltas"], 0);
    assert_eq!(metric(&server, "narval_nar_deltas_made_total"), 0);
    let refused = Command::new(NARVAL)
        .args(["serve", "--store", &versions.store.uri(), "--no-nar-cache", "--deltas", "on"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--nar-cache"));
}

#[test]
fn a_base_modified_on_the_client_is_not_used() {
    let versions = Versions::new();
    let server = Server::narval(&versions.store, &[]);
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("root");
    install(&server.url(), &root, &versions.old, &[]);
    let file = root.join(&versions.old[1..]);
    fs::remove_file(&file).unwrap();
    fs::write(&file, program(9, 3_000_000)).unwrap();
    let output = install(&server.url(), &root, &versions.new, &["--deltas"]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(summary(output)["deltas"], 0);
    assert_eq!(installed(&root, &versions.new), installed(&versions.store.path("root"), &versions.new));
}

#[test]
fn a_base_modified_on_the_server_is_not_used() {
    let versions = Versions::new();
    let server = Server::narval(&versions.store, &[]);
    let fields = versions.fields();
    let fields: Vec<_> = fields.iter().map(String::as_str).collect();
    let file = versions.store.real(&versions.old);
    fs::remove_file(&file).unwrap();
    fs::write(&file, program(9, 3_000_000)).unwrap();
    let whole = server.ask("GET", &format!("/nar/{}.nar", hash_part(&versions.new)), &fields);
    assert_eq!((whole.status, whole.field("content-encoding")), (200, None));
    assert!(whole.body == versions.store.dump(&versions.new));
    assert_eq!(metric(&server, "narval_corrupt_paths_total"), 1);
}

#[test]
fn a_writable_cache_sends_deltas_only_between_its_own_paths() {
    let versions = Versions::new();
    let data = versions.store.path("data");
    let config = versions.store.path("narval.toml");
    fs::write(&config, "[[cache]]\nname = \"team\"\npublic = true\n[[cache]]\nname = \"other\"\npublic = true\n")
        .unwrap();
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(&data).arg("--config").arg(&config);
    let server = Server::start(command, &[("XDG_CACHE_HOME", versions.store.path("cache").to_str().unwrap())]);
    let mut create = Command::new(NARVAL);
    create.args(["token", "create", "--pull", "--push", "--cache", "*", "test", "--data"]).arg(&data);
    let token = versions.store.path("token");
    fs::write(&token, stdout(create.output().unwrap())).unwrap();
    let push = |cache: &str, path: &str| {
        let mut command = Command::new(NARVAL);
        command.args(["push", "--store", &versions.store.uri(), "--to", &format!("{}/{cache}", server.url()), path]);
        stdout(command.arg("--token-file").arg(&token).output().unwrap());
    };
    push("team", &versions.old);
    push("team", &versions.new);
    push("other", &versions.new);
    // A base of another cache is none.
    let home = tempfile::tempdir().unwrap();
    for (cache, deltas) in [("team", 1), ("other", 0)] {
        let (root, team) = (home.path().join(cache), format!("{}/team", server.url()));
        install(&team, &root, &versions.old, &[]);
        let report = summary(install(&format!("{}/{cache}", server.url()), &root, &versions.new, &["--deltas"]));
        assert_eq!(report["deltas"], deltas, "{cache}: {report}");
        assert_eq!(installed(&root, &versions.new), installed(&versions.store.path("root"), &versions.new));
    }
}

#[test]
fn warm_makes_the_deltas_between_two_generations() {
    let versions = Versions::new();
    let profiles = versions.store.path("profiles");
    fs::create_dir(&profiles).unwrap();
    let profile = profiles.join("system");
    for (number, path) in [(1, &versions.old), (2, &versions.new)] {
        std::os::unix::fs::symlink(path, profiles.join(format!("system-{number}-link"))).unwrap();
    }
    std::os::unix::fs::symlink("system-2-link", &profile).unwrap();
    let warm = || {
        let mut command = Command::new(NARVAL);
        command.args(["warm", "--store", &versions.store.uri(), "--deltas-from"]).arg(&profile);
        command.env("XDG_CACHE_HOME", versions.store.path("cache")).output().unwrap()
    };
    let text = |output: Output| {
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(text(warm()).contains("1 deltas made, 0 already present"));
    assert!(text(warm()).contains("0 deltas made, 1 already present"));
    let server = Server::narval(&versions.store, &["--deltas", "kept"]);
    let fields = versions.fields();
    let fields: Vec<_> = fields.iter().map(String::as_str).collect();
    let url = format!("/nar/{}.nar", hash_part(&versions.new));
    assert_eq!(server.ask("GET", &url, &fields).field("content-encoding"), Some("dcz"));
}

/// A server that promises deltas, and sends something else.
struct Liar {
    address: SocketAddr,
    /// The requests for the NAR: whether they asked for a delta.
    asked: Arc<Mutex<Vec<bool>>>,
}

impl Liar {
    fn start(narinfo: String, delta: Vec<u8>, cut: usize, whole: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, asked) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let seen = Arc::clone(&asked);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                let Some(first) = lines.next() else { continue };
                let fields: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
                // `--deltas` waits for as long as a server may take.
                let waits = fields.iter().any(|line| line.eq_ignore_ascii_case("prefer: wait=25"));
                let asks = waits && fields.iter().any(|line| line.contains("Encoding: dcz"));
                let (coding, body, len) = match first.split(' ').nth(1).unwrap() {
                    "/nix-cache-info" => ("", b"StoreDir: /nix/store\nNarDeltas: dcz\n".to_vec(), usize::MAX),
                    path if path.ends_with(".narinfo") => ("", narinfo.clone().into_bytes(), usize::MAX),
                    _ => {
                        seen.lock().unwrap().push(asks);
                        if asks {
                            ("Content-Encoding: dcz\r\n", delta.clone(), cut)
                        } else {
                            ("", whole.clone(), usize::MAX)
                        }
                    }
                };
                let head =
                    format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{coding}Content-Length: {}\r\n\r\n", body.len());
                // The client may close first.
                let _ = stream.write_all(head.as_bytes());
                let _ = stream.write_all(&body[..body.len().min(len)]);
                // Closing at once could reset the connection before the client has read everything.
                let _ = stream.shutdown(Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new());
            }
        });
        Self { address, asked }
    }
}

#[test]
fn a_lying_server_ends_in_a_verified_path_or_a_clear_error() {
    let versions = Versions::new();
    let server = Server::narval(&versions.store, &[]);
    let fields = versions.fields();
    let fields: Vec<_> = fields.iter().map(String::as_str).collect();
    let hash = hash_part(&versions.new).to_owned();
    let narinfo = server.get(&format!("/{hash}.narinfo")).text().to_owned();
    let good = server.ask("GET", &format!("/nar/{hash}.nar"), &fields).body;
    let new = versions.store.dump(&versions.new);
    let home = tempfile::tempdir().unwrap();
    let frame = |bytes: &[u8]| [&good[..40], bytes].concat();
    let mut changed = good.clone();
    let middle = changed.len() / 2;
    changed[middle] ^= 0xff;
    let lies: [(&str, Vec<u8>, usize); 7] = [
        ("bomb", frame(&[0x28, 0xb5, 0x2f, 0xfd, 0, 21 << 3, 1, 0, 0]), usize::MAX),
        ("another-base", [&good[..8], Sha256::of(b"x").as_bytes(), &good[40..]].concat(), usize::MAX),
        ("no-delta", b"<html>".to_vec(), usize::MAX),
        ("changed", changed, usize::MAX),
        ("short", good[..good.len() - 5].to_vec(), usize::MAX),
        ("broken-off", good.clone(), good.len() / 2),
        ("more", frame(&zstd::encode_all(&program(3, 9_000_000)[..], 1).unwrap()), usize::MAX),
    ];
    for (name, delta, cut) in lies {
        let liar = Liar::start(narinfo.clone(), delta, cut, new.clone());
        let (root, url) = (home.path().join(name), format!("http://{}", liar.address));
        install(&server.url(), &root, &versions.old, &[]);
        let output = install(&url, &root, &versions.new, &["--deltas", "--attempts", "1"]);
        assert_eq!(summary(output)["deltas"], 0, "{name}");
        assert_eq!(installed(&root, &versions.new), installed(&versions.store.path("root"), &versions.new), "{name}");
        assert_eq!(*liar.asked.lock().unwrap(), [true, false], "{name}");
    }
    // The whole NAR is wrong, too.
    let mut wrong = new;
    wrong[1_000_000] ^= 1;
    let liar = Liar::start(narinfo, b"<html>".to_vec(), usize::MAX, wrong);
    let root = home.path().join("wrong");
    install(&server.url(), &root, &versions.old, &[]);
    let output = install(&format!("http://{}", liar.address), &root, &versions.new, &["--deltas", "--attempts", "1"]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("NarHash"), "{output:?}");
    assert!(!root.join(&versions.new[1..]).exists());
}

/// A slow line to a server: a relay that passes on so many bytes per second, and counts those that come back.
struct Line {
    address: SocketAddr,
    received: Arc<AtomicU64>,
    is_cut: Arc<AtomicBool>,
}

impl Line {
    fn start(server: SocketAddr, bytes_per_s: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, received) = (listener.local_addr().unwrap(), Arc::new(AtomicU64::new(0)));
        let is_cut = Arc::new(AtomicBool::new(false));
        let (count, cut) = (Arc::clone(&received), Arc::clone(&is_cut));
        // Ends with the test's process.
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                // The server may be gone.
                let Ok(far) = TcpStream::connect(server) else { continue };
                let (near_in, far_in) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let (count, cut, other_cut) = (Arc::clone(&count), Arc::clone(&cut), Arc::clone(&cut));
                std::thread::spawn(move || relay(near_in, far, bytes_per_s, (&AtomicU64::new(0), &other_cut)));
                std::thread::spawn(move || relay(far_in, near, bytes_per_s, (&count, &cut)));
            }
        });
        Self { address, received, is_cut }
    }

    /// Loses what is on its way: the kernel still sends what a killed server had written.
    fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn received(&self) -> u64 {
        self.received.load(Ordering::SeqCst)
    }

    /// Waits until so many bytes have come back.
    fn wait_for(&self, bytes: u64) {
        let until = Instant::now() + Duration::from_secs(60);
        while self.received() < bytes {
            assert!(Instant::now() < until, "{} bytes", self.received());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, bytes_per_s: u64, (count, is_cut): (&AtomicU64, &AtomicBool)) {
    let mut piece = [0; 4096];
    while let Ok(len @ 1..) = from.read(&mut piece) {
        std::thread::sleep(Duration::from_micros(len as u64 * 1_000_000 / bytes_per_s));
        count.fetch_add(len as u64, Ordering::SeqCst);
        if is_cut.load(Ordering::SeqCst) || to.write_all(&piece[..len]).is_err() {
            break;
        }
    }
    // Either may be gone already.
    let _ = (from.shutdown(Shutdown::Read), to.shutdown(Shutdown::Write));
}

/// A first install has no bases. What the live store sends as it is, a slow line takes compressed.
#[test]
fn a_first_install_over_a_slow_line_is_compressed() {
    let store = Store::new();
    let path = store.add_file("text-1.0", "the same words\n".repeat(20_000));
    let server = Server::narval(&store, &[]);
    let line = Line::start(server.address, 10_000);
    let home = tempfile::tempdir().unwrap();
    for (name, args) in [("one", &[][..]), ("two", &["--no-deltas"])] {
        let root = home.path().join(name);
        let report = summary(install(&line.url(), &root, &path, args));
        assert!(report["downloaded"].as_u64().unwrap() < 10_000, "{report}");
        assert_eq!(installed(&root, &path), installed(&store.path("root"), &path));
    }
}

/// A release that differs in so much that its delta takes a while: one and a half megabytes of new contents in six.
fn security_release() -> Versions {
    let store = Store::new();
    let first = program(1, 6_000_000);
    let mut second = first.clone();
    second.splice(3_000_000..3_000_000, program(7, 1_500_000));
    let old = store.add_file("tool-1.0", &first);
    let new = store.add_file("tool-1.1", second);
    Versions { store, old, new }
}

fn is_whole(root: &Path) {
    let mut verify = Command::new(NARVAL);
    let output = verify.args(["verify", "--no-check-sigs", "--store"]).arg(root).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_client_killed_during_a_delta_leaves_nothing_behind_and_can_be_run_again() {
    let versions = security_release();
    let server = Server::narval(&versions.store, &[]);
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("root");
    install(&server.url(), &root, &versions.old, &[]);
    for received in [30_000, 150_000, 300_000] {
        let line = Line::start(server.address, 200_000);
        let mut client = installing(&line.url(), &root, &versions.new, &["--deltas"]);
        let mut client = client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        line.wait_for(received);
        client.kill().unwrap();
        assert_eq!(client.wait().unwrap().code(), None);
        assert!(!root.join(&versions.new[1..]).exists());
    }
    assert!(metric(&server, "narval_nar_deltas_sent_total") >= 3);
    assert_eq!(summary(install(&server.url(), &root, &versions.new, &["--deltas"]))["deltas"], 1);
    assert_eq!(installed(&root, &versions.new), installed(&versions.store.path("root"), &versions.new));
    is_whole(&root);
    // What the killed ones had unpacked is gone.
    let there: Vec<_> = fs::read_dir(root.join("nix/store")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let paths = there.iter().filter(|name| !name.to_str().unwrap().starts_with('.')).count();
    assert_eq!(paths, 2, "{there:?}");
}

#[test]
fn a_server_killed_while_it_makes_or_sends_a_delta_sends_it_after_a_restart() {
    let versions = security_release();
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("root");
    let server = Server::narval(&versions.store, &[]);
    install(&server.url(), &root, &versions.old, &[]);
    // While it makes it: before anything of the answer has come.
    let fields = versions.fields();
    let request =
        format!("GET /nar/{}.nar HTTP/1.1\r\nHost: a\r\n{}\r\n\r\n", hash_part(&versions.new), fields.join("\r\n"));
    let mut asked = server.connect();
    asked.write_all(request.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(40));
    server.end("-KILL");
    let mut answer = Vec::new();
    // The end, or a reset.
    let _ = asked.read_to_end(&mut answer);
    assert_eq!(answer, b"");
    // While it sends it.
    let server = Server::narval(&versions.store, &[]);
    let line = Line::start(server.address, 200_000);
    let mut client = installing(&line.url(), &root, &versions.new, &["--deltas", "--attempts", "1"]);
    let client = client.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    line.wait_for(100_000);
    line.cut();
    server.end("-KILL");
    let output = client.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    // It may have said that it waits: a delta takes its time.
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(message.lines().filter(|line| !line.starts_with(" WARN waiting for ")).count(), 1, "{message}");
    assert!(!root.join(&versions.new[1..]).exists());
    let server = Server::narval(&versions.store, &[]);
    assert_eq!(summary(install(&server.url(), &root, &versions.new, &["--deltas"]))["deltas"], 1);
    assert_eq!(metric(&server, "narval_nar_cache_damaged_total"), 0);
    assert_eq!(installed(&root, &versions.new), installed(&versions.store.path("root"), &versions.new));
    is_whole(&root);
}

#[test]
fn a_dry_run_says_what_comes_as_a_delta() {
    let versions = Versions::new();
    let server = Server::narval(&versions.store, &[]);
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("root");
    install(&server.url(), &root, &versions.old, &[]);
    let plan = |args: &[&str]| {
        let output = install(&server.url(), &root, &versions.new, &[&["--dry-run"], args].concat());
        serde_json::from_str::<Value>(&stdout(output)).unwrap()
    };
    let base = versions.old.rsplit('/').next().unwrap();
    assert_eq!(plan(&["--deltas"])["paths"][0]["delta"], serde_json::json!({"base": base}));
    assert_eq!(plan(&["--no-deltas"])["paths"][0]["delta"], Value::Null);
    assert_eq!(metric(&server, "narval_nar_deltas_made_total"), 0);
    let mut text = Command::new(NARVAL);
    text.args(["install", "--dry-run", "--deltas", "--from", &server.url(), "--no-check-sigs", "--store"]).arg(&root);
    let text = stdout(text.arg(&versions.new).env("HOME", home.path()).output().unwrap());
    assert!(text.contains("1 of them as deltas"), "{text}");
}

#[test]
fn the_base_that_the_profile_refers_to_is_preferred() {
    let store = Store::new();
    let first = program(1, 1_000_000);
    let shown = store.add_file("tool-1.0", &first);
    let nearer = store.add_file("tool-1.1", rebuilt(&first));
    let new = store.add_file("tool-1.2", [&first[..], b"more"].concat());
    let server = Server::narval(&store, &[]);
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("root");
    let profile = home.path().join("profile");
    let profile = ["--deltas", "--profile", profile.to_str().unwrap()];
    install(&server.url(), &root, &shown, &profile[1..]);
    install(&server.url(), &root, &nearer, &[]);
    let base = |args: &[&str]| {
        let output = install(&server.url(), &root, &new, &[&["--dry-run"], args].concat());
        let plan = serde_json::from_str::<Value>(&stdout(output)).unwrap();
        format!("/nix/store/{}", plan["paths"][0]["delta"]["base"].as_str().unwrap())
    };
    assert_eq!(base(&profile), shown);
    assert_eq!(base(&profile[..1]), nearer);
    assert_eq!(summary(install(&server.url(), &root, &new, &profile))["deltas"], 1);
}

/// A laptop, an edge or a CI runner: stock Nix asks a near Narval, which fetches deltas from a far one.
#[test]
fn a_near_server_fetches_deltas_and_gives_stock_nix_whole_nars() {
    let versions = Versions::new();
    let far = Server::narval(&versions.store, &[]);
    let line = Line::start(far.address, 2_500_000);
    let (data, config) = (versions.store.path("near"), versions.store.path("near.toml"));
    let upstream = format!("[[upstream]]\nurl = \"{}\"\nrequire-signatures = false\n", line.url());
    fs::write(&config, format!("upstream-absent-after = \"1m\"\n{upstream}")).unwrap();
    let near = || {
        let mut command = Command::new(NARVAL);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(&data).arg("--config").arg(&config);
        Server::start(command, &[("XDG_CACHE_HOME", versions.store.path("near-cache").to_str().unwrap())])
    };
    let copy = |server: &Server, nix: Nix, path: &str| {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("root");
        let root = root.to_str().unwrap();
        stdout(nix.nix(home.path(), &["copy", "--no-check-sigs", "--from", &server.url(), "--to", root, path]));
        installed(Path::new(root), path)
    };
    let server = near();
    let old = installed(&versions.store.path("root"), &versions.old);
    let new = installed(&versions.store.path("root"), &versions.new);
    assert!(copy(&server, Nix::Newest, &versions.old) == old);
    assert_eq!(metric(&far, "narval_nar_deltas_sent_total"), 0);
    let whole = line.received();
    assert!(whole > 1_000_000, "{whole}");
    // Also after a restart: what is kept is found again.
    assert_eq!(server.terminate(), Some(0));
    let server = near();
    for nix in Nix::BOTH {
        assert!(copy(&server, nix, &versions.new) == new);
    }
    // Everything that came over the slow line for the new version, narinfos and heads included.
    let upgrade = line.received() - whole;
    assert!(upgrade * 4 <= whole, "{upgrade} of {whole}");
    assert_eq!(metric(&far, "narval_nar_deltas_sent_total"), 1);
    let narinfo = server.get(&format!("/{}.narinfo", hash_part(&versions.new))).text().to_owned();
    assert_eq!(value(&narinfo, "Compression"), Some("none"));
    // A file under its compressed name is remembered by clients for weeks, and still answered.
    let third = versions.store.add_file("tool-1.2", program(5, 100_000));
    let mut warm = Command::new(NARVAL);
    warm.args(["warm", "--store", &versions.store.uri(), &third]);
    assert!(warm.env("XDG_CACHE_HOME", versions.store.path("cache")).output().unwrap().status.success());
    let far_narinfo = far.get(&format!("/{}.narinfo", hash_part(&third))).text().to_owned();
    let hash = value(&far_narinfo, "FileHash").and_then(|hash| hash.strip_prefix("sha256:")).unwrap();
    let file = server.get(&format!("/nar/{}-{hash}.nar.zst", hash_part(&third)));
    assert!(file.status == 200 && zstd::decode_all(&file.body[..]).unwrap() == versions.store.dump(&third));
}
