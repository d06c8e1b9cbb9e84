//! The location of a data folder's index: in the folder, or in a database that several servers share.
//!
//! A folder and its database have the same id, in the file `index.id` and in a table. This prevents using one with
//! another: a server would remove all paths whose files it does not find.

use std::path::Path;
use std::str::FromStr;

use super::error::DataError;
use super::index::{Index, IndexError, Sqlite};

/// The file with the id of an index in a database.
const ID: &str = "index.id";

/// The index in the folder.
const SQLITE: &str = "index.sqlite";

/// The address of a PostgreSQL database. Messages never contain its password.
#[derive(Clone, PartialEq, Eq)]
pub struct Database(String);

impl FromStr for Database {
    type Err = IndexError;

    /// `postgres://USER@HOST/DATABASE`, with the parameters that libpq's addresses have.
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
pub(super) fn must_be_empty(folder: &Path, database: &Database) -> Result<(), DataError> {
    let index = connect(folder, database)?;
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

#[cfg(feature = "postgres")]
fn connect(folder: &Path, database: &Database) -> Result<Box<dyn Index>, DataError> {
    let index = super::index::Postgres::open(&database.0)?;
    let id = id(folder).map_err(|source| super::error::io_error("write 'index.id' in", folder, source))?;
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
fn id(folder: &Path) -> std::io::Result<String> {
    use std::fs;
    use std::io::{self, ErrorKind, Write};

    let file = folder.join(ID);
    loop {
        match fs::read_to_string(&file) {
            Ok(id) => return Ok(id.trim_end().to_owned()),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut id = [0; 20];
        getrandom::fill(&mut id).map_err(|error| io::Error::other(error.to_string()))?;
        let new = narval_store::TemporaryFile::create(folder, super::storage::TEMPORARY, 0o644)?;
        new.file().write_all(format!("{}\n", narval_nix::nix32::encode(&id)).as_bytes())?;
        new.file().sync_all()?;
        // Another process may be doing the same: the first one wins.
        match fs::hard_link(new.path(), &file) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => fs::File::open(folder)?.sync_all()?,
        }
    }
}
