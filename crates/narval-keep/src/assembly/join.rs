//! Makes this process a node: one of the servers over a bucket that share their disk caches.

use std::io;
use std::path::Path;
use std::sync::Arc;

use narval_client::Url;
use narval_nix::nix32;

use crate::error::{DataError, io_error};
use crate::index::Index;
use crate::nodes::{Members, Peers, refused};
use crate::storage::TEMPORARY;

/// The file with the id of a node, in its local folder: who keeps what stays the same when the server is restarted, also at another
/// address.
const NODE_ID: &str = "node.id";

/// The number of random bytes of an id.
const ID_LEN: usize = 20;

/// Makes this process a member of the nodes of a bucket. `url` is its address for the others, `cache_size` the size of its disk cache.
pub(crate) fn join(index: &dyn Index, folder: &Path, url: &Url, cache_size: u64) -> Result<Arc<Peers>, DataError> {
    let unusable =
        |reason: &str| Err(DataError::IndexMismatch { folder: folder.to_owned(), reason: reason.to_owned() });
    if let Some(reason) = refused(url) {
        return unusable(&format!("the address for other nodes, {url}, {reason}"));
    }
    let id = node_id(folder).map_err(|source| io_error("use 'node.id' in", folder, source))?;
    let members = Arc::new(Members::new(id, cache_size));
    match index.join(&members, &url.to_string())? {
        Some(secret) => Ok(Arc::new(Peers::new(members, secret))),
        None => unusable("other nodes ('--peer-url') need an index that they share: give the database ('--database')"),
    }
}

/// The id of the node with this folder, which is made at its first start. Only one server at a time uses a folder.
fn node_id(folder: &Path) -> io::Result<String> {
    let file = folder.join(NODE_ID);
    match std::fs::read_to_string(&file) {
        Ok(id) if is_id(id.trim_end()) => return Ok(id.trim_end().to_owned()),
        // Empty after a power failure, for example.
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut id = [0; ID_LEN];
    getrandom::fill(&mut id).map_err(|error| io::Error::other(error.to_string()))?;
    let id = nix32::encode(&id);
    let new = narval_files::TemporaryFile::create(&folder.join("incoming"), TEMPORARY, 0o644)?;
    io::Write::write_all(&mut new.file(), format!("{id}\n").as_bytes())?;
    new.file().sync_all()?;
    new.persist(&file)?;
    Ok(id)
}

fn is_id(text: &str) -> bool {
    text.len() == nix32::encoded_len(ID_LEN) && text.bytes().all(nix32::is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_node_stays() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("incoming")).unwrap();
        let id = node_id(folder.path()).unwrap();
        assert!(is_id(&id));
        assert_eq!(node_id(folder.path()).unwrap(), id);
        std::fs::write(folder.path().join(NODE_ID), "").unwrap();
        let next = node_id(folder.path()).unwrap();
        assert!(is_id(&next) && next != id);
    }
}
