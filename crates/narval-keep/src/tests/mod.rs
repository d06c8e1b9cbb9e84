//! Tests of the whole: a data folder on a real file system.

mod collecting;
mod in_bucket;
mod jobs;
mod place;
#[path = "../../../narval-s3/tests/ports/mod.rs"]
mod ports;
#[path = "../../tests/postgres/mod.rs"]
pub(super) mod postgres;
mod pushing;
mod repairing;
#[path = "../../../narval-s3/tests/s3/mod.rs"]
pub(super) mod s3;
mod tokens;

use std::io::Write;

use self::place::Place;
use crate::*;
use narval_client::clock::now;
use narval_nix::nar::{Encoder, Event};
use narval_nix::{Compression, HashPart, NarInfo, PathInfo, Sha256, StoreDir, StorePath};

/// A data folder with the default cache.
pub(super) struct Fixture {
    pub(super) folder: Place,
    pub(super) data: Data,
    pub(super) cache: Cache,
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self::with(&CacheSettings::default())
    }

    pub(super) fn with(settings: &CacheSettings) -> Self {
        let folder = Place::new();
        let data = folder.open();
        let cache = data.create_cache(&CacheName::default(), settings).unwrap();
        Self { folder, data, cache }
    }

    /// The same folder, opened again.
    pub(super) fn reopen(self) -> Self {
        let Self { folder, data, cache } = self;
        drop((cache, data));
        let data = folder.open();
        let cache = data.cache(&CacheName::default()).unwrap().unwrap();
        Self { folder, data, cache }
    }

    /// Names of all files below a folder of the data folder, sorted.
    pub(super) fn files(&self, below: &str) -> Vec<String> {
        let root = self.folder.stored(below);
        let mut open = vec![root.clone()];
        let mut files = Vec::new();
        while let Some(folder) = open.pop() {
            // A bucket has no empty folders.
            let Ok(entries) = std::fs::read_dir(folder) else { continue };
            for entry in entries {
                let path = entry.unwrap().path();
                if path.file_name().is_some_and(|name| name == "_narval") {
                    continue;
                }
                match path.is_dir() {
                    true => open.push(path),
                    false => files.push(plain(path.strip_prefix(&root).unwrap().to_str().unwrap())),
                }
            }
        }
        files.sort();
        files
    }
}

pub(super) fn pusher() -> Grant {
    let scopes = "push".parse().unwrap();
    Grant { scopes, token: "test".into(), ..Grant::administrator("test") }
}

pub(super) fn with_scopes(scopes: &str) -> Grant {
    Grant { scopes: scopes.parse().unwrap(), ..pusher() }
}

/// A path with a NAR, as a client has it.
#[derive(Clone)]
pub(super) struct TestPath {
    pub(super) info: PathInfo,
    pub(super) nar: Vec<u8>,
}

/// A store path of this name: its hash part is made of the name.
pub(super) fn store_path(name: &str) -> StorePath {
    let digest = Sha256::of(name.as_bytes());
    let part = HashPart::from_digest(digest.as_bytes()[..20].try_into().unwrap());
    StorePath::parse(&format!("{part}-{name}")).unwrap()
}

/// Where the files of a cache are.
pub(super) fn folder_of(cache: &Cache) -> std::path::PathBuf {
    let place = cache.files().place();
    match place.to_str().and_then(|place| place.strip_prefix("s3://")) {
        Some(below) => s3::S3Server::shared().unwrap().root().join(below),
        None => place.to_owned(),
    }
}

/// A text without the random parts of names of NARs: the names that clients give them.
pub(super) fn plain(text: &str) -> String {
    let (mut plain, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('-') {
        plain.push_str(before);
        rest = after;
        match after.split_at_checked(16) {
            Some((random, name))
                if name.starts_with(".nar") && random.bytes().all(|byte| byte.is_ascii_alphanumeric()) =>
            {
                rest = name;
            }
            _ => plain.push('-'),
        }
    }
    plain + rest
}

/// The latest file of a NAR, by the name that a client has given it.
pub(super) fn object_of(cache: &Cache, name: &str) -> std::path::PathBuf {
    object_in(&folder_of(cache).join("nar"), name)
}

/// As [`object_of`], in this folder.
pub(super) fn object_in(folder: &std::path::Path, name: &str) -> std::path::PathBuf {
    let entries =
        std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let modified = |own: &String| std::fs::metadata(folder.join(own)).unwrap().modified().unwrap();
    let own = entries.filter(|own| plain(own) == name).max_by_key(modified);
    folder.join(own.unwrap_or_else(|| name.to_owned()))
}

/// A NAR of one file.
pub(super) fn nar_of(contents: &[u8]) -> Vec<u8> {
    let (mut encoder, mut nar) = (Encoder::new(), Vec::new());
    encoder.push(Event::Regular { executable: false, size: contents.len() as u64 }, &mut nar).unwrap();
    if !contents.is_empty() {
        encoder.push(Event::Contents(contents), &mut nar).unwrap();
    }
    encoder.push(Event::EndRegular, &mut nar).unwrap();
    encoder.finish().unwrap();
    nar
}

impl TestPath {
    /// A path whose contents mention what it refers to.
    pub(super) fn new(name: &str, references: &[&Self]) -> Self {
        let text: String =
            references.iter().map(|path| StoreDir::default().display(&path.info.path).to_string() + "\n").collect();
        Self::with_contents(name, references, format!("{name}\n{text}").as_bytes())
    }

    pub(super) fn with_contents(name: &str, references: &[&Self], contents: &[u8]) -> Self {
        let nar = nar_of(contents);
        let info = PathInfo {
            path: store_path(name),
            nar_hash: Sha256::of(&nar),
            nar_size: nar.len() as u64,
            references: references.iter().map(|path| path.info.path.clone()).collect(),
            deriver: None,
            registration_time: 0,
            ultimate: false,
            signatures: Vec::new(),
            ca: None,
        };
        Self { info, nar }
    }

    pub(super) fn part(&self) -> HashPart {
        self.info.path.hash_part()
    }

    pub(super) fn file(&self, compression: Compression) -> Vec<u8> {
        compress(&self.nar, compression)
    }

    pub(super) fn file_name(&self, compression: Compression) -> String {
        NarFileName::new(Sha256::of(&self.file(compression)), compression).to_string()
    }

    pub(super) fn narinfo(&self, compression: Compression) -> (HashPart, Vec<u8>) {
        let file = self.file(compression);
        let mut info = NarInfo::new(&self.info, format!("nar/{}", self.file_name(compression)), compression);
        (info.file_hash, info.file_size) = (Some(Sha256::of(&file).into()), Some(file.len() as u64));
        (self.part(), info.render(&StoreDir::default()).into_bytes())
    }

    /// Uploads the NAR.
    pub(super) fn send(&self, cache: &Cache, compression: Compression) -> Result<Option<Stored>, Rejection> {
        let file = self.file(compression);
        match cache.begin_nar(&self.file_name(compression), Some(file.len() as u64), &pusher())? {
            Begin::Known(_) => Ok(None),
            Begin::Receive(upload) => upload.receive(&mut &file[..]).map(Some),
        }
    }

    /// Uploads the NAR and commits the narinfo.
    pub(super) fn push(&self, cache: &Cache) -> Result<Committed, Rejection> {
        self.push_as(cache, &pusher())
    }

    pub(super) fn push_as(&self, cache: &Cache, grant: &Grant) -> Result<Committed, Rejection> {
        self.send(cache, Compression::Zstd)?;
        Ok(cache.commit_narinfos(&[self.narinfo(Compression::Zstd)], grant)?.remove(0))
    }
}

pub(super) fn compress(data: &[u8], compression: Compression) -> Vec<u8> {
    match compression {
        Compression::None => data.to_vec(),
        Compression::Zstd => zstd::encode_all(data, 1).unwrap(),
        Compression::Xz => {
            let stream = liblzma::stream::Stream::new_easy_encoder(0, liblzma::stream::Check::Crc32).unwrap();
            let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
            encoder.write_all(data).unwrap();
            encoder.finish().unwrap()
        }
        Compression::Bzip2 => {
            let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
            encoder.write_all(data).unwrap();
            encoder.finish().unwrap()
        }
        Compression::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(data).unwrap();
            encoder.finish().unwrap()
        }
        Compression::Lz4 => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
            encoder.write_all(data).unwrap();
            encoder.finish().unwrap()
        }
        other => panic!("no encoder for {other}"),
    }
}

/// What an export of a cache's data has.
pub(super) fn exported(data: &Data) -> String {
    let mut out = Vec::new();
    data.export(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

pub(super) fn read_all(mut file: impl std::io::Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}
