//! Build logs: `<log dir>/drvs/<two characters>/<rest of the derivation's base name>`, plain or compressed.
//!
//! Layout: Nix `libstore/local-fs-store.cc` (`getBuildLogExact`), `build/derivation-building-goal.cc` (`openLogFile`).

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use narval_nix::StorePath;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::StoreError;

/// How a build log is compressed on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogCompression {
    /// Not at all (`compress-build-log = false`).
    None,
    /// `.bz2`, Nix's default.
    Bzip2,
    /// `.zst`.
    Zstd,
}

impl LogCompression {
    const SUFFIXES: [(Self, &'static str); 3] = [(Self::None, ""), (Self::Bzip2, ".bz2"), (Self::Zstd, ".zst")];
}

/// An open build log.
#[derive(Debug)]
pub struct BuildLog {
    /// The file on disk.
    pub file: File,
    /// Its path.
    pub path: PathBuf,
    /// Its size on disk.
    pub size_bytes: u64,
    /// How it is compressed.
    pub compression: LogCompression,
}

impl BuildLog {
    /// Finds the log of a derivation below the log directory.
    pub(crate) fn find(log_dir: &Path, derivation: &StorePath) -> Result<Option<Self>, StoreError> {
        // A base name is ASCII and longer than two characters.
        let Some((first, rest)) = derivation.base_name().split_at_checked(2) else { return Ok(None) };
        for (compression, suffix) in LogCompression::SUFFIXES {
            let path = log_dir.join("drvs").join(first).join(format!("{rest}{suffix}"));
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            match rustix::fs::open(&path, flags, Mode::empty()) {
                Ok(file) => {
                    let file = File::from(file);
                    let metadata = file.metadata().map_err(|error| StoreError::io("read", &path, error))?;
                    if metadata.is_file() {
                        return Ok(Some(Self { file, path, size_bytes: metadata.len(), compression }));
                    }
                }
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(error) => return Err(StoreError::io("open", &path, error)),
            }
        }
        Ok(None)
    }

    /// How long the build took whose log this is: Nix creates the file before it starts the builder, and ends it after. `None` if the file is older than
    /// `since`, because Nix writes into the log of an earlier build of the same derivation, or if the file system does not know when a file was created.
    pub fn elapsed(&self, since: SystemTime) -> Option<Duration> {
        let metadata = self.file.metadata().ok()?;
        let created = metadata.created().ok().filter(|created| *created >= since)?;
        metadata.modified().ok()?.duration_since(created).ok()
    }

    /// The text of the log.
    ///
    /// # Errors
    /// If the decoder cannot be created.
    pub fn into_reader(self) -> io::Result<Box<dyn Read + Send>> {
        let file = BufReader::new(self.file);
        Ok(match self.compression {
            LogCompression::None => Box::new(file),
            LogCompression::Bzip2 => Box::new(bzip2::bufread::MultiBzDecoder::new(file)),
            LogCompression::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(file)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn plain_and_compressed() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("drvs/00");
        std::fs::create_dir_all(&below).unwrap();
        let drv = |name: &str| StorePath::parse(&format!("00bgd045z0d4icpbc2yyz4gx48ak44la-{name}.drv")).unwrap();
        let file = |name: &str, suffix: &str| below.join(format!("bgd045z0d4icpbc2yyz4gx48ak44la-{name}.drv{suffix}"));
        std::fs::write(file("a", ""), "log a").unwrap();
        let mut bz2 =
            bzip2::write::BzEncoder::new(File::create(file("b", ".bz2")).unwrap(), bzip2::Compression::fast());
        bz2.write_all(b"log b").unwrap();
        bz2.finish().unwrap();
        std::fs::write(file("c", ".zst"), zstd::encode_all(&b"log c"[..], 1).unwrap()).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", file("d", "")).unwrap();
        for name in ["a", "b", "c"] {
            let log = BuildLog::find(dir.path(), &drv(name)).unwrap().unwrap();
            let mut text = String::new();
            log.into_reader().unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, format!("log {name}"));
        }
        let since = SystemTime::now() + Duration::from_secs(3600);
        let log = BuildLog::find(dir.path(), &drv("a")).unwrap().unwrap();
        assert!(log.elapsed(since).is_none(), "the log of an earlier build");
        if log.file.metadata().unwrap().created().is_ok() {
            let opened = File::options().append(true).open(file("a", "")).unwrap();
            opened.set_modified(SystemTime::now() + Duration::from_secs(60)).unwrap();
            assert_eq!(log.elapsed(SystemTime::UNIX_EPOCH).unwrap().as_secs(), 60);
        }
        assert!(BuildLog::find(dir.path(), &drv("none")).unwrap().is_none());
        assert!(BuildLog::find(dir.path(), &drv("d")).is_err(), "a symlink is not followed");
    }
}
