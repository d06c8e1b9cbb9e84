//! Requests that take long: those of the page that decode, walk or compare, and those for missing paths that verify signatures. Nobody else waits
//! for them, and they end with their clients.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use narval_nix::{Sha256, Sha256Hasher};

use crate::lab::{Lab, Nar, serve};
use crate::support::{Running, Store, certificate, hash_part};

/// Clients at a time. Each leaves most of them unanswered.
const CLIENTS: usize = 200;
/// Zeros before the small file.
const ZEROS: u64 = 700 << 20;
/// Paths with a signature: more than are looked at at a time. Without optimizations, verifying one takes 30 ms.
const SIGNED_PATHS: usize = 300;
/// Paths of the closure.
const PATHS: usize = 3_000;
const LARGE: &str = "00bgd045z0d4icpbc2yyz4gx48ak44la-large";
const BEYOND: &str = "7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-beyond";

/// A NAR with a file of zeros and a small file after it, as one zstd frame; the hash of the NAR, and its length.
fn large_nar(zeros: u64) -> (Vec<u8>, Sha256, u64) {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    let (mut hasher, mut length) = (Sha256Hasher::new(), 0);
    let mut write = |bytes: &[u8]| {
        hasher.update(bytes);
        length += bytes.len() as u64;
        encoder.write_all(bytes).unwrap();
    };
    let text = |text: &str| {
        [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &[0; 8][..(8 - text.len() % 8) % 8]].concat()
    };
    let texts = |list: &[&str]| list.iter().flat_map(|one| text(one)).collect::<Vec<_>>();
    let entry = |name: &str| texts(&["entry", "(", "name", name, "node", "(", "type", "regular", "contents"]);
    write(&texts(&["nix-archive-1", "(", "type", "directory"]));
    write(&entry("a-zeros"));
    write(&zeros.to_le_bytes());
    let piece = vec![0; 1 << 20];
    (0..zeros >> 20).for_each(|_| write(&piece));
    write(&texts(&[")", ")"]));
    write(&entry("b-small"));
    write(&texts(&["small\n", ")", ")", ")"]));
    (encoder.finish().unwrap(), hasher.finish(), length)
}

fn upload_large(lab: &Lab, token: &str, path: &str, zeros: u64) {
    let (file, nar_hash, nar_size) = large_nar(zeros);
    let url = format!("nar/{}.nar.zst", Sha256::of(&file).to_nix32());
    assert_eq!(lab.put(&format!("/{url}"), token, &file).status, 201);
    let narinfo = format!(
        "StorePath: /nix/store/{path}\nURL: {url}\nCompression: zstd\nFileHash: sha256:{}\nFileSize: {}\n\
         NarHash: sha256:{}\nNarSize: {nar_size}\nReferences: \n",
        Sha256::of(&file).to_nix32(),
        file.len(),
        nar_hash.to_nix32()
    );
    let put = lab.put(&format!("/{}.narinfo", hash_part(path)), token, narinfo.as_bytes());
    assert_eq!(put.status, 201, "{}", put.text());
}

/// Uploads a path; its hash part.
fn path_in(lab: &Lab, token: &str, name: &str) -> String {
    let (nar, path) = (Nar::of(name.as_bytes()), format!("{:032}-{name}", 800_000));
    assert_eq!(lab.put(&nar.url(), token, &nar.bytes).status, 201);
    let narinfo = nar.narinfo(&path, &[]);
    assert_eq!(lab.put(&format!("/{}.narinfo", hash_part(&path)), token, narinfo.as_bytes()).status, 201);
    hash_part(&path).to_owned()
}

fn name(number: usize) -> String {
    format!("{number:032}-path-{number}")
}

/// Uploads paths that each refer to the next ones.
fn upload_closure(lab: &Lab, token: &str, paths: usize) {
    let nar = Nar::of(b"one");
    let lines = lab.put(&format!("/_narval/v1/nar/{}.nar", nar.hash.to_nix32()), token, &nar.bytes);
    assert_eq!(lines.status, 201);
    let mut body = String::new();
    for number in 0..paths {
        let references = (number + 1..paths).take(5).map(name).collect::<Vec<_>>().join(" ");
        let path = name(number);
        let narinfo = format!("StorePath: /nix/store/{path}\n{}References: {references}\n", lines.text());
        body.push_str(&format!("{} {}\n{narinfo}", hash_part(&path), narinfo.len()));
    }
    body.push_str(&format!("end {paths}\n"));
    let answer = lab.post("/_narval/v1/commit", token, body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Of all threads of a process, in clock ticks: a hundredth of a second each.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// What four of five requests for `/health`, `/ready` and an unknown path take at most; the others may be slow because the machine is.
fn typical(status: &dyn Fn(&str) -> u16, rounds: u8) -> Duration {
    let mut times = Vec::new();
    for _ in 0..rounds {
        // One that nobody has asked for.
        let absent = Sha256::of(format!("{:?}", Instant::now()).as_bytes()).to_nix32();
        for (path, expected) in [("/health", 200), ("/ready", 200), (&format!("/{}.narinfo", &absent[..32]), 404)] {
            let begun = Instant::now();
            assert_eq!(status(path), expected, "{path}");
            times.push(begun.elapsed());
        }
    }
    times.sort_unstable();
    // Much less than what the requests of the page ask for would take, for each of them.
    assert!(times.last() < Some(&Duration::from_secs(5)), "{times:?}");
    times[times.len() * 4 / 5]
}

/// What a server may use once all clients have left, in hundredths of a second: it finishes what it has begun.
const TICKS_MAX: u64 = 1500;

/// The server stays answerable, and is idle once everybody has left. `arrive` opens the connections.
fn besieged<T>(lab: &Lab, status: &dyn Fn(&str) -> u16, arrive: impl FnOnce() -> T) {
    let idle = typical(status, 20);
    let clients = arrive();
    let times = typical(status, 30);
    // Much less than what the requests ask for would take, and than a turn behind each of them.
    assert!(times < Duration::from_millis(500) + 20 * idle, "{times:?}, and {idle:?} before");
    drop(clients);
    // By the time of the processor: how long that takes depends on what else the machine does.
    let left = cpu_ticks(lab.server.pid());
    loop {
        let before = cpu_ticks(lab.server.pid());
        std::thread::sleep(Duration::from_secs(1));
        let now = cpu_ticks(lab.server.pid());
        if now - before <= 5 {
            eprintln!("{} ticks after the clients had left", before - left);
            break;
        }
        assert!(now - left < TICKS_MAX, "the server works for clients that have left");
    }
}

fn routes() -> [String; 4] {
    let (large, first, second) = (hash_part(LARGE), hash_part(&name(0)).to_owned(), hash_part(&name(1)).to_owned());
    [
        format!("/_narval/page/file/{large}/b-small"),
        format!("/_narval/page/tar/{large}/b-small"),
        format!("/_narval/page/closure/{first}"),
        format!("/_narval/compare/{first}/{second}"),
    ]
}

#[test]
fn requests_of_the_page_stop_nobody_else_and_end_with_their_clients() {
    let lab = Lab::new();
    let token = lab.token("push");
    upload_large(&lab, &token, LARGE, ZEROS);
    upload_closure(&lab, &token, PATHS);
    for route in routes() {
        let arrive = || -> Vec<TcpStream> {
            let connected = (0..CLIENTS).map(|_| {
                let mut stream = lab.server.connect();
                write!(stream, "GET {route} HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
                stream
            });
            connected.collect()
        };
        besieged(&lab, &|path| lab.get(path).status, arrive);
    }
    // All of them are answered when they come one at a time, and too many of one client are told to come again.
    let [file, tar, closure, compare] = routes().map(|route| lab.get(&route));
    assert_eq!((file.status, file.text()), (200, "small\n"));
    assert_eq!((tar.status, tar.complete), (200, true));
    let closure: serde_json::Value = serde_json::from_slice(&closure.body).unwrap();
    let nodes = closure["nodes"].as_array().unwrap();
    assert_eq!((nodes.len(), closure["missing"].as_u64()), (PATHS, Some(0)));
    assert_eq!(
        (&nodes[0]["references"], &nodes[PATHS - 1]["name"]),
        (&serde_json::json!([1, 2, 3, 4, 5]), &serde_json::json!(format!("path-{}", PATHS - 1)))
    );
    assert!(compare.text().contains("<td>Paths in it</td><td class=\"n\">3,000</td>"), "{}", compare.text());
    assert!(compare.text().contains("Only in the closure before</h2><p class=\"soft\">1 path, "), "{}", compare.text());
    let metrics = lab.get("/metrics");
    assert_eq!(metrics.figure("narval_page_requests_running"), Some(0), "{}", metrics.text());
    let refused = metrics.figure("narval_page_refused_total").unwrap();
    assert!(refused > 2 * CLIENTS as u64, "{refused}");
}

#[test]
fn one_client_does_not_take_the_page_from_the_others() {
    let lab = Lab::new();
    let token = lab.token("push");
    upload_large(&lab, &token, LARGE, ZEROS);
    let [file, ..] = routes();
    let clients: Vec<TcpStream> = (0..CLIENTS)
        .map(|_| {
            let mut stream = lab.server.connect();
            write!(stream, "GET {file} HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
            stream
        })
        .collect();
    let refused = lab.get(&file);
    assert_eq!((refused.status, refused.field("retry-after")), (503, Some("1")), "{}", refused.text());
    // From another address of this machine.
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
    rustix::net::connect(&socket, &lab.server.address).unwrap();
    let mut stream = TcpStream::from(socket);
    write!(stream, "GET {file} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 ") && answer.ends_with(b"small\n"));
    drop(clients);
    // What would have to be decoded before the file is too much.
    upload_large(&lab, &token, BEYOND, 1 << 30);
    let beyond = hash_part(BEYOND);
    for route in ["file", "tar"] {
        let answer = lab.get(&format!("/_narval/page/{route}/{beyond}/b-small"));
        assert_eq!(answer.status, 422, "{}", answer.text());
    }
    assert_eq!(lab.get(&format!("/_narval/page/tar/{beyond}/none")).status, 404);
}

#[test]
fn questions_for_missing_paths_stop_nobody_else_and_end_with_their_clients() {
    let store = Store::new();
    let (key, _) = store.key("own-1");
    let lab = Lab::configured(store, &format!("data = 'data'\nsign-keys = '{}'\n", key.display()));
    let (push, sign) = (lab.token("push"), lab.token("push,sign"));
    upload_closure(&lab, &sign, SIGNED_PATHS);
    let unsigned = path_in(&lab, &push, "unsigned");
    // In the order of the question, with what is missing and what is not signed.
    let absent = |number: usize| format!("{:032}", 900_000 + number);
    let mut asked: Vec<String> = (0..SIGNED_PATHS).map(|number| hash_part(&name(number)).to_owned()).collect();
    asked.insert(0, absent(0));
    asked.insert(280, unsigned.clone());
    asked.push(absent(1));
    let answer = lab.post("/_narval/v1/missing", &sign, asked.join("\n").as_bytes());
    let expected = format!("{}\n{unsigned}\n{}\nend 3\n", absent(0), absent(1));
    assert_eq!((answer.status, answer.text()), (200, expected.as_str()));
    let answer = lab.post("/_narval/v1/missing", &push, asked.join("\n").as_bytes());
    assert_eq!((answer.status, answer.text()), (200, format!("{}\n{}\nend 2\n", absent(0), absent(1)).as_str()));
    // The largest question, many times at once.
    let signed = (0..).map(|number| hash_part(&name(number % SIGNED_PATHS)).to_owned()).take(65_536);
    let question = signed.collect::<Vec<_>>().join("\n");
    let arrive = || -> Vec<TcpStream> {
        let connected = (0..40).map(|_| {
            let mut stream = lab.server.connect();
            let head = format!(
                "POST /_narval/v1/missing HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {sign}\r\nContent-Length: {}\r\n\r\n",
                question.len()
            );
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(question.as_bytes()).unwrap();
            stream
        });
        connected.collect()
    };
    besieged(&lab, &|path| lab.get(path).status, arrive);
}

/// The frames of a client that asks for a path on many streams (RFC 9113), whose windows are small.
fn http2_requests(path: &str, streams: u32) -> Vec<u8> {
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    out.extend(frame(4, 0, 0, &[]));
    for number in 0..streams {
        // Indexed fields, and literals without indexing (RFC 7541): GET, https, the path, the authority.
        let mut block = vec![0x82, 0x87, 0x04, u8::try_from(path.len()).unwrap()];
        block.extend_from_slice(path.as_bytes());
        block.extend_from_slice(&[0x01, 4]);
        block.extend_from_slice(b"test");
        out.extend(frame(1, 0b101, 2 * number + 1, &block));
    }
    out
}

/// `openssl` as the TLS of a client.
fn http2_client(lab: &Lab, path: &str) -> Running {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-quiet", "-alpn", "h2", "-connect", &lab.server.address.to_string()]);
    let mut child: Child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(&http2_requests(path, 100)).unwrap();
    Running(child)
}

#[test]
fn requests_of_the_page_over_http_2_stop_nobody_else_and_end_with_their_clients() {
    let plain = Lab::new();
    let token = plain.token("push");
    upload_large(&plain, &token, LARGE, ZEROS);
    upload_closure(&plain, &token, PATHS);
    // Another server over the same data.
    let [cert, key] = certificate(plain.store.dir.path());
    let tls = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let Lab { store, .. } = plain;
    let lab = Lab { server: serve(&store, &tls), store };
    let status = |path: &str| {
        let url = format!("https://{}{path}", lab.server.address);
        let args = ["--silent", "--insecure", "--http2", "--max-time", "60", "--output", "/dev/null"];
        let output = Command::new("curl").args(args).args(["--write-out", "%{http_code}", &url]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().parse().unwrap()
    };
    for route in routes() {
        besieged(&lab, &status, || (0..CLIENTS / 100).map(|_| http2_client(&lab, &route)).collect::<Vec<_>>());
        assert_eq!(status(&route), 200);
    }
}
