//! Logs, realisations and other small files of a cache.

use std::collections::HashMap;
use std::io;
use std::path::{Component, Path};

use narval_files::Work;

use crate::rejection::Rejection;
use crate::small::SMALL_FOLDERS;
use crate::storage::{Below, CacheStorage, Storage};

/// Copies files that the destination lacks, or has with another length. `copied` gets the lengths before and after.
pub(in crate::upkeep) fn copy_small_files(
    from: &dyn CacheStorage,
    (storage, to): (&dyn Storage, &dyn CacheStorage),
    work: &Work,
    copied: &mut dyn FnMut(u64, u64),
) -> Result<(), Rejection> {
    for folder in SMALL_FOLDERS {
        let fail = |error: io::Error| Rejection::of_file("list", folder, &error);
        let there = to.list(Below::Folder(folder)).map_err(fail)?;
        let there: HashMap<String, u64> = there.into_iter().map(|file| (file.name, file.len)).collect();
        for file in from.list(Below::Folder(folder)).map_err(fail)? {
            let old = there.get(&file.name).copied();
            // Whoever can write to a bucket chooses the names in it.
            if old == Some(file.len) || !is_below(&file.name, folder) {
                continue;
            }
            work.check().map_err(|_| Rejection::interrupted("copy"))?;
            let copy = || -> io::Result<Option<u64>> {
                let Some(mut source) = from.read(&file.name)? else { return Ok(None) };
                let received = storage.incoming()?;
                let len = io::copy(&mut source, &mut received.file())?;
                to.write(&file.name, received).map(|()| Some(len))
            };
            if let Some(len) = copy().map_err(|error| Rejection::of_file("copy", &file.name, &error))? {
                copied(old.unwrap_or(0), len);
            }
        }
    }
    Ok(())
}

/// Whether a name leads into this folder, and nowhere else.
pub(super) fn is_below(name: &str, folder: &str) -> bool {
    name.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
        && Path::new(name).components().all(|component| matches!(component, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::is_below;

    #[test]
    fn names_stay_in_their_folder() {
        assert!(is_below("log/abc", "log") && is_below("build-trace-v2/a.drv/out.doi", "build-trace-v2"));
        for bad in ["log", "log/../nix-cache-info", "logs/a", "/log/a", "log/../../../etc/passwd"] {
            assert!(!is_below(bad, "log"), "{bad}");
        }
    }
}
