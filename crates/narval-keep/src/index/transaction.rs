//! Reads and transactions, whichever the database.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use narval_client::trace;

use super::sql::{jobs, work};
use super::tx::{How, Reading, Refused, Tx, TxError};
use super::{Index, IndexError};
use crate::records::leases::Fence;

/// The job that a thread does: in which index, its id, and the number of who does it.
type OfJob = (usize, String, i64);

thread_local! {
    static JOB: RefCell<Option<OfJob>> = const { RefCell::new(None) };
}

/// What a transaction has returned.
fn returned<T>(done: Option<T>) -> Result<T, IndexError> {
    done.ok_or_else(|| IndexError::Database {
        index: "index".to_owned(),
        reason: "a transaction has returned nothing".to_owned(),
        full: false,
    })
}

impl dyn Index + '_ {
    /// Asks something that changes nothing.
    pub(super) fn read<T>(
        &self,
        how: Reading,
        ask: impl Fn(&mut dyn Tx) -> Result<T, TxError>,
    ) -> Result<T, IndexError> {
        let mut span = trace::begin(trace::Work::DatabaseRead, || "read".to_owned());
        span.note("db.namespace", || self.name());
        let mut answer = None;
        let result = self.ask(how, &mut |tx| ask(tx).map(|found| answer = Some(found)));
        if result.is_err() {
            span.fail();
        }
        result.and_then(|()| returned(answer))
    }

    /// Does a transaction that others cannot make impossible.
    pub(super) fn write<T: Send + 'static>(
        &self,
        how: How,
        work: impl Fn(&mut dyn Tx) -> Result<T, TxError> + Send + 'static,
    ) -> Result<T, IndexError> {
        let reason = Refused::Changed.to_string();
        self.try_write(how, work)?.ok_or_else(|| IndexError::Database { index: self.name(), reason, full: false })
    }

    /// Does a transaction. `None`: others have changed what it is about, and nothing was done.
    pub(super) fn try_write<T: Send + 'static>(
        &self,
        how: How,
        work: impl Fn(&mut dyn Tx) -> Result<T, TxError> + Send + 'static,
    ) -> Result<Option<T>, IndexError> {
        let mut span = trace::begin(trace::Work::DatabaseWrite, || "write".to_owned());
        span.note("db.namespace", || self.name());
        let done = Arc::new(Mutex::new(None));
        let result = Arc::clone(&done);
        let job = JOB.with_borrow(|job| job.clone().filter(|(index, ..)| *index == self.address()));
        let ended = self.change(
            how,
            Box::new(move |tx| {
                // That of another attempt does not count.
                let mut result = result.lock().unwrap_or_else(PoisonError::into_inner);
                *result = None;
                let held = job.as_ref().map_or(Ok(()), |(_, id, fence)| jobs::hold(tx, id, *fence));
                let made = held.and_then(|()| work(tx)).map_err(|error| match error.downcast_ref() {
                    Some(refused) => {
                        *result = Some(Err(*refused));
                        error
                    }
                    None => error,
                })?;
                *result = Some(Ok(made));
                Ok(())
            }),
        );
        if ended.is_err() {
            span.fail();
        }
        let done = done.lock().unwrap_or_else(PoisonError::into_inner).take();
        match done {
            Some(Err(Refused::Changed)) => Ok(None),
            Some(Err(Refused::Superseded)) => Err(IndexError::Superseded { index: self.name() }),
            Some(Ok(done)) => ended.map(|()| Some(done)),
            None => ended.and_then(|()| returned(None)),
        }
    }

    /// Does a job, whose transactions in this thread change nothing once another process does it: each has the job's number, and renews its lease.
    pub(crate) fn as_job<T>(&self, id: &str, fence: i64, work: impl FnOnce() -> T) -> T {
        struct End;
        impl Drop for End {
            fn drop(&mut self) {
                JOB.set(None);
            }
        }
        JOB.set(Some((self.address(), id.to_owned(), fence)));
        let _end = End;
        work()
    }

    /// Tells this index from others that are open: a job may write to the index of its destination, too.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).cast::<()>().addr()
    }

    /// A transaction of a collection: nothing is done if its lease is another's now. It is renewed.
    pub(super) fn write_fenced<T: Send + 'static>(
        &self,
        how: How,
        fence: Fence,
        work: impl Fn(&mut dyn Tx) -> Result<T, TxError> + Send + 'static,
    ) -> Result<T, IndexError> {
        #[cfg(test)]
        self.is_fenced(fence);
        self.write(how, move |tx| {
            work::renew(tx, fence)?;
            work(tx)
        })
    }
}
