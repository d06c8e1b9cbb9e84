//! A cache with releases, served over HTTP by this process: its files are those of any cache.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use narval_nix::release::{ReleaseSystem, ReleasedPath};
use narval_nix::{NarHash, Release, SecretKey, Sha256, StoreDir, StorePath};
use narval_store::NarReader;

/// Of the machine and the release.
pub(crate) const SYSTEM: &str = "x86_64-linux";

/// The cache.
pub(crate) struct Site {
    pub(crate) url: String,
    pub(crate) key: SecretKey,
    files: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
}

impl Site {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let files = Arc::new(Mutex::new(BTreeMap::from([(
            "/nix-cache-info".to_owned(),
            b"StoreDir: /nix/store\nWantMassQuery: 1\nPriority: 40\n".to_vec(),
        )])));
        let served = Arc::clone(&files);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let served = Arc::clone(&served);
                // Whoever is killed hangs up.
                std::thread::spawn(move || answer(&stream, &served).ok());
            }
        });
        Self { url, key: SecretKey::generate("cache-1").unwrap(), files }
    }

    /// Adds a path to the cache, with the contents of a folder.
    pub(crate) fn add(&self, path: &str, folder: &Path) -> NarHash {
        let mut nar = Vec::new();
        NarReader::open(folder).unwrap().read_to_end(&mut nar).unwrap();
        let (hash, size) = (Sha256::of(&nar).to_nix32(), nar.len());
        let fingerprint = format!("1;/nix/store/{path};sha256:{hash};{size};");
        let signature = self.key.sign(fingerprint.as_bytes()).unwrap();
        let narinfo = format!(
            "StorePath: /nix/store/{path}\nURL: nar/{hash}.nar\nCompression: none\nNarHash: sha256:{hash}\nNarSize: {size}\nReferences: \n\
             Sig: {signature}\n"
        );
        let mut files = self.files.lock().unwrap();
        files.insert(format!("/nar/{hash}.nar"), nar);
        files.insert(format!("/{}.narinfo", &path[..32]), narinfo.into_bytes());
        format!("sha256:{hash}").parse().unwrap()
    }

    /// Makes this the newest revision of `web`.
    pub(crate) fn release(&self, revision: u64, path: &str, nar_hash: NarHash) {
        let path: StorePath = path.parse().unwrap();
        let system: ReleaseSystem = SYSTEM.parse().unwrap();
        let outputs = BTreeMap::from([("out".parse().unwrap(), ReleasedPath { path, nar_hash })]);
        let mut release = Release {
            store_dir: StoreDir::default(),
            cache: "one".to_owned(),
            name: "web".parse().unwrap(),
            revision,
            created: 1,
            version: None,
            promoted_from: None,
            percent: None,
            paths: BTreeMap::from([(system, outputs)]),
            notes: BTreeMap::new(),
            signatures: Vec::new(),
        };
        release.sign(&self.key).unwrap();
        let target = format!("/releases/web/latest?system={SYSTEM}");
        self.files.lock().unwrap().insert(target, release.to_json().into_bytes());
    }
}

fn answer(stream: &TcpStream, files: &Mutex<BTreeMap<String, Vec<u8>>>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while lines.read_line(&mut head)? > 2 {}
        let Some(target) = head.split(' ').nth(1) else { return Ok(()) };
        // Its releases are for all machines.
        let target = target.split("&share=").next().unwrap_or(target);
        let found = files.lock().unwrap().get(target).cloned();
        let status = if found.is_some() { "200 OK" } else { "404 Not Found" };
        let body = found.unwrap_or_default();
        let mut answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
        answer.extend(body);
        (&*stream).write_all(&answer)?;
    }
}

/// The way to a site, which ends while a file is there.
pub(crate) struct Gate {
    pub(crate) url: String,
}

impl Gate {
    pub(crate) fn new(site: &str, cut_off: std::path::PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let site = site.strip_prefix("http://").unwrap().to_owned();
        std::thread::spawn(move || {
            for mut inner in listener.incoming().flatten() {
                let (site, cut_off) = (site.clone(), cut_off.clone());
                std::thread::spawn(move || {
                    let mut outer = TcpStream::connect(site)?;
                    let (mut back, mut to) = (outer.try_clone()?, inner.try_clone()?);
                    std::thread::spawn(move || std::io::copy(&mut back, &mut to).ok());
                    let mut buffer = [0; 4096];
                    loop {
                        let len = inner.read(&mut buffer)?;
                        if len == 0 || cut_off.exists() {
                            inner.shutdown(std::net::Shutdown::Both)?;
                            return outer.shutdown(std::net::Shutdown::Both);
                        }
                        outer.write_all(&buffer[..len])?;
                    }
                });
            }
        });
        Self { url }
    }
}
