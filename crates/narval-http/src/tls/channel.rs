use std::io;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{HeaderValue, StatusCode, Version, header};

use super::Opened;
use super::layout::{Gather, Layout, RECORD_FULL};
use crate::http1::head::begins_with_head;
use crate::http1::response_head::TEXT;
use crate::http1::response_head::{AnswerTo, BodyFraming, Prepared, encode_prepared};
use crate::io::out_buf::OutBuf;
use crate::io::socket::Socket;
use crate::io::sync::Mutex;
use crate::limits::{KTLS_FILE_MIN, SEAL_IN_PLACE_MIN};
use crate::tls::{KernelTx, RecordTx, SessionError, TlsAcceptor, TlsSession};

/// The response to a client that speaks plain HTTP to a TLS port.
fn plain_http(received: &[u8]) -> Vec<u8> {
    let reason = "this port speaks HTTPS: use https:// URLs";
    let fields = [(header::CONTENT_TYPE, TEXT), (header::CONNECTION, HeaderValue::from_static("close"))];
    let prepared = Prepared::new(StatusCode::BAD_REQUEST, &fields, format!("{reason}\n").into());
    let to = AnswerTo { version: Version::HTTP_11, is_head: begins_with_head(received), keep_alive: true };
    let mut out = Vec::new();
    if encode_prepared(&mut out, &prepared, to).framing != BodyFraming::None {
        out.extend_from_slice(prepared.body());
    }
    out
}

/// Creates the TLS side of accepted connections.
#[derive(Clone, Debug)]
pub(crate) struct Acceptor(pub(crate) Arc<TlsAcceptor>);

impl Acceptor {
    /// `http2`: whether that is offered.
    pub(crate) fn accept(&self, http2: bool) -> Option<TlsChannel> {
        let session =
            self.0.accept_with(http2).inspect_err(|error| tracing::error!("cannot begin a TLS session: {error}"));
        Some(TlsChannel {
            state: Mutex::new(State {
                session: session.ok()?,
                control: Vec::new(),
                sender: Sender::Session,
                alert: None,
                has_failed: false,
                may_offload: true,
                is_broken: false,
            }),
            kernels: AtomicBool::new(false),
        })
    }
}

/// The TLS side of a connection.
#[derive(Debug)]
pub(crate) struct TlsChannel {
    state: Mutex<State>,
    /// Whether the kernel encrypts the sent data (kTLS).
    kernels: AtomicBool,
}

#[derive(Debug)]
struct State {
    session: TlsSession,
    /// Records produced while receiving. They are sent before the next ones.
    control: Vec<u8>,
    sender: Sender,
    /// The alert for a failure to receive, if the session can no longer send it itself.
    alert: Option<u8>,
    /// Receiving has failed: nothing is sent behind the alert (RFC 8446 section 6.2).
    has_failed: bool,
    /// Offloading to the kernel has not failed so far.
    may_offload: bool,
    /// The session panicked and must not be used again.
    is_broken: bool,
}

/// What encrypts the sent data.
#[derive(Debug)]
enum Sender {
    /// The session: handshakes, small answers, TLS 1.2.
    Session,
    /// This crate, in place.
    Records(Box<RecordTx>),
    /// The kernel.
    Kernel(KernelTx),
}

/// Alert level and descriptions (RFC 8446 section 6).
const WARNING: u8 = 1;
const FATAL: u8 = 2;
const CLOSE_NOTIFY: u8 = 0;
const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD_MAC: u8 = 20;

impl TlsChannel {
    /// Whether the handshake is in progress.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.state.lock().session.is_handshaking()
    }

    /// Whether HTTP/2 was negotiated.
    pub(crate) fn speaks_http2(&self) -> bool {
        self.state.lock().session.speaks_http2()
    }

    /// The certificates that the client has presented, its own first.
    pub(crate) fn peer_certificates(&self) -> Vec<Bytes> {
        self.state.lock().session.peer_certificates().map(Bytes::copy_from_slice).collect()
    }

    /// Whether the rest of the handshake is cheaper than passing it to a worker.
    pub(crate) fn rest_is_cheap(&self) -> bool {
        self.state.lock().session.rest_is_cheap()
    }

    /// Decrypts received bytes and appends the result to `plaintext`.
    ///
    /// # Errors
    /// The connection must be closed. An alert for the client may be pending.
    pub(crate) fn open(&self, received: &[u8], plaintext: &mut Vec<u8>) -> io::Result<Opened> {
        let mut state = self.state.lock();
        if state.is_broken {
            return Err(broken());
        }
        let State { session, control, sender, alert, has_failed, is_broken, .. } = &mut *state;
        // It parses untrusted input, often on the shard's thread.
        let opened = catch_unwind(AssertUnwindSafe(|| session.receive(received, plaintext, control)));
        let opened = opened.map_err(|_| {
            tracing::error!("the TLS library panicked: its connection is closed");
            *is_broken = true;
            broken()
        })?;
        opened.map_err(|error| {
            *has_failed = true;
            if matches!(error, SessionError::NotTls) && control.is_empty() && matches!(sender, Sender::Session) {
                control.extend_from_slice(&plain_http(received));
            }
            if !matches!(sender, Sender::Session) {
                let unreadable = matches!(error, SessionError::Protocol(rustls::Error::DecryptError));
                *alert = Some(if unreadable { BAD_RECORD_MAC } else { UNEXPECTED_MESSAGE });
            }
            io::Error::other(error)
        })?;
        Ok(Opened {
            is_handshaking: session.is_handshaking(),
            has_control: !control.is_empty(),
            has_ended: session.peer_has_closed(),
        })
    }

    /// Encrypts all of `out`, after the pending records. The caller holds the lease.
    ///
    /// # Errors
    /// The connection must be closed.
    pub(crate) fn seal(&self, socket: &Socket, out: &mut OutBuf) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut sealed = state.take_control(socket)?;
        if state.has_failed {
            let alert = state.only_alert(sealed, !out.is_empty())?;
            out.clear();
            out.memory = alert;
            return Ok(());
        }
        match &mut state.sender {
            Sender::Kernel(kernel) => {
                kernel.will_send(&fd(socket)?, out.len() as u64)?;
                kernel.has_sent(out.len() as u64);
                return Ok(());
            }
            Sender::Session => {
                state.session.send(out.rest(), &mut sealed)?;
                state.session.send(&out.tail, &mut sealed)?;
            }
            Sender::Records(records) => {
                let mut plain = Vec::new();
                let mut layout = Layout::new(&mut plain, out.len());
                layout.push(out.rest());
                layout.push(&out.tail);
                layout.finish();
                seal_records(records, &mut plain, sealed)?;
                sealed = plain;
            }
        }
        out.memory = sealed;
        out.sent = 0;
        out.tail = Bytes::new();
        Ok(())
    }

    /// Whether the next `bytes` are to be [laid out](Layout) and encrypted in place. Once that was done, all later data
    /// is, too. The caller holds the lease.
    pub(crate) fn seals_in_place(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        match state.sender {
            Sender::Kernel(_) => false,
            Sender::Records(_) => true,
            Sender::Session => bytes >= SEAL_IN_PLACE_MIN && state.take_over(),
        }
    }

    /// Encrypts the data laid out in `plain`, after the pending records. The caller holds the lease, and
    /// [`seals_in_place`](Self::seals_in_place) returned `true`.
    ///
    /// # Errors
    /// The connection must be closed.
    pub(crate) fn seal_in_place(&self, socket: &Socket, plain: &mut Vec<u8>) -> io::Result<()> {
        let mut state = self.state.lock();
        let waiting = state.take_control(socket)?;
        if state.has_failed {
            *plain = state.only_alert(waiting, !plain.is_empty())?;
            return Ok(());
        }
        match &mut state.sender {
            Sender::Records(records) => seal_records(records, plain, waiting),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Whether the kernel encrypts the sent data, so that none is encrypted here.
    pub(crate) fn is_kernels(&self) -> bool {
        self.kernels.load(Ordering::Relaxed)
    }

    /// With kTLS: to be called before a system call that sends up to `bytes`.
    ///
    /// # Errors
    /// The key is exhausted and cannot be changed: the connection must be closed.
    pub(crate) fn will_send(&self, socket: &Socket, bytes: u64) -> io::Result<()> {
        match &mut self.state.lock().sender {
            Sender::Kernel(kernel) => kernel.will_send(&fd(socket)?, bytes),
            _ => Ok(()),
        }
    }

    /// With kTLS: one system call has sent `bytes`.
    pub(crate) fn has_sent(&self, bytes: u64) {
        if let Sender::Kernel(kernel) = &mut self.state.lock().sender {
            kernel.has_sent(bytes);
        }
    }

    /// Switches sending to kTLS if that is configured, possible, and worthwhile for `length` bytes of a file. All
    /// encrypted data must have been sent.
    pub(crate) fn offload(&self, socket: &Socket, length: u64) -> bool {
        if length < KTLS_FILE_MIN {
            return false;
        }
        let mut state = self.state.lock();
        let Some(fd) = socket.fd() else { return false };
        if !state.may_offload || !state.session.wants_kernel() || state.has_to_say() {
            return false;
        }
        if matches!(state.sender, Sender::Session) && !state.take_over() {
            return false;
        }
        let Sender::Records(records) = &state.sender else { return false };
        match records.offload(&fd) {
            Ok(kernel) => {
                state.sender = Sender::Kernel(kernel);
                self.kernels.store(true, Ordering::Relaxed);
                true
            }
            Err(error) => {
                state.may_offload = false;
                tracing::debug!("TLS stays in user space: {error}");
                false
            }
        }
    }

    /// Sends close_notify if the socket accepts it now. A client that does not receive it sees a truncation. The caller
    /// must close the connection next.
    pub(crate) fn end_output(&self, socket: &Socket) {
        let mut state = self.state.lock();
        let Ok(mut out) = state.take_control(socket) else { return };
        // Failures mean that the connection is gone or stuck, and it is about to be closed anyway.
        match &mut state.sender {
            Sender::Kernel(kernel) => return drop(fd(socket).and_then(|fd| kernel.alert(&fd, WARNING, CLOSE_NOTIFY))),
            Sender::Session => state.session.close_notify(&mut out),
            Sender::Records(records) => drop(records.alert(WARNING, CLOSE_NOTIFY, &mut out)),
        }
        drop(socket.send(&out, true));
    }
}

impl State {
    /// Whether records are pending for the client.
    fn has_to_say(&self) -> bool {
        !self.control.is_empty() || self.alert.is_some()
    }

    /// What is sent in place of data after receiving has failed: the alert, and nothing behind it.
    fn only_alert(&self, alert: Vec<u8>, has_data: bool) -> io::Result<Vec<u8>> {
        if alert.is_empty() && has_data { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(alert) }
    }

    /// Takes over encryption from the library, if possible.
    fn take_over(&mut self) -> bool {
        if self.has_to_say() || !self.session.may_take_output() {
            return false;
        }
        match self.session.take_output() {
            Ok(records) => {
                self.sender = Sender::Records(Box::new(records));
                true
            }
            Err(error) => {
                tracing::debug!("TLS records stay with the library: {error}");
                false
            }
        }
    }

    /// Collects the records to send before the next data. If the session no longer encrypts, its output must not be
    /// sent: it only indicates that a KeyUpdate must be answered, or that receiving failed.
    fn take_control(&mut self, socket: &Socket) -> io::Result<Vec<u8>> {
        if self.is_broken {
            return Err(broken());
        }
        let made = std::mem::take(&mut self.control);
        let alert = self.alert.take();
        let mut out = Vec::new();
        match (&mut self.sender, alert) {
            (Sender::Session, _) => return Ok(made),
            (_, None) if made.is_empty() => {}
            (Sender::Records(records), None) => records.update_key(&mut out)?,
            (Sender::Records(records), Some(alert)) => records.alert(FATAL, alert, &mut out)?,
            (Sender::Kernel(kernel), None) => kernel.update_key(&fd(socket)?)?,
            (Sender::Kernel(kernel), Some(alert)) => kernel.alert(&fd(socket)?, FATAL, alert)?,
        }
        Ok(out)
    }
}

/// Encrypts the data laid out in `plain`, after the pending records.
fn seal_records(records: &mut RecordTx, plain: &mut Vec<u8>, mut waiting: Vec<u8>) -> io::Result<()> {
    if !records.has_room_for(plain.len().div_ceil(RECORD_FULL) as u64) {
        records.update_key(&mut waiting)?;
    }
    plain.chunks_mut(RECORD_FULL).try_for_each(|record| records.seal(record))?;
    if !waiting.is_empty() {
        waiting.append(plain);
        *plain = waiting;
    }
    Ok(())
}

fn broken() -> io::Error {
    io::Error::other("TLS: the library panicked")
}

fn fd(socket: &Socket) -> io::Result<BorrowedFd<'_>> {
    socket.fd().ok_or_else(|| io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::io::driver::Token;
    use crate::io::output_memory::{Holding, OutputMemory};
    use crate::message::body::feed::Feed;
    use crate::message::body::source::{BodySource, Fill, SegmentBuf};
    use crate::peer::Peer;
    use crate::run::connection::Connection;
    use crate::run::mailbox::Mailbox;
    use crate::run::transmit::{Outgoing, Rest};
    use crate::tls::{PemPair, TlsConfig};

    /// A connection in the state of one with kTLS, and its peer.
    fn by_the_kernel(records: u64) -> (Connection, UnixStream) {
        let pair = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let pairs = vec![PemPair { cert: pair.cert.pem(), key: pair.signing_key.serialize_pem().into() }];
        let acceptor = TlsAcceptor::new(TlsConfig { pairs, ..TlsConfig::default() }).unwrap();
        let tls = Acceptor(Arc::new(acceptor)).accept(false).unwrap();
        tls.state.lock().sender = Sender::Kernel(KernelTx::counting(records));
        tls.kernels.store(true, Ordering::Relaxed);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let home = Mailbox::new().unwrap();
        let holding = Holding::new(&OutputMemory::new(usize::MAX));
        let (socket, remote) = (Socket::Os(ours.into()), Peer::Unix.into());
        (Connection::new(socket, Some(tls), remote, Token::new(0, 0), home, holding), theirs)
    }

    struct Words(u32);

    impl BodySource for Words {
        fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
            out.memory().extend_from_slice(b"word");
            self.0 -= 1;
            Ok(if self.0 == 0 { Fill::Done } else { Fill::More })
        }
    }

    #[test]
    fn each_piece_that_the_kernel_is_given_counts_for_a_record() {
        let (connection, client) = by_the_kernel(10_000);
        let feed = Feed::new(Box::new(Words(3000)), None);
        let mut outgoing = Outgoing::new(OutBuf::default(), Rest::Feed { feed, is_chunked: true });
        let mut drained = [0; 64 * 1024];
        while outgoing.drive(&connection, connection.holding(), 8 << 20).unwrap().is_some() {
            assert!(io::Read::read(&mut &client, &mut drained).unwrap() > 0);
        }
        let tls = connection.tls.as_ref().unwrap();
        let Sender::Kernel(kernel) = &tls.state.lock().sender else { panic!("the kernel's") };
        assert_eq!(kernel.records_left(), 10_000 - 3000);
    }
}
