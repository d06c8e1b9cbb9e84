//! A data folder, a server over it, tokens, and requests with bodies.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use narval_keep::{CachePatterns, Data, DataOptions, NewToken};

use crate::support::{Answer, NARVAL, Nix, Server, Store, certificate};

/// A cache that is written, and a Nix store beside it.
pub struct Lab {
    pub store: Store,
    pub server: Server,
}

impl Lab {
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// With further options of `narval serve`.
    pub fn with(args: &[&str]) -> Self {
        let store = Store::new();
        let server = serve(&store, args);
        Self { store, server }
    }

    /// Over TLS, with further options; and the certificate.
    pub fn over_tls(args: &[&str]) -> (Self, PathBuf) {
        let store = Store::new();
        let [cert, key] = certificate(store.dir.path());
        let tls = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
        let server = serve(&store, &[&tls, args].concat());
        (Self { store, server }, cert)
    }

    /// Beside a store that is there already.
    pub fn of(store: Store) -> Self {
        let server = serve(&store, &[]);
        Self { store, server }
    }

    /// A server with this configuration file, over the same folder of data.
    pub fn configured(store: Store, text: &str) -> Self {
        let server = configured(&store, text);
        Self { store, server }
    }

    /// Writes the configuration file anew and has it read; what the log says of that.
    pub fn reload(&mut self, text: &str) -> String {
        std::fs::write(self.store.path("narval.toml"), text).unwrap();
        let told = |log: &str| log.matches("SIGHUP: ").count();
        let before = told(&self.server.log());
        assert!(Command::new("kill").args(["-HUP", &self.server.pid().to_string()]).status().unwrap().success());
        self.server.wait_for(|log| {
            (told(log) > before).then(|| log.lines().rfind(|line| line.contains("SIGHUP: ")).unwrap().to_owned())
        })
    }

    /// Waits until nothing is left of uploads that have ended; the server may notice a client's end after the test does.
    pub fn nothing_incoming(&self) {
        let until = Instant::now() + Duration::from_secs(60);
        while std::fs::read_dir(self.data_path().join("incoming")).unwrap().count() > 0 {
            assert!(Instant::now() < until, "an upload has left a file");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn data_path(&self) -> PathBuf {
        self.store.path("data")
    }

    pub fn data(&self) -> Data {
        Data::open(&self.data_path(), DataOptions { must_exist: true, ..DataOptions::default() }).unwrap()
    }

    /// A token for all caches with these scopes, separated by commas.
    pub fn token(&self, scopes: &str) -> String {
        self.token_for("*", scopes)
    }

    pub fn token_for(&self, caches: &str, scopes: &str) -> String {
        let caches = CachePatterns::new(&[caches]).unwrap();
        let new = NewToken { label: "test".to_owned(), caches, scopes: scopes.parse().unwrap(), expires: None };
        let data = self.data();
        data.tokens().create(&new).unwrap().1.to_string()
    }

    pub fn revoke(&self, token: &str) {
        let id = token.split('_').nth(1).unwrap();
        let data = self.data();
        assert!(data.tokens().revoke(id).unwrap());
        data.wait_until_noticed();
    }

    /// Ends the server, and starts another over the same data.
    pub fn restart(&mut self, signal: &str) {
        let new = serve(&self.store, &[]);
        let old = std::mem::replace(&mut self.server, new);
        old.end(signal);
    }

    /// A netrc file with this token for the server's host.
    pub fn netrc(&self, token: &str) -> PathBuf {
        let path = self.store.path("netrc");
        let text = format!("machine {} login any password {token}\n", self.server.address.ip());
        std::fs::write(&path, text).unwrap();
        path
    }

    /// `nix copy --to` this server, with parameters of the URL (without `?`).
    pub fn push(&self, nix: Nix, token: &str, parameters: &str, path: &str) -> Result<String, String> {
        self.nix(nix, token, &["copy", "--refresh", "--to", &self.url(parameters), "--from", &self.store.uri(), path])
    }

    pub fn url(&self, parameters: &str) -> String {
        let mark = if parameters.is_empty() { "" } else { "?" };
        format!("{}{mark}{parameters}", self.server.url())
    }

    /// Runs `nix` with a token in netrc; what it printed, or its complaint.
    pub fn nix(&self, nix: Nix, token: &str, args: &[&str]) -> Result<String, String> {
        let netrc = self.netrc(token);
        let mut all = args.to_vec();
        all.extend(["--option", "netrc-file", netrc.to_str().unwrap()]);
        let output = nix.nix(self.store.dir.path(), &all);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Copies a path from the server into a new store, and compares the files.
    pub fn pull(&self, nix: Nix, path: &str) {
        self.pull_from(&self.server, nix, path);
    }

    /// The same from another server, of a path of this store.
    pub fn pull_from(&self, server: &Server, nix: Nix, path: &str) {
        let fresh = tempfile::tempdir().unwrap();
        let to = fresh.path().to_str().unwrap();
        let args =
            ["copy", "--refresh", "--from", &server.url(), "--to", to, "--option", "require-sigs", "false", path];
        let output = nix.nix(fresh.path(), &args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let copied = fresh.path().join(&path[1..]);
        let same =
            Command::new("diff").args(["-r", "--no-dereference"]).args([&self.store.real(path), &copied]).status();
        assert!(same.unwrap().success(), "{path} differs");
        // Nix's store paths are read-only: the folder could not be removed.
        Command::new("chmod").args(["-R", "u+w", to]).status().unwrap();
    }

    /// A request with a body and a token.
    pub fn put(&self, path: &str, token: &str, body: &[u8]) -> Answer {
        self.send("PUT", path, token, &[], body)
    }

    pub fn post(&self, path: &str, token: &str, body: &[u8]) -> Answer {
        self.send("POST", path, token, &[], body)
    }

    pub fn send(&self, method: &str, path: &str, token: &str, fields: &[&str], body: &[u8]) -> Answer {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n");
        if !token.is_empty() {
            request.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        for field in fields {
            request.push_str(&format!("{field}\r\n"));
        }
        request.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        let raw = self.server.send(&[request.as_bytes(), body].concat());
        Answer::parse(&raw).unwrap_or_else(|| panic!("{method} {path}: {:?}", String::from_utf8_lossy(&raw)))
    }

    /// Sends a head that expects `100 Continue`, and returns what comes before any of the body is sent.
    pub fn expect(&self, path: &str, token: &str, length: u64) -> Answer {
        let mut stream = self.server.connect();
        let authorization = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: test\r\n{authorization}Expect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut raw = Vec::new();
        let mut piece = [0; 4096];
        loop {
            let got = stream.read(&mut piece).unwrap();
            raw.extend_from_slice(&piece[..got]);
            if let Some(answer) = Answer::parse(&raw)
                && (answer.status == 100 || answer.complete || got == 0)
            {
                return answer;
            }
            assert!(got > 0, "{:?}", String::from_utf8_lossy(&raw));
        }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.server.get(path)
    }
}

pub fn serve(store: &Store, args: &[&str]) -> Server {
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(store.path("data")).args(args);
    Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())])
}

pub fn configured(store: &Store, text: &str) -> Server {
    std::fs::write(store.path("narval.toml"), text).unwrap();
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(store.path("narval.toml"));
    Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())])
}

/// A NAR with one file, its name below `nar/`, and its hash.
pub struct Nar {
    pub bytes: Vec<u8>,
    pub hash: narval_nix::Sha256,
}

/// The file of a NAR below the folder of its cache, by the address that a client has given it.
pub fn object_of(cache: &Path, url: &str) -> PathBuf {
    let (folder, name) = (cache.join("nar"), url.rsplit('/').next().unwrap());
    let (hash, extension) = name.split_at(52);
    let names = std::fs::read_dir(&folder).into_iter().flatten().map(|entry| entry.unwrap().file_name());
    let is_it = |own: &String| own.starts_with(hash) && own.ends_with(extension);
    let own = names.filter_map(|own| own.into_string().ok()).filter(is_it).min();
    folder.join(own.unwrap_or_else(|| name.to_owned()))
}

impl Nar {
    pub fn of(contents: &[u8]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, contents).unwrap();
        let mut bytes = Vec::new();
        narval_store::NarReader::open(&file).unwrap().read_to_end(&mut bytes).unwrap();
        let hash = narval_nix::Sha256::of(&bytes);
        Self { bytes, hash }
    }

    pub fn url(&self) -> String {
        format!("/nar/{}.nar", self.hash.to_nix32())
    }

    /// A narinfo for a path of this name that has this NAR, uncompressed.
    pub fn narinfo(&self, path: &str, references: &[&str]) -> String {
        format!(
            "StorePath: /nix/store/{path}\nURL: nar/{hash}.nar\nCompression: none\nFileHash: sha256:{hash}\nFileSize: {size}\n\
             NarHash: sha256:{hash}\nNarSize: {size}\nReferences: {}\n",
            references.join(" "),
            hash = self.hash.to_nix32(),
            size = self.bytes.len(),
        )
    }
}
