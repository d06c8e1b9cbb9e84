//! Store paths as arguments, and files in them.

use narval_cache::Caches;
use narval_install::Wanted;

use crate::Failure;
use crate::args::client::ClientArgs;

/// Parses the paths of the command line.
pub(crate) fn parse_wanted(texts: &[String], store_dir: &narval_nix::StoreDir) -> Result<Vec<Wanted>, Failure> {
    Ok(texts.iter().map(|text| Wanted::parse(text, store_dir)).collect::<Result<_, _>>()?)
}

/// Opens the caches for a file in a store path, `HASH-NAME/share/file`: returns the store path and the file below it.
pub(crate) fn open(client: &ClientArgs, path: &str) -> Result<(Caches, Wanted, String), Failure> {
    client.output.start_log();
    let (caches, destination) = (&client.caches, client.store.destination()?);
    let dir = destination.store_dir();
    let relative = path.strip_prefix(dir.as_str()).map_or(path, |rest| rest.trim_start_matches('/'));
    let (base, below) = relative.split_once('/').unwrap_or((relative, ""));
    let (wanted, options) = (Wanted::parse(base, dir)?, caches.options(None, false)?);
    let opened = Caches::open(&options.caches, &caches.client()?, dir, options.keys, options.check_signatures)?;
    Ok((opened, wanted, below.to_owned()))
}
