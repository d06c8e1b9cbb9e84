//! Where tests have a data folder, and its index.
//!
//! The tests are compiled twice: as `tests` with the index in SQLite, and as `tests_on_postgres` with the index in a PostgreSQL
//! that they start.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;

use super::postgres::PostgresServer;
use crate::written::{Data, DataOptions, Database};

/// Tells another process which database to use.
const DATABASE: &str = "NARVAL_TEST_DATABASE";

/// A folder, and a database if the index is not in the folder.
pub(crate) struct Place {
    folder: TempDir,
    database: Option<(Arc<PostgresServer>, String)>,
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
        Self { folder: tempfile::tempdir().unwrap(), database }
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn options(&self) -> DataOptions {
        let database = self.database.as_ref().map(|(_, address)| address.parse().unwrap());
        DataOptions { database, ..DataOptions::default() }
    }

    pub(super) fn database(&self) -> Option<Database> {
        self.options().database
    }

    pub(super) fn open(&self) -> Data {
        Data::open(self.path(), self.options()).unwrap()
    }

    /// Another process is to use the same database.
    pub(super) fn tell(&self, command: &mut Command) {
        if let Some((_, address)) = &self.database {
            command.env(DATABASE, address);
        }
    }

    /// What [`Place::tell`] has told this process.
    pub(super) fn told(folder: &Path) -> Data {
        let database = std::env::var(DATABASE).ok().map(|address| address.parse().unwrap());
        Data::open(folder, DataOptions { database, ..DataOptions::default() }).unwrap()
    }

    /// Changes the tables behind the index's back.
    pub(super) fn sql(&self, statement: &str) {
        match &self.database {
            Some((server, address)) => {
                let name = address.split('?').next().unwrap().rsplit('/').next().unwrap();
                server.sql(name, &format!("set search_path to narval; {statement}")).unwrap();
            }
            None => {
                let index = rusqlite::Connection::open(self.path().join("index.sqlite")).unwrap();
                index.execute_batch(statement).unwrap();
            }
        }
    }

    /// Loses the index: it is damaged, or its database is gone.
    pub(super) fn lose_index(&mut self) {
        match &mut self.database {
            Some((server, address)) => *address = server.database(),
            None => std::fs::write(self.path().join("index.sqlite"), "not a database any more").unwrap(),
        }
    }
}

/// Which of the two this is.
pub(super) fn is_on_postgres() -> bool {
    module_path!().contains("tests_on_postgres")
}
