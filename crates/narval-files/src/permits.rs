//! Limits on concurrency, without waiting: a caller that gets no permit does something else.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

thread_local! {
    static CLIENT: Cell<Option<IpAddr>> = const { Cell::new(None) };
}

/// The client that this thread works for.
pub fn served_client() -> Option<IpAddr> {
    CLIENT.get()
}

/// Makes this thread work for a client until the result is dropped: its permits count towards that client's share. `None`: for nobody in
/// particular, or for a client that may take all permits.
pub fn work_for(client: Option<IpAddr>) -> WorksFor {
    WorksFor(CLIENT.replace(client))
}

/// Restores the thread's client from before.
#[derive(Debug)]
pub struct WorksFor(Option<IpAddr>);

impl Drop for WorksFor {
    fn drop(&mut self) {
        CLIENT.set(self.0);
    }
}

/// A number of permits, of which one client has a share. Cheap to clone: clones share them.
///
/// ```
/// use narval_files::{Permits, work_for};
///
/// let permits = Permits::shared(3, 2);
/// let _client = work_for(Some([192, 0, 2, 1].into()));
/// let taken = [permits.take(), permits.take()];
/// assert!(taken.iter().all(Option::is_some) && permits.take().is_none());
/// let _other = work_for(Some([192, 0, 2, 2].into()));
/// assert!(permits.take().is_some());
/// ```
#[derive(Clone, Debug)]
pub struct Permits(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    all: usize,
    of_one: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// Returned when dropped.
#[derive(Debug)]
pub struct Permit {
    permits: Permits,
    client: Option<IpAddr>,
}

impl Permits {
    /// Permits that one client may take all of.
    pub fn new(permits: usize) -> Self {
        Self::shared(permits, permits)
    }

    /// This many permits, of which one client may have `of_one`.
    pub fn shared(permits: usize, of_one: usize) -> Self {
        Self(Arc::new(Shared { all: permits, of_one, taken: Mutex::default() }))
    }

    /// A permit for the [client](work_for) that this thread works for.
    pub fn take(&self) -> Option<Permit> {
        let client = served_client();
        let mut taken = self.0.taken.lock();
        let own = client.and_then(|client| taken.by_client.get(&client)).copied().unwrap_or(0);
        if taken.all >= self.0.all || own >= self.0.of_one {
            return None;
        }
        taken.all += 1;
        if let Some(client) = client {
            taken.by_client.insert(client, own + 1);
        }
        Some(Permit { permits: self.clone(), client })
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.0.taken.lock().all
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.permits.0.taken.lock();
        taken.all -= 1;
        if let Some(client) = self.client
            && let Some(own) = taken.by_client.get_mut(&client)
        {
            *own -= 1;
            if *own == 0 {
                taken.by_client.remove(&client);
            }
        }
    }
}
