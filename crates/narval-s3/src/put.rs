//! Stores an object: in one request, or in parts if it is large. The store verifies what arrives against a checksum.
//!
//! An object in parts only appears when its last request completes. A failed upload is aborted; the parts of a killed
//! process take space until the bucket's lifecycle rule (`AbortIncompleteMultipartUpload`) removes them.

use std::fmt::Write;
use std::fs::File;
use std::io;

use crate::put_error::PutError;
use narval_client::{Client, Extra, Method, Payload, Request, Upload, Url};
use narval_nix::{Sha256, Sha256Hasher};

use crate::checksums::{Sent, each_piece, has_sha256_of_parts, with_checksum};
use crate::xml::element;

/// Longer objects are sent in parts. S3's own limit is 5 GiB; this also limits how much is sent again after a broken
/// connection.
pub const SINGLE_PUT_LEN_MAX: u64 = 64 * 1024 * 1024;
/// The length of a part, larger if there would be too many. S3's minimum is 5 MiB.
pub const PART_LEN_MIN: u64 = 16 * 1024 * 1024;
/// The maximum number of parts of an object.
const PARTS_MAX: u64 = 10_000;
/// The maximum size of a response.
const ANSWER_LEN_MAX: u64 = 64 * 1024;

/// Stores a payload of known hash at an `s3` address. `on_sent` is called with the number of bytes of each piece sent.
///
/// # Errors
/// [`PutError`]; then the object is unchanged or absent.
pub fn put_object(
    client: &Client,
    url: &Url,
    content_type: &str,
    (payload, hash): (Payload<'_>, Sha256),
    on_sent: &(dyn Fn(u64) + Sync),
) -> Result<(), PutError> {
    let put = ObjectPut { client, url, content_type, on_sent };
    match payload {
        Payload::File(file, len) if len > SINGLE_PUT_LEN_MAX => put.in_parts(file, len),
        _ => put.whole(payload, hash),
    }
}

/// The requests that store one object.
pub struct ObjectPut<'a> {
    pub client: &'a Client,
    pub url: &'a Url,
    pub content_type: &'a str,
    pub on_sent: &'a (dyn Fn(u64) + Sync),
}

/// A part that the store has.
pub struct Part {
    etag: String,
    /// Its SHA-256, if it was sent with that.
    sha256: Option<String>,
}

impl ObjectPut<'_> {
    /// Stores it in one request.
    pub fn whole(&self, payload: Payload<'_>, hash: Sha256) -> Result<(), PutError> {
        let sent = with_checksum((self.url, Sent::Whole), payload, hash, |checksum| {
            let extra = Extra { fields: &[checksum.field()], ..Extra::default() };
            self.send((Method::Put, "a PUT"), extra, payload)
        });
        sent.map(drop)
    }

    /// Begins an upload in parts; returns its id.
    pub fn begin(&self) -> Result<String, PutError> {
        let (fields, query) = ([("x-amz-checksum-algorithm", "SHA256")], [("uploads", "")]);
        let fields = if has_sha256_of_parts(self.url) { &fields[..] } else { &[] };
        let extra = Extra { fields, query: &query, ..Extra::default() };
        let (_, answer) = self.send((Method::Post, "the beginning of an upload"), extra, Payload::Bytes(&[]))?;
        element(&answer, "UploadId").ok_or_else(|| self.unexpected(200, "the beginning of an upload"))
    }

    fn in_parts(&self, file: &File, len: u64) -> Result<(), PutError> {
        let upload = self.begin()?;
        let stored = self.send_parts(file, len, &upload).and_then(|parts| self.complete(&upload, &parts));
        if stored.is_err() {
            self.abort(&upload);
        }
        stored
    }

    fn send_parts(&self, file: &File, len: u64, upload: &str) -> Result<Vec<Part>, PutError> {
        let part_len = len.div_ceil(PARTS_MAX).max(PART_LEN_MIN);
        let (mut parts, mut at) = (Vec::new(), 0);
        while at < len {
            let part_len = part_len.min(len - at);
            let hash = hash_section(file, at, part_len)?;
            parts.push(self.part(upload, parts.len() + 1, Payload::Section(file, at, part_len), hash)?);
            at += part_len;
        }
        Ok(parts)
    }

    /// Sends a part with this hash. The first has the number 1.
    pub fn part(&self, upload: &str, number: usize, payload: Payload<'_>, hash: Sha256) -> Result<Part, PutError> {
        let number = number.to_string();
        let query = [("partNumber", number.as_str()), ("uploadId", upload)];
        let what = "a part of an upload";
        let sent = with_checksum((self.url, Sent::Part), payload, hash, |checksum| {
            let extra = Extra { fields: &[checksum.field()], query: &query, ..Extra::default() };
            self.send((Method::Put, what), extra, payload)
        });
        let ((etag, _), checksum) = sent?;
        Ok(Part { etag: etag.ok_or_else(|| self.unexpected(200, what))?, sha256: checksum.into_sha256() })
    }

    /// Makes the object appear.
    pub fn complete(&self, upload: &str, parts: &[Part]) -> Result<(), PutError> {
        let mut list = String::from("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
        for (index, Part { etag, sha256 }) in parts.iter().enumerate() {
            let (number, etag) = (index + 1, etag.replace('"', "&quot;"));
            // Writing to a string does not fail.
            let _ = write!(list, "<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag>");
            if let Some(sha256) = sha256 {
                let _ = write!(list, "<ChecksumSHA256>{sha256}</ChecksumSHA256>");
            }
            list.push_str("</Part>");
        }
        list.push_str("</CompleteMultipartUpload>");
        let (query, what) = ([("uploadId", upload)], "the end of an upload");
        let extra = Extra { query: &query, ..Extra::default() };
        let (_, answer) = self.send((Method::Post, what), extra, Payload::Bytes(list.as_bytes()))?;
        // The status is sent before the store starts to combine the parts, which may still fail.
        if answer.contains("<Error>") { Err(self.unexpected(500, what)) } else { Ok(()) }
    }

    /// Drops what was sent.
    pub fn abort(&self, upload: &str) {
        let query = [("uploadId", upload)];
        let extra = Extra { query: &query, ..Extra::default() };
        let request = Request { method: Method::Delete, extra, ..Request::get(self.url) };
        let answer = self.client.retrying(self.url, || self.client.small_answer(&request, ANSWER_LEN_MAX));
        if let Err(error) = answer {
            tracing::warn!(object = %self.url, "an upload could not be aborted, and still takes space: {error}");
        }
    }

    /// Sends a request; returns the entity tag and the text of the response.
    fn send(
        &self,
        (method, what): (Method, &'static str),
        extra: Extra<'_>,
        payload: Payload<'_>,
    ) -> Result<(Option<String>, String), PutError> {
        let &Self { url, content_type, on_sent, .. } = self;
        let counted: &(dyn Fn(u64) + Sync) = if method == Method::Put { on_sent } else { &|_| {} };
        let answer_len_max = ANSWER_LEN_MAX;
        let upload = Upload { method, url, content_type, extra, payload, on_sent: counted, answer_len_max };
        let answer = self.client.upload(&upload)?;
        match answer.head.status {
            200..=299 => {
                let etag = answer.head.field("etag").map(str::to_owned);
                Ok((etag, String::from_utf8_lossy(&answer.body).into_owned()))
            }
            403 => Err(PutError::Denied(url.bucket_and_key().0.to_owned())),
            status => Err(self.unexpected(status, what)),
        }
    }

    fn unexpected(&self, status: u16, what: &'static str) -> PutError {
        PutError::Unexpected { bucket: self.url.bucket_and_key().0.to_owned(), status, what }
    }
}

fn hash_section(file: &File, at: u64, len: u64) -> io::Result<Sha256> {
    let mut hasher = Sha256Hasher::new();
    each_piece(file, at, len, |piece| hasher.update(piece))?;
    Ok(hasher.finish())
}
