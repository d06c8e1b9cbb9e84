//! A node: the real code, over the simulated bucket and database.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};

use narval_client::Url;
use narval_nix::SecretKey;
use narval_s3::Objects;

use crate::assembly::parts::Local;
use crate::cache::Cache;
use crate::data::Data;
#[cfg(feature = "postgres")]
use crate::index::SimulatedPostgres;
use crate::index::{Index, Simulated};
use crate::name::CacheName;
use crate::simulator::bucket::Bucket as SimulatedBucket;
use crate::simulator::state::CACHES;
use crate::simulator::task::Sim;
use crate::storage::Bucket;

/// A node's folder, and its caches.
pub(super) type Opened = (Data, [Cache; 2]);

/// What a node has in memory.
pub(super) type Node = Mutex<Option<Opened>>;

/// The folder of all nodes on this machine: they write only their audit logs there.
static LOCAL: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/null", folder.path().join("audit.jsonl")).unwrap();
    std::fs::create_dir(folder.path().join("incoming")).unwrap();
    folder
});

/// The id of the index, in the bucket.
pub(super) const INDEX_ID: &str = "simulated";

/// What releases are signed with.
static KEY: LazyLock<SecretKey> = LazyLock::new(|| SecretKey::generate("simulated-1").unwrap());

#[cfg(feature = "postgres")]
fn index(sim: &Sim) -> Box<dyn Index> {
    match &sim.state.lock().unwrap().shared {
        Some(shared) => Box::new(SimulatedPostgres::open(shared)),
        None => Box::new(Simulated),
    }
}

#[cfg(not(feature = "postgres"))]
fn index(_: &Sim) -> Box<dyn Index> {
    Box::new(Simulated)
}

/// A node with nothing in memory; `None` if it does not start.
pub(super) fn open(sim: &Arc<Sim>) -> Option<Opened> {
    let url = Url::parse("s3://bucket?endpoint=http://127.0.0.1:1").unwrap();
    let mut objects = Objects::new(&url).unwrap();
    objects.simulated = Some(Arc::new(SimulatedBucket));
    let bucket = Bucket::with(Arc::new(objects), None, PathBuf::from("s3://bucket"), LOCAL.path());
    bucket.is_of(INDEX_ID);
    let index = index(sim);
    let (data, _) = Data::assemble(Box::new(bucket), index, Local { folder: LOCAL.path(), lock: None }, false).ok()?;
    let cache = |name: &CacheName| data.cache(name).ok()?;
    let caches = [cache(&CacheName::default())?, cache(&CACHES[1].trim_end_matches('/').parse().unwrap())?];
    if sim.state.lock().unwrap().has_releases {
        caches.iter().for_each(|cache| cache.set_sign_keys(vec![KEY.clone()]));
    }
    Some((data, caches))
}
