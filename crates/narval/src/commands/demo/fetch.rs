//! The demo's check: fetches everything back as an install does, and verifies signatures, sizes and hashes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use narval_cache::BinaryCaches;
use narval_client::{Client, ClientOptions, Url};
use narval_install::{Wanted, check};
use narval_nix::{ClosureWalk, NarInfo, StoreDir, StorePath, TrustedKeys};

use crate::ui::failure::Failure;
use crate::ui::signals::Interrupt;

/// A path that was fetched.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) narinfo: NarInfo,
    pub(super) narinfo_time: Duration,
    pub(super) nar_time: Duration,
}

/// Fetches the closure of a path.
pub(super) fn closure(
    address: SocketAddr,
    root: &StorePath,
    keys: TrustedKeys,
    interrupt: &Interrupt,
) -> Result<Vec<Fetched>, Failure> {
    let url = Url::parse(&format!("http://{address}")).map_err(Failure::runtime)?;
    let client = Arc::new(Client::new(ClientOptions::default()));
    let caches = BinaryCaches::open(&[url], &client, &StoreDir::default(), keys, true)?;
    let (mut walk, mut fetched) = (ClosureWalk::new([root.clone()]), Vec::new());
    while let Some(path) = walk.next() {
        interrupt.check().map_err(Failure::runtime)?;
        let started = Instant::now();
        let found = caches.find(&Wanted::Path(path))?;
        let narinfo_time = started.elapsed();
        let started = Instant::now();
        check(&caches, &found)?;
        walk.add(found.info.references.iter().cloned());
        fetched.push(Fetched { narinfo: found.info, narinfo_time, nar_time: started.elapsed() });
    }
    Ok(fetched)
}
