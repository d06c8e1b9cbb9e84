//! A pool of database connections for handlers.
//!
//! `cargo run -p narval-http --example database_pool -- --port 8080 [--file guests.sqlite]`, then
//! `curl -d 'Ada Lovelace' http://localhost:8080/guests; curl http://localhost:8080/guests`

#[path = "arguments/mod.rs"]
mod arguments;

use std::error::Error;
use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use narval_http::{Request, Response, Router, StatusCode};
use rusqlite::Connection;

/// Connections in the pool: this many requests query the database at a time, the others wait.
const CONNECTIONS: usize = 8;
/// The longest name of a guest.
const NAME_BYTES_MAX: usize = 200;

/// The idle connections.
struct Pool {
    idle: Mutex<Vec<Connection>>,
    returned: Condvar,
}

impl Pool {
    fn open(file: &str) -> rusqlite::Result<Self> {
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS {
            let connection = Connection::open(file)?;
            connection.busy_timeout(Duration::from_secs(5))?;
            // With a WAL, readers and a writer do not wait for each other.
            connection.pragma_update(None, "journal_mode", "wal")?;
            connection
                .execute_batch("create table if not exists guests (id integer primary key, name text not null)")?;
            idle.push(connection);
        }
        Ok(Self { idle: Mutex::new(idle), returned: Condvar::new() })
    }

    /// Waits for a connection: handlers run on threads, so they may block.
    fn borrow(&self) -> Borrowed<'_> {
        let mut idle = self.lock();
        loop {
            match idle.pop() {
                Some(connection) => return Borrowed { pool: self, connection: Some(connection) },
                None => idle = self.returned.wait(idle).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that is returned to its pool when dropped, also after a panic.
struct Borrowed<'a> {
    pool: &'a Pool,
    connection: Option<Connection>,
}

impl Deref for Borrowed<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().unwrap_or_else(|| unreachable!("taken only when dropped"))
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        self.pool.lock().extend(self.connection.take());
        self.pool.returned.notify_one();
    }
}

/// A database error becomes a 500 without details, and a log line with them.
fn list(pool: &Pool) -> rusqlite::Result<String> {
    let connection = pool.borrow();
    let mut query = connection.prepare_cached("select id, name from guests order by id desc limit 100")?;
    let rows = query.query_map([], |row| Ok(format!("{}: {}\n", row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))?;
    rows.collect()
}

fn add(pool: &Pool, mut request: Request) -> rusqlite::Result<Response> {
    let name = request.body().text(NAME_BYTES_MAX).unwrap_or_default();
    if name.trim().is_empty() {
        return Ok(Response::text(StatusCode::BAD_REQUEST, "the body must be a name of 1 to 200 bytes\n"));
    }
    pool.borrow().prepare_cached("insert into guests (name) values (?1)")?.execute([name.trim()])?;
    Ok(Response::new(StatusCode::CREATED))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = arguments::Arguments::read(&["--file"])?;
    let pool = Arc::new(Pool::open(arguments.get("--file").unwrap_or("guests.sqlite"))?);
    let adding = pool.clone();
    let app = Router::new()
        .get("/guests", move || list(&pool))
        .post("/guests", move |request: Request| add(&adding, request))
        .build()?;
    arguments.serve(app, |builder| builder)
}
