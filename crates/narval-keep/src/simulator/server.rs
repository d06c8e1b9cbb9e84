//! A real PostgreSQL, as the database of a simulation: its clock is that of the simulation, and its rows are copied to where the checks look.

use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// What hides the server's clock.
const CLOCK: &str = "create schema simulated; \
     create function simulated.clock_timestamp() returns timestamptz language sql stable as \
       'select to_timestamp(current_setting(''simulated.clock'')::bigint / 1000.0)'; \
     create function simulated.now() returns timestamptz language sql stable as \
       'select to_timestamp(current_setting(''simulated.begun'')::bigint / 1000.0)'";

/// The tables that the checks look at.
const COPIED: [&str; 13] = [
    "caches", "nars", "garbage", "former", "paths", "refs", "leases", "pins", "releases", "pending", "work", "lost",
    "writers",
];

/// The database that simulated nodes share.
pub(crate) struct Shared {
    pub(crate) address: String,
    /// A connection beside those of the nodes, and what moves its bytes.
    control: Client,
    runtime: Runtime,
}

impl Shared {
    /// An empty database at this address, with the clock of the simulation.
    pub(crate) fn new(address: &str) -> Self {
        let address = format!("{address}&options=-c%20search_path=simulated,pg_catalog");
        let runtime = Builder::new_current_thread().enable_io().enable_time().build().unwrap();
        let (control, connection) = runtime.block_on(tokio_postgres::connect(&address, NoTls)).unwrap();
        runtime.spawn(connection);
        runtime.block_on(control.batch_execute(CLOCK)).unwrap();
        Self { address, control, runtime }
    }

    /// Adds caches of these names.
    pub(crate) fn add_caches(&self, caches: [&str; 2], settings: &str) {
        let add = "insert into narval.caches (name, settings, created) values ($1, $2, 0)";
        for cache in caches {
            self.runtime.block_on(self.control.execute(add, &[&cache, &settings])).unwrap();
        }
    }

    /// Makes the tables that are checked those of the server, as they are now.
    pub(crate) fn copy_to(&self, copy: &rusqlite::Connection) {
        let all = COPIED.map(|table| format!("select * from narval.{table};")).concat();
        let rows = self.runtime.block_on(self.control.simple_query(&all)).unwrap();
        copy.execute_batch("pragma foreign_keys = off; begin").unwrap();
        let mut tables = COPIED.iter();
        let mut table = tables.next();
        for table in COPIED {
            copy.prepare_cached(&format!("delete from {table}")).unwrap().execute([]).unwrap();
        }
        for message in rows {
            match message {
                SimpleQueryMessage::CommandComplete(_) => table = tables.next(),
                SimpleQueryMessage::Row(row) => {
                    let marks = vec!["?"; row.len()].join(", ");
                    let add = format!("insert into {} values ({marks})", table.unwrap());
                    let mut add = copy.prepare_cached(&add).unwrap();
                    for at in 0..row.len() {
                        let value = row.get(at);
                        match value.and_then(|text| text.strip_prefix("\\x")) {
                            Some(hex) => add.raw_bind_parameter(at + 1, bytes(hex)).unwrap(),
                            None => add.raw_bind_parameter(at + 1, value).unwrap(),
                        }
                    }
                    add.raw_execute().unwrap();
                }
                _ => {}
            }
        }
        copy.execute_batch("commit").unwrap();
    }

    /// Ends the process of a connection, with its transaction.
    pub(crate) fn end(&self, process: i32) {
        let end = format!("select pg_terminate_backend({process}, 60000)");
        self.runtime.block_on(self.control.batch_execute(&end)).unwrap();
    }

    /// Ends all connections of nodes, as a server that is started again does.
    pub(crate) fn end_all(&self) {
        let end = "select pg_terminate_backend(pid, 60000) from pg_stat_activity \
             where datname = current_database() and pid <> pg_backend_pid()";
        self.runtime.block_on(self.control.batch_execute(end)).unwrap();
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}
