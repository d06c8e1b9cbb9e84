//! Receipts: what a server says of a NAR whose bytes it has stored, and whose name it has not recorded yet.
//!
//! A client brings a receipt with the narinfo that it commits, so whichever server commits it can record the NAR then. A receipt is
//! authenticated by the key of the [`NarWriter`] that has stored the NAR: a server takes nobody's word for what is in a file.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use narval_nix::{HashPart, NarInfo, Sha256};

use super::receipt_key::ReceiptKey;
use crate::NarFileName;
use crate::index::{CacheId, Fence, NarRecord, NarWriter};

/// The line of a narinfo with a receipt.
pub const RECEIPT_KEY: &str = "NarvalReceipt";

/// The maximum number of hash parts in a receipt. NARs that mention more are recorded before they are stored.
const FOUND_MAX: usize = 256;

/// The longest receipt in bytes.
const RECEIPT_LEN_MAX: usize = 16 * 1024;

/// What a receipt begins with.
const VERSION: &str = "1";

/// A NAR whose object is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredFirst {
    pub(crate) nar: NarRecord,
    /// The number of the last collection before it was stored, while nobody was at work.
    pub(crate) epoch: Fence,
}

/// What is authenticated: the receipt, for one cache.
fn message(cache: CacheId, text: &str) -> String {
    format!("narval receipt\n{}\n{text}", cache.0)
}

impl StoredFirst {
    /// The name of its object.
    pub(crate) fn name(&self) -> NarFileName {
        NarFileName::new(self.nar.file_hash, self.nar.compression)
    }

    /// Whether a NAR is small enough for a receipt.
    pub(crate) fn fits(nar: &NarRecord) -> bool {
        nar.found.len() <= FOUND_MAX && nar.listing_size.is_none()
    }

    /// Its receipt, by the writer with this number.
    pub(crate) fn receipt(&self, cache: CacheId, (number, key): (i64, &ReceiptKey)) -> String {
        let NarRecord { nar_hash, nar_size, compression, file_hash, file_size, found, .. } = &self.nar;
        let found: String = found.iter().map(HashPart::as_str).collect();
        let (file_hash, nar_hash, epoch) = (file_hash.to_nix32(), nar_hash.to_nix32(), self.epoch.0);
        let compression = compression.name();
        let text =
            format!("{VERSION} {number} {epoch} {file_hash} {file_size} {nar_hash} {nar_size} {compression} +{found}");
        let tag = hmac::sign(&key.hmac(), message(cache, &text).as_bytes());
        format!("{text} {}", URL_SAFE_NO_PAD.encode(tag))
    }

    /// Reads a receipt of one of these writers; `None` if it is not one for this cache.
    pub(crate) fn read(cache: CacheId, text: &str, writers: &[NarWriter]) -> Option<Self> {
        if text.len() > RECEIPT_LEN_MAX {
            return None;
        }
        let (text, tag) = text.rsplit_once(' ')?;
        let words: Vec<&str> = text.split(' ').collect();
        let [VERSION, number, epoch, file_hash, file_size, nar_hash, nar_size, compression, found] = words[..] else {
            return None;
        };
        let number: i64 = number.parse().ok()?;
        let writer = writers.iter().find(|writer| writer.number == number)?;
        let tag = URL_SAFE_NO_PAD.decode(tag).ok()?;
        hmac::verify(&writer.key.hmac(), message(cache, text).as_bytes(), &tag).ok()?;
        // It was written by a server from here on.
        let hash = |text: &str| Sha256::from_nix32(text.as_bytes()).ok();
        let parts = found.strip_prefix('+')?.as_bytes().chunks(narval_nix::store_path::HASH_PART_LEN);
        let nar = NarRecord {
            nar_hash: hash(nar_hash)?,
            nar_size: nar_size.parse().ok()?,
            compression: compression.parse().ok()?,
            file_hash: hash(file_hash)?,
            file_size: file_size.parse().ok()?,
            listing_size: None,
            found: parts.map(HashPart::parse).collect::<Result<_, _>>().ok()?,
        };
        Some(Self { nar, epoch: Fence(epoch.parse().ok()?) })
    }
}

/// The receipt in a narinfo that a client commits.
pub(crate) fn receipt_in(info: &NarInfo) -> Option<&str> {
    info.unknown().filter(|(key, _)| *key == RECEIPT_KEY).last().map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use narval_nix::Compression;

    use super::*;

    fn writer(number: i64, key: u8) -> NarWriter {
        NarWriter { number, key: ReceiptKey::new([key; 32]), begun: Duration::ZERO, seen: Duration::ZERO }
    }

    fn stored(found: usize) -> StoredFirst {
        let part = |number: usize| HashPart::from_digest(&[number as u8; 20]);
        let nar = NarRecord {
            nar_hash: Sha256::of(b"nar"),
            nar_size: 96,
            compression: Compression::Zstd,
            file_hash: Sha256::of(b"file"),
            file_size: 44,
            listing_size: None,
            found: (0..found).map(part).collect(),
        };
        StoredFirst { nar, epoch: Fence(7) }
    }

    #[test]
    fn a_receipt_counts_as_it_was_written_and_where() {
        let (writers, cache) = ([writer(3, 1), writer(4, 2)], CacheId(1));
        for found in [0, 1, FOUND_MAX] {
            let one = stored(found);
            let receipt = one.receipt(cache, (4, &writers[1].key));
            assert!(receipt.len() <= RECEIPT_LEN_MAX && !receipt.contains('\n'));
            assert_eq!(StoredFirst::read(cache, &receipt, &writers), Some(one));
            assert_eq!(StoredFirst::read(CacheId(2), &receipt, &writers), None, "another cache");
            assert_eq!(StoredFirst::read(cache, &receipt, &writers[..1]), None, "a writer that is gone");
            assert_eq!(StoredFirst::read(cache, &receipt, &[writer(4, 3)]), None, "another key");
        }
        let receipt = stored(1).receipt(cache, (4, &writers[1].key));
        for at in 0..receipt.len() {
            let mut altered = receipt.clone().into_bytes();
            altered[at] = if altered[at] == b'1' { b'0' } else { b'1' };
            let altered = String::from_utf8(altered).unwrap();
            // The last character has bits that do not count, and must be zero.
            assert_eq!(StoredFirst::read(cache, &altered, &writers), None, "{altered}");
            assert_eq!(StoredFirst::read(cache, &receipt[..at], &writers), None);
        }
        assert!(!StoredFirst::fits(&stored(FOUND_MAX + 1).nar));
    }
}
