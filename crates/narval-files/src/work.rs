//! How far long work is, and whether it shall stop.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

/// How long the machine has been running or suspended. It also passes while this process is stopped.
pub fn uptime() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    // Neither is negative, and there are less than 10^9 nanoseconds.
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Does something that may take longer than a lease, and calls `renew` on a thread every so often meanwhile.
pub fn renewed<T>(every: Duration, mut renew: impl FnMut() + Send, work: impl FnOnce() -> T) -> T {
    let (end, ended) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                renew();
            }
        });
        let done = work();
        drop(end);
        done
    })
}

/// Counters of work that may take hours. Its threads add to them, a display reads them, and a signal asks the work to stop.
///
/// The work is done in steps, each of which knows how much there is to do.
#[derive(Debug, Default)]
pub struct Work {
    step: Mutex<Step>,
    things_done: AtomicU64,
    bytes_done: AtomicU64,
    stop: AtomicBool,
    /// The uptime in milliseconds at which it shall stop; 0 if that is not known.
    end: AtomicU64,
}

/// One step of the work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Step {
    /// What is done, such as `verifying`; empty before the first step.
    pub name: &'static str,
    /// To what, in the plural: `NARs`.
    pub things: &'static str,
    /// The number of these.
    pub count: u64,
    /// Their bytes; 0 if they are not read, or not known.
    pub bytes: u64,
    /// How many steps began before.
    pub number: u32,
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Done {
    /// The current step.
    pub step: Step,
    /// How many of its things are done.
    pub count: u64,
    /// How many of its bytes.
    pub bytes: u64,
}

impl Work {
    /// Work that has not begun.
    pub const fn new() -> Self {
        let step = Step { name: "", things: "", count: 0, bytes: 0, number: 0 };
        let (things_done, bytes_done) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { step: Mutex::new(step), things_done, bytes_done, stop: AtomicBool::new(false), end: AtomicU64::new(0) }
    }

    /// For work that nobody watches or stops.
    pub fn unwatched() -> &'static Self {
        static UNWATCHED: Work = Work::new();
        &UNWATCHED
    }

    /// Begins a step.
    pub fn begin(&self, name: &'static str, things: &'static str, count: u64, bytes: u64) {
        let mut step = self.step.lock();
        *step = Step { name, things, count, bytes, number: step.number.wrapping_add(1) };
        self.things_done.store(0, Ordering::Relaxed);
        self.bytes_done.store(0, Ordering::Relaxed);
    }

    /// Counts things that are done.
    pub fn count(&self, things: u64) {
        self.things_done.fetch_add(things, Ordering::Relaxed);
    }

    /// Counts bytes.
    pub fn count_bytes(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
    }

    /// How far it is.
    pub fn done(&self) -> Done {
        let step = self.step.lock();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Done { step: *step, count: read(&self.things_done), bytes: read(&self.bytes_done) }
    }

    /// Asks the work to stop.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Asks it to stop at this [`uptime`], unless this is called again before: for work that is nobody's any more when this process was paused.
    pub fn stop_at(&self, uptime: Duration) {
        self.end.store(u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Whether it shall stop.
    pub fn is_stopped(&self) -> bool {
        let end = self.end.load(Ordering::Relaxed);
        self.stop.load(Ordering::Relaxed) || (end > 0 && uptime().as_millis() >= u128::from(end))
    }

    /// Fails if the work shall stop.
    ///
    /// # Errors
    /// "interrupted". Not [`io::ErrorKind::Interrupted`], after which readers try again.
    pub fn check(&self) -> io::Result<()> {
        if self.is_stopped() { Err(io::Error::other("interrupted")) } else { Ok(()) }
    }

    /// A reader that counts bytes, and fails if the work shall stop.
    pub const fn reading<R: Read>(&self, reader: R) -> Reading<'_, R> {
        Reading { reader, work: self }
    }
}

/// See [`Work::reading`].
#[derive(Debug)]
pub struct Reading<'a, R> {
    reader: R,
    work: &'a Work,
}

impl<R: Read> Read for Reading<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.work.check()?;
        let len = self.reader.read(buffer)?;
        self.work.count_bytes(len as u64);
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stops_at_its_end_unless_that_is_moved() {
        let work = Work::new();
        work.stop_at(uptime() + Duration::from_secs(60));
        assert!(!work.is_stopped());
        work.stop_at(uptime());
        assert!(work.check().is_err());
        work.stop_at(uptime() + Duration::from_secs(60));
        assert!(work.check().is_ok());
    }

    #[test]
    fn a_reader_counts_until_the_work_is_stopped() {
        let work = Work::new();
        work.begin("verifying", "NARs", 1, 6);
        let mut reader = work.reading(&b"abcdef"[..]);
        reader.read_exact(&mut [0; 4]).unwrap();
        assert_eq!(work.done().bytes, 4);
        work.stop();
        assert!(reader.read_to_end(&mut Vec::new()).is_err());
        work.begin("checking", "narinfos", 3, 0);
        work.count(2);
        let step = Step { name: "checking", things: "narinfos", count: 3, bytes: 0, number: 2 };
        assert_eq!(work.done(), Done { step, count: 2, bytes: 0 });
    }
}
