//! Copying a closure into a cache folder: from caches as it is, or from a store with compression.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use narval_nix::nar::{Decoder as NarDecoder, NarError};
use narval_nix::{Compression, NarInfo, PathInfo, SecretKey, Sha256, Sha256Hasher, StoreDir, StorePath};
use narval_store::NarReader;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, get_error_name};

use crate::pipeline::{Cores, Surroundings, VerifiedNar};
use crate::{Destination, Error, Progress, Trace, Wanted};
use narval_cache::{CacheError, CacheFolder, Caches, Found, WrittenFile};

/// Bytes of NAR in one zstd frame, so that clients can decompress in parallel (as Nix ≥ 2.35 writes them).
const FRAME_LEN: u64 = 16 * 1024 * 1024;
const BUFFER_LEN: usize = 256 * 1024;

/// Copies closures from caches. The file of a path is taken over as it is, and published once it has been decompressed
/// and its NAR found to be the one of the narinfo.
///
/// # Errors
/// As for each path; what was copied stays.
pub fn copy_from_caches(caches: &Caches, roots: &[Wanted], to: &CacheFolder) -> Result<usize, Error> {
    let mut copied = 0;
    for found in crate::install::closure(caches, roots, &|_| Ok(false))? {
        if !has(to, &found.info.path)? {
            take_from_cache(&found, caches.store_dir(), to)?;
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
    for info in infos {
        if !has(to, &info.path)? {
            pack(&from.store().real_path(&info.path), info, from.store_dir(), to, (compress, key))?;
            copied += 1;
        }
    }
    Ok(copied)
}

fn has(folder: &CacheFolder, path: &StorePath) -> Result<bool, Error> {
    Ok(folder.narinfo(&path.hash_part())?.is_some_and(|info| info.path == *path))
}

/// Takes a path over from a cache.
fn take_from_cache(found: &Found, store_dir: &StoreDir, to: &CacheFolder) -> Result<(), Error> {
    let mut incoming = to.write_nar()?;
    let (cores, progress, trace) = (Cores::new(1), Progress::default(), Trace::new(false));
    cores.take(0, 0);
    let around = Surroundings { cores: &cores, progress: &progress, trace: &trace, size: 0, number: 0 };
    let mut nar = VerifiedNar::open(found, store_dir, &around, Some(&mut incoming))?;
    let damaged = |error: NarError| CacheError::Damaged {
        cache: found.cache.url().to_string(),
        path: found.info.path.clone(),
        reason: format!("it is no valid NAR: {error}"),
    };
    let (mut parser, mut buffer) = (NarDecoder::with_nar_size(found.info.nar_size), vec![0; BUFFER_LEN]);
    loop {
        let len = nar.next(&mut buffer)?;
        let mut bytes = buffer.get(..len).unwrap_or_default();
        if bytes.is_empty() {
            break;
        }
        while let (used, Some(_)) = parser.next(bytes).map_err(damaged)? {
            bytes = bytes.get(used..).unwrap_or_default();
        }
    }
    parser.finish().map_err(damaged)?;
    drop(nar);
    let mut info = found.info.clone();
    set_file(&mut info, incoming.commit(found.info.compression)?);
    Ok(to.write_narinfo(&info)?)
}

/// Packs a path of a store.
fn pack(
    real: &Path,
    info: &PathInfo,
    store_dir: &StoreDir,
    to: &CacheFolder,
    (compress, key): (bool, Option<&SecretKey>),
) -> Result<(), Error> {
    let mut nar = NarReader::open(real).map_err(|error| Error::LocalStore { error: error.into() })?;
    let mut incoming = to.write_nar()?;
    let packed = if compress { pack_zstd(&mut nar, &mut incoming) } else { copy_hashed(&mut nar, &mut incoming) };
    let nar_hash = packed.map_err(|source| Error::Copy { path: info.path.clone(), source })?;
    if nar_hash != info.nar_hash {
        return Err(Error::Usage(format!("{}: its files have been changed; see 'narval verify'", info.path)));
    }
    let compression = if compress { Compression::Zstd } else { Compression::None };
    let mut narinfo = NarInfo::new(info, "", compression);
    set_file(&mut narinfo, incoming.commit(compression)?);
    narinfo.signatures.extend(key.map(|key| key.sign(info.fingerprint(store_dir).as_bytes())));
    Ok(to.write_narinfo(&narinfo)?)
}

fn set_file(info: &mut NarInfo, written: WrittenFile) {
    info.url = written.url;
    (info.file_hash, info.file_size) = (Some(written.file_hash.into()), Some(written.file_size));
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
