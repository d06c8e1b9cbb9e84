//! Replaces a settings file atomically.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use narval_files::TemporaryFile;

use narval_transfer::Error;

/// The prefix of files that are being written.
const PREFIX: &str = ".narval-use-";

/// The maximum number of symbolic links to follow.
const LINKS_MAX: usize = 40;

/// The maximum size of a settings file in bytes.
const LEN_MAX: u64 = 1 << 20;

/// The current state of a settings file.
#[derive(Debug)]
pub struct Settled {
    /// Its path, with links resolved.
    pub path: PathBuf,
    /// Its contents; empty if it does not exist.
    pub text: String,
    /// Whether it exists.
    pub exists: bool,
}

impl Settled {
    /// Reads a file, which need not exist. A symbolic link is followed, so that it stays a link when its target is
    /// replaced.
    ///
    /// # Errors
    /// If it cannot be read, is too large, or is not text.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let path = followed(path).map_err(|error| Error::file("read", path, error))?;
        let failed = |error| Error::file("read", &path, error);
        match fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Self { path, text: String::new(), exists: false });
            }
            Err(error) => return Err(failed(error)),
            Ok(metadata) if !metadata.is_file() || metadata.len() > LEN_MAX => {
                return Err(failed(io::Error::new(ErrorKind::InvalidData, "not a file of less than 1 MiB")));
            }
            Ok(_) => {}
        }
        let text = fs::read_to_string(&path).map_err(failed)?;
        Ok(Self { path, text, exists: true })
    }
}

/// Resolves the symbolic links of a path; the file need not exist.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut path = std::path::absolute(path)?;
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("/")).join(target),
            // Not a link, or nothing.
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::NotFound) => return Ok(path),
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// Replaces a file's contents atomically and durably, and keeps its mode and owner. If it does not exist, creates it
/// with `mode`, and its folder. A `mode` without permissions for others also removes those of an existing file.
///
/// # Errors
/// If it cannot be written, or has changed since it was read.
pub fn replace(file: &Settled, text: &str, mode: u32) -> Result<(), Error> {
    let path = &file.path;
    let failed = |error| Error::file("write", path, error);
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder).map_err(|error| Error::file("make the folder", folder, error))?;
    let before = match fs::metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error)),
    };
    if Settled::read(path)?.text != file.text {
        return Err(failed(io::Error::other("another process changed it at the same time; try again")));
    }
    let is_secret = mode & 0o077 == 0;
    let kept = before.as_ref().map_or(mode, |before| before.mode() & 0o7777);
    let kept = if is_secret { kept & 0o7700 } else { kept };
    // Not readable for others until it has its final mode.
    let new = TemporaryFile::create(folder, PREFIX, 0o600).map_err(failed)?;
    new.file().write_all(text.as_bytes()).map_err(failed)?;
    if let Some(before) = &before {
        let ours = new.file().metadata().map_err(failed)?;
        if (ours.uid(), ours.gid()) != (before.uid(), before.gid()) {
            fchown(new.file(), Some(before.uid()), Some(before.gid())).map_err(failed)?;
        }
    }
    new.file().set_permissions(fs::Permissions::from_mode(kept)).map_err(failed)?;
    new.file().sync_all().map_err(failed)?;
    new.persist(path).map_err(failed)?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn modes_and_links_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::write(&real, "a").unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o664)).unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        replace(&Settled::read(&link).unwrap(), "b", 0o644).unwrap();
        assert!(link.is_symlink() && fs::read_to_string(&real).unwrap() == "b");
        assert_eq!(mode(&real), 0o664);
        replace(&Settled::read(&link).unwrap(), "secret", 0o600).unwrap();
        assert_eq!(mode(&real), 0o600, "a secret is nobody else's");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left behind");
    }

    #[test]
    fn made_with_its_folder_and_where_a_link_leads() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("a/b/netrc");
        let missing = Settled::read(&new).unwrap();
        assert!(!missing.exists);
        replace(&missing, "x", 0o600).unwrap();
        assert_eq!((mode(&new), fs::read_to_string(&new).unwrap().as_str()), (0o600, "x"));
        let dangling = dir.path().join("dangling");
        std::os::unix::fs::symlink("a/target", &dangling).unwrap();
        replace(&Settled::read(&dangling).unwrap(), "y", 0o644).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("a/target")).unwrap(), "y");
        std::os::unix::fs::symlink("loop", dir.path().join("loop")).unwrap();
        assert!(Settled::read(&dir.path().join("loop")).is_err());
    }

    #[test]
    fn a_change_by_somebody_else_is_not_lost() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nix.conf");
        fs::write(&path, "a").unwrap();
        let read = Settled::read(&path).unwrap();
        fs::write(&path, "theirs").unwrap();
        assert!(replace(&read, "b", 0o644).unwrap_err().to_string().contains("changed"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
    }
}
