//! Where tests have a writable cache, and its index.
//!
//! The tests are compiled four times: as `tests` in a folder with the index in SQLite, as `tests_on_postgres` with the index in a
//! PostgreSQL that they start, and as `tests_in_bucket` and `tests_in_bucket_on_postgres` in a versitygw that they start.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use super::postgres::PostgresServer;
use super::s3::S3Server;
use crate::data::Data;
use crate::location::Database;
use crate::options::DataOptions;

/// Tells another process which database to use.
const DATABASE: &str = "NARVAL_TEST_DATABASE";

/// Tells another process which bucket to use.
const BUCKET: &str = "NARVAL_TEST_BUCKET";

/// The bucket of all tests; each has a prefix of its own.
const NAME: &str = "narval-tests";

/// A folder, and a database if the index is not in the folder, and a bucket if the files are not.
pub(crate) struct Place {
    folder: TempDir,
    database: Option<(Arc<PostgresServer>, String)>,
    bucket: Option<(Arc<S3Server>, String)>,
}

impl Place {
    pub(super) fn new() -> Self {
        let server = if is_on_postgres() { PostgresServer::shared() } else { None };
        if is_on_postgres() && server.is_none() {
            eprintln!("note: no PostgreSQL: the index is in SQLite in this test");
        }
        let database = server.map(|server| {
            let address = server.database();
            (server, address)
        });
        let server = if wants_bucket() { S3Server::shared() } else { None };
        if wants_bucket() && server.is_none() {
            eprintln!("note: no versitygw: the files are in a folder in this test");
        }
        let bucket = server.map(|server| {
            static PLACES: AtomicU32 = AtomicU32::new(0);
            narval_s3::ENVIRONMENT.get_or_init(|| server.environment());
            let address = server.bucket(NAME);
            let prefix = format!("{NAME}/place-{}", PLACES.fetch_add(1, Ordering::Relaxed));
            (server, address.replacen(NAME, &prefix, 1))
        });
        Self { folder: tempfile::tempdir().unwrap(), database, bucket }
    }

    /// The folder on this machine.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn is_in_bucket(&self) -> bool {
        self.bucket.is_some()
    }

    /// The address of the bucket.
    pub(super) fn address(&self) -> &str {
        self.bucket.as_ref().map(|(_, address)| address.as_str()).unwrap_or_default()
    }

    /// Where files are that a data folder has at this path.
    pub(super) fn stored(&self, below: &str) -> PathBuf {
        let Some((server, address)) = &self.bucket else { return self.path().join(below) };
        let prefix = address.trim_start_matches("s3://").split('?').next().unwrap();
        let root = server.root().join(prefix);
        match below.strip_prefix("caches/") {
            Some(cache) => match cache.strip_prefix("default") {
                Some(rest) => root.join(rest.trim_start_matches('/')),
                None => root.join(cache),
            },
            None => self.path().join(below),
        }
    }

    pub(super) fn place(&self) -> crate::StorageLocation {
        place(self.path(), self.bucket.as_ref().map(|(_, address)| address.as_str()), None)
    }

    /// The same, with a disk cache: for one process at a time.
    pub(super) fn place_with_cache(&self, size: u64) -> crate::StorageLocation {
        place(self.path(), self.bucket.as_ref().map(|(_, address)| address.as_str()), Some(size))
    }

    pub(super) fn options(&self) -> DataOptions {
        let database = self.database.as_ref().map(|(_, address)| address.parse().unwrap());
        DataOptions { database, ..DataOptions::default() }
    }

    pub(super) fn database(&self) -> Option<Database> {
        self.options().database
    }

    pub(super) fn open(&self) -> Data {
        Data::open(self.place(), self.options()).unwrap()
    }

    /// Another process is to use the same database, and the same bucket.
    pub(super) fn tell(&self, command: &mut Command) {
        if let Some((_, address)) = &self.database {
            command.env(DATABASE, address);
        }
        if let Some((server, address)) = &self.bucket {
            command.env(BUCKET, address).envs(server.environment());
        }
    }

    /// What [`Place::tell`] has told this process.
    pub(super) fn told(folder: &Path) -> Data {
        let (place, database) = Self::told_place(folder);
        Data::open(place, DataOptions { database, ..DataOptions::default() }).unwrap()
    }

    /// The same, not opened.
    pub(super) fn told_place(folder: &Path) -> (crate::StorageLocation, Option<Database>) {
        let database = std::env::var(DATABASE).ok().map(|address| address.parse().unwrap());
        (place(folder, std::env::var(BUCKET).ok().as_deref(), None), database)
    }

    /// Changes the tables behind the index's back.
    pub(crate) fn sql(&self, statement: &str) {
        match &self.database {
            Some((server, address)) => {
                let name = name_of(address);
                server.sql(name, &format!("set search_path to narval; {statement}")).unwrap();
            }
            None => {
                let index = rusqlite::Connection::open(self.path().join("index.sqlite")).unwrap();
                index.execute_batch(statement).unwrap();
            }
        }
    }

    /// How many rows a table of the index has.
    pub(super) fn rows(&self, table: &str) -> u64 {
        let count = format!("select count(*) from {table}");
        if self.database.is_some() {
            return self.query(&count).parse().unwrap();
        }
        let index = rusqlite::Connection::open(self.path().join("index.sqlite")).unwrap();
        index.query_row(&count, [], |row| row.get(0)).unwrap()
    }

    /// What the database answers to a query.
    pub(super) fn query(&self, statement: &str) -> String {
        let (server, address) = self.database.as_ref().unwrap();
        let name = name_of(address);
        server.sql(name, &format!("set search_path to narval; {statement}")).unwrap()
    }

    /// A dump of the database, if there is one.
    pub(super) fn dump(&self) -> Option<Vec<u8>> {
        self.database.as_ref().map(|(server, address)| server.dump(name_of(address)))
    }

    /// A new database on another server, from a dump, with a copy of the folder, or with the bucket and an empty folder.
    pub(super) fn restored(&self, dump: &[u8]) -> Self {
        let server = Arc::new(PostgresServer::new().unwrap());
        let address = server.database();
        server.restore(name_of(&address), dump);
        let folder = tempfile::tempdir().unwrap();
        if self.bucket.is_none() {
            let mut copy = Command::new("cp");
            let copied = copy.arg("-a").arg(self.path().join(".")).arg(folder.path()).status().unwrap();
            assert!(copied.success());
        }
        Self { folder, database: Some((server, address)), bucket: self.bucket.clone() }
    }

    /// Loses the index: it is damaged, or its database is gone.
    pub(super) fn lose_index(&mut self) {
        match &mut self.database {
            Some((server, address)) => *address = server.database(),
            None => std::fs::write(self.path().join("index.sqlite"), "not a database any more").unwrap(),
        }
    }
}

/// The name in a database's address.
fn name_of(address: &str) -> &str {
    address.split('?').next().unwrap().rsplit('/').next().unwrap()
}

fn place(folder: &Path, bucket: Option<&str>, cache_size: Option<u64>) -> crate::StorageLocation {
    match bucket {
        Some(address) => {
            let url = address.parse().unwrap();
            crate::StorageLocation::Bucket { url, folder: folder.to_owned(), cache_size }
        }
        None => folder.into(),
    }
}

/// Which of the four this is.
pub(super) fn is_on_postgres() -> bool {
    module_path!().contains("on_postgres")
}

pub(super) fn wants_bucket() -> bool {
    module_path!().contains("in_bucket")
}
