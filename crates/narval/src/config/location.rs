//! Where the data of caches are: a folder, or a bucket with a folder on this machine.

use std::path::{Path, PathBuf};

use narval_keep::StorageLocation;

use crate::ui::failure::Failure;

/// The place that `--data` names. `cache_size` is the size of a server's disk cache, in bytes.
///
/// # Errors
/// The address of a bucket is wrong, or it has no folder on this machine.
pub(crate) fn place_of(
    data: &Path,
    cache_dir: Option<PathBuf>,
    cache_size: Option<u64>,
) -> Result<StorageLocation, Failure> {
    let Some(parsed) = data.to_str().and_then(StorageLocation::bucket_address) else {
        return Ok(StorageLocation::Folder(data.to_owned()));
    };
    let wrong = |error: &dyn std::fmt::Display| Failure::usage(format!("option --data: {error}"));
    let url = parsed.map_err(|error| wrong(&error))?;
    narval_s3::BucketAddress::of(&url).map_err(|error| wrong(&error))?;
    let folder = cache_dir.ok_or_else(|| {
        Failure::usage(
            "option --cache-dir: needed with a bucket: a folder on this machine for the disk cache, and for the index unless \
             --database has it",
        )
    })?;
    Ok(StorageLocation::Bucket { url, folder, cache_size })
}
