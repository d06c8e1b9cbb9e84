//! The location of a data folder's index: in the folder, or in a database that several servers share.
//!
//! A folder and its database have the same id, in the file `index.id` and in a table. This prevents using one with
//! another: a server would remove all paths whose files it does not find.

use std::path::Path;
use std::str::FromStr;
use std::{fs, io};

use super::Place;
use super::error::{DataError, io_error};
use super::index::{Index, IndexError, Sqlite};
use super::storage::{Bucket, BucketOptions, Storage};

/// The file with the id of an index in a database.
const ID: &str = "index.id";

/// The file with the id of a bucket whose index is in this folder.
const BUCKET_ID: &str = "bucket.id";

/// The index in the folder.
const SQLITE: &str = "index.sqlite";

/// The address of a PostgreSQL database. Messages never contain its password.
#[derive(Clone, PartialEq, Eq)]
pub struct Database(String);

impl FromStr for Database {
    type Err = IndexError;

    /// `postgres://USER@HOST/DATABASE`, with libpq's parameters.
    fn from_str(text: &str) -> Result<Self, IndexError> {
        #[cfg(feature = "postgres")]
        super::index::check_address(text)?;
        Ok(Self(text.to_owned()))
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Database(…)")
    }
}

/// Opens the index of a folder.
pub(super) fn open(folder: &Path, database: Option<&Database>) -> Result<Box<dyn Index>, DataError> {
    match database {
        None if folder.join(ID).exists() => {
            let reason = "its index is in a database: give the database ('--database')".to_owned();
            Err(DataError::Elsewhere { folder: folder.to_owned(), reason })
        }
        None => Ok(Box::new(Sqlite::open(&folder.join(SQLITE))?)),
        Some(_) if folder.join(SQLITE).exists() => {
            let reason = "it has an index of its own, 'index.sqlite': 'narval cache fsck --rebuild' with '--database' makes the index in the \
                 database from the files, and 'narval cache export' and 'import' take tokens, pins and settings along"
                .to_owned();
            Err(DataError::Elsewhere { folder: folder.to_owned(), reason })
        }
        Some(database) => connect(folder, database),
    }
}

/// Checks that a database for a new index is empty.
pub(super) fn must_be_empty(place: &Place, database: &Database) -> Result<(), DataError> {
    let folder = place.folder();
    let index = match place {
        Place::Folder(folder) => connect(folder, database)?,
        Place::Bucket { url, folder, .. } => {
            let bucket = Bucket::open(&BucketOptions { url, folder, cache_size: None });
            let bucket = bucket.map_err(|source| io_error("use the local folder", folder, source))?;
            open_of_bucket(&bucket, Some(database), false)?
        }
    };
    for cache in index.caches()? {
        if index.usage(cache.id)?.files > 0 {
            let reason = "the database has an index already: name an empty one".to_owned();
            return Err(DataError::Elsewhere { folder: folder.to_owned(), reason });
        }
    }
    Ok(())
}

/// Whether there is a folder with an index.
pub(super) fn exists(folder: &Path, database: Option<&Database>) -> bool {
    folder.join(if database.is_some() { ID } else { SQLITE }).exists()
}

/// Opens the index of a bucket: in the local folder, or in a database.
pub(super) fn open_of_bucket(
    bucket: &Bucket,
    database: Option<&Database>,
    must_exist: bool,
) -> Result<Box<dyn Index>, DataError> {
    let failed = |source: io::Error| io_error("read '_narval/index.id' in", bucket.place(), source);
    let elsewhere =
        |reason: &str| DataError::Elsewhere { folder: bucket.place().to_owned(), reason: reason.to_owned() };
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
            let (index, id) = connect_as(database, &mine)?;
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
            match (&found, local) {
                (Some(found), Some(local)) if *found == local => {}
                (None, _) if !is_used => write_id(&file, &mine).map_err(failed)?,
                (None, Some(local)) if is_used => {
                    // A process was killed after it had created the index.
                    bucket.set_id(&local).map_err(failed)?;
                }
                _ => {
                    return Err(elsewhere(
                        "its index is not in the local folder ('--cache-dir'): name the folder or the database ('--database') that has \
                         it; 'narval cache fsck --rebuild' makes a new one",
                    ));
                }
            }
            (Box::new(Sqlite::open(&bucket.local().join(SQLITE))?), mine)
        }
    };
    if bucket.id().map_err(failed)?.is_none() {
        bucket.set_id(&id).map_err(|source| io_error("write '_narval/index.id' in", bucket.place(), source))?;
    }
    Ok(index)
}

/// Makes a rebuilt index that of this bucket.
pub(super) fn take_over(place: &Place, database: Option<&Database>) -> Result<(), DataError> {
    let Place::Bucket { url, folder, .. } = place else { return Ok(()) };
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
fn connect_as(database: &Database, id: &str) -> Result<(Box<dyn Index>, String), DataError> {
    let index = super::index::Postgres::open(&database.0)?;
    let id = index.folder(id)?;
    Ok((Box::new(index), id))
}

#[cfg(not(feature = "postgres"))]
fn connect_as(_: &Database, _: &str) -> Result<(Box<dyn Index>, String), DataError> {
    let (database, reason) = (String::new(), "this narval was built without PostgreSQL".to_owned());
    Err(IndexError::Unusable { database, reason }.into())
}

#[cfg(feature = "postgres")]
fn connect(folder: &Path, database: &Database) -> Result<Box<dyn Index>, DataError> {
    let index = super::index::Postgres::open(&database.0)?;
    let id = id(folder).map_err(|source| io_error("write 'index.id' in", folder, source))?;
    if index.folder(&id)? != id {
        let reason =
            "the database has the index of another data folder: name that folder, or another database".to_owned();
        return Err(DataError::Elsewhere { folder: folder.to_owned(), reason });
    }
    Ok(Box::new(index))
}

#[cfg(not(feature = "postgres"))]
fn connect(_: &Path, _: &Database) -> Result<Box<dyn Index>, DataError> {
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
        let new = narval_store::TemporaryFile::create(folder, super::storage::TEMPORARY, 0o644)?;
        new.file().write_all(format!("{id}\n").as_bytes())?;
        new.file().sync_all()?;
        // Another process may be doing the same: the first one wins.
        match fs::hard_link(new.path(), &file) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => fs::File::open(folder)?.sync_all()?,
        }
    }
}
