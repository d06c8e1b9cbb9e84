//! The measuring client on many connections: one thread, epoll. Each connection takes the next
//! request of a common list as soon as its last one is answered.

use std::io::{self, Write};
use std::net::TcpStream;
use std::time::Instant;

use rustix::event::epoll;
use rustix::net::{RecvFlags, recv};

use crate::client::{BaseUrl, Connection, Request, discard};
use crate::response::ResponseReader;
use crate::tls::TlsClient;
use crate::{Context, Result, failure};

/// The buffer of one `recv`: smaller than for a single connection, so that it stays in the processor's cache.
const RECV_BYTES: usize = 64 * 1024;
const EVENTS_MAX: usize = 256;
const DISCARD_BYTES_MIN: u64 = 32 * 1024;

/// The result of a load.
#[derive(Debug, Default)]
pub struct Done {
    /// From the first byte sent to the last one read. Includes connecting only with
    /// `Connection: close`.
    pub wall_ns: u64,
    /// Answered requests.
    pub requests: u64,
    /// Bytes of bodies.
    pub bytes: u64,
    /// The time of each request, if there was only one connection.
    pub latencies_ns: Vec<u64>,
    /// The connections, still open: a server with a thread for each would otherwise lose its processor time.
    pub connections: Vec<TcpStream>,
}

/// The parameters of a load.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Concurrent connections.
    pub connections: usize,
    /// How often the list of requests is repeated.
    pub passes: usize,
    /// Use a new connection for each request.
    pub close: bool,
}

impl Load {
    /// Sends all requests, and waits for their responses.
    ///
    /// # Errors
    /// On the first unexpected response.
    pub fn run(&self, base: &BaseUrl, requests: &[Request]) -> Result<Done> {
        self.run_from(base, requests, || ())
    }

    /// Like [`Load::run`]; `ready` is called when all connections are open and the first request is about to be sent. With
    /// `Connection: close` it is called at once.
    ///
    /// # Errors
    /// As [`Load::run`].
    pub fn run_from(&self, base: &BaseUrl, requests: &[Request], ready: impl FnOnce()) -> Result<Done> {
        if self.connections == 1 && !self.close && !base.secure {
            self.sequential(base, requests, ready)
        } else {
            self.parallel(base, requests, ready)
        }
    }

    fn sequential(&self, base: &BaseUrl, requests: &[Request], ready: impl FnOnce()) -> Result<Done> {
        let mut connection = Connection::open(base)?;
        ready();
        let mut done = Done { latencies_ns: Vec::with_capacity(self.passes * requests.len()), ..Done::default() };
        let started = Instant::now();
        let mut asked = started;
        for request in (0..self.passes).flat_map(|_| requests) {
            let response = connection.ask(request)?;
            let answered = Instant::now();
            done.latencies_ns.push(nanoseconds(answered - asked));
            asked = answered;
            done.requests += 1;
            done.bytes += response.body_bytes;
        }
        done.wall_ns = nanoseconds(started.elapsed());
        done.connections.push(connection.into_stream());
        Ok(done)
    }

    fn parallel(&self, base: &BaseUrl, requests: &[Request], ready: impl FnOnce()) -> Result<Done> {
        let mut todo = (0..self.passes).flat_map(|_| requests);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context(|| "epoll_create1".to_owned())?;
        let mut done = Done::default();
        let mut buffer = vec![0; RECV_BYTES];
        let mut started = Instant::now();
        let mut connections = Vec::with_capacity(self.connections);
        let mut ready = Some(ready);
        if self.close
            && let Some(ready) = ready.take()
        {
            ready();
        }
        for slot in 0..self.connections {
            connections.push(Busy::open(base, &epoll, slot)?);
        }
        if let Some(ready) = ready {
            ready();
            started = Instant::now();
        }
        let mut busy = 0;
        for connection in &mut connections {
            if let Some(request) = todo.next() {
                connection.send(request)?;
                busy += 1;
            }
        }
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while busy > 0 {
            match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failure!("epoll_wait: {error}")),
            }
            for event in events.drain(..) {
                let slot = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                let Some(connection) = connections.get_mut(slot) else { continue };
                let Some(request) = connection.request else { continue };
                if !connection.read(&mut buffer).context(|| format!("GET {}", request.target))? {
                    continue;
                }
                request.check(&connection.response)?;
                done.requests += 1;
                done.bytes += connection.response.body_bytes;
                connection.request = None;
                let Some(next) = todo.next() else {
                    busy -= 1;
                    continue;
                };
                if self.close || connection.response.closes {
                    *connection = Busy::open(base, &epoll, slot)?;
                }
                connection.send(next)?;
            }
        }
        done.wall_ns = nanoseconds(started.elapsed());
        done.connections.extend(connections.into_iter().map(|connection| connection.stream));
        Ok(done)
    }
}

/// A connection and its pending request.
struct Busy<'a> {
    stream: TcpStream,
    tls: Option<Box<TlsClient>>,
    request: Option<&'a Request>,
    response: ResponseReader,
}

impl<'a> Busy<'a> {
    fn open(base: &BaseUrl, epoll: &impl std::os::fd::AsFd, slot: usize) -> Result<Busy<'a>> {
        let stream = TcpStream::connect(base.address).context(|| format!("cannot connect to {}", base.address))?;
        stream.set_nodelay(true).context(|| "TCP_NODELAY".to_owned())?;
        let tls = if base.secure { Some(Box::new(TlsClient::open(&stream)?)) } else { None };
        stream.set_nonblocking(true).context(|| "O_NONBLOCK".to_owned())?;
        epoll::add(epoll, &stream, epoll::EventData::new_u64(slot as u64), epoll::EventFlags::IN)
            .context(|| "epoll_ctl".to_owned())?;
        Ok(Busy { stream, tls, request: None, response: ResponseReader::default() })
    }

    /// A request head is far smaller than an empty socket buffer, so it goes out whole.
    fn send(&mut self, request: &'a Request) -> Result<()> {
        let sent = match &mut self.tls {
            Some(tls) => tls.send(&mut self.stream, &request.bytes),
            None => self.stream.write_all(&request.bytes),
        };
        sent.context(|| format!("GET {}", request.target))?;
        self.request = Some(request);
        self.response = ResponseReader::default();
        Ok(())
    }

    /// Reads once, and returns whether the response is complete.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let response = &mut self.response;
        if let Some(tls) = &mut self.tls {
            return tls.read(&self.stream, buffer, response);
        }
        if response.discardable() >= DISCARD_BYTES_MIN {
            return match discard(&self.stream, buffer, response) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
                result => result.map(|()| response.done()),
            };
        }
        let count = match recv(&self.stream, &mut *buffer, RecvFlags::empty()) {
            Err(rustix::io::Errno::AGAIN) => return Ok(false),
            result => result?.0,
        };
        if count == 0 {
            return if response.complete_at_end_of_stream() {
                Ok(true)
            } else {
                Err(io::ErrorKind::UnexpectedEof.into())
            };
        }
        response.feed(buffer.get(..count).unwrap_or_default(), None).map_err(io::Error::other)?;
        Ok(response.done())
    }
}

/// A duration in whole nanoseconds.
pub fn nanoseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
