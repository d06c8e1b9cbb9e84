//! Idle connections, and the number of open ones: never more per origin than the limit, which also limits a server's
//! TLS handshakes.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::connection::Connection;
use crate::limits::IDLE_AGE_MAX;
use crate::url::Origin;

#[derive(Default)]
struct PerOrigin {
    open: usize,
    idle: Vec<Pooled>,
    seen: Seen,
    /// Whether the user has been told that it is waited for.
    mentioned: bool,
}

/// What was seen of an origin.
#[derive(Clone, Copy, Default)]
pub(crate) struct Seen {
    /// Whether a connection was ever opened.
    pub(crate) connected: bool,
    /// When it last answered something other than a failure of its own.
    pub(crate) answered_at: Option<Instant>,
}

/// A pool, shared by all threads of a client.
pub(crate) struct Pool {
    limit: usize,
    origins: Mutex<HashMap<Origin, PerOrigin>>,
    freed: Condvar,
}

/// The right to have one connection open.
pub(crate) struct Permit {
    pool: Arc<Pool>,
    origin: Origin,
}

/// An open connection; counts against its origin's limit until dropped.
pub(crate) struct Pooled {
    connection: Connection,
    /// When it became idle.
    idle_since: Instant,
    /// Whether it was used before: a failure may then mean that it has become stale.
    pub(crate) reused: bool,
    _permit: Permit,
}

/// The result of [`Pool::take`].
pub(crate) enum Taken {
    /// An idle connection.
    Idle(Box<Pooled>),
    /// The right to open one.
    Permit(Permit),
}

impl Pool {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit: limit.max(1), origins: Mutex::default(), freed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Origin, PerOrigin>> {
        // A panic elsewhere leaves counts and idle connections consistent: each change is one step.
        self.origins.lock()
    }

    /// Takes an idle connection, or the right to open one; waits while the limit is reached.
    pub(crate) fn take(self: &Arc<Self>, origin: &Origin) -> Taken {
        let mut stale = Vec::new();
        let mut origins = self.lock();
        let taken = loop {
            let entry = origins.entry(origin.clone()).or_default();
            if let Some(connection) = next_idle(&mut entry.idle, &mut stale) {
                break Taken::Idle(Box::new(connection));
            }
            // Stale connections count until they are dropped below, outside the lock: one of them makes room.
            if entry.open < self.limit + stale.len() {
                entry.open += 1;
                break Taken::Permit(Permit { pool: Arc::clone(self), origin: origin.clone() });
            }
            self.freed.wait(&mut origins);
        };
        drop(origins);
        drop(stale);
        taken
    }

    fn note(&self, origin: &Origin, change: impl FnOnce(&mut PerOrigin)) {
        change(self.lock().entry(origin.clone()).or_default());
    }

    /// Records that a connection was opened.
    pub(crate) fn connected(&self, origin: &Origin) {
        self.note(origin, |entry| entry.seen.connected = true);
    }

    /// Records that the origin has answered.
    pub(crate) fn answered(&self, origin: &Origin) {
        self.note(origin, |entry| entry.seen.answered_at = Some(Instant::now()));
    }

    /// What was seen of an origin.
    pub(crate) fn seen(&self, origin: &Origin) -> Seen {
        self.lock().get(origin).map(|entry| entry.seen).unwrap_or_default()
    }

    /// Whether a wait for the origin is to be mentioned: once.
    pub(crate) fn mentions(&self, origin: &Origin) -> bool {
        let mut first = false;
        self.note(origin, |entry| first = !std::mem::replace(&mut entry.mentioned, true));
        first
    }

    /// Returns a connection for reuse.
    pub(crate) fn give_back(&self, origin: &Origin, mut connection: Pooled) {
        connection.idle_since = Instant::now();
        connection.reused = true;
        self.lock().entry(origin.clone()).or_default().idle.push(connection);
        self.freed.notify_one();
    }

    /// Drops the idle connections of an origin: if one was stale, the others are, too.
    pub(crate) fn forget_idle(&self, origin: &Origin) {
        let idle = self.lock().get_mut(origin).map(|entry| std::mem::take(&mut entry.idle));
        drop(idle);
    }
}

/// The most recently used connection that can be reused; stale ones go to `stale`.
fn next_idle(idle: &mut Vec<Pooled>, stale: &mut Vec<Pooled>) -> Option<Pooled> {
    while let Some(connection) = idle.pop() {
        if connection.idle_since.elapsed() < IDLE_AGE_MAX && connection.is_clean() {
            return Some(connection);
        }
        stale.push(connection);
    }
    None
}

impl Permit {
    /// The connection opened with it.
    pub(crate) fn hold(self, connection: Connection) -> Pooled {
        Pooled { connection, idle_since: Instant::now(), reused: false, _permit: self }
    }
}

impl Deref for Pooled {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for Pooled {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(entry) = self.pool.lock().get_mut(&self.origin) {
            entry.open = entry.open.saturating_sub(1);
        }
        self.pool.freed.notify_one();
    }
}
