//! Binary caches for tests of upstreams, and what reads from them.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::HashMap;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use narval_cache::upstream::{
    Deadline, Lookup, NarAnswer, UpstreamOptions, Upstreams, UpstreamsError, UpstreamsOptions, Waiting, WhenDown,
};
use narval_client::Url;
use narval_files::{FillEnd, GrowingFile};
use narval_http::{Body, Listen, ListenAddress, Request, Response, Server, ServerHandle, StatusCode};
use narval_nix::nar::{Encoder, Event};
use narval_nix::{HashPart, NarInfo, SecretKey, Sha256, StoreDir, StorePath, TrustedKeys};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Nobody is late on a busy machine.
pub(crate) const DEADLINE: Deadline =
    Deadline { absent_after: PATIENCE, when_down: WhenDown::Unavailable, nar_rate_min: 1024 };

/// What a cache does when it is asked for a file.
#[derive(Clone)]
pub(crate) enum File {
    Bytes(Vec<u8>),
    /// The first part, then the rest when the test says so.
    Gated(Vec<u8>, usize, Arc<Mutex<Receiver<()>>>),
    Status(u16),
    /// A range of it, if one is asked for.
    Ranged(Vec<u8>),
    /// After a while.
    Late(Vec<u8>, Duration),
    /// The first part, then a byte now and then.
    Trickling(Vec<u8>, usize),
    /// Nothing, for as long as the test runs.
    Silence,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) files: HashMap<String, File>,
    pub(crate) asked: HashMap<String, usize>,
    /// Bytes of files that are ranged.
    pub(crate) sent: usize,
    /// The field `Authorization` of the last request.
    pub(crate) authorization: Option<String>,
}

/// A binary cache.
pub(crate) struct Upstream {
    pub(crate) server: Option<ServerHandle>,
    pub(crate) address: SocketAddr,
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) key: SecretKey,
}

impl Upstream {
    pub(crate) fn start(key: &str) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), SecretKey::generate(key).unwrap())
    }

    pub(crate) fn start_at(address: SocketAddr, key: SecretKey) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let handler = move |request: Request| {
            let path = request.path().to_owned();
            let file = {
                let mut state = shared.lock().unwrap();
                *state.asked.entry(path.clone()).or_default() += 1;
                state.authorization = request.header("authorization").map(str::to_owned);
                state.files.get(&path).cloned()
            };
            match file {
                None => Response::text(StatusCode::NOT_FOUND, "no"),
                Some(File::Status(status)) => Response::text(StatusCode::from_u16(status).unwrap(), "no"),
                Some(File::Bytes(bytes)) => Response::new(StatusCode::OK).body(Body::bytes(bytes)),
                Some(File::Ranged(bytes)) => {
                    let range =
                        request.header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
                    let from: usize = range.map_or(0, |from| from.parse().unwrap());
                    let rest = bytes[from..].to_vec();
                    shared.lock().unwrap().sent += rest.len();
                    let partial = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
                    match range {
                        None => Response::new(StatusCode::OK).body(Body::bytes(rest)),
                        Some(_) => Response::new(StatusCode::PARTIAL_CONTENT)
                            .header("content-range", partial)
                            .body(Body::bytes(rest)),
                    }
                }
                Some(File::Late(bytes, after)) => {
                    std::thread::sleep(after);
                    Response::new(StatusCode::OK).body(Body::bytes(bytes))
                }
                Some(File::Silence) => {
                    std::thread::sleep(Duration::from_secs(20));
                    Response::text(StatusCode::NOT_FOUND, "late")
                }
                Some(File::Trickling(bytes, first)) => {
                    let (body, mut writer) = Body::writer(Some(bytes.len() as u64));
                    std::thread::spawn(move || -> std::io::Result<()> {
                        writer.write_all(&bytes[..first])?;
                        for byte in &bytes[first..] {
                            writer.write_all(&[*byte])?;
                            writer.flush()?;
                            std::thread::sleep(Duration::from_millis(100));
                        }
                        Ok(())
                    });
                    Response::new(StatusCode::OK).body(body)
                }
                Some(File::Gated(bytes, first, gate)) => {
                    let (body, mut writer) = Body::writer(Some(bytes.len() as u64));
                    std::thread::spawn(move || {
                        writer.write_all(&bytes[..first])?;
                        writer.flush()?;
                        gate.lock().unwrap().recv().map_err(std::io::Error::other)?;
                        writer.write_all(&bytes[first..])?;
                        writer.finish()
                    });
                    Response::new(StatusCode::OK).body(body)
                }
            }
        };
        let server = Server::builder(handler).workers(16).listen(Listen::Tcp(address)).build().unwrap();
        let ListenAddress::Tcp(address) = server.addresses()[0].clone() else { panic!("no TCP") };
        Self { server: Some(server.spawn().unwrap()), address, state, key }
    }

    pub(crate) fn url(&self) -> Url {
        Url::parse(&format!("http://{}", self.address)).unwrap()
    }

    pub(crate) fn put(&self, path: &str, file: File) {
        self.state.lock().unwrap().files.insert(path.to_owned(), file);
    }

    pub(crate) fn asked(&self, path: &str) -> usize {
        self.state.lock().unwrap().asked.get(path).copied().unwrap_or_default()
    }

    pub(crate) fn asked_in_all(&self) -> usize {
        self.state.lock().unwrap().asked.values().sum()
    }

    /// Offers a path, signed; returns its narinfo.
    pub(crate) fn offer(&self, path: &TestPath) -> NarInfo {
        let info = path.narinfo(&self.key);
        self.put(
            &format!("/{}.narinfo", path.path.hash_part()),
            File::Bytes(info.render(&StoreDir::default()).into_bytes()),
        );
        self.put(&format!("/{}", info.url), File::Bytes(path.file.clone()));
        info
    }

    pub(crate) fn options(&self) -> UpstreamOptions {
        let keys = TrustedKeys::from_iter([self.key.public_key()]);
        // A busy machine takes its time.
        UpstreamOptions { timeout: PATIENCE, ..UpstreamOptions::new(self.url(), Some(keys)) }
    }

    pub(crate) fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown(Duration::from_secs(5));
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A store path of one file.
pub(crate) struct TestPath {
    pub(crate) path: StorePath,
    pub(crate) nar: Vec<u8>,
    pub(crate) file: Vec<u8>,
    pub(crate) references: Vec<StorePath>,
    pub(crate) compressed: bool,
}

impl TestPath {
    pub(crate) fn new(name: &str, contents: &[u8], compressed: bool) -> Self {
        let digest: [u8; 20] = Sha256::of(name.as_bytes()).as_bytes()[..20].try_into().unwrap();
        let path = StorePath::parse(&format!("{}-{name}", HashPart::from_digest(&digest))).unwrap();
        let (mut nar, mut encoder) = (Vec::new(), Encoder::new());
        let size = contents.len() as u64;
        for event in [Event::Regular { executable: false, size }, Event::Contents(contents), Event::EndRegular] {
            encoder.push(event, &mut nar).unwrap();
        }
        let file = if compressed { zstd::encode_all(&nar[..], 1).unwrap() } else { nar.clone() };
        Self { path, nar, file, references: Vec::new(), compressed }
    }

    pub(crate) fn narinfo(&self, key: &SecretKey) -> NarInfo {
        let dir = StoreDir::default();
        let (compression, extension) = if self.compressed { ("zstd", ".zst") } else { ("none", "") };
        let file_hash = Sha256::of(&self.file).to_nix32();
        let references = self.references.iter().map(|path| path.base_name().to_owned()).collect::<Vec<_>>().join(" ");
        let text = format!(
            "StorePath: {}\nURL: nar/{file_hash}.nar{extension}\nCompression: {compression}\nFileHash: sha256:{file_hash}\nFileSize: {}\n\
             NarHash: sha256:{}\nNarSize: {}\nReferences: {references}\n",
            dir.display(&self.path),
            self.file.len(),
            Sha256::of(&self.nar).to_nix32(),
            self.nar.len(),
        );
        let mut info = NarInfo::parse(text.as_bytes(), &dir).unwrap();
        info.signatures.push(key.sign(info.fingerprint(&dir).as_bytes()).unwrap());
        info
    }

    pub(crate) fn hash_part(&self) -> HashPart {
        self.path.hash_part()
    }
}

/// Bytes that do not compress to nothing.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 7_u64;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    })
    .take(len)
    .collect()
}

pub(crate) fn open(folder: &Path, upstreams: Vec<UpstreamOptions>) -> Upstreams {
    open_with(folder, upstreams, 1 << 30, Vec::new()).unwrap()
}

pub(crate) fn open_with(
    folder: &Path,
    upstreams: Vec<UpstreamOptions>,
    bytes_max: u64,
    sign_keys: Vec<SecretKey>,
) -> Result<Upstreams, UpstreamsError> {
    let store_dir = StoreDir::default();
    let (folder, waiting) = (folder.to_owned(), Waiting::default());
    // A busy machine takes its time.
    let deadline = DEADLINE;
    let opened = Upstreams::open(UpstreamsOptions { folder, bytes_max, upstreams, deadline, store_dir, waiting })?;
    opened.set_sign_keys(sign_keys);
    Ok(opened)
}

pub(crate) fn found(lookup: Lookup) -> NarInfo {
    let Lookup::Found(text) = lookup else { panic!("absent") };
    NarInfo::parse(&text, &StoreDir::default()).unwrap()
}

/// The name of the NAR of a path that is there.
pub(crate) fn name(upstreams: &Upstreams, path: &TestPath) -> String {
    let info = found(upstreams.narinfo(&path.hash_part()).unwrap());
    assert_eq!(info.path, path.path);
    info.url.strip_prefix("nar/").unwrap().to_owned()
}

/// Reads a fill as a server does, to its end.
pub(crate) fn follow(fill: &GrowingFile) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    loop {
        let progress = fill.progress();
        let have = bytes.len();
        if progress.readable > have as u64 {
            bytes.resize(progress.readable as usize, 0);
            fill.file().read_exact_at(&mut bytes[have..], have as u64).unwrap();
            continue;
        }
        match progress.end {
            Some(FillEnd::Complete) => return Ok(bytes),
            Some(FillEnd::Failed(reason)) => return Err(reason.to_string()),
            None => {
                let (sender, receiver) = channel();
                fill.when_beyond(have as u64, move || sender.send(()).unwrap_or_default());
                receiver.recv_timeout(PATIENCE).unwrap();
            }
        }
    }
}

pub(crate) fn read(answer: NarAnswer) -> Result<Vec<u8>, String> {
    match answer {
        NarAnswer::File(mut file, length) => {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
            assert_eq!(bytes.len() as u64, length);
            Ok(bytes)
        }
        NarAnswer::Growing(waits, _) => follow(&waits),
    }
}

/// Until a fetch has put its file where it is kept.
pub(crate) fn until_kept(upstreams: &Upstreams, name: &str) {
    let until = Instant::now() + PATIENCE;
    while !matches!(upstreams.nar(name), Ok(Some(NarAnswer::File(..)))) {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(2));
    }
}
