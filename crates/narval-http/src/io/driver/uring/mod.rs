//! The completion back-end: io_uring on Linux 6.1 and later.
//!
//! One ring per shard, created and used on the shard's thread (`SINGLE_ISSUER`; `DEFER_TASKRUN`: completions are
//! processed when the shard waits, not at arbitrary times). Receives take a buffer from a ring of provided buffers only
//! when data has arrived, so an idle connection holds none. The data is copied out at once (requests are small), so the
//! buffer goes straight back to the kernel. An operation's memory and descriptor stay in [`InFlight`] until its
//! completion.
#![allow(unsafe_code)]

mod buffers;

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use nix::libc::{
    EAGAIN, EBUSY, EINTR, ENOBUFS, ETIME, MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, POLLIN, POLLOUT, SOCK_CLOEXEC,
    SOCK_NONBLOCK,
};

use self::buffers::{BUFFER_GROUP, ProvidedBuffers};
use super::table::Table;
use super::{AT_ONCE, Completion, Driver, Op, Token, lacks_resources};
use crate::io::clock::Millis;
use crate::io::out_buf::OutBuf;
use crate::io::socket::{Family, HasSocket, Socket};
use crate::io::wake_queue::WakeQueue;
use crate::limits::{RECEIVE_BUFFER, URING_ENTRIES, URING_PAUSE};

/// Completions of cancellations are ignored.
const IGNORED: u64 = u64::MAX;
/// A constant of <linux/io_uring.h> that the bindings lack.
const POLL_FIRST: u16 = 1;

/// The io_uring driver.
pub(crate) struct UringDriver<C, M> {
    ring: IoUring,
    buffers: ProvidedBuffers,
    mailbox: Arc<WakeQueue<M>>,
    /// Operations in flight. Their keys are their `user_data`.
    ops: Vec<Option<InFlight<C>>>,
    free: Vec<usize>,
    connections: Table<Entry<C>>,
    /// The accept operation of each listener.
    accepts: Vec<Option<usize>>,
    completed: VecDeque<(u64, i32, u32)>,
    scratch: Vec<Vec<u8>>,
    /// How much a receive takes at most.
    receive_max: usize,
    /// The error that disabled the ring.
    broken: Option<io::Error>,
}

struct Entry<C> {
    connection: Arc<C>,
    /// Its operations in flight: receive, send, writable.
    ops: [Option<usize>; 3],
}

/// An operation in flight, with everything that it refers to.
enum InFlight<C> {
    Wake,
    Accept { listener: usize, socket: Arc<Socket>, family: Family },
    Receive { token: Token, connection: Arc<C> },
    Send { token: Token, connection: Arc<C>, buf: OutBuf },
    Writable { token: Token, _connection: Arc<C> },
}

/// Received bytes, copied out of a provided buffer.
pub(crate) type Received = Vec<u8>;

/// Probes what the driver needs under this process's seccomp filters: a ring with all flags, provided buffers, and
/// receiving a byte through them.
///
/// # Errors
/// A line that says what does not work.
pub(crate) fn probe() -> Result<(), String> {
    let attempt = || -> io::Result<()> {
        let (mut ours, theirs) = UnixStream::pair()?;
        let mut driver = UringDriver::<Socket, ()>::new(WakeQueue::new()?)?;
        let fd = Fd(theirs.as_raw_fd());
        let receive = opcode::Recv::new(fd, std::ptr::null_mut(), 0).buf_group(BUFFER_GROUP).build();
        driver.push(&receive.flags(squeue::Flags::BUFFER_SELECT).user_data(IGNORED - 1));
        ours.write_all(b"x")?;
        let second = Timespec::new().sec(1);
        driver.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&second))?;
        driver.reap();
        let answer = driver.completed.iter().find(|(data, ..)| *data == IGNORED - 1).copied();
        let Some((_, result, flags)) = answer else { return Err(io::ErrorKind::TimedOut.into()) };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        let came = cqueue::buffer_select(flags).map(|id| driver.buffers.take(id, result as usize).to_vec());
        (came.as_deref() == Some(b"x")).then_some(()).ok_or_else(|| io::Error::other("a wrong byte was received"))?;
        let mut theirs = theirs;
        theirs.write_all(b"y")?;
        ours.read_exact(&mut [0])
    };
    // On a separate thread: when a ring is destroyed, the kernel interrupts system calls of the thread that created it.
    let tried = std::thread::scope(|scope| scope.spawn(attempt).join());
    tried.unwrap_or_else(|_| Err(io::Error::other("the probe panicked"))).map_err(|error| format!("io_uring: {error}"))
}

impl<C: HasSocket, M> UringDriver<C, M> {
    /// Makes a driver that `mailbox` wakes. It must be used on the thread that makes it.
    pub(crate) fn new(mailbox: Arc<WakeQueue<M>>) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_cqsize(4 * URING_ENTRIES)
            .build(URING_ENTRIES)?;
        if !ring.params().is_feature_ext_arg() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "no timeouts for waiting (IORING_FEAT_EXT_ARG)"));
        }
        let buffers = ProvidedBuffers::register(&ring)?;
        let mut driver = Self {
            ring,
            buffers,
            mailbox,
            ops: Vec::new(),
            free: Vec::new(),
            connections: Table::new(),
            accepts: Vec::new(),
            completed: VecDeque::new(),
            scratch: vec![Vec::with_capacity(RECEIVE_BUFFER)],
            receive_max: RECEIVE_BUFFER,
            broken: None,
        };
        driver.await_wake();
        Ok(driver)
    }

    /// Queues an operation, after submitting the queue if it is full.
    fn push(&mut self, entry: &squeue::Entry) {
        while self.broken.is_none() {
            // SAFETY: everything that the entry refers to, descriptors included, is owned by `InFlight` (or by this
            // driver) until its completion.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            // Submitting empties a full queue.
            let submitted = self.ring.submit().map(drop);
            self.reap();
            // If that fails, the next wait returns the error.
            self.broken = self.settle(submitted).err();
        }
    }

    /// Ignores the transient errors of io_uring_enter(2).
    fn settle(&self, entered: io::Result<()>) -> io::Result<()> {
        match entered.as_ref().map_err(io::Error::raw_os_error) {
            // The timeout expired, a signal arrived, or completions had to be taken first, which was done.
            Err(Some(ETIME | EINTR | EBUSY)) => Ok(()),
            Err(Some(EAGAIN)) => {
                // The kernel had no memory for an operation or no room for another completion. It will once others have
                // completed; retrying without a pause would keep a processor busy until then.
                if self.completed.is_empty() {
                    std::thread::sleep(URING_PAUSE);
                }
                Ok(())
            }
            _ => entered,
        }
    }

    /// Submits an operation that `make` builds from its `user_data`.
    fn start(&mut self, op: InFlight<C>, entry: squeue::Entry) -> usize {
        let place = self.free.pop().unwrap_or_else(|| {
            self.ops.push(None);
            self.ops.len() - 1
        });
        if let Some(slot) = self.ops.get_mut(place) {
            *slot = Some(op);
        }
        self.push(&entry.user_data(place as u64));
        place
    }

    fn await_wake(&mut self) {
        if let Some(fd) = self.mailbox.waker().fd().map(|fd| Fd(fd.as_raw_fd())) {
            // Multishot: each wake-up is a completion, and the counter is never read.
            self.start(InFlight::Wake, opcode::PollAdd::new(fd, POLLIN as u32).multi(true).build());
        }
    }

    fn accept_from(&mut self, listener: usize, socket: Arc<Socket>, family: Family) {
        if let Some(fd) = socket.fd().map(|fd| Fd(fd.as_raw_fd())) {
            let accept = opcode::AcceptMulti::new(fd).flags(SOCK_NONBLOCK | SOCK_CLOEXEC).build();
            let place = self.start(InFlight::Accept { listener, socket, family }, accept);
            if let Some(slot) = self.accepts.get_mut(listener) {
                *slot = Some(place);
            }
        }
    }

    fn start_on(&mut self, token: Token, kind: usize, make: impl FnOnce(Arc<C>, Fd) -> (InFlight<C>, squeue::Entry)) {
        let Some(connection) = self.connections.get_mut(token).map(|entry| entry.connection.clone()) else { return };
        let Some(fd) = connection.socket().fd().map(|fd| Fd(fd.as_raw_fd())) else { return };
        let (op, entry) = make(connection, fd);
        let place = self.start(op, entry);
        if let Some(slot) = self.connections.get_mut(token).and_then(|entry| entry.ops.get_mut(kind)) {
            *slot = Some(place);
        }
    }

    fn receive(&mut self, token: Token) {
        // The kernel takes the buffer's size if it is less.
        let most = u32::try_from(self.receive_max).unwrap_or(u32::MAX);
        self.start_on(token, 0, |connection, fd| {
            let receive =
                opcode::Recv::new(fd, std::ptr::null_mut(), most).buf_group(BUFFER_GROUP).ioprio(POLL_FIRST).build();
            (InFlight::Receive { token, connection }, receive.flags(squeue::Flags::BUFFER_SELECT))
        });
    }

    fn send(&mut self, token: Token, buf: OutBuf) {
        self.start_on(token, 1, |connection, fd| {
            let (bytes, more) = if buf.rest().is_empty() {
                (&buf.tail[..], 0)
            } else {
                (buf.rest(), i32::from(!buf.tail.is_empty()) * MSG_MORE)
            };
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            // The heap memory behind `buf` does not move when `buf` does.
            // Not `MSG_WAITALL`: the shard checks whether a client makes progress.
            let flags = MSG_DONTWAIT | MSG_NOSIGNAL | more;
            let send = opcode::Send::new(fd, bytes.as_ptr(), length).flags(flags).build();
            (InFlight::Send { token, connection, buf }, send)
        });
    }

    /// Translates a completion of the kernel.
    fn finish(&mut self, data: u64, result: i32, flags: u32) -> Option<Completion<Received>> {
        let place = usize::try_from(data).ok().filter(|place| *place < self.ops.len())?;
        if cqueue::more(flags) {
            return match self.ops.get(place)? {
                Some(InFlight::Accept { listener, family, .. }) => Some(accepted(*listener, *family, result)),
                _ => Some(Completion::Woken),
            };
        }
        let op = self.ops.get_mut(place)?.take()?;
        self.free.push(place);
        let error = (result < 0).then(|| io::Error::from_raw_os_error(-result));
        match op {
            InFlight::Wake => {
                self.await_wake();
                Some(Completion::Woken)
            }
            InFlight::Accept { listener, socket, family } => self.accept_ended(place, listener, socket, family, result),
            InFlight::Receive { token, connection } => self.received(token, &connection, result, flags, error),
            InFlight::Send { token, connection: _connection, mut buf } => {
                *self.connections.get_mut(token)?.ops.get_mut(1)? = None;
                let result = error.map_or_else(
                    || {
                        buf.advance(usize::try_from(result).unwrap_or_default());
                        Ok(())
                    },
                    Err,
                );
                Some(Completion::Sent { token, result, buf })
            }
            InFlight::Writable { token, .. } => {
                *self.connections.get_mut(token)?.ops.get_mut(2)? = None;
                Some(Completion::Writable { token })
            }
        }
    }

    /// A multishot accept has ended, as it does on every error. Only the one that was armed last is armed again, and
    /// not if the next attempt would fail at once, too: the shard then pauses the listener, and would arm a second one
    /// later.
    fn accept_ended(
        &mut self,
        place: usize,
        listener: usize,
        socket: Arc<Socket>,
        family: Family,
        result: i32,
    ) -> Option<Completion<Received>> {
        let armed = self.accepts.get_mut(listener).filter(|armed| **armed == Some(place));
        let is_armed = armed.map(Option::take).is_some();
        let completion = accepted(listener, family, result);
        match &completion {
            Completion::Accepted { result: Err(_), .. } if !is_armed => return None,
            Completion::Accepted { result: Err(error), .. } if lacks_resources(error) => {}
            _ if is_armed => self.accept_from(listener, socket, family),
            _ => {}
        }
        Some(completion)
    }

    fn received(
        &mut self,
        token: Token,
        _connection: &Arc<C>,
        result: i32,
        flags: u32,
        error: Option<io::Error>,
    ) -> Option<Completion<Received>> {
        let mut bytes = self.scratch.pop().unwrap_or_default();
        bytes.clear();
        if let Some(id) = cqueue::buffer_select(flags) {
            bytes.extend_from_slice(self.buffers.take(id, usize::try_from(result).unwrap_or_default()));
            self.buffers.give_back(id);
        }
        let Some(entry) = self.connections.get_mut(token) else {
            self.scratch.push(bytes);
            return None;
        };
        if let Some(op) = entry.ops.first_mut() {
            *op = None;
        }
        match error {
            Some(error) => {
                self.scratch.push(bytes);
                if result == -ENOBUFS {
                    // All buffers were in use at that moment; they are returned soon.
                    self.receive(token);
                    return None;
                }
                Some(Completion::Received { token, result: Err(error) })
            }
            None => Some(Completion::Received { token, result: Ok(bytes) }),
        }
    }

    fn cancel(&mut self, place: usize) {
        self.push(&opcode::AsyncCancel::new(place as u64).build().user_data(IGNORED));
    }
}

/// Multishot accepts return no addresses: the socket is asked for its peer's, unless the listener's family suffices.
fn accepted(listener: usize, family: Family, result: i32) -> Completion<Received> {
    if result < 0 {
        return Completion::Accepted { listener, result: Err(io::Error::from_raw_os_error(-result)) };
    }
    // SAFETY: the kernel has just created this descriptor for us, and nobody else knows it.
    let fd = unsafe { OwnedFd::from_raw_fd(result as RawFd) };
    let result = family.peer_of(&fd).map(|peer| (Socket::Os(fd), peer));
    Completion::Accepted { listener, result }
}

impl<C: HasSocket, M> Driver<C> for UringDriver<C, M> {
    type Buffer = Received;

    fn listen(&mut self, listener: usize, socket: Arc<Socket>) -> io::Result<()> {
        if self.accepts.len() <= listener {
            self.accepts.resize(listener + 1, None);
        }
        if self.accepts.get(listener).is_some_and(Option::is_none) {
            let family = socket.fd().map_or(Ok(Family::Unix), Family::of)?;
            self.accept_from(listener, socket, family);
        }
        Ok(())
    }

    fn unlisten(&mut self, listener: usize) {
        if let Some(place) = self.accepts.get_mut(listener).and_then(Option::take) {
            self.cancel(place);
        }
    }

    fn attach(&mut self, token: Token, connection: Arc<C>) -> io::Result<()> {
        self.connections.insert(token, Entry { connection, ops: [None; 3] });
        Ok(())
    }

    fn detach(&mut self, token: Token) {
        let Some(entry) = self.connections.remove(token) else { return };
        for place in entry.ops.into_iter().flatten() {
            self.cancel(place);
        }
    }

    #[inline(always)]
    fn receive_at_most(&mut self, bytes: usize) {
        self.receive_max = bytes;
    }

    fn submit(&mut self, op: Op) -> Option<Completion<Received>> {
        match op {
            Op::Receive(token) => self.receive(token),
            Op::Send(token, buf) => self.send(token, buf),
            // Requested again: it is already in flight.
            Op::AwaitWritable(token) if self.connections.get_mut(token).is_some_and(|entry| entry.ops[2].is_some()) => {
            }
            Op::AwaitWritable(token) => self.start_on(token, 2, |connection, fd| {
                let poll = opcode::PollAdd::new(fd, POLLOUT as u32).build();
                (InFlight::Writable { token, _connection: connection }, poll)
            }),
        }
        None
    }

    fn wait(&mut self, now: Millis, until: Option<Millis>) -> io::Result<()> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        let may_sleep = self.mailbox.may_sleep();
        let timeout = if may_sleep && self.completed.is_empty() && until != Some(AT_ONCE) {
            until.map(|until| Duration::from_millis(until.saturating_sub(now).max(1)))
        } else {
            Some(Duration::ZERO)
        };
        let waited = match timeout {
            Some(timeout) => {
                let timeout = Timespec::from(timeout);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timeout))
            }
            None => self.ring.submit_and_wait(1),
        };
        self.mailbox.awake();
        self.reap();
        self.settle(waited.map(drop))
    }

    fn next(&mut self) -> Option<Completion<Received>> {
        loop {
            let (data, result, flags) = self.completed.pop_front()?;
            if let Some(completion) = self.finish(data, result, flags) {
                return Some(completion);
            }
        }
    }

    fn recycle(&mut self, buffer: Received) {
        if self.scratch.is_empty() {
            self.scratch.push(buffer);
        }
    }
}

impl<C, M> UringDriver<C, M> {
    /// Takes all completions out of the ring.
    fn reap(&mut self) {
        for entry in self.ring.completion() {
            self.completed.push_back((entry.user_data(), entry.result(), entry.flags()));
        }
    }
}

impl<C, M> Drop for UringDriver<C, M> {
    fn drop(&mut self) {
        // The kernel must not write to freed memory: all operations are cancelled and awaited.
        let second = Timespec::new().sec(1);
        let cancelled = self.ring.submitter().register_sync_cancel(Some(second), CancelBuilder::any());
        for _ in 0..100 {
            let moment = Timespec::new().nsec(10_000_000);
            // The timeout ends this at the latest.
            drop(self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&moment)));
            self.reap();
            while let Some((data, result, flags)) = self.completed.pop_front() {
                let Some(op) = usize::try_from(data).ok().and_then(|place| self.ops.get_mut(place)) else { continue };
                if let Some(InFlight::Accept { listener, family, .. }) = op {
                    // Closes a connection that nobody gets.
                    drop(accepted(*listener, *family, result));
                }
                if !cqueue::more(flags) {
                    *op = None;
                }
            }
            if self.ops.iter().all(Option::is_none) {
                return;
            }
        }
        tracing::debug!(?cancelled, "operations of a ring did not end: their memory is leaked");
        self.buffers.leak();
        for op in self.ops.drain(..) {
            std::mem::forget(op);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// A client of a descriptor that leaks waits for ever.
    #[test]
    fn connections_that_were_accepted_when_the_driver_ends_are_closed() {
        if let Err(why) = probe() {
            println!("skipped: {why}");
            return;
        }
        for round in 0..8 {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let mut driver = UringDriver::<Socket, ()>::new(WakeQueue::new().unwrap()).unwrap();
            driver.listen(0, Arc::new(Socket::Os(listener.into()))).unwrap();
            let mut clients: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
            // Some are only in the ring, some reaped, and one is taken.
            if round % 2 == 0 {
                driver.wait(0, Some(1000)).unwrap();
                assert!(matches!(driver.next(), Some(Completion::Accepted { result: Ok(_), .. })));
            } else {
                driver.ring.submit().unwrap();
            }
            drop(driver);
            for client in &mut clients {
                client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                let read = client.read(&mut [0]);
                assert!(!read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock), "{read:?}");
            }
        }
    }
}
