//! The store directory, opened so that it can be written.
//!
//! NixOS mounts `/nix/store` read-only, and Nix remounts it in a mount namespace of its own
//! (`LocalStore::makeStoreWritable`, `libstore/local-store.cc`). Here a thread of its own does that, opens the directory
//! and ends: what is opened below a handle uses the mount that the handle was opened on, even if no namespace has that
//! mount any more. So the rest of the process keeps its view of the files, and everything that is written in the store
//! directory is written relative to this handle.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::StatVfsMountFlags;

use super::error::LocalStoreError;
use super::schema::make;
use crate::config::StoreConfig;

/// Opens the store directory for writing, and creates it if it does not exist.
///
/// # Errors
/// [`LocalStoreError::ReadOnly`] if it is mounted read-only and cannot be remounted; nothing has changed then.
pub(super) fn open_store_directory(config: &StoreConfig) -> Result<File, LocalStoreError> {
    let path = &config.real_store_dir;
    make(path)?;
    let fail = |error| LocalStoreError::io("open", path, error);
    let directory = File::open(path).map_err(fail)?;
    let Some(flags) = read_only(&directory).map_err(fail)? else { return Ok(directory) };
    let refused = |reason: String| LocalStoreError::ReadOnly { path: path.clone(), reason };
    if !rustix::process::geteuid().is_root() {
        return Err(refused("only root can remount it".to_owned()));
    }
    let remounted = std::thread::scope(|scope| {
        let thread = scope.spawn(|| remounted(path, flags));
        thread.join().unwrap_or_else(|_| Err("the thread that does it panicked".to_owned()))
    });
    let directory = remounted.map_err(refused)?;
    match read_only(&directory).map_err(fail)? {
        None => Ok(directory),
        Some(_) => Err(refused("its file system is".to_owned())),
    }
}

/// The flags of the directory's mount if it, or its file system, is read-only.
fn read_only(directory: &File) -> std::io::Result<Option<StatVfsMountFlags>> {
    let flags = rustix::fs::fstatvfs(directory.as_fd())?.f_flag;
    Ok(flags.contains(StatVfsMountFlags::RDONLY).then_some(flags))
}

/// Opens the directory on a writable mount of this thread's own.
fn remounted(path: &Path, flags: StatVfsMountFlags) -> Result<File, String> {
    let step = |what: &str, done: nix::Result<()>| done.map_err(|error| format!("{what}: {}", error.desc()));
    let none = None::<&str>;
    step("cannot make a mount namespace", unshare(CloneFlags::CLONE_NEWNS))?;
    step("cannot make mounts private", mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))?;
    // It need not be a mount point itself: the mount may be that of a folder above.
    step("cannot bind it", mount(Some(path), path, none, MsFlags::MS_BIND, none))?;
    let mut kept = MsFlags::MS_REMOUNT | MsFlags::MS_BIND;
    for (flag, same) in [
        (StatVfsMountFlags::NOSUID, MsFlags::MS_NOSUID),
        (StatVfsMountFlags::NODEV, MsFlags::MS_NODEV),
        (StatVfsMountFlags::NOEXEC, MsFlags::MS_NOEXEC),
        (StatVfsMountFlags::NOATIME, MsFlags::MS_NOATIME),
        (StatVfsMountFlags::RELATIME, MsFlags::MS_RELATIME),
    ] {
        if flags.contains(flag) {
            kept |= same;
        }
    }
    step("cannot remount it", mount(none, path, none, kept, none))?;
    File::open(path).map_err(|error| format!("cannot open it: {error}"))
}
