use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};

use ktls_core::ContentType;
use ktls_core::ffi::send_tls_control_message;
use ktls_core::setup::{TlsCryptoInfoTx, setup_ulp};

use super::secrets::TrafficSecret;

/// The sending half of a TLS 1.3 connection with kTLS: the kernel encrypts what `send(2)` and `sendfile(2)` write to the
/// socket. Receiving stays with the [`TlsSession`](super::TlsSession), so that no ciphertext is stranded at the switch,
/// and the peer's control records are handled as before.
pub struct KernelTx {
    secret: TrafficSecret,
    /// The number of bytes that may still be sent with this key.
    bytes_left: u64,
}

/// The plaintext of a full record. Data is counted in full records, and each call counts as at least one.
const RECORD_BYTES: u64 = 16 * 1024;

impl KernelTx {
    /// Makes the kernel encrypt what is sent on `socket`. `sequence` records have been sent with this secret.
    ///
    /// # Errors
    /// The kernel does not support kTLS or this suite. The connection can continue in user space.
    pub(super) fn start(socket: &impl AsFd, secret: TrafficSecret, sequence: u64) -> io::Result<Self> {
        setup_ulp(socket).map_err(io::Error::other)?;
        set_keys(socket, &secret, sequence)?;
        let bytes_left = secret.records_max().saturating_sub(sequence).saturating_mul(RECORD_BYTES);
        Ok(Self { secret, bytes_left })
    }

    /// To be called before a system call that sends up to `bytes`. Updates the key if its limit is reached.
    ///
    /// # Errors
    /// The key is exhausted and the kernel cannot change it (before Linux 6.14): the connection must be closed.
    pub fn will_send(&mut self, socket: &impl AsFd, bytes: u64) -> io::Result<()> {
        if self.bytes_left < charge(bytes) {
            self.update_key(socket)?;
        }
        Ok(())
    }

    /// One system call has sent this many bytes, as one record or several.
    pub fn has_sent(&mut self, bytes: u64) {
        self.bytes_left = self.bytes_left.saturating_sub(charge(bytes));
    }

    /// Sends a KeyUpdate and switches to the next key (RFC 8446 section 4.6.3), because the peer requested it or the
    /// key is exhausted.
    ///
    /// # Errors
    /// The kernel cannot change a key (before Linux 6.14), or the socket is full: the connection must be closed.
    pub fn update_key(&mut self, socket: &impl AsFd) -> io::Result<()> {
        // Handshake type key_update (24), length 1, update_not_requested (0).
        send_control(socket, ContentType::Handshake, [24, 0, 0, 1, 0])?;
        self.secret.update().ok_or_else(|| io::Error::other("no next key"))?;
        set_keys(socket, &self.secret, 0)?;
        self.bytes_left = self.secret.records_max().saturating_mul(RECORD_BYTES);
        Ok(())
    }

    /// Sends close_notify (RFC 8446 section 6.1).
    ///
    /// # Errors
    /// See `sendmsg(2)`; `WouldBlock` if the socket is full.
    pub fn close_notify(&self, socket: &impl AsFd) -> io::Result<()> {
        self.alert(socket, 1, 0)
    }

    /// Sends an alert (RFC 8446 section 6).
    ///
    /// # Errors
    /// See [`close_notify`](Self::close_notify).
    pub fn alert(&self, socket: &impl AsFd, level: u8, description: u8) -> io::Result<()> {
        send_control(socket, ContentType::Alert, [level, description])
    }
}

impl std::fmt::Debug for KernelTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KernelTx {{ bytes_left: {}, .. }}", self.bytes_left)
    }
}

/// The records that a call with this many bytes counts as, at full size.
fn charge(bytes: u64) -> u64 {
    bytes.max(1).div_ceil(RECORD_BYTES).saturating_mul(RECORD_BYTES)
}

fn set_keys(socket: &impl AsFd, secret: &TrafficSecret, sequence: u64) -> io::Result<()> {
    let keys = secret.keys().ok_or_else(|| io::Error::other("no keys from the secret"))?;
    TlsCryptoInfoTx::new(ktls_core::ProtocolVersion::TLSv1_3, keys, sequence)
        .and_then(|info| info.set(socket))
        .map_err(io::Error::other)
}

/// Sends a record that is not application data (Documentation/networking/tls.rst, "Send TLS control messages").
fn send_control<const N: usize>(socket: &impl AsFd, kind: ContentType, mut payload: [u8; N]) -> io::Result<()> {
    let sent = send_tls_control_message(socket.as_fd().as_raw_fd(), kind, &mut payload)?;
    if sent == N { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Probes whether this kernel supports kTLS, by enabling it on a loopback connection.
///
/// # Errors
/// The kernel's error. `NotFound` means that it lacks the `tls` module.
pub fn probe() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let socket = TcpStream::connect(listener.local_addr()?)?;
    setup_ulp(&socket).map_err(|error| match error {
        ktls_core::Error::Ulp(source) => source,
        other => io::Error::other(other),
    })
}

#[cfg(test)]
impl KernelTx {
    /// A sender that does not use the kernel, with a key for this many records.
    pub(crate) fn counting(records: u64) -> Self {
        let secret = TrafficSecret::new(rustls::CipherSuite::TLS13_AES_128_GCM_SHA256, vec![7; 32].into());
        Self { secret: secret.expect("a suite of the kernel's"), bytes_left: records * RECORD_BYTES }
    }

    /// The number of records that the key may still be used for.
    pub(crate) fn records_left(&self) -> u64 {
        self.bytes_left / RECORD_BYTES
    }
}
