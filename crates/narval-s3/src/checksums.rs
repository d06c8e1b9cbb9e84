//! Checksums that travel with what is stored, so that the store refuses what was damaged on the way.
//!
//! Objects that are sent in one request have their SHA-256, which the store keeps. Not every store takes it: Backblaze B2 refused the field for years, and
//! Cloudflare R2 refuses it for parts. `Content-MD5` is as old as S3, and every store takes it. So parts have that, and whole objects, too, once a
//! store has refused the other.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest, Md5};
use narval_client::{HttpError, Payload, Url};
use narval_nix::Sha256;
use parking_lot::Mutex;

use crate::address::{BucketAddress, Checksums};
use crate::put_error::PutError;

/// The fields of a request.
const SHA256: &str = "x-amz-checksum-sha256";
const MD5: &str = "content-md5";

/// How errors begin their advice if a store refuses a field. They are recognised by it.
pub(super) const REFUSED: &str = "it takes no field 'x-amz-checksum-…' here";

/// The most stores that are remembered. They come from addresses that users give.
const STORES_MAX: usize = 64;

/// Buckets, with their endpoints, that have refused the SHA-256 of a whole object.
static WITHOUT: Mutex<BTreeSet<(String, String)>> = Mutex::new(BTreeSet::new());

/// What is sent: a whole object, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Whole,
    Part,
}

/// The checksum of a request.
pub(super) struct Checksum {
    name: &'static str,
    value: String,
}

impl Checksum {
    /// The field line.
    pub(super) fn field(&self) -> (&str, &str) {
        (self.name, &self.value)
    }

    /// The SHA-256, if it is that.
    pub(super) fn into_sha256(self) -> Option<String> {
        (self.name == SHA256).then_some(self.value)
    }
}

/// Whether parts have a SHA-256, which their upload must announce.
pub(super) fn has_sha256_of_parts(url: &Url) -> bool {
    setting(url) == Checksums::On
}

/// Sends something with the checksum that the store takes; again with another one if it has refused the first.
pub(super) fn with_checksum<T>(
    (url, sent): (&Url, Sent),
    payload: Payload<'_>,
    hash: Sha256,
    send: impl Fn(&Checksum) -> Result<T, PutError>,
) -> Result<(T, Checksum), PutError> {
    let setting = setting(url);
    if takes_sha256(url, setting, sent) {
        let checksum = Checksum { name: SHA256, value: STANDARD.encode(hash.as_bytes()) };
        match send(&checksum) {
            Err(PutError::Http(error)) if setting == Checksums::Whole && is_refused(&error) => forget(url),
            answer => return answer.map(|answer| (answer, checksum)),
        }
    }
    let checksum = Checksum { name: MD5, value: STANDARD.encode(md5_of(payload)?) };
    send(&checksum).map(|answer| (answer, checksum))
}

fn setting(url: &Url) -> Checksums {
    // An address that cannot be used fails when it is signed.
    BucketAddress::of(url).map_or(Checksums::Whole, |place| place.checksums)
}

fn takes_sha256(url: &Url, setting: Checksums, sent: Sent) -> bool {
    match (setting, sent) {
        (Checksums::On, _) => true,
        (Checksums::Off, _) | (Checksums::Whole, Sent::Part) => false,
        (Checksums::Whole, Sent::Whole) => key(url).is_none_or(|key| !WITHOUT.lock().contains(&key)),
    }
}

/// The store has refused the SHA-256 of a whole object.
fn forget(url: &Url) {
    let Some((endpoint, bucket)) = key(url) else { return };
    tracing::info!("the bucket '{bucket}' at {endpoint} takes no SHA-256 of objects: they are sent with Content-MD5");
    let mut without = WITHOUT.lock();
    if without.len() >= STORES_MAX {
        without.clear();
    }
    without.insert((endpoint, bucket));
}

fn key(url: &Url) -> Option<(String, String)> {
    BucketAddress::of(url).ok().map(|place| (place.endpoint, place.bucket))
}

fn is_refused(error: &HttpError) -> bool {
    matches!(error, HttpError::Bucket { status: 400 | 501, message, .. } if message.contains(REFUSED))
}

fn md5_of(payload: Payload<'_>) -> io::Result<[u8; 16]> {
    let mut hasher = Md5::new();
    match payload {
        Payload::Bytes(bytes) => hasher.update(bytes),
        Payload::File(file, len) => each_piece(file, 0, len, |piece| hasher.update(piece))?,
        Payload::Section(file, at, len) => each_piece(file, at, len, |piece| hasher.update(piece))?,
    }
    Ok(hasher.finalize().into())
}

/// Reads a section of a file.
pub(super) fn each_piece(file: &File, mut at: u64, len: u64, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    const BUFFER_LEN: usize = 256 * 1024;
    let (mut buffer, end) = (vec![0; BUFFER_LEN], at.saturating_add(len));
    while at < end {
        let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(BUFFER_LEN);
        let piece = buffer.get_mut(..wanted).unwrap_or_default();
        file.read_exact_at(piece, at)?;
        take(piece);
        at += wanted as u64;
    }
    Ok(())
}
