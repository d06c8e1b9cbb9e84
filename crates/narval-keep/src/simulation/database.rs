//! A database in PostgreSQL for one run, which is dropped after it.

use std::sync::Arc;

use crate::index::SimulatedPostgres;
use crate::simulator::server::Shared;
use crate::simulator::state::State;
use crate::tests_on_postgres::postgres::PostgresServer;

pub(super) struct Database {
    server: Arc<PostgresServer>,
    name: String,
}

impl Database {
    /// Has the nodes share an empty one, with caches of these names.
    pub(super) fn fill(state: &mut State, caches: [&str; 2], settings: &str) -> Self {
        let server = PostgresServer::shared().expect("PostgreSQL");
        let address = server.database();
        let name = address.split(['/', '?']).nth(3).unwrap().to_owned();
        let shared = Shared::new(&address);
        SimulatedPostgres::prepare(&shared);
        shared.add_caches(caches, settings);
        shared.copy_to(&state.database);
        state.shared = Some(shared);
        Self { server, name }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.server.sql("postgres", &format!("drop database {} with (force)", self.name)).unwrap();
    }
}
