//! The contents of the demo's store: files of this machine, with real references between them.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use narval_nix::{PathInfo, StorePath, StorePathName};
use narval_store::LocalStore;

use crate::ui::failure::Failure;
use crate::ui::signals::Interrupt;

/// Folders that most machines have; those that exist are used.
const TREES: [&str; 5] =
    ["/usr/share/zoneinfo", "/usr/share/terminfo", "/usr/share/perl5", "/usr/include", "/etc/ssl/certs"];
/// The maximum number of files from one folder.
const FILES_MAX: u64 = 2_000;
const BYTES_MAX: u64 = 32 * 1024 * 1024;
/// The maximum depth of a folder.
const DEPTH_MAX: usize = 16;

/// A path of the demo's store.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) info: PathInfo,
    /// Files, links and folders.
    pub(super) entries: u64,
}

/// Creates the demo's paths; the last one refers to all others.
pub(super) fn make(store: &LocalStore, scratch: &Path, interrupt: &Interrupt) -> Result<Vec<Made>, Failure> {
    let mut builder = Builder { store, scratch, interrupt, made: Vec::new() };
    let libraries = builder.add("libraries", &[], copy_libraries)?;
    for tree in TREES {
        if Path::new(tree).is_dir() {
            let name = tree.trim_start_matches('/').replace('/', "-");
            builder.add(&name, &[], |to| copy_tree(Path::new(tree), to, &mut Budget::default(), 0))?;
        }
    }
    builder.add("narval", &[&libraries], |to| copy_program(to, &full(store, &libraries)))?;
    let all: Vec<StorePath> = builder.made.iter().map(|made| made.info.path.clone()).collect();
    builder.add("demo-environment", &all.iter().collect::<Vec<_>>(), |to| {
        fs::create_dir(to)?;
        all.iter().try_for_each(|path| symlink(full(store, path), to.join(path.name())))?;
        Ok(all.len() as u64 + 1)
    })?;
    let infos: Vec<PathInfo> = builder.made.iter().map(|made| made.info.clone()).collect();
    store.register(&infos).map_err(Failure::runtime)?;
    Ok(builder.made)
}

fn full(store: &LocalStore, path: &StorePath) -> String {
    store.store_dir().display(path).to_string()
}

struct Builder<'a> {
    store: &'a LocalStore,
    scratch: &'a Path,
    interrupt: &'a Interrupt,
    made: Vec<Made>,
}

impl Builder<'_> {
    /// Lets `fill` create a file or folder, and adds it to the store under its content address.
    fn add(
        &mut self,
        name: &str,
        references: &[&StorePath],
        fill: impl FnOnce(&Path) -> io::Result<u64>,
    ) -> Result<StorePath, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::runtime(format!("cannot create '{name}': {error}"));
        let from = self.scratch.join(name);
        let entries = fill(&from).map_err(|error| failed(&error))?;
        let name = StorePathName::parse(name).map_err(|error| failed(&error))?;
        let references = references.iter().map(|path| (*path).clone()).collect();
        let info = self.store.add(&from, &name, references, &|| self.interrupt.check());
        let info = info.map_err(|error| failed(&error))?;
        let path = info.path.clone();
        self.made.push(Made { info, entries });
        Ok(path)
    }
}

/// Copies the shared libraries that this process has loaded, including the loader; none for a static program.
fn copy_libraries(to: &Path) -> io::Result<u64> {
    fs::create_dir_all(to.join("lib"))?;
    let maps = fs::read_to_string("/proc/self/maps")?;
    let mut libraries: Vec<&str> =
        maps.lines().filter_map(|line| line.get(line.find('/')?..)).filter(|path| path.contains(".so")).collect();
    libraries.sort_unstable();
    libraries.dedup();
    let mut entries = 2;
    for library in libraries {
        if let Some(name) = Path::new(library).file_name() {
            fs::copy(library, to.join("lib").join(name))?;
            entries += 1;
        }
    }
    Ok(entries)
}

/// Copies this program, and a script that runs it with the libraries of the store.
fn copy_program(to: &Path, libraries: &str) -> io::Result<u64> {
    let bin = to.join("bin");
    fs::create_dir_all(&bin)?;
    fs::copy("/proc/self/exe", bin.join(".narval-unwrapped"))?;
    let script = format!(
        "#!/bin/sh\n# The libraries of {libraries} stand behind this program.\n\
         LD_LIBRARY_PATH={libraries}/lib exec \"$(dirname \"$0\")/.narval-unwrapped\" \"$@\"\n"
    );
    fs::write(bin.join("narval"), script)?;
    for name in ["narval", ".narval-unwrapped"] {
        fs::set_permissions(bin.join(name), PermissionsExt::from_mode(0o755))?;
    }
    Ok(4)
}

/// The remaining limits for a folder.
struct Budget {
    files: u64,
    bytes: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { files: FILES_MAX, bytes: BYTES_MAX }
    }
}

/// Copies the readable files of a folder, as far as the budget allows; returns the number of files, links and folders.
fn copy_tree(from: &Path, to: &Path, budget: &mut Budget, depth: usize) -> io::Result<u64> {
    fs::create_dir(to)?;
    let mut entries = 1;
    let mut names: Vec<PathBuf> = fs::read_dir(from)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    names.sort();
    for source in names {
        let (Some(name), Ok(metadata)) = (source.file_name(), fs::symlink_metadata(&source)) else { continue };
        let target = to.join(name);
        if budget.files == 0 {
            break;
        }
        if metadata.is_dir() {
            if depth < DEPTH_MAX && fs::read_dir(&source).is_ok() {
                entries += copy_tree(&source, &target, budget, depth + 1)?;
            }
        } else if metadata.is_symlink() {
            symlink(fs::read_link(&source)?, target)?;
            (budget.files, entries) = (budget.files - 1, entries + 1);
        // Files that this user may not read are skipped.
        } else if metadata.is_file() && metadata.len() <= budget.bytes && fs::copy(&source, &target).is_ok() {
            budget.bytes -= metadata.len();
            (budget.files, entries) = (budget.files - 1, entries + 1);
        }
    }
    Ok(entries)
}
