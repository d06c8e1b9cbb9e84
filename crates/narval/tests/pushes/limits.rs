//! Pushes where something is scarce: descriptors, process ids, room for logs, memory.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

use crate::lab::{Lab, Nar};
use crate::support::{Answer, NARVAL, Server, Store};

/// A server that is started by a shell, which says how.
fn started_by(script: &str) -> Lab {
    let store = Store::new();
    let mut command = Command::new("sh");
    command.args(["-c", script, NARVAL, "serve", "--listen", "127.0.0.1:0", "--data"]).arg(store.path("data"));
    let server = Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())]);
    Lab { store, server }
}

#[test]
fn uploads_with_64_descriptors() {
    let lab = started_by("ulimit -n 64 && exec \"$0\" \"$@\"");
    let token = lab.token("push");
    let nars: Vec<_> = (0..48_u32).map(|number| Nar::of(&number.to_le_bytes().repeat(30_000))).collect();
    // More than there are descriptors for: each is taken, or refused, and nothing is half there.
    std::thread::scope(|scope| {
        for nar in &nars {
            scope.spawn(|| {
                let mut stream = lab.server.connect();
                let head = format!(
                    "PUT {} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
                     Content-Length: {}\r\n\r\n",
                    nar.url(),
                    nar.bytes.len()
                );
                // A server that refuses it may close before it was read.
                if stream.write_all(head.as_bytes()).is_ok() {
                    stream.write_all(&nar.bytes).ok();
                }
                let mut raw = Vec::new();
                stream.read_to_end(&mut raw).ok();
                if let Some(answer) = Answer::parse(&raw) {
                    assert!(matches!(answer.status, 200 | 201 | 500 | 503), "{}: {}", answer.status, answer.text());
                }
            });
        }
    });
    // One after the other all of them find room.
    for nar in &nars {
        let answer = lab.put(&nar.url(), &token, &nar.bytes);
        assert!(matches!(answer.status, 200 | 201), "{}: {}\n{}", answer.status, answer.text(), lab.server.log());
        assert_eq!(lab.get(&nar.url()).body, nar.bytes);
    }
    lab.nothing_incoming();
}

fn may_unshare_pids() -> bool {
    let tried = Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "true"]).output();
    let may = tried.is_ok_and(|output| output.status.success());
    if !may {
        eprintln!("skipped: there can be no namespace of process ids");
    }
    may
}

/// Who has the same process id elsewhere is somebody else: what it is receiving is not left behind.
#[test]
fn a_push_from_another_pid_namespace() {
    if !may_unshare_pids() {
        return;
    }
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(&vec![3; 1 << 20]);
    let mut stream = lab.server.connect();
    let head = format!(
        "PUT {} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n",
        nar.url(),
        nar.bytes.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let (first, rest) = nar.bytes.split_at(nar.bytes.len() / 2);
    stream.write_all(first).unwrap();
    let data = lab.data_path();
    let isolated = |args: &[&str]| {
        let output =
            Command::new("unshare").args(["--pid", "--fork", "--mount-proc", NARVAL]).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    // Commands that open the folder clear up what dead processes have left.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while std::fs::read_dir(data.join("incoming")).unwrap().count() == 0 {
        assert!(std::time::Instant::now() < until);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    isolated(&["cache", "stats", "--data", data.to_str().unwrap()]);
    isolated(&["cache", "gc", "--data", data.to_str().unwrap()]);
    // A push of a client with another namespace's process ids, meanwhile.
    let path = lab.store.add_tree("tree");
    let (netrc, uri, url) = (lab.netrc(&token), lab.store.uri(), lab.server.url());
    isolated(&["push", "--store", &uri, "--netrc-file", netrc.to_str().unwrap(), "--to", &url, &path]);
    stream.write_all(rest).unwrap();
    let mut raw = Vec::new();
    stream.read_to_end(&mut raw).unwrap();
    assert_eq!(Answer::parse(&raw).unwrap().status, 201, "{}", lab.server.log());
    assert_eq!(lab.get(&nar.url()).body, nar.bytes);
    assert_eq!(lab.get(&format!("/{}.narinfo", crate::support::hash_part(&path))).status, 200);
}

fn with_config(text: &str) -> (Lab, tempfile::NamedTempFile) {
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), text).unwrap();
    (Lab::with(&["--config", config.path().to_str().unwrap()]), config)
}

#[test]
fn logs_have_a_quota() {
    let (lab, _config) = with_config("[[cache]]\nname = 'default'\nquota = '1M'\n");
    let token = lab.token("push");
    let log = |number: usize| {
        let url = format!("/log/00bgd045z0d4icpbc2yyz4gx48ak44la-log-{number}.drv");
        lab.put(&url, &token, &vec![b'x'; 300_000])
    };
    assert_eq!([0, 1, 2].map(|number| log(number).status), [201; 3]);
    let refused = log(3);
    assert!(refused.status == 507 && refused.text().contains("is full"), "{}: {}", refused.status, refused.text());
    let nar = Nar::of(&vec![1; 200_000]);
    assert_eq!(lab.put(&nar.url(), &token, &nar.bytes).status, 507);
    let logs = std::fs::read_dir(lab.data_path().join("caches/default/log")).unwrap();
    assert_eq!(logs.map(|log| log.unwrap().metadata().unwrap().len()).sum::<u64>(), 900_000);
}

/// The most memory that a process has had, in KiB.
fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// What one token may send in one commit must not take the server's memory.
#[test]
fn the_largest_commit_holds_bounded_memory() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(b"all of them");
    assert_eq!(lab.put(&nar.url(), &token, &nar.bytes).status, 201);
    let before = peak_kib(lab.server.pid());
    let (mut body, mut count) = (Vec::new(), 0_u64);
    // References to itself make it long.
    while body.len() < (16 << 20) - 16_384 {
        let digest = narval_nix::Sha256::of(&count.to_le_bytes());
        let part = narval_nix::HashPart::from_digest(digest.as_bytes()[..20].try_into().unwrap());
        let path = format!("{part}-{}", "x".repeat(200));
        let signature = format!("Sig: {}:{}==\n", "k".repeat(60), "A".repeat(86)).repeat(30);
        let narinfo = format!("{}{signature}", nar.narinfo(&path, &[&path]));
        body.extend_from_slice(format!("{part} {}\n{narinfo}", narinfo.len()).as_bytes());
        count += 1;
    }
    body.extend_from_slice(format!("end {count}\n").as_bytes());
    let answer = lab.post("/_narval/v1/commit", &token, &body);
    let too_large = lab.post("/_narval/v1/commit", &token, &vec![b'x'; (16 << 20) + 1]);
    assert_eq!(too_large.status, 413, "{}", too_large.text());
    let used = (peak_kib(lab.server.pid()) - before) / 1024;
    eprintln!("{count} narinfos in {} MiB: {} with {used} MiB", body.len() >> 20, answer.status);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(used < COMMIT_MEMORY_MIB, "{used} MiB");
}

/// Seven times the largest body: as text, as narinfos, and as rows.
const COMMIT_MEMORY_MIB: u64 = 7 * 16;

/// What 64 clients that push at the same time may hold, beside a window of 2 MiB each, which is what zstd has at its usual level.
const PUSHERS_MEMORY_MIB: u64 = 56;
const PUSHERS: usize = 64;
const WINDOW_MIB: u64 = 2;

#[test]
fn sixty_four_clients_that_push_hold_bounded_memory() {
    let lab = Lab::new();
    let token = lab.token("push");
    let mut state = 1_u64;
    // Of 64 letters: compressed by a quarter, by what a decoder has tables and buffers for.
    let letter = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        32 + (state >> 58) as u8
    };
    let contents: Vec<u8> = (0..3 << 20).map(letter).collect();
    let file = zstd::encode_all(&Nar::of(&contents).bytes[..], 3).unwrap();
    // All but the end, so that all of them are there at once.
    let (begun, _) = file.split_at(file.len() - 1);
    assert_eq!(lab.put("/nar/x.nar", &token, b"x").status, 400);
    let before = peak_kib(lab.server.pid());
    let streams: Vec<_> = std::thread::scope(|scope| {
        let clients = (0..PUSHERS).map(|number| {
            let name = narval_nix::Sha256::of(&number.to_le_bytes()).to_nix32();
            let head = format!(
                "PUT /nar/{name}.nar.zst HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n",
                file.len()
            );
            let server = &lab.server;
            scope.spawn(move || {
                let mut stream = server.connect();
                stream.write_all(head.as_bytes()).unwrap();
                stream.write_all(begun).unwrap();
                stream
            })
        });
        clients.collect::<Vec<_>>().into_iter().map(|client| client.join().unwrap()).collect()
    });
    let until = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while received(&lab) < (PUSHERS * begun.len()) as u64 {
        assert!(std::time::Instant::now() < until, "{} of {}", received(&lab), PUSHERS * begun.len());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let used = (peak_kib(lab.server.pid()) - before) / 1024;
    eprintln!("{PUSHERS} pushes: {used} MiB");
    // Less would mean that they were not all there.
    let windows = PUSHERS as u64 * WINDOW_MIB;
    assert!(used > windows, "{used} MiB");
    assert!(used < windows + PUSHERS_MEMORY_MIB, "{used} MiB");
    drop(streams);
}

/// Bytes of NARs that a server has received.
fn received(lab: &Lab) -> u64 {
    let metrics = lab.get("/metrics");
    metrics.figure("narval_upload_bytes_total").unwrap_or_else(|| panic!("{}", metrics.text()))
}
