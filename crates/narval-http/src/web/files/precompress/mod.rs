//! Makes the encodings of a site in advance: compressed files, and deltas from previous releases.

mod delta;
mod options;
mod place;
mod source;

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use flate2::write::GzEncoder;

pub use self::options::{PrecompressOptions, Precompressed};

use self::delta::Deltas;
use self::place::{Limited, place, with_ending};
use self::source::{DEPTH_MAX, Source, collect, named};
use super::resource::sidecar_ending;
use crate::http1::accept::Coding;

/// The maximum number of previous releases, and so of deltas per file.
pub const PREVIOUS_MAX: usize = 8;
/// brotli's highest level, and the window that browsers must support (RFC 7932 section 9.1).
#[cfg(feature = "brotli")]
const BROTLI_QUALITY: u32 = 11;
#[cfg(feature = "brotli")]
const BROTLI_WINDOW_BITS: u32 = 22;
/// zstd's highest level whose window every browser must support (RFC 8878 section 3.1.1.1.2: 8 MiB).
const ZSTD_LEVEL: i32 = 19;

/// Writes the encodings of all compressible files of a folder, if they are smaller, each with the modification time of
/// its source. `progress` is called after each file with the number of files done and the total.
///
/// # Errors
/// The first folder or file that cannot be read or written, by name. Encodings written before are complete.
pub fn precompress(
    root: &Path,
    options: &PrecompressOptions,
    progress: impl Fn(u64, u64) + Sync,
) -> io::Result<Precompressed> {
    if options.previous.len() > PREVIOUS_MAX {
        let message = format!("deltas can be made from {PREVIOUS_MAX} previous releases at most");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let deltas = Deltas::prepare(options.into.as_deref().unwrap_or(root), &options.previous)?;
    let mut sources = Vec::new();
    collect(root, Path::new(""), DEPTH_MAX, &mut sources)?;
    // The largest first, so that the last one to finish is small.
    sources.sort_by_key(|source| source.size);
    let total = sources.len() as u64;
    let (sources, done) = (Mutex::new(sources), AtomicU64::new(0));
    let (summary, failure) = (Precompressed::default(), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..options.threads.get() {
            scope.spawn(|| {
                loop {
                    let next = sources.lock().unwrap_or_else(PoisonError::into_inner).pop();
                    let Some(source) = next else { break };
                    if let Err(error) = encode_all(root, &source, options, &deltas, &summary) {
                        let error = named("cannot compress", &root.join(&source.path), &error);
                        failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                        sources.lock().unwrap_or_else(PoisonError::into_inner).clear();
                        break;
                    }
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1, total);
                }
            });
        }
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(summary), Err)
}

fn encode_all(
    root: &Path,
    source: &Source,
    options: &PrecompressOptions,
    deltas: &Deltas,
    summary: &Precompressed,
) -> io::Result<()> {
    summary.files.fetch_add(1, Ordering::Relaxed);
    summary.file_bytes.fetch_add(source.size, Ordering::Relaxed);
    let base = options.into.as_deref().unwrap_or(root).join(&source.path);
    for &coding in &options.codings {
        let Some(ending) = sidecar_ending(coding) else { continue };
        let target = with_ending(&base, ending);
        if fs::metadata(&target).and_then(|meta| meta.modified()).is_ok_and(|time| time == source.modified) {
            summary.fresh.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        make_folder(options, &target)?;
        let path = root.join(&source.path);
        match place(source, &target, |file| compress(BufReader::new(File::open(&path)?), coding, file))? {
            Some(size) => {
                summary.made.fetch_add(1, Ordering::Relaxed);
                summary.made_bytes.fetch_add(size, Ordering::Relaxed);
            }
            None => {
                summary.larger.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    if !options.previous.is_empty() {
        make_folder(options, &base)?;
    }
    deltas.make(&root.join(&source.path), source, &base, options, summary)
}

/// Makes the folder of an encoding, if encodings are not beside the files.
fn make_folder(options: &PrecompressOptions, target: &Path) -> io::Result<()> {
    match target.parent().filter(|_| options.into.is_some()) {
        Some(folder) => fs::create_dir_all(folder).map_err(|error| named("cannot make the folder", folder, &error)),
        None => Ok(()),
    }
}

fn compress(mut source: impl Read, coding: Coding, target: &mut Limited<'_>) -> io::Result<()> {
    match coding {
        Coding::Zstd => {
            let mut encoder = zstd::stream::write::Encoder::new(target, ZSTD_LEVEL)?;
            io::copy(&mut source, &mut encoder)?;
            encoder.finish()?;
        }
        #[cfg(not(feature = "brotli"))]
        Coding::Brotli => return Err(io::Error::new(io::ErrorKind::Unsupported, "this build has no brotli")),
        #[cfg(feature = "brotli")]
        Coding::Brotli => {
            let mut encoder = brotli::CompressorWriter::new(target, 64 * 1024, BROTLI_QUALITY, BROTLI_WINDOW_BITS);
            io::copy(&mut source, &mut encoder)?;
            io::Write::flush(&mut encoder)?;
            encoder.into_inner();
        }
        Coding::Gzip => {
            let mut encoder = GzEncoder::new(target, flate2::Compression::best());
            io::copy(&mut source, &mut encoder)?;
            encoder.finish()?;
        }
        Coding::Deflate | Coding::Dcz | Coding::Identity => {}
    }
    Ok(())
}

#[cfg(test)]
#[cfg(feature = "brotli")]
mod tests {
    use std::num::NonZero;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::time::SystemTime;

    use super::*;

    const ALL: [Coding; 3] = [Coding::Zstd, Coding::Brotli, Coding::Gzip];

    fn options(into: Option<PathBuf>) -> PrecompressOptions {
        PrecompressOptions { into, codings: ALL.to_vec(), threads: NonZero::new(2).unwrap(), previous: Vec::new() }
    }

    fn decoded(path: &Path, coding: Coding) -> Vec<u8> {
        let file = File::open(path).unwrap();
        let mut out = Vec::new();
        match coding {
            Coding::Zstd => zstd::stream::copy_decode(file, &mut out).unwrap(),
            Coding::Brotli => drop(brotli::Decompressor::new(file, 4096).read_to_end(&mut out).unwrap()),
            _ => drop(flate2::read::GzDecoder::new(file).read_to_end(&mut out).unwrap()),
        }
        out
    }

    #[test]
    fn encodings_are_made_once_and_only_where_smaller() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let text = "all work and no play ".repeat(1000);
        fs::create_dir(root.join("sub")).unwrap();
        fs::write(root.join("sub/a.html"), &text).unwrap();
        fs::write(root.join("tiny.html"), "tiny").unwrap();
        fs::write(root.join("photo.png"), &text).unwrap();
        let mut random = Vec::new();
        File::open("/dev/urandom").unwrap().take(2000).read_to_end(&mut random).unwrap();
        fs::write(root.join("random.txt"), &random).unwrap();
        let summary = precompress(root, &options(None), |done, total| assert!(done <= total && total == 2)).unwrap();
        assert_eq!(summary.made.load(Ordering::Relaxed), 3);
        assert_eq!(summary.larger.load(Ordering::Relaxed), 3);
        for (coding, ending) in ALL.into_iter().zip([".zst", ".br", ".gz"]) {
            let made = root.join(format!("sub/a.html{ending}"));
            assert_eq!(decoded(&made, coding), text.as_bytes());
            let times = [&made, &root.join("sub/a.html")].map(|path| fs::metadata(path).unwrap().modified().unwrap());
            assert_eq!(times[0], times[1]);
            assert!(!root.join(format!("random.txt{ending}")).exists());
        }
        let again = precompress(root, &options(None), |_, _| {}).unwrap();
        assert_eq!((again.made.into_inner(), again.fresh.into_inner()), (0, 3));
        // Nothing but files and their encodings.
        assert_eq!(fs::read_dir(root.join("sub")).unwrap().count(), 4);
    }

    /// Locks are of an open file, so that threads are to each other what processes are.
    #[test]
    fn several_at_once_in_one_folder_and_after_a_killed_one() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let text = |number: usize| format!("a{number} {{ color: red }}\n").repeat(300);
        let paths: Vec<_> = (0..4).map(|number| root.join(format!("{number}.css"))).collect();
        for round in 0..5 {
            for (number, path) in paths.iter().enumerate() {
                fs::write(path, text(number + round)).unwrap();
                let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(round as u64);
                File::open(path).unwrap().set_modified(time).unwrap();
                // Longer than the contents that will replace it, and not writable by its owner.
                let left = with_ending(path, ".br.tmp");
                fs::write(&left, text(number)).unwrap();
                fs::set_permissions(&left, fs::Permissions::from_mode(0o444)).unwrap();
            }
            std::thread::scope(|scope| {
                let threads = [(); 3].map(|()| scope.spawn(|| precompress(root, &options(None), |_, _| {})));
                for thread in threads {
                    assert_eq!(thread.join().unwrap().unwrap().files.into_inner(), 4);
                }
            });
            for (number, path) in paths.iter().enumerate() {
                for coding in ALL {
                    let encoding = with_ending(path, sidecar_ending(coding).unwrap());
                    assert_eq!(decoded(&encoding, coding), text(number + round).as_bytes(), "{}", encoding.display());
                }
            }
            assert_eq!(fs::read_dir(root).unwrap().count(), 4 * paths.len());
        }
    }

    /// What another process removes while the folder is read is none of the site's files.
    #[test]
    fn files_that_vanish_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::write(root.join("a.css"), "a { color: red }\n".repeat(100)).unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let names: Vec<_> = (0..50).map(|number| root.join(format!("{number}.css.br.tmp"))).collect();
                    names.iter().for_each(|name| fs::write(name, "").unwrap());
                    names.iter().for_each(|name| fs::remove_file(name).unwrap());
                }
            });
            let collected = (0..2000).try_for_each(|_| {
                let mut sources = Vec::new();
                collect(root, Path::new(""), DEPTH_MAX, &mut sources)?;
                assert_eq!(sources.len(), 1);
                Ok::<_, io::Error>(())
            });
            is_over.store(true, Ordering::Relaxed);
            collected.unwrap();
        });
    }

    #[test]
    fn where_nothing_can_be_written_is_named() {
        let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(folder.path().join("a.css"), "a { color: red }\n".repeat(100)).unwrap();
        let occupied = cache.path().join("file");
        fs::write(&occupied, "").unwrap();
        let error =
            precompress(folder.path(), &options(Some(occupied.join("below"))), |_, _| {}).unwrap_err().to_string();
        assert!(error.contains("a.css': cannot make the folder '") && error.contains("file/below'"), "{error}");
    }

    #[test]
    fn a_changed_file_gets_new_encodings_in_the_folder_of_their_own() {
        let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let into = || options(Some(cache.path().into()));
        fs::write(folder.path().join("a.css"), "a { color: red }\n".repeat(100)).unwrap();
        precompress(folder.path(), &into(), |_, _| {}).unwrap();
        let new = "b { color: blue }\n".repeat(100);
        fs::write(folder.path().join("a.css"), &new).unwrap();
        File::open(folder.path().join("a.css")).and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH)).unwrap();
        assert_eq!(precompress(folder.path(), &into(), |_, _| {}).unwrap().made.into_inner(), 3);
        assert_eq!(decoded(&cache.path().join("a.css.br"), Coding::Brotli), new.as_bytes());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
