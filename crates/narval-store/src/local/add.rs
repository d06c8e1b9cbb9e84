//! Files and folders become store paths.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::Path;

use narval_nix::content_address::{ContentAddress, Method};
use narval_nix::{Hash, PathInfo, Sha256Hasher, StoreDir, StorePath, StorePathName};

use super::{LocalStore, LocalStoreError, Prepared};
use crate::nar::NarReader;

/// The size of the pieces that are hashed and written.
const BUFFER_LEN: usize = 256 * 1024;

impl LocalStore {
    /// Adds a file or folder under its content address, as `nix store add` does. It becomes valid when it is registered. It is read twice; `go_on`
    /// is asked before each piece, and its error ends the work.
    ///
    /// # Errors
    /// If it cannot be read, has changed meanwhile, or the store cannot be written.
    pub fn add(
        &self,
        from: &Path,
        name: &StorePathName,
        references: BTreeSet<StorePath>,
        go_on: &dyn Fn() -> io::Result<()>,
    ) -> Result<PathInfo, LocalStoreError> {
        let failed = |source| LocalStoreError::Io { action: "add", path: from.to_owned(), source };
        let info = describe_while(from, name, references, self.store_dir(), go_on).map_err(failed)?;
        if let Prepared::Missing(mut incoming) = self.prepare(&info)? {
            pieces(from, |piece| {
                go_on()?;
                incoming.write(piece).map_err(io::Error::other)
            })
            .map_err(failed)?;
            incoming.commit()?;
        }
        Ok(info)
    }
}

/// What a file or folder is as a store path, under its content address. See [`LocalStore::add`].
///
/// # Errors
/// If it cannot be read.
pub fn describe(
    from: &Path,
    name: &StorePathName,
    references: BTreeSet<StorePath>,
    store_dir: &StoreDir,
) -> io::Result<PathInfo> {
    describe_while(from, name, references, store_dir, &|| Ok(()))
}

fn describe_while(
    from: &Path,
    name: &StorePathName,
    references: BTreeSet<StorePath>,
    store_dir: &StoreDir,
    go_on: &dyn Fn() -> io::Result<()>,
) -> io::Result<PathInfo> {
    let (mut hasher, mut nar_size) = (Sha256Hasher::new(), 0);
    pieces(from, |piece| {
        go_on()?;
        hasher.update(piece);
        nar_size += piece.len() as u64;
        Ok(())
    })?;
    let nar_hash = hasher.finish();
    let ca = ContentAddress::new(Method::Nar, Hash::from(nar_hash)).map_err(io::Error::other)?;
    Ok(PathInfo {
        path: ca.store_path(store_dir, name, &references, false).map_err(io::Error::other)?,
        nar_hash,
        nar_size,
        references,
        deriver: None,
        registration_time: 0,
        ultimate: true,
        signatures: Vec::new(),
        ca: Some(ca),
    })
}

/// The NAR of a path, piece by piece.
fn pieces(path: &Path, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut nar = NarReader::open(path)?;
    let mut buffer = vec![0; BUFFER_LEN];
    loop {
        match nar.read(&mut buffer)? {
            0 => return Ok(()),
            got => take(buffer.get(..got).unwrap_or_default())?,
        }
    }
}
