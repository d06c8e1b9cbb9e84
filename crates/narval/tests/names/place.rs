//! A channel, a cache and build records, served over HTTP by this process, and `narval` in an environment of its own.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use narval_nix::{NarInfo, SecretKey, Sha256, StoreDir};
use narval_store::NarReader;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{NARVAL, stdout};

/// What the server has, and what it was asked.
#[derive(Default)]
pub(crate) struct Site {
    /// Files by their targets; their entity tags are their hashes.
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// Prefixes that are elsewhere.
    pub(crate) moved: Vec<(String, String)>,
    /// The heads of all requests.
    pub(crate) heads: Vec<String>,
}

pub(crate) struct Place {
    pub(crate) folder: TempDir,
    pub(crate) url: String,
    pub(crate) site: Arc<Mutex<Site>>,
    key: SecretKey,
    /// More caches, and the keys of these.
    pub(crate) others: Vec<(String, String)>,
    /// `packages.json`, by attributes.
    packages: BTreeMap<String, Value>,
    paths: Vec<String>,
}

/// A store path that no other one has: a digit, repeated.
pub(crate) fn path(digit: char, name: &str) -> String {
    format!("{}-{name}", digit.to_string().repeat(32))
}

pub(crate) const GLIBC: &str = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-glibc-2.40";
const GLIBC_ARM: &str = "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy-glibc-2.40";

impl Place {
    /// With `hello` for two systems, `git` of which there are two variants, and `vim`, which has outputs.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (url, site) = serve();
        let key = SecretKey::generate("test-1").unwrap();
        let mut place =
            Self { folder, url, site, key, others: Vec::new(), packages: BTreeMap::new(), paths: Vec::new() };
        place.site.lock().unwrap().moved.push(("/channel/".to_owned(), "/releases/one/".to_owned()));
        place.add(GLIBC, &[("lib/ld-linux-x86-64.so.2", "loader")], &[], None);
        place.add(GLIBC_ARM, &[("lib/ld-linux-aarch64.so.1", "loader of arm")], &[], None);
        for (digits, glibc) in [(["0", "1", "2", "3", "4"], GLIBC), (["5", "6", "7", "8", "9"], GLIBC_ARM)] {
            let [hello, git, minimal, vim, manual] = digits.map(|digit| digit.chars().next().unwrap());
            let script = |what: &str| format!("#!/bin/sh\necho {what} $*\n# {glibc}\n");
            place.add(&path(hello, "hello-2.12"), &[("bin/hello", &script("hello"))], &[glibc], None);
            place.add(&path(git, "git-2.51.0"), &[("bin/git", &script("git"))], &[glibc], None);
            let extra = [glibc, &path(hello, "hello-2.12")];
            place.add(&path(minimal, "git-2.51.0"), &[("bin/git", &script("minimal"))], &extra, None);
            let deriver = path(vim, "vim-9.1.drv");
            place.add(&path(vim, "vim-9.1"), &[("bin/vi", &script("vim"))], &[glibc], Some(&deriver));
            place.add(&path(manual, "vim-9.1-man"), &[("share/man/man1/vim.1", "manual")], &[], Some(&deriver));
        }
        place.package(
            "hello",
            "hello",
            "2.12",
            json!({"description": "A program that greets", "mainProgram": "hello"}),
        );
        place.package("git", "git", "2.51.0", json!({"description": "Version control"}));
        place.package("gitMinimal", "git", "2.51.0", json!({"description": "Version control"}));
        place.package("vim", "vim", "9.1", json!({"description": "An editor", "mainProgram": "vi"}));
        place.packages.get_mut("vim").unwrap()["outputs"] = json!({"man": null, "out": null});
        place.package("unfree-thing", "thing", "1", json!({"unfree": true, "license": {"shortName": "unfree"}}));
        place.package("absent", "absent", "1", json!({}));
        place.publish("one");
        place
    }

    /// Adds an attribute.
    pub(crate) fn package(&mut self, attribute: &str, pname: &str, version: &str, meta: Value) {
        let entry = json!({"name": format!("{pname}-{version}"), "pname": pname, "version": version, "system": "x86_64-linux",
            "outputName": "out", "outputs": {"out": null}, "meta": meta});
        self.packages.insert(attribute.to_owned(), entry);
    }

    /// Gives an attribute another version.
    pub(crate) fn set(&mut self, attribute: &str, version: &str) {
        let entry = self.packages.get_mut(attribute).unwrap();
        (entry["version"], entry["name"]) = (json!(version), json!(format!("{attribute}-{version}")));
    }

    /// Gives an attribute the name of another package.
    pub(crate) fn packages_named(&mut self, attribute: &str, pname: &str, version: &str) {
        self.packages.get_mut(attribute).unwrap()["name"] = json!(format!("{pname}-{version}"));
    }

    /// Adds a path to the cache and to the channel's list.
    pub(crate) fn add(&mut self, base: &str, files: &[(&str, &str)], references: &[&str], deriver: Option<&str>) {
        use std::os::unix::fs::PermissionsExt;
        let tree = self.folder.path().join("trees").join(base);
        for (name, contents) in files {
            let file = tree.join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            if let Some(target) = contents.strip_prefix("link to ") {
                std::os::unix::fs::symlink(target, &file).unwrap();
                continue;
            }
            std::fs::write(&file, contents).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        }
        let mut nar = Vec::new();
        NarReader::open(&tree).unwrap().read_to_end(&mut nar).unwrap();
        let hash = Sha256::of(&nar).to_nix32();
        let mut text = format!(
            "StorePath: /nix/store/{base}\nURL: nar/{hash}.nar\nCompression: none\nNarHash: sha256:{hash}\nNarSize: {}\nReferences: {}\n",
            nar.len(),
            references.join(" ")
        );
        if let Some(deriver) = deriver {
            writeln!(text, "Deriver: {deriver}").unwrap();
        }
        let info = NarInfo::parse(text.as_bytes(), &StoreDir::default()).unwrap();
        let signature = self.key.sign(info.fingerprint(&StoreDir::default()).as_bytes()).unwrap();
        writeln!(text, "Sig: {signature}").unwrap();
        let mut site = self.site.lock().unwrap();
        site.files.insert("/cache/nix-cache-info".to_owned(), b"StoreDir: /nix/store\n".to_vec());
        site.files.insert(format!("/cache/{}.narinfo", &base[..32]), text.into_bytes());
        site.files.insert(format!("/cache/nar/{hash}.nar"), nar);
        drop(site);
        self.paths.push(format!("/nix/store/{base}\n"));
    }

    /// Writes the files of a release.
    pub(crate) fn publish(&self, release: &str) {
        let json = json!({"packages": self.packages, "version": "2"}).to_string();
        self.publish_files(release, json.as_bytes(), self.paths.concat().as_bytes());
    }

    pub(crate) fn publish_files(&self, release: &str, packages: &[u8], paths: &[u8]) {
        let mut brotli = Vec::new();
        brotli::CompressorWriter::new(&mut brotli, 4096, 5, 22).write_all(packages).unwrap();
        self.publish_compressed(release, brotli, paths);
    }

    pub(crate) fn publish_compressed(&self, release: &str, brotli: Vec<u8>, paths: &[u8]) {
        let mut xz = Vec::new();
        liblzma::read::XzEncoder::new(paths, 1).read_to_end(&mut xz).unwrap();
        let evaluation = format!("{}/eval/7", self.url);
        let mut site = self.site.lock().unwrap();
        for (name, contents) in [
            ("packages.json.br", brotli),
            ("store-paths.xz", xz),
            ("git-revision", format!("revision-of-{release}").into_bytes()),
            ("src-url", evaluation.into_bytes()),
        ] {
            site.files.insert(format!("/releases/{release}/{name}"), contents);
        }
    }

    /// Has the channel lead to another release.
    pub(crate) fn lead_to(&self, release: &str) {
        self.site.lock().unwrap().moved = vec![("/channel/".to_owned(), format!("/releases/{release}/"))];
    }

    /// Adds a build record.
    pub(crate) fn record(&self, job: &str, path: &str) {
        let record = json!({"finished": 1, "system": job.rsplit('.').next(), "buildoutputs": {"out": {"path": format!("/nix/store/{path}")}}});
        self.site.lock().unwrap().files.insert(format!("/eval/7/job/{job}"), record.to_string().into_bytes());
    }

    /// The targets of the requests since the last time.
    pub(crate) fn asked(&self) -> Vec<String> {
        let heads = std::mem::take(&mut self.site.lock().unwrap().heads);
        heads.iter().filter_map(|head| head.split(' ').nth(1).map(str::to_owned)).collect()
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    pub(crate) fn home(&self) -> &Path {
        self.folder.path()
    }

    /// The files below the folder of names.
    pub(crate) fn names(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.home().join(".cache/narval/names")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(NARVAL);
        command.args(args).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("HOME", self.home()).env("TMPDIR", self.home()).env("NARVAL_STORE", self.root());
        let (mut caches, mut keys) = (format!("{}/cache", self.url), self.key.public_key().to_string());
        for (cache, key) in &self.others {
            caches.push_str(&format!(" {cache}"));
            keys.push_str(&format!(" {key}"));
        }
        command.env("NARVAL_CHANNEL", format!("{}/channel", self.url));
        command.env("NARVAL_CACHES", caches).env("NARVAL_TRUSTED_KEYS", keys);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    pub(crate) fn done(&self, args: &[&str]) -> String {
        stdout(self.run(args))
    }

    pub(crate) fn fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let message = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{args:?}: {message}");
        message
    }
}

/// Starts the server.
fn serve() -> (String, Arc<Mutex<Site>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, site) = (format!("http://{}", listener.local_addr().unwrap()), Arc::new(Mutex::new(Site::default())));
    let shared = Arc::clone(&site);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let site = Arc::clone(&shared);
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                loop {
                    let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
                    let Some(target) = head.first().and_then(|line| line.split(' ').nth(1)) else { return };
                    let answer = answer(&mut site.lock().unwrap(), target, &head);
                    if (&stream).write_all(&answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (url, site)
}

fn answer(site: &mut Site, target: &str, head: &[String]) -> Vec<u8> {
    site.heads.push(head.join("\n"));
    if let Some((from, to)) = site.moved.iter().find(|(from, _)| target.starts_with(from)) {
        let to = target.replacen(from, to, 1);
        return format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n").into_bytes();
    }
    let Some(body) = site.files.get(target) else {
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec();
    };
    let tag = format!("\"{}\"", Sha256::of(body).to_nix32());
    if head.iter().any(|line| line.eq_ignore_ascii_case(&format!("if-none-match: {tag}"))) {
        return format!("HTTP/1.1 304 Not Modified\r\nETag: {tag}\r\n\r\n").into_bytes();
    }
    let head = format!("HTTP/1.1 200 OK\r\nETag: {tag}\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}
