//! A scripted, misbehaving cache over real sockets, and NARs to put into it.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use narval_client::{Client, ClientOptions, Proxies, RetryPolicy, Url};
use narval_install::{Destination, Error, Options, Progress, Report, Wanted, install};
use narval_nix::nar::wire;
use narval_nix::{Sha256, StoreDir, TrustedKeys};
use narval_store::StoreConfig;

/// What the server does with one request for a file.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Answers as it should.
    Serve,
    /// A status, with these fields, and an empty body.
    Status(u16, &'static str),
    /// Announces all of the body, sends so many bytes, and closes.
    CutAt(usize),
    /// Sends the body in chunks, without the last one when told so.
    Chunked { complete: bool },
    /// Sends the body, and then bytes that nobody asked for.
    Trailing(usize),
    /// Closes before it answers.
    Close,
    /// Answers when nobody waits any more.
    TooLate,
    /// Sends the body without a length and closes.
    UntilClose,
    /// Sends the body byte by byte, with this time between them.
    Drip(Duration),
    /// Sends something that is not HTTP.
    Garbage,
    /// Ignores ranges.
    Whole,
    /// Another body, served as it should be.
    Instead(Vec<u8>),
    /// The same with these fields.
    With(&'static str, Vec<u8>),
    /// Answers when the test comes to the barrier.
    Meet(Arc<Barrier>),
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) connections: AtomicUsize,
    pub(crate) requests: Mutex<Vec<String>>,
}

/// The server: files by their path, and what is done with the first requests for each.
pub(crate) struct Server {
    pub(crate) url: String,
    files: Arc<Mutex<HashMap<String, Vec<u8>>>>,
    script: Arc<Mutex<HashMap<String, Vec<Act>>>>,
    pub(crate) counts: Arc<Counts>,
}

impl Server {
    pub(crate) fn start() -> Self {
        // Both ends of all connections of all tests are files of this one process: what the user may have, it takes.
        let mut files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        files.current = files.maximum;
        rustix::process::setrlimit(rustix::process::Resource::Nofile, files).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let files = Arc::new(Mutex::new(HashMap::new()));
        let server = Self { url, files, script: Arc::default(), counts: Arc::default() };
        server.put("/nix-cache-info", b"StoreDir: /nix/store\nPriority: 40\n".to_vec());
        let (files, script, counts) =
            (Arc::clone(&server.files), Arc::clone(&server.script), Arc::clone(&server.counts));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counts.connections.fetch_add(1, Ordering::SeqCst);
                let (files, script, counts) = (Arc::clone(&files), Arc::clone(&script), Arc::clone(&counts));
                std::thread::spawn(move || drop(talk(stream, &files, &script, &counts)));
            }
        });
        server
    }

    pub(crate) fn put(&self, path: &str, body: Vec<u8>) {
        self.files.lock().unwrap().insert(path.to_owned(), body);
    }

    pub(crate) fn file(&self, path: &str) -> Vec<u8> {
        self.files.lock().unwrap()[path].clone()
    }

    /// The first requests for this path are met so, later ones as they should be.
    pub(crate) fn script(&self, path: &str, acts: &[Act]) {
        self.script.lock().unwrap().insert(path.to_owned(), acts.to_vec());
    }

    pub(crate) fn requests_for(&self, path: &str) -> usize {
        self.counts.requests.lock().unwrap().iter().filter(|request| request.contains(&format!(" {path} "))).count()
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.counts.requests.lock().unwrap().clone()
    }

    /// Adds a path with this NAR, its narinfo changed by `change`. The path's name.
    pub(crate) fn add(&self, name: &str, nar: &[u8], references: &[&str], change: impl Fn(String) -> String) -> String {
        let hash_part = &Sha256::of(name.as_bytes()).to_nix32()[..32];
        let base = format!("{hash_part}-{name}");
        let (hash, size) = (Sha256::of(nar), nar.len());
        let narinfo = format!(
            "StorePath: /nix/store/{base}\nURL: nar/{name}.nar\nCompression: none\nFileHash: {hash}\nFileSize: {size}\n\
             NarHash: {hash}\nNarSize: {size}\nReferences: {}\n",
            references.join(" ")
        );
        self.put(&format!("/{hash_part}.narinfo"), change(narinfo).into_bytes());
        self.put(&format!("/nar/{name}.nar"), nar.to_vec());
        base
    }
}

fn talk(
    mut stream: TcpStream,
    files: &Mutex<HashMap<String, Vec<u8>>>,
    script: &Mutex<HashMap<String, Vec<Act>>>,
    counts: &Counts,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(FOREVER))?;
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if stream.read(&mut byte)? == 0 {
                return Ok(());
            }
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        counts.requests.lock().unwrap().push(head.clone());
        let path = head.split(' ').nth(1).unwrap().to_owned();
        let act = script.lock().unwrap().get_mut(&path).filter(|acts| !acts.is_empty()).map(|acts| acts.remove(0));
        let body = files.lock().unwrap().get(&path).cloned();
        let range = head.lines().find_map(|line| line.strip_prefix("Range: bytes=")?.strip_suffix('-')?.parse().ok());
        if !answer(&mut stream, act.unwrap_or(Act::Serve), body, range)? {
            return Ok(());
        }
    }
}

/// Whether the connection stays open.
fn answer(stream: &mut TcpStream, act: Act, body: Option<Vec<u8>>, range: Option<usize>) -> std::io::Result<bool> {
    let Some(body) = body else {
        stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
        return Ok(true);
    };
    let ok = format!("HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: {}\r\n\r\n", body.len());
    match act {
        Act::TooLate => {
            std::thread::sleep(FOREVER);
            return answer(stream, Act::Serve, Some(body), range);
        }
        Act::With(fields, other) => {
            write!(stream, "HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n", other.len())?;
            stream.write_all(&other)?;
        }
        Act::Meet(barrier) => {
            barrier.wait();
            return answer(stream, Act::Serve, Some(body), range);
        }
        Act::Instead(other) => return answer(stream, Act::Serve, Some(other), range),
        Act::Serve if range.is_some() => {
            let from = range.unwrap_or(0);
            let (rest, len) = (&body[from..], body.len());
            write!(
                stream,
                "HTTP/1.1 206 Partial\r\nContent-Range: bytes {from}-{}/{len}\r\nContent-Length: {}\r\n\r\n",
                len - 1,
                rest.len()
            )?;
            stream.write_all(rest)?;
        }
        Act::Serve | Act::Whole => stream.write_all(&[ok.as_bytes(), &body].concat())?,
        Act::Status(status, fields) => write!(stream, "HTTP/1.1 {status} x\r\n{fields}Content-Length: 0\r\n\r\n")?,
        Act::CutAt(len) => {
            stream.write_all(&[ok.as_bytes(), &body[..len.min(body.len())]].concat())?;
            return Ok(false);
        }
        Act::Chunked { complete } => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
            for chunk in body.chunks(1000) {
                write!(stream, "{:x};x=y\r\n", chunk.len())?;
                stream.write_all(chunk)?;
                stream.write_all(b"\r\n")?;
            }
            if complete {
                stream.write_all(b"0\r\nTrailer: yes\r\n\r\n")?;
            }
            return Ok(complete);
        }
        Act::Trailing(len) => stream.write_all(&[ok.as_bytes(), &body, &vec![b'!'; len]].concat())?,
        Act::Close => return Ok(false),
        Act::UntilClose => {
            stream.write_all(&[&b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"[..], &body].concat())?;
            return Ok(false);
        }
        Act::Drip(pause) => {
            stream.write_all(ok.as_bytes())?;
            for byte in body {
                stream.write_all(&[byte])?;
                std::thread::sleep(pause);
            }
        }
        Act::Garbage => stream.write_all(b"220 smtp.example.org ESMTP\r\n\r\n")?,
    }
    Ok(true)
}

/// The NAR of one regular file.
pub(crate) fn file_nar(contents: &[u8]) -> Vec<u8> {
    let padding = vec![0; contents.len().next_multiple_of(8) - contents.len()];
    let len = (contents.len() as u64).to_le_bytes();
    [&wire::HEAD[..], &wire::REGULAR, &len, contents, &padding, &wire::CLOSE].concat()
}

/// Longer than any test: nothing is given up because the machine is busy.
pub(crate) const FOREVER: Duration = Duration::from_secs(600);

/// A client that loses no time between attempts, gives up no request that is under way, and waits for every cache.
pub(crate) fn client() -> Arc<Client> {
    client_with_patience(FOREVER)
}

/// The same, that waits so long for caches to say what they are.
pub(crate) fn client_with_patience(open_patience: Duration) -> Arc<Client> {
    let brief = Duration::from_millis(5);
    let retry = RetryPolicy { base: brief, overload_base: brief, patience: Duration::ZERO, ..RetryPolicy::default() };
    client_that(retry, FOREVER, open_patience)
}

/// A client with this policy, which waits so long for data, and for caches to say what they are.
pub(crate) fn client_that(retry: RetryPolicy, stall_timeout: Duration, open_patience: Duration) -> Arc<Client> {
    // The servers are here, whatever proxy the environment names.
    let proxies = Proxies::default();
    let options = ClientOptions { retry, proxies, stall_timeout, ..ClientOptions::default() };
    Arc::new(narval_s3::client(ClientOptions { open_patience, ..options }))
}

/// Installs from caches without signatures.
pub(crate) fn install_from(urls: &[&str], root: &Path, paths: &[&str]) -> Result<Report, Error> {
    install_with(&client(), urls, root, paths)
}

/// The same with a client of one's own.
pub(crate) fn install_with(client: &Arc<Client>, urls: &[&str], root: &Path, paths: &[&str]) -> Result<Report, Error> {
    let options = Options {
        caches: urls.iter().map(|url| Url::parse(url).unwrap()).collect(),
        keys: TrustedKeys::new(),
        check_signatures: false,
        cores: 2,
        durable: false,
        deltas: Default::default(),
        delta_bases: Vec::new(),
        nar_hashes: HashMap::new(),
    };
    let wanted: Vec<_> = paths.iter().map(|path| Wanted::parse(path, &StoreDir::default()).unwrap()).collect();
    let destination = Destination::new(StoreConfig::for_root(root).unwrap());
    install(&destination, &options, client, &wanted, &Progress::default())
}

/// What lies in the store's folder besides lock files.
pub(crate) fn names_in(root: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(root.join("nix/store")) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| !name.starts_with(".links")).collect();
    names.sort();
    names
}
