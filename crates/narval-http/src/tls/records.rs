use std::io;
use std::os::fd::AsFd;

use aws_lc_rs::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};

use super::KernelTx;
use super::secrets::TrafficSecret;
use crate::tls::layout::{RECORD_HEADER, RECORD_PLAINTEXT_MAX, RECORD_TRAILER};

/// The sending half of a TLS 1.3 connection that encrypts in place, in the buffer that is sent. rustls copies each
/// record into a buffer and out of it again, which for a file costs about as much as reading it. Receiving stays with
/// the [`TlsSession`](super::TlsSession), as with a [`KernelTx`].
pub struct RecordTx {
    secret: TrafficSecret,
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    /// The number of records encrypted with this key.
    sequence: u64,
}

/// The length of the tag in all suites of TLS 1.3.
const TAG: usize = RECORD_TRAILER - 1;

/// The content type of a record (RFC 8446 section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Content {
    Alert = 21,
    Handshake = 22,
    ApplicationData = 23,
}

impl RecordTx {
    /// Takes over a connection that has sent `sequence` records with this secret.
    pub(super) fn new(secret: TrafficSecret, sequence: u64) -> io::Result<Self> {
        let (key, iv) = keys(&secret)?;
        Ok(Self { secret, key, iv, sequence })
    }

    /// Encrypts a record in place: in `record`, the plaintext is between room for the header and for the trailer.
    ///
    /// # Errors
    /// The key is exhausted and must be [updated](Self::update_key) first, or the record is too long.
    pub fn seal(&mut self, record: &mut [u8]) -> io::Result<()> {
        self.seal_as(Content::ApplicationData, record)
    }

    /// Whether this many more records may be encrypted with the key.
    pub fn has_room_for(&self, records: u64) -> bool {
        // One record is reserved for the KeyUpdate itself.
        self.sequence.saturating_add(records) < self.secret.records_max()
    }

    /// Appends a KeyUpdate and switches to the next key (RFC 8446 section 4.6.3), because the peer requested it or the
    /// key is exhausted.
    ///
    /// # Errors
    /// The connection must be closed.
    pub fn update_key(&mut self, output: &mut Vec<u8>) -> io::Result<()> {
        // Handshake type key_update (24), length 1, update_not_requested (0).
        self.append(Content::Handshake, &[24, 0, 0, 1, 0], output)?;
        self.secret.update().ok_or_else(|| io::Error::other("no next key"))?;
        (self.key, self.iv) = keys(&self.secret)?;
        self.sequence = 0;
        Ok(())
    }

    /// Appends an alert (RFC 8446 section 6).
    ///
    /// # Errors
    /// The key is exhausted.
    pub fn alert(&mut self, level: u8, description: u8, output: &mut Vec<u8>) -> io::Result<()> {
        self.append(Content::Alert, &[level, description], output)
    }

    /// Switches `socket` to kTLS with the current key. All records must have been sent, and none may be made here
    /// afterwards. What applies to the output of the session then applies to the [`KernelTx`].
    ///
    /// # Errors
    /// The kernel does not support it. Sending can continue here.
    pub fn offload(&self, socket: &impl AsFd) -> io::Result<KernelTx> {
        KernelTx::start(socket, self.secret.clone(), self.sequence)
    }

    fn append(&mut self, content: Content, payload: &[u8], output: &mut Vec<u8>) -> io::Result<()> {
        let start = output.len();
        output.extend_from_slice(&[0; RECORD_HEADER]);
        output.extend_from_slice(payload);
        output.extend_from_slice(&[0; RECORD_TRAILER]);
        self.seal_as(content, output.get_mut(start..).unwrap_or_default())
    }

    fn seal_as(&mut self, content: Content, record: &mut [u8]) -> io::Result<()> {
        let broken = || io::Error::other("a TLS record cannot be encrypted");
        let length = record.len().checked_sub(RECORD_HEADER).ok_or_else(broken)?;
        if length > RECORD_PLAINTEXT_MAX + RECORD_TRAILER || self.sequence >= self.secret.records_max() {
            return Err(broken());
        }
        let length = u16::try_from(length).map_err(|_| broken())?.to_be_bytes();
        let header = [Content::ApplicationData as u8, 3, 3, length[0], length[1]];
        let (place, body) = record.split_first_chunk_mut::<RECORD_HEADER>().ok_or_else(broken)?;
        *place = header;
        let (inner, tag_place) = body.split_last_chunk_mut::<TAG>().ok_or_else(broken)?;
        *inner.last_mut().ok_or_else(broken)? = content as u8;
        let tag = self.key.seal_in_place_separate_tag(self.nonce(), Aad::from(header), inner).map_err(|_| broken())?;
        *tag_place = tag.as_ref().try_into().map_err(|_| broken())?;
        // A nonce is never reused: the number is incremented for each record, and restarts only with a new key.
        self.sequence += 1;
        Ok(())
    }

    /// The nonce: the IV combined with the record's number (RFC 8446 section 5.3).
    fn nonce(&self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce.iter_mut().rev().zip(self.sequence.to_le_bytes()) {
            *byte ^= number;
        }
        Nonce::assume_unique_for_key(nonce)
    }
}

fn keys(secret: &TrafficSecret) -> io::Result<(LessSafeKey, [u8; NONCE_LEN])> {
    secret.aead().ok_or_else(|| io::Error::other("no keys from the secret"))
}

impl std::fmt::Debug for RecordTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RecordTx {{ sequence: {}, .. }}", self.sequence)
    }
}

#[cfg(test)]
mod tests {
    use rustls::CipherSuite;
    use zeroize::Zeroizing;

    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
    }

    fn sender(sequence: u64) -> RecordTx {
        // RFC 8448 section 3: server_application_traffic_secret_0.
        let secret = hex("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643");
        let secret = TrafficSecret::new(CipherSuite::TLS13_AES_128_GCM_SHA256, Zeroizing::new(secret)).unwrap();
        RecordTx::new(secret, sequence).unwrap()
    }

    #[test]
    fn the_records_of_rfc_8448_section_3() {
        // The server's application data is its second record with that key; 50 bytes, 0 to 49.
        let mut record = [vec![0; RECORD_HEADER], (0..50).collect(), vec![0; RECORD_TRAILER]].concat();
        let mut sender = sender(1);
        sender.seal(&mut record).unwrap();
        let want = "17030300432e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30efaf97d90e6dffc602dcb501a59a8fcc4\
                    9c4bf2e5f0a21c0047c2abf332540dd032e167c2955d";
        assert_eq!(record, hex(&want.replace(' ', "")));
        // And the alert that follows it.
        let mut alert = Vec::new();
        sender.alert(1, 0, &mut alert).unwrap();
        assert_eq!(alert, hex("1703030013b58fd67166ebf599d24720cfbe7efa7a8864a9"));
    }

    #[test]
    fn what_is_no_record_is_refused() {
        for length in [0, 4, 5, RECORD_HEADER + TAG, RECORD_HEADER + RECORD_PLAINTEXT_MAX + RECORD_TRAILER + 1] {
            assert!(sender(0).seal(&mut vec![0; length]).is_err(), "{length}");
        }
        assert!(sender(0).seal(&mut vec![0; RECORD_HEADER + RECORD_PLAINTEXT_MAX + RECORD_TRAILER]).is_ok());
    }

    #[test]
    fn a_key_that_is_used_up_seals_nothing_more() {
        let mut last = sender((1 << 24) - 2);
        assert!(last.has_room_for(1) && !last.has_room_for(2));
        last.seal(&mut [0; 100]).unwrap();
        last.update_key(&mut Vec::new()).unwrap();
        assert!(last.has_room_for(1 << 20));
        assert!(sender(1 << 24).seal(&mut [0; 100]).is_err());
    }
}
