//! Opens the index of a data folder: in the folder, or in a database that several servers share.
//!
//! A folder and its database have the same id, in the file `index.id` and in a table. This prevents using one with
//! another: a server would remove all paths whose files it does not find.

use std::path::Path;
use std::{fs, io};

use crate::error::{DataError, io_error};
#[cfg(not(feature = "postgres"))]
use crate::index::IndexError;
#[cfg(feature = "postgres")]
use crate::index::Postgres;
use crate::index::{Index, Sqlite};
use crate::location::{Database, StorageLocation};
#[cfg(feature = "postgres")]
use crate::storage::TEMPORARY;
use crate::storage::{Bucket, BucketOptions, Storage};

/// The file with the id of an index in a database.
const ID: &str = "index.id";

/// The file with the id of a bucket whose index is in this folder.
const BUCKET_ID: &str = "bucket.id";

/// The index in the folder.
const SQLITE: &str = "index.sqlite";

/// What SQLite appends to the name of an index: its log, and what processes share of that. The index comes last, so that its log never stays
/// without it.
const SQLITE_FILES: [&str; 3] = ["-wal", "-shm", ""];

/// The index in the folder that is being rebuilt. It takes the place of the other one when it is complete.
const REBUILT: &str = "index.sqlite.new";

/// What an index is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// To be used.
    Use,
    /// To be filled by a rebuild: beside the one in the folder, or in a database that nobody else can use meanwhile.
    Rebuild,
}

/// Opens the index of a folder.
pub(crate) fn open(folder: &Path, database: Option<&Database>, opening: Opening) -> Result<Box<dyn Index>, DataError> {
    match database {
        // If it has both, a rebuild into a database was interrupted.
        None if folder.join(ID).exists() && !folder.join(SQLITE).exists() => {
            let reason = "its index is in a database: give the database ('--database')".to_owned();
            Err(DataError::IndexMismatch { folder: folder.to_owned(), reason })
        }
        None => open_sqlite(folder, opening),
        Some(_) if folder.join(SQLITE).exists() && opening == Opening::Use => {
            let reason = "it has an index of its own, 'index.sqlite': 'narval cache backup --without-nars' saves it, and 'narval cache restore' with \
                 '--database' makes the index in the database from that and the files"
                .to_owned();
            Err(DataError::IndexMismatch { folder: folder.to_owned(), reason })
        }
        Some(database) => connect(folder, database, opening),
    }
}

/// Opens the index in a folder.
fn open_sqlite(folder: &Path, opening: Opening) -> Result<Box<dyn Index>, DataError> {
    let (used, rebuilt) = (folder.join(SQLITE), folder.join(REBUILT));
    if opening == Opening::Rebuild {
        return Ok(Box::new(Sqlite::open(&rebuilt)?));
    }
    if rebuilt.exists() && !used.exists() {
        let reason = "a rebuild of its index was interrupted: run 'narval cache fsck --rebuild' again".to_owned();
        return Err(DataError::IndexMismatch { folder: folder.to_owned(), reason });
    }
    Ok(Box::new(Sqlite::open(&used)?))
}

/// Removes what an interrupted rebuild has left in a folder.
pub(crate) fn discard_rebuilt(folder: &Path) -> Result<(), DataError> {
    for suffix in SQLITE_FILES {
        let path = folder.join(format!("{REBUILT}{suffix}"));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error("remove", &path, error)),
            _ => {}
        }
    }
    Ok(())
}

/// Keeps the index in a folder under another name, and puts the rebuilt one in its place, in one step.
pub(crate) fn replace(folder: &Path) -> Result<(), DataError> {
    let (used, rebuilt) = (folder.join(SQLITE), folder.join(REBUILT));
    Sqlite::complete(&rebuilt)?;
    fs::File::open(&rebuilt)
        .and_then(|file| file.sync_all())
        .map_err(|error| io_error("synchronise", &rebuilt, error))?;
    let kept = free_name(folder);
    if used.exists() {
        // Its log must not be taken for that of the new one. If it can be read, the log is part of it after that.
        if Sqlite::complete(&used).is_err() {
            rename(folder, &["-wal", "-shm"], &kept)?;
        }
        fs::hard_link(&used, folder.join(&kept)).map_err(|error| io_error("link", &used, error))?;
    }
    fs::rename(&rebuilt, &used).map_err(|error| io_error("rename", &rebuilt, error))?;
    sync(folder)
}

/// The same, unless it was done before.
pub(crate) fn replace_if_complete(folder: &Path) -> Result<(), DataError> {
    if folder.join(REBUILT).exists() { replace(folder) } else { Ok(()) }
}

/// Keeps the index in a folder, which is in a database now, under another name.
pub(crate) fn put_aside(folder: &Path) -> Result<(), DataError> {
    rename(folder, &SQLITE_FILES, &free_name(folder))?;
    sync(folder)
}

/// The name under which an index is kept: with the time, or one second later if there is one from this second.
fn free_name(folder: &Path) -> String {
    let mut time = narval_client::clock::now();
    loop {
        let name = format!("{SQLITE}.{time}");
        if !folder.join(&name).exists() {
            return name;
        }
        time += 1;
    }
}

fn rename(folder: &Path, suffixes: &[&str], kept: &str) -> Result<(), DataError> {
    for suffix in suffixes {
        let from = folder.join(format!("{SQLITE}{suffix}"));
        match fs::rename(&from, folder.join(format!("{kept}{suffix}"))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error("rename", &from, error)),
            _ => {}
        }
    }
    Ok(())
}

fn sync(folder: &Path) -> Result<(), DataError> {
    fs::File::open(folder).and_then(|file| file.sync_all()).map_err(|error| io_error("synchronise", folder, error))
}

/// Whether there is a folder with an index.
pub(crate) fn exists(folder: &Path, database: Option<&Database>) -> bool {
    folder.join(if database.is_some() { ID } else { SQLITE }).exists()
}

/// Opens the index of a bucket: in the local folder, or in a database.
pub(crate) fn open_of_bucket(
    bucket: &Bucket,
    (database, opening): (Option<&Database>, Opening),
    must_exist: bool,
) -> Result<Box<dyn Index>, DataError> {
    let failed = |source: io::Error| io_error("read '_narval/index.id' in", bucket.place(), source);
    let elsewhere =
        |reason: &str| DataError::IndexMismatch { folder: bucket.place().to_owned(), reason: reason.to_owned() };
    let found = bucket.id().map_err(failed)?;
    if must_exist && found.is_none() {
        return Err(elsewhere("there is no cache in it: 'narval serve --data' creates one"));
    }
    let (mine, is_new) = match &found {
        Some(id) => (id.clone(), false),
        None => (random_id().map_err(failed)?, true),
    };
    let (index, id): (Box<dyn Index>, String) = match database {
        Some(database) => {
            let (index, id) = connect_as(database, &mine, opening)?;
            if id != mine && !(is_new && index.caches()?.is_empty()) {
                return Err(elsewhere(
                    "the database has the index of another data folder or bucket: name that one, or another database",
                ));
            }
            (index, id)
        }
        None => {
            let file = bucket.local().join(BUCKET_ID);
            let local = fs::read_to_string(&file).ok().map(|id| id.trim_end().to_owned());
            let is_used = bucket.local().join(SQLITE).exists();
            let id = match (&found, local) {
                (Some(found), Some(local)) if *found == local => local,
                (None, _) if !is_used => {
                    write_id(&file, &mine).map_err(failed)?;
                    mine
                }
                // A process was killed after it had created the index, and before the bucket had its id.
                (None, Some(local)) => local,
                _ => {
                    return Err(elsewhere(
                        "its index is not in the local folder ('--cache-dir'): name the folder or the database ('--database') that has \
                         it; 'narval cache fsck --rebuild' makes a new one",
                    ));
                }
            };
            (open_sqlite(bucket.local(), opening)?, id)
        }
    };
    // The bucket may have got one since it was asked.
    bucket.set_id(&id).map_err(|source| io_error("write '_narval/index.id' in", bucket.place(), source))?;
    bucket.is_of(&id);
    Ok(index)
}

/// Makes a rebuilt index that of this bucket.
pub(crate) fn take_over(place: &StorageLocation, database: Option<&Database>) -> Result<(), DataError> {
    let StorageLocation::Bucket { url, folder, .. } = place else { return Ok(()) };
    if database.is_some() {
        return Ok(());
    }
    let failed = |source: io::Error| io_error("write 'bucket.id' in", folder, source);
    let bucket = Bucket::open(&BucketOptions { url, folder, cache_size: None }).map_err(failed)?;
    match bucket.id().map_err(failed)? {
        Some(id) => write_id(&folder.join(BUCKET_ID), &id).map_err(failed),
        None => Ok(()),
    }
}

fn write_id(file: &Path, id: &str) -> io::Result<()> {
    fs::write(file, format!("{id}\n"))
}

fn random_id() -> io::Result<String> {
    let mut id = [0; 20];
    getrandom::fill(&mut id).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(narval_nix::nix32::encode(&id))
}

/// Opens a database for the index with this id; returns the id that it has.
#[cfg(feature = "postgres")]
fn connect_as(database: &Database, id: &str, opening: Opening) -> Result<(Box<dyn Index>, String), DataError> {
    let index = Postgres::open_for(&database.0, opening == Opening::Rebuild)?;
    let id = index.folder(id)?;
    Ok((Box::new(index), id))
}

#[cfg(not(feature = "postgres"))]
fn connect_as(_: &Database, _: &str, _: Opening) -> Result<(Box<dyn Index>, String), DataError> {
    let (database, reason) = (String::new(), "this narval was built without PostgreSQL".to_owned());
    Err(IndexError::Unusable { database, reason }.into())
}

#[cfg(feature = "postgres")]
fn connect(folder: &Path, database: &Database, opening: Opening) -> Result<Box<dyn Index>, DataError> {
    let index = Postgres::open_for(&database.0, opening == Opening::Rebuild)?;
    let id = id(folder).map_err(|source| io_error("write 'index.id' in", folder, source))?;
    if index.folder(&id)? != id {
        let reason =
            "the database has the index of another data folder: name that folder, or another database".to_owned();
        return Err(DataError::IndexMismatch { folder: folder.to_owned(), reason });
    }
    Ok(Box::new(index))
}

#[cfg(not(feature = "postgres"))]
fn connect(_: &Path, _: &Database, _: Opening) -> Result<Box<dyn Index>, DataError> {
    let (database, reason) = (String::new(), "this narval was built without PostgreSQL".to_owned());
    Err(IndexError::Unusable { database, reason }.into())
}

/// The id of a folder; created if it has none.
#[cfg(feature = "postgres")]
fn id(folder: &Path) -> io::Result<String> {
    use std::io::{ErrorKind, Write};

    let file = folder.join(ID);
    loop {
        match fs::read_to_string(&file) {
            Ok(id) => return Ok(id.trim_end().to_owned()),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let id = random_id()?;
        let new = narval_files::TemporaryFile::create(folder, TEMPORARY, 0o644)?;
        new.file().write_all(format!("{id}\n").as_bytes())?;
        new.file().sync_all()?;
        // Another process may be doing the same: the first one wins.
        match fs::hard_link(new.path(), &file) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => fs::File::open(folder)?.sync_all()?,
        }
    }
}
