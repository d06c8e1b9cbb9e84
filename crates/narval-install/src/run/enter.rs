//! Enters the namespace. The process must be single-threaded: otherwise the kernel refuses a new user namespace.

use std::io;
use std::path::{Path, PathBuf};
use std::{env, fs};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{chdir, getgid, getuid, pivot_root};

/// Why it failed, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step}: {source}; {}", .remedy)]
pub struct EnterError {
    /// The failed step.
    pub step: String,
    /// The kernel's error.
    pub source: io::Error,
    /// What to do.
    pub remedy: String,
}

/// What becomes of the store that this machine has at the place where ours appears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// There is none, or it is empty.
    None,
    /// Its paths are seen beside ours, through an overlay.
    Seen,
    /// Its paths are hidden, because overlays are not possible.
    Hidden,
}

/// Makes `real_store` appear at `store_dir` for this process and its children. The rest of the file system stays as it
/// is; user and group stay the same. `scratch` is an empty folder that is used as a mount point.
///
/// # Errors
/// [`EnterError`] with the step that the kernel forbids, and how to allow it.
pub fn enter(real_store: &Path, store_dir: &Path, scratch: &Path) -> Result<Others, EnterError> {
    let (uid, gid) = (getuid(), getgid());
    // root needs no user namespace: in its own namespace it could not reach a store below a folder that only another
    // user may enter. In a container that has dropped root's privileges, it is like any other user.
    let as_root = uid.is_root() && unshare(CloneFlags::CLONE_NEWNS).is_ok();
    if !as_root {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)
            .map_err(|error| failed("make a user namespace", error.into()))?;
        let write =
            |file: &str, text: String| fs::write(file, text).map_err(|error| failed(&format!("write {file}"), error));
        // Without setgroups denied, the kernel takes no group map from an unprivileged process (user_namespaces(7)).
        write("/proc/self/setgroups", "deny".to_owned())?;
        write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    }
    step(
        "make mounts private",
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>),
    )?;
    let working = env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let others = if store_dir.is_dir() {
        cover(real_store, store_dir)?
    } else {
        new_root(real_store, store_dir, scratch)?;
        Others::None
    };
    step("return to the working directory", chdir(&working).or_else(|_| chdir("/")))?;
    Ok(others)
}

/// The host has a store: both are visible, ours first; if overlays are forbidden, only ours.
fn cover(real_store: &Path, store_dir: &Path) -> Result<Others, EnterError> {
    let plain = |path: &Path| path.to_str().is_some_and(|text| !text.contains([':', ',', '\\']));
    if plain(real_store) && plain(store_dir) {
        let layers = format!("lowerdir={}:{}", real_store.display(), store_dir.display());
        if mount(Some("overlay"), store_dir, Some("overlay"), MsFlags::MS_RDONLY, Some(&*layers)).is_ok() {
            return Ok(Others::Seen);
        }
    }
    let others = others_hidden(store_dir);
    step(
        "mount the store",
        mount(Some(real_store), store_dir, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>),
    )?;
    Ok(others)
}

/// [`Others::Hidden`] if the host has paths at `store_dir`.
pub fn others_hidden(store_dir: &Path) -> Others {
    let has_paths = fs::read_dir(store_dir).is_ok_and(|mut paths| paths.next().is_some());
    if has_paths { Others::Hidden } else { Others::None }
}

/// A new root: everything of the old one, and the store.
fn new_root(real_store: &Path, store_dir: &Path, scratch: &Path) -> Result<(), EnterError> {
    let io = |what: &str, result: io::Result<()>| result.map_err(|error| failed(what, error));
    io("make the folder for the new root", fs::create_dir_all(scratch))?;
    // The store may be below the scratch folder, and must be reachable after that is covered.
    let store = fs::File::open(real_store).map_err(|error| failed("open the store", error))?;
    let store = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&store)));
    step("mount a tmpfs", mount(Some("narval"), scratch, Some("tmpfs"), MsFlags::MS_NOSUID, Some("mode=755")))?;
    let inside = scratch.join(store_dir.strip_prefix("/").unwrap_or(store_dir));
    io("make the store's folder", fs::create_dir_all(&inside))?;
    let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
    step("mount the store", mount(Some(real_store), &inside, None::<&str>, bind, None::<&str>))
        .or_else(|_| step("mount the store", mount(Some(&store), &inside, None::<&str>, bind, None::<&str>)))?;
    let entries = fs::read_dir("/").map_err(|error| failed("read /", error))?;
    for entry in entries.flatten() {
        let (from, to) = (entry.path(), scratch.join(entry.file_name()));
        if to.exists() {
            continue;
        }
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_symlink() {
            let target = fs::read_link(&from).map_err(|error| failed("read a link in /", error))?;
            io("copy a link of /", std::os::unix::fs::symlink(target, &to))?;
            continue;
        }
        let made = if kind.is_dir() { fs::create_dir(&to) } else { fs::File::create(&to).map(drop) };
        io("make a mount point", made)?;
        if let Err(error) = mount(Some(&from), &to, None::<&str>, bind, None::<&str>) {
            // Some files in / cannot be mounted; programs do not need them.
            if kind.is_dir() {
                return Err(failed(&format!("mount {}", from.display()), error.into()));
            }
        }
    }
    step("enter the new root", chdir(scratch))?;
    // The old root is stacked on the new one, and unmounted from there (pivot_root(2)).
    step("change the root", pivot_root(".", "."))?;
    step("unmount the old root", umount2(".", MntFlags::MNT_DETACH))?;
    step("enter the new root", chdir("/"))
}

fn step(what: &str, result: nix::Result<()>) -> Result<(), EnterError> {
    result.map_err(|error| failed(what, error.into()))
}

/// Adds the remedy for this machine.
fn failed(step: &str, source: io::Error) -> EnterError {
    let setting = |name: &str| fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default().trim().to_owned();
    let remedy = if setting("kernel/unprivileged_userns_clone") == "0" {
        "allow it with: sudo sysctl kernel.unprivileged_userns_clone=1"
    } else if setting("user/max_user_namespaces") == "0" {
        "allow it with: sudo sysctl user.max_user_namespaces=15000"
    } else if setting("kernel/apparmor_restrict_unprivileged_userns") == "1" {
        "AppArmor forbids it (Ubuntu 23.10 and newer); allow it with: sudo sysctl \
         kernel.apparmor_restrict_unprivileged_userns=0, or give narval a profile with 'userns,'"
    } else if source.kind() == io::ErrorKind::StorageFull {
        "too many namespaces, or nested too deep: raise user.max_user_namespaces"
    } else if Path::new("/.dockerenv").exists() || Path::new("/run/.containerenv").exists() {
        "this container forbids it: start it with --security-opt seccomp=unconfined (and apparmor=unconfined), or install \
         into /nix/store as its root with --store local"
    } else {
        "the kernel, or the surrounding container, forbids namespaces: run 'narval doctor' for details; as root, --store local needs none"
    };
    EnterError { step: step.to_owned(), source, remedy: remedy.to_owned() }
}
