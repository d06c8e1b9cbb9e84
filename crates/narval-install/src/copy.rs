//! Copying a closure into a cache folder: from caches as it is, or from a store with compression.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use narval_nix::{CacheInfo, Compression, NarInfo, PathInfo, SecretKey, Sha256, Sha256Hasher, StoreDir};
use narval_store::NarReader;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, get_error_name};

use crate::cache::{Caches, Found};
use crate::http::ResumingBody;
use crate::{Destination, Error};

/// Bytes of NAR in one zstd frame, so that clients can decompress in parallel (as Nix ≥ 2.35 writes them).
const FRAME_LEN: u64 = 16 * 1024 * 1024;
const BUFFER_LEN: usize = 256 * 1024;

/// A folder that is a binary cache, as `nix copy --to file://` makes it.
pub struct CacheFolder {
    folder: PathBuf,
    store_dir: StoreDir,
}

impl CacheFolder {
    /// Opens it, or makes it.
    ///
    /// # Errors
    /// When it can't be written, or is a cache of another store directory.
    pub fn open(folder: &Path, store_dir: &StoreDir) -> Result<Self, Error> {
        let opened = Self { folder: folder.to_owned(), store_dir: store_dir.clone() };
        opened.attempt("", fs::create_dir_all(folder.join("nar")))?;
        let name = folder.join("nix-cache-info");
        match fs::read(&name) {
            Ok(text) => {
                let refused = |reason: String| Error::Cache { cache: folder.display().to_string(), reason };
                let info = CacheInfo::parse(&text).map_err(|error| refused(error.to_string()))?;
                if info.store_dir != *store_dir {
                    return Err(refused(format!("is a cache of the store {}", info.store_dir)));
                }
            }
            Err(_) => opened.put("nix-cache-info", format!("StoreDir: {store_dir}\n").as_bytes())?,
        }
        Ok(opened)
    }

    /// Whether it has a path.
    pub fn has(&self, info: &PathInfo) -> bool {
        self.folder.join(format!("{}.narinfo", info.path.hash_part())).exists()
    }

    fn attempt<T>(&self, name: &str, result: io::Result<T>) -> Result<T, Error> {
        result.map_err(|source| Error::Usage(format!("{}: {source}", self.folder.join(name).display())))
    }

    /// Writes a small file: whole, or not at all.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let temporary = self.folder.join(format!(".{name}.{}", std::process::id()));
        self.attempt(name, fs::write(&temporary, bytes))?;
        self.attempt(name, fs::rename(temporary, self.folder.join(name)))
    }

    /// Takes a path over from a cache: the file as it is, its hash checked.
    ///
    /// # Errors
    /// When the file does not come, or is not what its narinfo says.
    pub(crate) fn take_from_cache(&self, found: &Found) -> Result<(), Error> {
        let url = found.cache.nar_url(&found.info)?;
        let failed = |error| found.cache.fetch_error(&found.info.url, error);
        let gone = || Error::NarGone {
            cache: found.cache.url().to_string(),
            path: found.info.path.clone(),
            url: url.to_string(),
        };
        let mut body = ResumingBody::open(found.cache.client(), &url).map_err(failed)?.ok_or_else(gone)?;
        let temporary = self.folder.join(format!("nar/.{}.{}", found.info.path.hash_part(), std::process::id()));
        let mut file = self.attempt("nar", File::create(&temporary))?;
        let (mut hasher, mut len, mut buffer) = (Sha256Hasher::new(), 0, vec![0; BUFFER_LEN]);
        loop {
            let read = body.read_some(&mut buffer).map_err(failed)?;
            let bytes = buffer.get(..read).unwrap_or_default();
            if bytes.is_empty() {
                break;
            }
            hasher.update(bytes);
            self.attempt("nar", file.write_all(bytes))?;
            len += read as u64;
        }
        let hash = hasher.finish();
        let wrong_hash =
            found.info.file_hash.as_ref().is_some_and(|expected| expected.sha256().is_ok_and(|sha| sha != hash));
        if wrong_hash || found.info.file_size.is_some_and(|size| size != len) {
            self.attempt("nar", fs::remove_file(&temporary))?;
            return Err(Error::Damaged {
                cache: found.cache.url().to_string(),
                path: found.info.path.clone(),
                reason: "the file is not the one of the narinfo".into(),
            });
        }
        let mut info = found.info.clone();
        info.url = nar_name(hash, info.compression);
        (info.file_hash, info.file_size) = (Some(hash.into()), Some(len));
        self.attempt(&info.url, fs::rename(temporary, self.folder.join(&info.url)))?;
        self.put(&format!("{}.narinfo", info.path.hash_part()), info.render(&self.store_dir).as_bytes())
    }

    /// Packs a path of a store.
    ///
    /// # Errors
    /// When it can't be read, or is not what the store has registered.
    pub(crate) fn pack(
        &self,
        real: &Path,
        info: &PathInfo,
        compress: bool,
        key: Option<&SecretKey>,
    ) -> Result<(), Error> {
        let mut nar = NarReader::open(real).map_err(|error| Error::LocalStore { error: error.into() })?;
        let temporary = self.folder.join(format!("nar/.{}.{}", info.path.hash_part(), std::process::id()));
        let file = self.attempt("nar", File::create(&temporary))?;
        let mut out =
            Hashing { inner: BufWriter::with_capacity(BUFFER_LEN, file), hasher: Sha256Hasher::new(), len: 0 };
        let packed = if compress { pack_zstd(&mut nar, &mut out) } else { copy_hashed(&mut nar, &mut out) };
        let nar_hash = self.attempt("nar", packed.and_then(|hash| out.flush().map(|()| hash)))?;
        if nar_hash != info.nar_hash {
            self.attempt("nar", fs::remove_file(&temporary))?;
            return Err(Error::Usage(format!("{}: its files have been changed; see 'narval verify'", info.path)));
        }
        let (compression, hash) = (if compress { Compression::Zstd } else { Compression::None }, out.hasher.finish());
        let mut narinfo = NarInfo::new(info, nar_name(hash, compression), compression);
        (narinfo.file_hash, narinfo.file_size) = (Some(hash.into()), Some(out.len));
        narinfo.signatures.extend(key.map(|key| key.sign(info.fingerprint(&self.store_dir).as_bytes())));
        self.attempt(&narinfo.url, fs::rename(temporary, self.folder.join(&narinfo.url)))?;
        self.put(&format!("{}.narinfo", info.path.hash_part()), narinfo.render(&self.store_dir).as_bytes())
    }
}

/// Copies closures from caches.
///
/// # Errors
/// As for each path; what was copied stays.
pub fn copy_from_caches(caches: &Caches, roots: &[narval_nix::HashPart], to: &CacheFolder) -> Result<usize, Error> {
    let mut copied = 0;
    for found in crate::install::closure(caches, roots, &|_| Ok(false))? {
        if !to.has(&found.info.path_info(0)) {
            to.take_from_cache(&found)?;
            copied += 1;
        }
    }
    Ok(copied)
}

/// Copies paths of a store.
///
/// # Errors
/// As for each path; what was copied stays.
pub fn copy_from_store(
    from: &Destination,
    infos: &[Arc<PathInfo>],
    to: &CacheFolder,
    compress: bool,
    key: Option<&SecretKey>,
) -> Result<usize, Error> {
    let mut copied = 0;
    for info in infos.iter().filter(|info| !to.has(info)) {
        to.pack(&from.store().real_path(&info.path), info, compress, key)?;
        copied += 1;
    }
    Ok(copied)
}

fn nar_name(file_hash: Sha256, compression: Compression) -> String {
    format!("nar/{}.nar{}", file_hash.to_nix32(), compression.file_extension())
}

struct Hashing<W> {
    inner: W,
    hasher: Sha256Hasher,
    len: u64,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.inner.write(bytes)?;
        self.hasher.update(bytes.get(..len).unwrap_or_default());
        self.len += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn copy_hashed(nar: &mut impl Read, out: &mut impl Write) -> io::Result<Sha256> {
    let (mut hasher, mut buffer) = (Sha256Hasher::new(), vec![0; BUFFER_LEN]);
    loop {
        match nar.read(&mut buffer)? {
            0 => return Ok(hasher.finish()),
            read => {
                let bytes = buffer.get(..read).unwrap_or_default();
                hasher.update(bytes);
                out.write_all(bytes)?;
            }
        }
    }
}

fn pack_zstd(nar: &mut impl Read, out: &mut impl Write) -> io::Result<Sha256> {
    let failed = |code| io::Error::other(format!("zstd: {}", get_error_name(code)));
    let mut context = CCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
    context.set_parameter(CParameter::CompressionLevel(3)).map_err(failed)?;
    let (mut hasher, mut input, mut packed) = (Sha256Hasher::new(), vec![0; BUFFER_LEN], vec![0; BUFFER_LEN]);
    let mut in_frame = 0;
    loop {
        let read = nar.read(&mut input)?;
        let bytes = input.get(..read).unwrap_or_default();
        hasher.update(bytes);
        let mut from = InBuffer::around(bytes);
        while from.pos() < bytes.len() {
            let mut to = OutBuffer::around(packed.as_mut_slice());
            context.compress_stream(&mut to, &mut from).map_err(failed)?;
            out.write_all(to.as_slice())?;
        }
        in_frame += read as u64;
        if in_frame >= FRAME_LEN || read == 0 && in_frame > 0 {
            loop {
                let mut to = OutBuffer::around(packed.as_mut_slice());
                let left = context.end_stream(&mut to).map_err(failed)?;
                out.write_all(to.as_slice())?;
                if left == 0 {
                    break;
                }
            }
            in_frame = 0;
        }
        if read == 0 {
            return Ok(hasher.finish());
        }
    }
}
