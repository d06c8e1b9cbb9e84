//! Logs, realisations and other small files of a cache that is being copied.

use std::collections::HashMap;
use std::io;
use std::path::{Component, Path};

use super::{Copying, Tally};
use crate::Refusal;
use crate::small::SMALL_FOLDERS;
use crate::storage::Below;

impl Copying<'_> {
    /// Copies files that the destination lacks, or has with another length.
    pub(super) fn copy_small_files(&self) -> Result<(), Refusal> {
        let (from, to) = (self.from, self.to);
        for folder in SMALL_FOLDERS {
            let fail = |error: io::Error| Refusal::of_file("list", folder, &error);
            let there = to.files().list(Below::Folder(folder)).map_err(fail)?;
            let there: HashMap<String, u64> = there.into_iter().map(|file| (file.name, file.len)).collect();
            for file in from.files().list(Below::Folder(folder)).map_err(fail)? {
                let old = there.get(&file.name).copied();
                // Whoever can write to a bucket chooses the names in it.
                if old == Some(file.len) || !is_below(&file.name, folder) {
                    continue;
                }
                self.work.check().map_err(|error| Refusal::of_file("copy", &file.name, &error))?;
                let copy = || -> io::Result<Option<u64>> {
                    let Some(mut source) = from.files().read(&file.name)? else { return Ok(None) };
                    let received = to.storage().incoming()?;
                    let len = io::copy(&mut source, &mut received.file())?;
                    to.files().write(&file.name, received).map(|()| Some(len))
                };
                if let Some(len) = copy().map_err(|error| Refusal::of_file("copy", &file.name, &error))? {
                    to.small_bytes().change(old.unwrap_or(0), len);
                    Tally::add(&self.tally.files, 1);
                }
            }
        }
        Ok(())
    }
}

/// Whether a name leads into this folder, and nowhere else.
fn is_below(name: &str, folder: &str) -> bool {
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
