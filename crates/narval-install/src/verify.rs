//! Checks the paths of a store.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use narval_files::Work;
use narval_nix::{PathInfo, StoreDir, StorePath, TrustedKeys};
use narval_store::{Hashed, Hashes, NarIoError, NarReader};
use parking_lot::Mutex;

use narval_transfer::{Destination, Error};

/// What is wrong with a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its files differ from those that were registered.
    Contents,
    /// It is valid, but its files do not exist.
    Missing,
    /// Its files cannot be a NAR, so it can neither be copied nor served. The reason names the file and the rule.
    NotANar(String),
    /// Its files cannot be read.
    Unreadable(String),
    /// It has no signature by a trusted key.
    Untrusted,
}

impl Fault {
    /// Whether the path can be replaced by what a cache has.
    pub const fn is_repairable(&self) -> bool {
        matches!(self, Self::Contents | Self::Missing)
    }
}

/// One faulty path.
#[derive(Clone, Debug)]
pub struct Faulty {
    /// The path.
    pub info: PathInfo,
    /// What is wrong.
    pub fault: Fault,
}

/// Checks the contents of paths, and with `keys` their signatures, on several cores. Sorted by path. If `work` is stopped, the rest is not
/// checked.
///
/// # Errors
/// If the store cannot be read. A fault is not an error.
pub fn verify(
    destination: &Destination,
    paths: &[StorePath],
    keys: Option<&TrustedKeys>,
    cores: usize,
    work: &Work,
) -> Result<Vec<Faulty>, Error> {
    let infos: Vec<_> = destination.store().path_infos(paths)?.into_iter().flatten().collect();
    work.begin("verifying", "paths", infos.len() as u64, infos.iter().map(|info| info.nar_size).sum());
    let (next, faulty) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..cores.clamp(1, infos.len().max(1)) {
            scope.spawn(|| {
                while let Some(info) = infos.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let real = destination.store().real_path(&info.path);
                    let found = examine(&real, info, keys, destination.store_dir(), work);
                    if work.is_stopped() {
                        break;
                    }
                    work.count(1);
                    let mut faulty = faulty.lock();
                    faulty.extend(found.err().map(|fault| Faulty { info: info.clone(), fault }));
                }
            });
        }
    });
    let mut faulty = faulty.into_inner();
    faulty.sort_by(|a, b| a.info.path.cmp(&b.info.path));
    Ok(faulty)
}

fn examine(
    real: &Path,
    info: &PathInfo,
    keys: Option<&TrustedKeys>,
    store_dir: &StoreDir,
    work: &Work,
) -> Result<(), Fault> {
    if std::fs::symlink_metadata(real).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Err(Fault::Missing);
    }
    let (hashed, len) = hashes_of(real, info, store_dir, work)?;
    if (hashed.nar, len) != (info.nar_hash, info.nar_size) {
        return Err(Fault::Contents);
    }
    let Some(keys) = keys else { return Ok(()) };
    let fingerprint = info.fingerprint(store_dir);
    let signed = keys.find_valid(fingerprint.as_bytes(), &info.signatures).is_some();
    let named = info.check_by_contents(store_dir).is_some() && hashed.fits_the_name();
    if signed || info.ultimate || named { Ok(()) } else { Err(Fault::Untrusted) }
}

/// Hashes and size of the NAR of the files on disk.
fn hashes_of(real: &Path, info: &PathInfo, store_dir: &StoreDir, work: &Work) -> Result<(Hashed, u64), Fault> {
    let mut nar = work.reading(NarReader::open(real).map_err(|error| fault_of(&error))?);
    let (mut hashes, mut len, mut buffer) = (Hashes::of(info, store_dir), 0, vec![0; 256 * 1024]);
    loop {
        let read = nar.read(&mut buffer).map_err(|error| {
            let source = error.get_ref().and_then(|source| source.downcast_ref::<NarIoError>());
            source.map_or_else(|| Fault::Unreadable(error.to_string()), fault_of)
        })?;
        if read == 0 {
            return Ok((hashes.finish(), len));
        }
        hashes.update(buffer.get(..read).unwrap_or_default());
        len += read as u64;
    }
}

fn fault_of(error: &NarIoError) -> Fault {
    match error {
        error if error.is_not_a_nar() => Fault::NotANar(error.to_string()),
        NarIoError::Io { .. } => Fault::Unreadable(error.to_string()),
        _ => Fault::Contents,
    }
}
