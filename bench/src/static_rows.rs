//! Static files: sets of files that Debian ships, and one large file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::client::Request;
use crate::load::Load;
use crate::rows::{Placement, Row, Run};
use crate::{Context, Result, failure};

const SET_FILES: usize = 200;
const MEDIUM_MEAN_BYTES: u64 = 125_000;
const LARGE_BYTES: usize = 5_700_000;
/// Requests of one sample, so that it takes a few tenths of a second.
const MEDIUM_REQUESTS: usize = 8_000;
const SMALL_REQUESTS: usize = 40_000;
const LARGE_REQUESTS: usize = 400;

/// The served folder: `medium/`, `small/` and `large.bin`.
#[derive(Debug)]
pub struct FileSets {
    /// Served as the root.
    pub folder: PathBuf,
    /// Targets of 200 files of 125 KB on average.
    pub medium: Vec<String>,
    /// Targets of 200 files of 1 to 4 KB.
    pub small: Vec<String>,
}

impl FileSets {
    /// Copies the sets from `/usr`: the same files on machines with the same packages.
    ///
    /// # Errors
    /// If `/usr` has too few files, or the work folder cannot be written.
    pub fn prepare(work: &Path) -> Result<FileSets> {
        let folder = work.join("static");
        let made = ["medium", "small"].map(|set| folder.join(set));
        if !folder.join("large.bin").exists() {
            let mut files = Vec::new();
            for root in ["/usr/share", "/usr/lib"] {
                walk(Path::new(root), &mut files);
            }
            // an order that does not depend on where the files are
            files.sort_by_cached_key(|(path, size)| (scatter(path), *size));
            copy(&mean_near(&files, MEDIUM_MEAN_BYTES), &made[0])?;
            let small = files.iter().filter(|(_, size)| (1024..4096).contains(size)).take(SET_FILES);
            copy(&small.map(|(path, _)| path.clone()).collect::<Vec<_>>(), &made[1])?;
            let mut large = Vec::with_capacity(LARGE_BYTES);
            for (path, _) in files.iter().filter(|(_, size)| *size > 100_000) {
                large.extend(fs::read(path).context(|| format!("cannot read {}", path.display()))?);
                if large.len() >= LARGE_BYTES {
                    break;
                }
            }
            large.truncate(LARGE_BYTES);
            fs::write(folder.join("large.bin"), large).context(|| format!("cannot write {}", folder.display()))?;
        }
        let [medium, small] = made.map(|set| names(&set));
        Ok(FileSets { folder, medium: medium?, small: small? })
    }
}

/// Measures all rows of static files.
///
/// # Errors
/// If a server answers incorrectly.
pub fn run(run: &mut Run<'_>, sets: &FileSets) -> Result<()> {
    let large = ["/large.bin".to_owned()];
    let rows: [(&str, &[String], usize, &[usize]); 3] = [
        ("200 files, mean 125 KB", &sets.medium, MEDIUM_REQUESTS, &[1, 100, 500]),
        ("200 files, 1 to 4 KB", &sets.small, SMALL_REQUESTS, &[1, 100, 500]),
        ("one file, 5.7 MB", &large, LARGE_REQUESTS, &[100]),
    ];
    for (what, targets, requests, connections) in rows {
        for (&connections, close) in connections.iter().flat_map(|c| [(c, false), (c, true)]) {
            let kept = if close { "a connection each" } else { "keep-alive" };
            let field = if close { "Connection: close\r\n" } else { "" };
            let load = Load { connections, passes: requests / targets.len(), close };
            let requests = Box::new(move |server: &crate::server::Server, _| {
                targets.iter().map(|target| Request::get(&server.base, target, field, 200)).collect()
            });
            let title = format!("{what}, {connections} connections, {kept}");
            run.row(&Row { title, load, placement: Placement::Apart, warm: true, requests })?;
        }
    }
    Ok(())
}

/// World-readable regular files with their sizes.
fn walk(folder: &Path, files: &mut Vec<(PathBuf, u64)>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            walk(&entry.path(), files);
        } else if metadata.is_file() && metadata.len() >= 1024 {
            files.push((entry.path(), metadata.len()));
        }
    }
}

/// FNV-1a of the path.
fn scatter(path: &Path) -> u64 {
    let bytes = path.as_os_str().as_encoded_bytes().iter();
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Selects files between 10 KB and 1 MB whose mean size stays near this: while it is below, only larger files are taken, and
/// vice versa. (Most files are small: an arbitrary selection would have half this mean.)
fn mean_near(files: &[(PathBuf, u64)], mean: u64) -> Vec<PathBuf> {
    let (mut chosen, mut sum) = (Vec::new(), 0);
    for (path, size) in files.iter().filter(|(_, size)| (10_000..1_000_000).contains(size)) {
        let needs_more = sum < mean * chosen.len() as u64;
        if chosen.len() < SET_FILES && needs_more == (*size >= mean) {
            sum += size;
            chosen.push(path.clone());
        }
    }
    chosen
}

fn copy(files: &[PathBuf], folder: &Path) -> Result<()> {
    if files.len() < SET_FILES {
        return Err(failure!("/usr has too few files for {}: {} of {SET_FILES}", folder.display(), files.len()));
    }
    fs::create_dir_all(folder).context(|| format!("cannot make {}", folder.display()))?;
    for (number, file) in files.iter().enumerate() {
        let extension = file.extension().map(|e| format!(".{}", e.to_string_lossy())).unwrap_or_default();
        // only names that need no escaping in a URL
        let extension = extension.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "");
        let to = folder.join(format!("{number:03}{extension}"));
        fs::copy(file, &to).context(|| format!("cannot copy {}", file.display()))?;
    }
    Ok(())
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let set = folder.file_name().unwrap_or_default().to_string_lossy();
    let entries = fs::read_dir(folder).context(|| format!("cannot read {}", folder.display()))?;
    let mut names =
        entries.flatten().map(|e| format!("/{set}/{}", e.file_name().to_string_lossy())).collect::<Vec<_>>();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_kept_though_most_files_are_small() {
        let sizes = (0..2000u64).map(|i| if i % 5 == 0 { 150_000 + i * 400 } else { 10_000 + i * 7 });
        let files: Vec<_> = sizes.enumerate().map(|(i, size)| (PathBuf::from(i.to_string()), size)).collect();
        let chosen = mean_near(&files, MEDIUM_MEAN_BYTES);
        assert_eq!(chosen.len(), SET_FILES);
        let sizes = chosen.iter().map(|path| files[path.to_str().unwrap().parse::<usize>().unwrap()].1);
        let mean = sizes.sum::<u64>() / SET_FILES as u64;
        assert!(mean.abs_diff(MEDIUM_MEAN_BYTES) < 10_000, "{mean}");
    }
}
