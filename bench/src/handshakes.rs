//! TLS handshakes, full and resumed, by a few concurrent clients. Each performs one handshake after the other.

use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustls::client::Resumption;
use rustls::{ClientConfig, HandshakeKind, SupportedProtocolVersion};

use crate::client::BaseUrl;
use crate::load::{Done, nanoseconds};
use crate::tls::{client, client_config};
use crate::{Context, Result, failure};

/// Tickets that a client keeps. A server sends a few with each handshake, and each is used once.
const SESSIONS: usize = 16;
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Parameters of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Handshakes {
    /// TLS 1.2 or 1.3.
    pub version: &'static SupportedProtocolVersion,
    /// Resume with the tickets of earlier handshakes.
    pub resumed: bool,
    /// Number of handshakes.
    pub count: usize,
    /// Number of concurrent clients.
    pub clients: usize,
}

impl Handshakes {
    /// Performs the handshakes. `ready` is called before the first one that counts.
    ///
    /// # Errors
    /// If one fails, or is not resumed although it should be.
    pub fn run(&self, base: &BaseUrl, ready: impl FnOnce()) -> Result<Done> {
        let resumption =
            || if self.resumed { Resumption::in_memory_sessions(SESSIONS) } else { Resumption::disabled() };
        let configs = (0..self.clients).map(|_| client_config(&[self.version], resumption()));
        let configs = configs.collect::<Result<Vec<_>>>()?;
        if self.resumed {
            // the first handshake of each client only collects tickets
            configs.iter().try_for_each(|config| once(base, config, None))?;
        }
        ready();
        let wanted = if self.resumed { HandshakeKind::Resumed } else { HandshakeKind::Full };
        let each = self.count / self.clients.max(1);
        let started = Instant::now();
        thread::scope(|scope| {
            let clients = configs
                .iter()
                .map(|config| scope.spawn(move || (0..each).try_for_each(|_| once(base, config, Some(wanted)))));
            let clients = clients.collect::<Vec<_>>();
            clients.into_iter().try_for_each(|client| match client.join() {
                Ok(result) => result,
                Err(_) => Err(failure!("a client's thread ended")),
            })
        })?;
        let requests = (each * self.clients) as u64;
        Ok(Done { wall_ns: nanoseconds(started.elapsed()), requests, ..Done::default() })
    }
}

/// One connection: the handshake, close_notify, and everything that the server still sends, such as tickets.
fn once(base: &BaseUrl, config: &Arc<ClientConfig>, wanted: Option<HandshakeKind>) -> Result<()> {
    let doing = || "TLS handshake".to_owned();
    let mut stream = TcpStream::connect(base.address).context(|| format!("cannot connect to {}", base.address))?;
    stream.set_nodelay(true).context(doing)?;
    stream.set_read_timeout(Some(SILENCE_MAX)).context(doing)?;
    let mut tls = client(config)?;
    while tls.is_handshaking() {
        tls.complete_io(&mut stream).context(doing)?;
    }
    let kind = tls.handshake_kind();
    if wanted.is_some() && kind != wanted {
        return Err(failure!("a handshake that was {kind:?} in place of {wanted:?}"));
    }
    tls.send_close_notify();
    while tls.wants_write() {
        tls.write_tls(&mut stream).context(doing)?;
    }
    let mut buffer = [0; 4096];
    loop {
        // a server with nothing left to send may close with our alert unread, which causes a reset
        let count = match stream.read(&mut buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(()),
            result => result.context(doing)?,
        };
        let mut received = buffer.get(..count).unwrap_or_default();
        if received.is_empty() {
            return Ok(());
        }
        while !received.is_empty() {
            tls.read_tls(&mut received).context(doing)?;
            tls.process_new_packets().context(doing)?;
        }
    }
}
