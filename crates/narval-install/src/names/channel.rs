//! Channels: a place with `packages.json.br` and `store-paths.xz`, and the index that is made of them.
//!
//! An index is one file, renamed into place once it is complete: readers see the old one or the new one. Its modification time is when the channel
//! was last asked.

use std::fs::{self, DirBuilder, File, FileTimes};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use narval_cache::{CacheError, CacheFile, read_small};
use narval_client::{Client, Extra, HttpError, OwnCodings, REDIRECTS_MAX, Request, Scheme, Url, escaped};
use narval_codec::decode::{Decoder, INPUT_LEN};
use narval_files::{TemporaryFile, Work, is_temporary_name};
use narval_names::{Builder, Index, NamesError, PackedIndex, read_packages, read_store_paths};
use narval_nix::Compression;
use narval_store::lock_file;

use super::learnt::Learnt;
use super::pieces::pieces;
use narval_transfer::Error;

/// The channel that names are looked up in if none is given. It has no release in its name, which would become old.
pub const CHANNEL_DEFAULT: &str = "nixos-unstable";
/// Where channels with a short name are.
const CHANNELS: &str = "https://channels.nixos.org";
/// The channel's files.
const PACKAGES: &str = "packages.json.br";
const STORE_PATHS: &str = "store-paths.xz";
const REVISION: &str = "git-revision";
const BUILD_RECORDS: &str = "src-url";
/// The largest file of one line.
const LINE_LEN_MAX: u64 = 4096;
/// The largest compressed files: ten times those of 2026.
const FILE_LEN_MAX: u64 = 256 * 1024 * 1024;
/// The beginning of temporary names in the folder.
pub(super) const TEMPORARY: &str = ".narval-tmp-";

/// A channel: a short name such as `nixos-25.11`, or the URL of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    name: String,
    url: Url,
}

impl Channel {
    /// Parses a short name, a URL, or a folder.
    ///
    /// # Errors
    /// If it is none of them.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let is_folder = text.starts_with('/') || text.starts_with("./") || text.starts_with("../");
        let url = if is_folder {
            let absolute = std::path::absolute(text).map_err(|error| Error::file("find", Path::new(text), error))?;
            Url::from_folder(&absolute)?
        } else if text.contains("://") {
            Url::parse(text)?
        } else {
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            if text.is_empty() || text.starts_with('.') || !text.bytes().all(is_name) {
                return Err(Error::Usage(format!(
                    "'{text}' is not a channel: give a name such as {CHANNEL_DEFAULT}, or the URL of a folder with {PACKAGES}"
                )));
            }
            Url::parse(&format!("{CHANNELS}/{text}"))?
        };
        Ok(Self { name: text.trim_end_matches('/').to_owned(), url })
    }

    /// A cache that has published names.
    pub(super) fn of_cache(cache: &Url) -> Self {
        Self { name: cache.to_string(), url: cache.clone() }
    }

    /// As it was given.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The user's folder with the indexes of channels and what was learnt about their releases.
#[derive(Clone, Debug)]
pub struct NamesFolder(PathBuf);

/// What asking a channel has led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refreshed {
    /// Whether there is a new index.
    pub is_new: bool,
    /// Where the release is.
    pub release: String,
    /// Its revision; may be empty.
    pub revision: String,
    /// The number of attributes.
    pub attributes: u64,
    /// The number of store paths.
    pub paths: u64,
}

impl NamesFolder {
    /// The folder at this path, which is created when it is needed.
    pub const fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn create(&self) -> Result<(), Error> {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        created.map_err(|error| Error::file("create", &self.0, error))
    }

    fn index_path(&self, channel: &Channel) -> PathBuf {
        self.0.join(format!("{}.names", file_name(&channel.url.to_string())))
    }

    /// The index of a channel, and how long ago the channel was asked; `None` if there is none, or it cannot be read.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(&self, channel: &Channel) -> Result<Option<(Index, Duration)>, Error> {
        let path = self.index_path(channel);
        let age = match fs::metadata(&path).and_then(|found| found.modified()) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            time => time.map_err(|error| Error::file("read", &path, error))?,
        };
        match Index::open(&path) {
            Ok(index) => Ok(Some((index, age.elapsed().unwrap_or_default()))),
            Err(error) if error.is_damaged() => {
                tracing::warn!("{}: {error}; it is made again", path.display());
                Ok(None)
            }
            Err(source) => Err(names_error(channel, source)),
        }
    }

    /// What was learnt about the release that an index is of.
    pub(crate) fn learnt(&self, index: &Index) -> Learnt {
        let release = index.fact("release").unwrap_or_default();
        let revision = index.fact("revision").unwrap_or_default();
        Learnt::open(self.0.join(format!("{}.learnt", file_name(&format!("{release}-{revision}")))))
    }

    /// Asks a channel for its current release, and makes an index of it if there is none yet.
    ///
    /// # Errors
    /// If the channel cannot be reached, its files are not what they should be, or the index cannot be written. The index that was there stays.
    pub fn refresh(
        &self,
        channel: &Channel,
        client: &Arc<Client>,
        lock_timeout: Duration,
        work: &Work,
    ) -> Result<Refreshed, Error> {
        self.create()?;
        let path = self.index_path(channel);
        // Another process that does the same is waited for: it has the result then.
        let _lock = lock_file(&path.with_extension("lock"), lock_timeout)?;
        work.begin("asking the channel", "", 0, 0);
        let (release, revision) = release_of(channel, client)?;
        let old = self.open(channel).ok().flatten().map(|(index, _)| index);
        let fact = |fact: &str| old.as_ref().and_then(|old| old.fact(fact)).unwrap_or_default().to_owned();
        // A release that the channel leads to never changes. A folder that is the channel may.
        let is_release =
            release != channel.url && fact("release") == release.to_string() && fact("revision") == revision;
        let made = match is_release {
            true => None,
            false => {
                let tags = (fact("release") == release.to_string()).then(|| [fact("packages-tag"), fact("paths-tag")]);
                make(channel, &release, client, work, tags.unwrap_or_default())?
            }
        };
        let is_new = made.is_some();
        if let Some(mut index) = made {
            let build_records = small(channel, &release, client, BUILD_RECORDS)?.unwrap_or_default();
            for (fact, value) in [
                ("channel", channel.name.as_str()),
                ("release", &release.to_string()),
                ("revision", &revision),
                ("build-records", &build_records),
            ] {
                index.set(fact, value);
            }
            work.begin("writing the index", "", 0, 0);
            write(index, &self.0, &path).map_err(|source| names_error(channel, source))?;
        }
        let now = FileTimes::new().set_modified(SystemTime::now());
        let touched = File::options().append(true).open(&path).and_then(|file| file.set_times(now));
        touched.map_err(|error| Error::file("write", &path, error))?;
        let index = Index::open(&path).map_err(|source| names_error(channel, source))?;
        let counts = index.counts();
        let (attributes, paths) = (counts.attributes, counts.paths);
        Ok(Refreshed { is_new, release: release.to_string(), revision, attributes, paths })
    }
}

/// Writes an index beside its place, and renames it.
pub(crate) fn write(index: PackedIndex, folder: &Path, to: &Path) -> Result<(), NamesError> {
    // What killed processes have left.
    narval_files::remove_leftovers(folder, |name| is_temporary_name(name, TEMPORARY))?;
    let temporary = TemporaryFile::create(folder, TEMPORARY, 0o644)?;
    let mut out = BufWriter::new(temporary.file());
    index.write(&mut out)?;
    out.flush()?;
    drop(out);
    Ok(temporary.persist(to)?)
}

/// A file name for any text, that no other text has.
pub(crate) fn file_name(text: &str) -> String {
    let escaped = escaped(text);
    // Far below the 255 bytes of file systems, with a suffix.
    match escaped.len() {
        0..=150 => escaped,
        _ => {
            format!("{}-{}", escaped.get(..100).unwrap_or_default(), narval_nix::Sha256::of(text.as_bytes()).to_nix32())
        }
    }
}

pub(crate) fn names_error(channel: &Channel, source: NamesError) -> Error {
    Error::Names { channel: channel.name.clone(), source }
}

pub(super) fn fetch_error(channel: &Channel, what: &str, source: HttpError) -> Error {
    CacheError::Fetch { cache: channel.name.clone(), what: what.to_owned(), source }.into()
}

/// Where the channel leads to, and the revision of that.
fn release_of(channel: &Channel, client: &Client) -> Result<(Url, String), Error> {
    let fail = |source| fetch_error(channel, REVISION, source);
    if !matches!(channel.url.scheme(), Scheme::Http | Scheme::Https) {
        return Ok((channel.url.clone(), small(channel, &channel.url, client, REVISION)?.unwrap_or_default()));
    }
    let mut url = channel.url.child(REVISION)?;
    for _ in 0..=REDIRECTS_MAX {
        let next = client.retrying(&url, || {
            let response = client.send_once(&Request { accepts_coding: true, ..Request::get(&url) })?;
            let (status, retry_after) = (response.head.status, response.head.retry_after());
            let location = response.head.field("location").map(str::to_owned);
            response.body.drain();
            match (status, location) {
                (301 | 302 | 303 | 307 | 308, Some(location)) => Ok(Some(url.join(&location)?)),
                (200..=299 | 403 | 404 | 410, _) => Ok(None),
                _ => Err(HttpError::Status { status, retry_after }),
            }
        });
        match next.map_err(fail)? {
            Some(next) if (url.scheme(), next.scheme()) == (Scheme::Https, Scheme::Http) => {
                return Err(fail(HttpError::Redirect("from https:// to http://")));
            }
            Some(next) => url = next,
            None => {
                let text = url.to_string();
                let folder = text.split(['?', '#']).next().and_then(|text| text.strip_suffix(&format!("/{REVISION}")));
                let release = match folder {
                    Some(folder) => Url::parse(folder)?,
                    None => channel.url.clone(),
                };
                let revision = small(channel, &release, client, REVISION)?.unwrap_or_default();
                return Ok((release, revision));
            }
        }
    }
    Err(fail(HttpError::Redirect("more than 10 in a row")))
}

/// A file of one line; `None` if the release does not have it.
fn small(channel: &Channel, release: &Url, client: &Client, name: &str) -> Result<Option<String>, Error> {
    let bytes =
        read_small(client, &release.child(name)?, LINE_LEN_MAX).map_err(|source| fetch_error(channel, name, source))?;
    let Some(bytes) = bytes else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    match text.chars().any(char::is_control) {
        false => Ok(Some(text)),
        true => Err(names_error(
            channel,
            NamesError::Invalid { what: name.to_owned(), reason: "it is not one line of text".to_owned() },
        )),
    }
}

/// Reads the two files at once. `None` if both have not changed since they had these tags.
fn make(
    channel: &Channel,
    release: &Url,
    client: &Arc<Client>,
    work: &Work,
    tags: [String; 2],
) -> Result<Option<PackedIndex>, Error> {
    let open = |name: &str, tag: &str| -> Result<Option<CacheFile>, Error> {
        let fields = if tag.is_empty() { Vec::new() } else { vec![("if-none-match", tag.to_owned())] };
        match CacheFile::open_coded(
            client,
            &release.child(name)?,
            OwnCodings { accepted: String::new(), fields },
            false,
        ) {
            Ok(Some(file)) => Ok(Some(file)),
            Err(HttpError::Status { status: 304, .. }) if !tag.is_empty() => Ok(None),
            Ok(None) => {
                Err(Error::Unresolved(format!("{} is not a channel: it has no {name} at {release}", channel.name)))
            }
            Err(source) => Err(fetch_error(channel, name, source)),
        }
    };
    let opened = (open(PACKAGES, &tags[0])?, open(STORE_PATHS, &tags[1])?);
    let (packages, paths) = match opened {
        (None, None) => return Ok(None),
        // One has changed: both are read.
        (packages, paths) => (
            packages.map_or_else(|| open(PACKAGES, ""), |file| Ok(Some(file)))?,
            paths.map_or_else(|| open(STORE_PATHS, ""), |file| Ok(Some(file)))?,
        ),
    };
    let (Some(packages), Some(paths)) = (packages, paths) else { return Err(Error::Died) };
    let tag = |file: &CacheFile| file.etag().unwrap_or_default().to_owned();
    let tags = (tag(&packages), tag(&paths));
    let bytes = [&packages, &paths].map(|file| file.total_len());
    let all = bytes.iter().try_fold(0_u64, |sum, len| sum.checked_add((*len)?)).unwrap_or_default();
    work.begin("reading the channel's names", "", 0, all);
    // One thread decodes the names, one reads them, and one has the list of paths from its first byte to its compressed table.
    let (read, of_paths) = std::thread::scope(|scope| {
        let (decoder, pieces) = pieces();
        let decoded_names = scope.spawn(move || decoder.feed(decoded(packages, &Compression::Brotli, work)?));
        let of_paths = scope.spawn(|| {
            let mut builder = Builder::default();
            read_store_paths(decoded(paths, &Compression::Xz, work)?, &mut builder)?;
            builder.pack()
        });
        let mut builder = Builder::default();
        let read = read_packages(pieces, &mut builder);
        let decoded = decoded_names.join().map_err(|_| Error::Died);
        // What was wrong with the file comes before what was therefore wrong with its text.
        let read = decoded.map(|decoded| decoded.and(read).and_then(|()| builder.pack()));
        (read, of_paths.join().map_err(|_| Error::Died))
    });
    if work.is_stopped() {
        return Err(Error::Interrupted);
    }
    let fail = |source| names_error(channel, source);
    let (mut index, of_paths) = (read?.map_err(fail)?, of_paths?.map_err(fail)?);
    index.take_paths_of(of_paths);
    index.set("packages-tag", &tags.0);
    index.set("paths-tag", &tags.1);
    Ok(Some(index))
}

/// A file of a channel, decompressed; also if a server has done that already.
pub(super) fn decoded<'a>(
    file: CacheFile,
    compression: &Compression,
    work: &'a Work,
) -> Result<Box<dyn BufRead + 'a>, NamesError> {
    let source = work.reading(Limited { file, left: FILE_LEN_MAX });
    let mut source = BufReader::with_capacity(INPUT_LEN, source);
    // Neither brotli nor xz can begin with these bytes.
    let is_plain = source.fill_buf()?.first().is_some_and(|first| [b'{', b'/'].contains(first));
    if is_plain {
        return Ok(Box::new(source));
    }
    let decoder = Decoder::new(compression, source, 1).map_err(|error| NamesError::Io(io::Error::other(error)))?;
    Ok(Box::new(BufReader::with_capacity(INPUT_LEN, decoder)))
}

/// A download of limited length.
struct Limited {
    file: CacheFile,
    left: u64,
}

impl Read for Limited {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_some(out).map_err(io::Error::other)?;
        match self.left.checked_sub(read as u64) {
            Some(left) => self.left = left,
            None => return Err(io::Error::other(format!("a file of the channel has more than {FILE_LEN_MAX} bytes"))),
        }
        Ok(read)
    }
}

/// Additional fields of a request for JSON.
pub(crate) const ACCEPTS_JSON: Extra<'static> =
    Extra { fields: &[("accept", "application/json")], query: &[], is_signed: false, valid: None };
