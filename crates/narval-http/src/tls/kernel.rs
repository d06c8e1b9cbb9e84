use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};

use ktls_core::ContentType;
use ktls_core::ffi::send_tls_control_message;
use ktls_core::setup::{TlsCryptoInfoTx, setup_ulp};

use super::secrets::TrafficSecret;

/// The sending half of a TLS 1.3 connection whose records the kernel makes: what is written to the socket, by `send(2)`
/// or `sendfile(2)`, goes out encrypted. Receiving stays with the [`TlsSession`](super::TlsSession), so that no
/// ciphertext can be stranded at the switch and the peer's control records are handled where they always were.
pub struct KernelTx {
    secret: TrafficSecret,
    /// Bytes that may still be sent with this key.
    bytes_left: u64,
}

/// A full record's plaintext. What is sent is counted in whole records, each call for at least one.
const RECORD_BYTES: u64 = 16 * 1024;

impl KernelTx {
    /// Has the kernel encrypt what is sent on `socket` from now on. `sequence` records were sent with this secret.
    ///
    /// # Errors
    /// The kernel has no kTLS, or not this suite; the connection can then go on in user space.
    pub(super) fn start(socket: &impl AsFd, secret: TrafficSecret, sequence: u64) -> io::Result<Self> {
        setup_ulp(socket).map_err(io::Error::other)?;
        set_keys(socket, &secret, sequence)?;
        let bytes_left = secret.records_max().saturating_sub(sequence).saturating_mul(RECORD_BYTES);
        Ok(Self { secret, bytes_left })
    }

    /// Before up to `bytes` are sent by one call: renews the key when it has protected as much as it may.
    ///
    /// # Errors
    /// The key is used up and the kernel can't change it (before Linux 6.14): the connection has to end.
    pub fn will_send(&mut self, socket: &impl AsFd, bytes: u64) -> io::Result<()> {
        if self.bytes_left < charge(bytes) {
            self.update_key(socket)?;
        }
        Ok(())
    }

    /// One call has sent so many bytes: the kernel has made a record of them, or several.
    pub fn has_sent(&mut self, bytes: u64) {
        self.bytes_left = self.bytes_left.saturating_sub(charge(bytes));
    }

    /// Sends a KeyUpdate and goes on with the next key (RFC 8446 section 4.6.3): when the peer asked for it, and when
    /// the key is used up.
    ///
    /// # Errors
    /// The kernel can't change a key (before Linux 6.14), or the socket takes nothing now: the connection has to end.
    pub fn update_key(&mut self, socket: &impl AsFd) -> io::Result<()> {
        // Handshake type key_update (24), length 1, update_not_requested (0).
        send_control(socket, ContentType::Handshake, [24, 0, 0, 1, 0])?;
        self.secret.update().ok_or_else(|| io::Error::other("no next key"))?;
        set_keys(socket, &self.secret, 0)?;
        self.bytes_left = self.secret.records_max().saturating_mul(RECORD_BYTES);
        Ok(())
    }

    /// Sends the alert that ends what we send (RFC 8446 section 6.1).
    ///
    /// # Errors
    /// As `sendmsg(2)`; `WouldBlock` where the socket takes nothing now.
    pub fn close_notify(&self, socket: &impl AsFd) -> io::Result<()> {
        self.alert(socket, 1, 0)
    }

    /// Sends an alert (RFC 8446 section 6).
    ///
    /// # Errors
    /// As [`close_notify`](Self::close_notify).
    pub fn alert(&self, socket: &impl AsFd, level: u8, description: u8) -> io::Result<()> {
        send_control(socket, ContentType::Alert, [level, description])
    }
}

impl std::fmt::Debug for KernelTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KernelTx {{ bytes_left: {}, .. }}", self.bytes_left)
    }
}

/// What a call for so many bytes counts for.
fn charge(bytes: u64) -> u64 {
    bytes.max(1).div_ceil(RECORD_BYTES).saturating_mul(RECORD_BYTES)
}

fn set_keys(socket: &impl AsFd, secret: &TrafficSecret, sequence: u64) -> io::Result<()> {
    let keys = secret.keys().ok_or_else(|| io::Error::other("no keys from the secret"))?;
    TlsCryptoInfoTx::new(ktls_core::ProtocolVersion::TLSv1_3, keys, sequence)
        .and_then(|info| info.set(socket))
        .map_err(io::Error::other)
}

/// One record of another type than application data (Documentation/networking/tls.rst, "Send TLS control messages").
fn send_control<const N: usize>(socket: &impl AsFd, kind: ContentType, mut payload: [u8; N]) -> io::Result<()> {
    let sent = send_tls_control_message(socket.as_fd().as_raw_fd(), kind, &mut payload)?;
    if sent == N { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Whether this kernel has kTLS, found out by doing: a loopback connection is given the protocol.
///
/// # Errors
/// What the kernel says where it has not: `NotFound` is a kernel without the `tls` module.
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
    /// One whose kernel does nothing, good for so many records.
    pub(crate) fn counting(records: u64) -> Self {
        let secret = TrafficSecret::new(rustls::CipherSuite::TLS13_AES_128_GCM_SHA256, vec![7; 32].into());
        Self { secret: secret.expect("a suite of the kernel's"), bytes_left: records * RECORD_BYTES }
    }

    /// How many records it is good for still.
    pub(crate) fn records_left(&self) -> u64 {
        self.bytes_left / RECORD_BYTES
    }
}
