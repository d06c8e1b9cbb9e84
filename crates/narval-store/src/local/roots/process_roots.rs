//! Store paths in use by running programs: executables, open files, mappings and environments.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use narval_nix::StorePath;
use narval_nix::store_path::{BASE_NAME_LEN_MAX, HASH_PART_LEN};

use super::root::Root;
use crate::config::StoreConfig;

/// Like Nix's `findRuntimeRootsUncached`. Without root privileges, other users' processes cannot be inspected; as with
/// Nix, their programs are only kept by links. A process that ends meanwhile needs nothing.
pub(in crate::local) fn process_roots(config: &StoreConfig, roots: &mut Vec<Root>) {
    let Ok(processes) = fs::read_dir("/proc") else { return };
    for process in processes.flatten() {
        let is_process =
            process.file_name().to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        if is_process {
            let process = process.path();
            links_of_process(config, &process, roots);
            for file in ["maps", "environ"] {
                let text = fs::read(process.join(file)).unwrap_or_default();
                store_paths_in(config, &text, &process, roots);
            }
        }
    }
}

fn links_of_process(config: &StoreConfig, process: &Path, roots: &mut Vec<Root>) {
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten().map(|entry| entry.path());
    let links: Vec<PathBuf> = ["exe", "cwd"].map(|name| process.join(name)).into_iter().chain(open).collect();
    for link in links {
        if let Some(path) = fs::read_link(link).ok().and_then(|to| config.store_path_of(to.as_os_str())) {
            roots.push(Root { source: process.to_owned(), path });
        }
    }
}

/// Every store path in a text.
fn store_paths_in(config: &StoreConfig, text: &[u8], process: &Path, roots: &mut Vec<Root>) {
    let directories = [config.store_dir.as_str().as_bytes(), config.real_store_dir.as_os_str().as_bytes()];
    for (at, _) in text.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
        // A store path is a store directory, a slash and a base name.
        let before = text.get(..at).unwrap_or_default();
        if !directories.iter().any(|directory| before.ends_with(directory)) {
            continue;
        }
        let after = text.get(at + 1..).unwrap_or_default();
        let legal = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+-._?=".contains(byte);
        let len = after.iter().take(BASE_NAME_LEN_MAX).take_while(legal).count();
        if len > HASH_PART_LEN
            && let Some(path) =
                after.get(..len).and_then(|name| StorePath::parse_bytes(OsStr::from_bytes(name).as_bytes()).ok())
        {
            roots.push(Root { source: process.to_owned(), path });
        }
    }
}
