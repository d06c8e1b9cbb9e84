//! The demo's check: fetches everything back over HTTP, and verifies signatures, sizes and hashes.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use narval_nix::nar::Decoder;
use narval_nix::{CacheInfo, ClosureWalk, NarInfo, Sha256Hasher, StorePath, TrustedKeys};

use super::client::Client;
use crate::ui::signals::Interrupt;

/// The largest narinfo that is read, in bytes.
const NARINFO_BYTES_MAX: u64 = 1024 * 1024;

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
    keys: &TrustedKeys,
    interrupt: &Interrupt,
) -> io::Result<Vec<Fetched>> {
    let mut client = Client::connect(address)?;
    let info = client.get_bytes("/nix-cache-info", NARINFO_BYTES_MAX)?;
    let store_dir = CacheInfo::parse(&info).map_err(io::Error::other)?.store_dir;
    let (mut walk, mut fetched) = (ClosureWalk::new([root.clone()]), Vec::new());
    while let Some(path) = walk.next() {
        interrupt.check()?;
        let started = Instant::now();
        let text = client.get_bytes(&format!("/{}.narinfo", path.hash_part()), NARINFO_BYTES_MAX)?;
        let narinfo_time = started.elapsed();
        let narinfo = NarInfo::parse(&text, &store_dir).map_err(io::Error::other)?;
        if narinfo.path != path {
            return Err(io::Error::other(format!("requested {path}, got {}", narinfo.path)));
        }
        if keys.find_valid(narinfo.fingerprint(&store_dir).as_bytes(), &narinfo.signatures).is_none() {
            return Err(io::Error::other(format!("{path} has no valid signature")));
        }
        let started = Instant::now();
        fetch_nar(&mut client, &narinfo)?;
        walk.add(narinfo.references.iter().cloned());
        fetched.push(Fetched { narinfo, narinfo_time, nar_time: started.elapsed() });
    }
    Ok(fetched)
}

/// Fetches a NAR, and verifies its format, size and hash.
fn fetch_nar(client: &mut Client, narinfo: &NarInfo) -> io::Result<()> {
    let mut body = client.get(&format!("/{}", narinfo.url))?;
    let (mut hasher, mut decoder) = (Sha256Hasher::new(), Decoder::with_nar_size(narinfo.nar_size));
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let got = body.read(&mut buffer)?;
        if got == 0 {
            break;
        }
        let mut piece = buffer.get(..got).unwrap_or_default();
        hasher.update(piece);
        loop {
            let (used, event) = decoder.next(piece).map_err(io::Error::other)?;
            if event.is_none() {
                break;
            }
            piece = piece.get(used..).unwrap_or_default();
        }
    }
    decoder.finish().map_err(io::Error::other)?;
    if hasher.finish() != narinfo.nar_hash {
        return Err(io::Error::other(format!("{}: the NAR does not have the hash in its narinfo", narinfo.path)));
    }
    Ok(())
}
