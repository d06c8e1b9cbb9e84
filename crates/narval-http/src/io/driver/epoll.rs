//! The readiness back-end: every descriptor is registered once, edge-triggered, for its whole life. EPOLLOUT is added on
//! first use. EPOLLIN is taken away while more comes than anybody wants to receive here.

use std::collections::VecDeque;
use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use super::table::Table;
use super::{AT_ONCE, Completion, Driver, Op, Token};
use crate::io::clock::Millis;
use crate::io::out_buf::OutBuf;
use crate::io::socket::{HasSocket, Socket};
use crate::io::wake_queue::WakeQueue;
use crate::limits::{ACCEPTS_PER_EVENT, EVENTS_PER_POLL, RECEIVE_BUFFER};

/// Event data of the mailbox's eventfd. No connection has this generation.
const WAKE: u64 = u64::MAX;
/// Event data of the timer.
const TIMER: u64 = u64::MAX - 1;
/// Event data of listener `n` is this plus `n`.
const LISTENERS: u64 = (u32::MAX as u64) << 32;

/// The epoll driver.
pub(crate) struct EpollDriver<C, M> {
    epoll: OwnedFd,
    mailbox: Arc<WakeQueue<M>>,
    /// The timer that ends a wait. It is set again only for an earlier deadline, whereas the kernel would set and
    /// cancel the timeout of epoll_wait itself on every call.
    timer: OwnedFd,
    /// When it expires.
    timer_set: Option<Millis>,
    events: Vec<Event>,
    /// The index of the first event that has not been handled.
    next_event: usize,
    connections: Table<Entry<C>>,
    listeners: Vec<Option<Arc<Socket>>>,
    /// A listener with more to accept, and how many connections it may accept before others have their turn.
    accepting: Option<(usize, usize)>,
    /// The current batch size. An accept that finds nothing costs about half as much as one that succeeds, and the next
    /// wait reports further connections anyway. So this starts at one, and doubles while consecutive waits report
    /// connections.
    accepts_per_event: usize,
    /// The number of waits so far.
    waits: u64,
    /// The last wait that reported connections to accept.
    accepts_told: u64,
    /// Connections to receive from that were already readable when the receive was submitted.
    readable: VecDeque<Token>,
    /// How many of them are served before the next wait. Without this limit, a client whose socket is always readable
    /// would starve all others.
    readable_left: usize,
    /// Connections that were already writable; they are reported after the next wait, for the same reason.
    writable: Vec<Token>,
    done: VecDeque<Completion<ScratchBuffer>>,
    scratch: Vec<Vec<u8>>,
    /// How much of one a receive fills at most.
    receive_max: usize,
}

struct Entry<C> {
    connection: Arc<C>,
    /// There may be data to receive.
    is_readable: bool,
    /// The peer has shut down its side, or the connection failed: data up to the end can be received without further
    /// edges.
    has_ended: bool,
    receive_wanted: bool,
    writable_wanted: bool,
    /// EPOLLOUT is registered. It is not registered from the start: a new connection is writable, which would cause an
    /// event that nobody waits for.
    tells_writable: bool,
    /// EPOLLIN is not registered: data came twice that nobody wanted to receive. It is a request body that its handler
    /// receives itself, or one that has to wait for it; each further packet would wake the shard for nothing.
    is_muted: bool,
}

/// The events registered for every connection.
const READABLE: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

impl<C> Entry<C> {
    fn new(connection: Arc<C>) -> Self {
        Self {
            connection,
            is_readable: false,
            has_ended: false,
            receive_wanted: false,
            writable_wanted: false,
            tells_writable: false,
            is_muted: false,
        }
    }

    /// The events to be registered.
    fn interest(&self) -> EventFlags {
        let events = if self.is_muted { READABLE.difference(EventFlags::IN) } else { READABLE };
        if self.tells_writable { events | EventFlags::OUT } else { events }
    }
}

/// Received bytes, in a buffer that the driver reuses.
pub(crate) struct ScratchBuffer {
    bytes: Vec<u8>,
    length: usize,
}

impl Deref for ScratchBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl<C: HasSocket, M> EpollDriver<C, M> {
    /// Makes a driver that `mailbox` wakes.
    pub(crate) fn new(mailbox: Arc<WakeQueue<M>>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        if let Some(fd) = mailbox.waker().fd() {
            // Edge-triggered: each wake-up is one event, and the counter is never read.
            epoll::add(&epoll, fd, EventData::new_u64(WAKE), EventFlags::IN | EventFlags::ET)?;
        }
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN | EventFlags::ET)?;
        Ok(Self {
            epoll,
            mailbox,
            timer,
            timer_set: None,
            events: Vec::with_capacity(EVENTS_PER_POLL),
            next_event: 0,
            connections: Table::new(),
            listeners: Vec::new(),
            accepting: None,
            accepts_per_event: 1,
            waits: 0,
            accepts_told: 0,
            readable: VecDeque::new(),
            readable_left: 0,
            writable: Vec::new(),
            done: VecDeque::new(),
            scratch: vec![vec![0; RECEIVE_BUFFER]],
            receive_max: RECEIVE_BUFFER,
        })
    }

    #[inline(always)]
    fn receive(&mut self, token: Token) -> Option<Completion<ScratchBuffer>> {
        let receive_max = self.receive_max;
        let mut bytes = self.scratch.pop().unwrap_or_else(|| vec![0; RECEIVE_BUFFER]);
        let Some(entry) = self.connections.get_mut(token).filter(|entry| entry.receive_wanted) else {
            self.scratch.push(bytes);
            return None;
        };
        let receive_max = receive_max.min(bytes.len());
        let received = entry.connection.socket().receive(bytes.get_mut(..receive_max).unwrap_or_default());
        let result = match received {
            Ok(length) => {
                // A short read has drained a stream socket: later data makes a new edge (epoll(7)).
                entry.is_readable = length == receive_max || length == 0 || entry.has_ended;
                entry.receive_wanted = false;
                Ok(ScratchBuffer { bytes, length })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                entry.is_readable = false;
                self.scratch.push(bytes);
                return None;
            }
            Err(error) => {
                entry.receive_wanted = false;
                self.scratch.push(bytes);
                Err(error)
            }
        };
        Some(Completion::Received { token, result })
    }

    /// Registers the events of a connection anew. Those that are there already are reported again.
    fn register(&self, token: Token) -> io::Result<()> {
        if let Some(entry) = self.connections.get(token)
            && let Some(fd) = entry.connection.socket().fd()
        {
            epoll::modify(&self.epoll, fd, EventData::new_u64(token.to_u64()), entry.interest())?;
        }
        Ok(())
    }

    /// Registers EPOLLIN, or takes it away. A descriptor that is registered already is refused nothing.
    #[cold]
    fn mute(&mut self, token: Token, is_muted: bool) {
        if let Some(entry) = self.connections.get_mut(token) {
            entry.is_muted = is_muted;
        }
        if let Err(error) = self.register(token) {
            tracing::error!(%error, "epoll_ctl");
        }
    }

    /// Makes the wait end at `until` or earlier.
    fn set_timer(&mut self, now: Millis, until: Millis) -> io::Result<()> {
        if self.timer_set.is_some_and(|set| set <= until) {
            return Ok(());
        }
        let after = Duration::from_millis(until.saturating_sub(now).max(1));
        let it_value = Timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(after.subsec_nanos()),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        self.timer_set = Some(until);
        Ok(())
    }

    #[inline(always)]
    fn on_event(&mut self, event: Event) -> Option<Completion<ScratchBuffer>> {
        let data = event.data.u64();
        if data == WAKE {
            return Some(Completion::Woken);
        }
        if data == TIMER {
            self.timer_set = None;
            return None;
        }
        if data >= LISTENERS {
            let in_a_row = self.accepts_told + 1 >= self.waits;
            self.accepts_per_event = if in_a_row { (2 * self.accepts_per_event).min(ACCEPTS_PER_EVENT) } else { 1 };
            self.accepts_told = self.waits;
            self.accepting = Some(((data - LISTENERS) as usize, self.accepts_per_event));
            return None;
        }
        let token = Token::from_u64(data);
        let flags = event.flags;
        let broken = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        let entry = self.connections.get_mut(token)?;
        if (broken || flags.contains(EventFlags::OUT)) && std::mem::take(&mut entry.writable_wanted) {
            self.done.push_back(Completion::Writable { token });
        }
        if !broken && !flags.intersects(EventFlags::IN | EventFlags::RDHUP) {
            return None;
        }
        let entry = self.connections.get_mut(token)?;
        let was_readable = std::mem::replace(&mut entry.is_readable, true);
        entry.has_ended |= broken || flags.contains(EventFlags::RDHUP);
        if was_readable && !entry.receive_wanted && !entry.has_ended {
            self.mute(token, true);
            return None;
        }
        self.receive(token)
    }

    fn accept(&mut self, listener: usize, left: usize) -> Option<Completion<ScratchBuffer>> {
        let socket = self.listeners.get(listener)?.as_ref()?;
        let result = socket.accept();
        match &result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.accepts_per_event = 1;
                return None;
            }
            // More may be pending, but listeners are level-triggered: they cause the next event.
            _ if left <= 1 => {}
            _ => self.accepting = Some((listener, left - 1)),
        }
        Some(Completion::Accepted { listener, result })
    }
}

impl<C: HasSocket, M> Driver<C> for EpollDriver<C, M> {
    type Buffer = ScratchBuffer;

    fn listen(&mut self, listener: usize, socket: Arc<Socket>) -> io::Result<()> {
        if let Some(fd) = socket.fd() {
            epoll::add(&self.epoll, fd, EventData::new_u64(LISTENERS + listener as u64), EventFlags::IN)?;
        }
        if self.listeners.len() <= listener {
            self.listeners.resize(listener + 1, None);
        }
        if let Some(place) = self.listeners.get_mut(listener) {
            *place = Some(socket);
        }
        Ok(())
    }

    fn unlisten(&mut self, listener: usize) {
        if let Some(socket) = self.listeners.get_mut(listener).and_then(Option::take)
            && let Some(fd) = socket.fd()
        {
            // This can only fail for a descriptor that is not registered, and then there is nothing to do.
            let _ = epoll::delete(&self.epoll, fd);
        }
    }

    fn attach(&mut self, token: Token, connection: Arc<C>) -> io::Result<()> {
        if let Some(fd) = connection.socket().fd() {
            epoll::add(&self.epoll, fd, EventData::new_u64(token.to_u64()), READABLE)?;
        }
        self.connections.insert(token, Entry::new(connection));
        Ok(())
    }

    fn detach(&mut self, token: Token) {
        // The registration ends with the last reference to the descriptor; events until then find no entry.
        self.connections.remove(token);
    }

    #[inline(always)]
    fn receive_at_most(&mut self, bytes: usize) {
        self.receive_max = bytes;
    }

    fn submit(&mut self, op: Op) -> Option<Completion<ScratchBuffer>> {
        match op {
            Op::Receive(token) => {
                let entry = self.connections.get_mut(token)?;
                entry.receive_wanted = true;
                let is_muted = entry.is_muted;
                if entry.is_readable {
                    self.readable.push_back(token);
                }
                if is_muted {
                    // Before it is tried: what comes after that causes an event.
                    self.mute(token, false);
                }
                None
            }
            Op::Send(token, mut buf) => {
                let result = self.send_now(token, &mut buf)?;
                Some(Completion::Sent { token, result, buf })
            }
            Op::AwaitWritable(token) => {
                let entry = self.connections.get_mut(token)?;
                if !std::mem::replace(&mut entry.tells_writable, true) {
                    entry.writable_wanted = true;
                    if self.register(token).is_err() {
                        // A descriptor that cannot be watched is reported as writable: the send will return the error.
                        self.writable.push(token);
                    }
                    return None;
                }
                // The edge may have occurred before the request. poll(2) finds out, and arms the next edge if the
                // socket is full.
                if entry.connection.socket().is_writable() {
                    self.writable.push(token);
                } else {
                    entry.writable_wanted = true;
                }
                None
            }
        }
    }

    #[inline(always)]
    fn send_now(&mut self, token: Token, buf: &mut OutBuf) -> Option<io::Result<()>> {
        Some(self.connections.get_mut(token)?.connection.socket().send_buf(buf).map(drop))
    }

    #[inline(always)]
    fn wait(&mut self, now: Millis, until: Option<Millis>) -> io::Result<()> {
        debug_assert!(self.next_event >= self.events.len(), "wait before all completions were taken");
        let has_more = !self.readable.is_empty() || !self.writable.is_empty() || self.accepting.is_some();
        let is_idle = !has_more && until != Some(AT_ONCE);
        self.waits += 1;
        self.readable_left = self.readable.len();
        if !self.writable.is_empty() {
            self.done.extend(self.writable.drain(..).map(|token| Completion::Writable { token }));
        }
        if let Some(until) = until.filter(|_| is_idle) {
            self.set_timer(now, until)?;
        }
        let may_sleep = self.mailbox.may_sleep();
        let timeout = if is_idle && may_sleep { None } else { Some(Timespec { tv_sec: 0, tv_nsec: 0 }) };
        self.events.clear();
        self.next_event = 0;
        let waited = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout.as_ref());
        self.mailbox.awake();
        match waited {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn has_more(&self) -> bool {
        self.events.len() >= EVENTS_PER_POLL || !self.readable.is_empty() || self.accepting.is_some()
    }

    #[inline(always)]
    fn next(&mut self) -> Option<Completion<ScratchBuffer>> {
        loop {
            if let Some(completion) = self.done.pop_front() {
                return Some(completion);
            }
            if let Some((listener, left)) = self.accepting.take() {
                if let Some(accepted) = self.accept(listener, left) {
                    return Some(accepted);
                }
            } else if let Some(event) = self.events.get(self.next_event) {
                let event = *event;
                self.next_event += 1;
                if let Some(completion) = self.on_event(event) {
                    return Some(completion);
                }
            } else {
                self.readable_left = self.readable_left.checked_sub(1)?;
                let token = self.readable.pop_front()?;
                if let Some(received) = self.receive(token) {
                    return Some(received);
                }
            }
        }
    }

    fn recycle(&mut self, buffer: ScratchBuffer) {
        if self.scratch.is_empty() {
            self.scratch.push(buffer.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    const TOKEN: Token = Token { index: 0, generation: 1 };

    struct Lab {
        driver: EpollDriver<Socket, ()>,
        client: UnixStream,
        now: Millis,
    }

    impl Lab {
        fn new() -> Self {
            let (client, server) = UnixStream::pair().unwrap();
            server.set_nonblocking(true).unwrap();
            let mut driver = EpollDriver::new(WakeQueue::new().unwrap()).unwrap();
            driver.attach(TOKEN, Arc::new(Socket::Os(server.into()))).unwrap();
            Self { driver, client, now: 0 }
        }

        /// Waits for 50 ms at most; whether the connection caused an event, and what was received.
        fn wait(&mut self) -> (bool, Option<Vec<u8>>) {
            self.driver.wait(self.now, Some(self.now + 50)).unwrap();
            self.now += 50;
            let woken = self.driver.events.iter().any(|event| event.data.u64() == TOKEN.to_u64());
            let mut received = None;
            while let Some(completion) = self.driver.next() {
                if let Completion::Received { result, .. } = completion {
                    received = Some(result.unwrap().to_vec());
                }
            }
            (woken, received)
        }
    }

    #[test]
    fn data_that_nobody_wants_wakes_twice() {
        let mut lab = Lab::new();
        let mut woken = 0;
        for _ in 0..5 {
            lab.client.write_all(b"x").unwrap();
            woken += u32::from(lab.wait().0);
        }
        assert_eq!(woken, 2);
        // All of it is there when it is wanted, and what comes then is reported.
        for _ in 0..3 {
            lab.driver.submit(Op::Receive(TOKEN));
            assert_eq!(lab.wait().1.unwrap(), b"xxxxx");
            lab.driver.submit(Op::Receive(TOKEN));
            assert_eq!(lab.wait().1, None);
            lab.client.write_all(b"y").unwrap();
            assert_eq!(lab.wait(), (true, Some(b"y".to_vec())));
            for _ in 0..5 {
                lab.client.write_all(b"x").unwrap();
                lab.wait();
            }
        }
    }

    #[test]
    fn the_end_is_reported_all_the_same() {
        let mut lab = Lab::new();
        for _ in 0..3 {
            lab.client.write_all(b"x").unwrap();
            lab.wait();
        }
        lab.client.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(lab.wait().0);
        for expected in [&b"xxx"[..], b""] {
            lab.driver.submit(Op::Receive(TOKEN));
            assert_eq!(lab.wait().1.unwrap(), expected);
        }
    }
}
