//! The push protocol of our own client: `docs/push-protocol.md`.

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::Arc;

use narval_http::{BodySource, Fill, Request, Response, SegmentBuf, StatusCode};
use narval_keep::{
    Begin, Committed, Grant, NarTarget, Outcome, Rejection, RejectionKind, Scope, Stored, read_commit, read_nars,
};
use narval_nix::{HashPart, Sha256};

use super::coding::{coding, decoded};
use super::parts::{Key, PART_BYTES_MAX, PartError};
use super::receive::{CountedBody, Uploads, announced, compression_of, ended_early, narinfo_lines, read, text};
use crate::error::ServeError;

/// The most hash parts in one `POST missing`.
const HASH_PARTS_MAX: usize = 65_536;
/// How many of them are looked up in the index at a time, and leased in one transaction.
const LOOKED_UP_AT_ONCE: usize = 512;
/// How many of them have their signatures verified at a time: 50 µs each.
const VERIFIED_AT_ONCE: usize = 64;
/// A hash part and its newline.
const LINE_BYTES: u64 = 33;
/// The largest commit, in bytes. It takes about six times as much memory: as text, as narinfos, and as rows.
const COMMIT_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// The largest body of small NARs, in bytes. It is in memory.
const NARS_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// The lease of a path that a client was told is present, in seconds: 24 hours.
const LEASE_SECONDS: u64 = 24 * 3600;
/// The header field with the number of bytes received of an upload.
const UPLOAD_OFFSET: &str = "upload-offset";

/// `POST missing`: which paths of a closure the cache lacks, and for a token that may sign, also those without a signature of the cache.
pub(super) fn missing(uploads: &Arc<Uploads>, grant: Grant, request: Request) -> Result<Response, ServeError> {
    let coding = coding(&request.head())?;
    let (this, departure) = (Arc::clone(uploads), request.departure());
    let bytes_max = HASH_PARTS_MAX as u64 * LINE_BYTES;
    uploads.receive_at_most(bytes_max, request, move |body| {
        let body = read(&mut decoded(coding, body)?, bytes_max)?;
        let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let hash_parts = lines.map(HashPart::parse).collect::<Result<Vec<_>, _>>();
        let hash_parts = hash_parts.map_err(|_| malformed("each line must be a hash part of 32 characters"))?;
        let permit = this.pool.missing.permit()?;
        let signs = grant.allows(this.cache.name(), Scope::Sign);
        let mut source =
            Lacking { uploads: Arc::clone(&this), signs, hash_parts, missing: Vec::new(), known: 0, next: 0, lines: 0 };
        // What fails now is an answer of its own.
        source.look_up()?;
        Ok(text(StatusCode::OK, String::new()).body(this.pool.missing.body(permit, source, departure)))
    })
}

/// The answer to `POST missing`, which is written while the index is asked and signatures are verified.
struct Lacking {
    uploads: Arc<Uploads>,
    /// Whether the token may sign: then paths without a signature of the cache are lacking.
    signs: bool,
    hash_parts: Vec<HashPart>,
    /// How many of `asked` were looked up.
    known: usize,
    /// Those of the last ones looked up that are not there, the last of them first.
    missing: Vec<HashPart>,
    /// The next one of `asked`.
    next: usize,
    /// The number of lines so far.
    lines: usize,
}

impl Lacking {
    /// Looks up the next ones.
    fn look_up(&mut self) -> Result<(), Rejection> {
        let end = (self.known + LOOKED_UP_AT_ONCE).min(self.hash_parts.len());
        let hash_parts = self.hash_parts.get(self.known..end).unwrap_or_default();
        self.missing = self.uploads.cache.missing(hash_parts, Some(LEASE_SECONDS))?;
        self.missing.reverse();
        self.known = end;
        Ok(())
    }
}

impl BodySource for Lacking {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        if self.next == self.known {
            self.look_up().map_err(io::Error::other)?;
        }
        let end = if self.signs { (self.next + VERIFIED_AT_ONCE).min(self.known) } else { self.known };
        let hash_parts = self.hash_parts.get(self.next..end).unwrap_or_default();
        // Whether their contents are the client's is known when it sends their narinfos: then they are signed.
        let unsigned =
            if self.signs { self.uploads.cache.unsigned(hash_parts).map_err(io::Error::other)? } else { Vec::new() };
        let unsigned: HashSet<HashPart> = unsigned.into_iter().collect();
        for hash_part in hash_parts {
            let is_missing = self.missing.pop_if(|missing| missing == hash_part).is_some();
            if is_missing || unsigned.contains(hash_part) {
                writeln!(out.memory(), "{hash_part}")?;
                self.lines += 1;
            }
        }
        self.next = end;
        if end < self.hash_parts.len() {
            return Ok(Fill::More);
        }
        writeln!(out.memory(), "end {}", self.lines)?;
        Ok(Fill::Done)
    }
}

/// Reads the name of a NAR in this protocol: the hash of the NAR, and its compression.
fn target(name: &str) -> Result<NarTarget, ServeError> {
    let parsed = name.split_at_checked(52).and_then(|(hash, rest)| {
        let compression = compression_of(rest.strip_prefix(".nar")?)?;
        Some(NarTarget::Nar { nar_hash: Sha256::from_nix32(hash.as_bytes()).ok()?, compression })
    });
    parsed.ok_or(malformed(
        "the name of a NAR must be '<NAR hash>.nar', optionally followed by .zst .xz .bz2 .lz4 or .br",
    ))
}

/// The position of a part in its NAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    offset: u64,
    is_last: bool,
}

impl Part {
    /// Reads a query: `offset=<bytes>`, and `last=1`.
    fn parse(query: Option<&str>) -> Result<Option<Self>, ServeError> {
        let Some(query) = query else { return Ok(None) };
        let (mut offset, mut is_last) = (None, false);
        for pair in query.split('&') {
            match pair.split_once('=') {
                Some(("offset", number)) => offset = number.parse().ok(),
                Some(("last", "1")) => is_last = true,
                _ => offset = None,
            }
        }
        let offset =
            offset.ok_or(malformed("the query of a part must be offset=<bytes>, with &last=1 for the last one"))?;
        Ok(Some(Self { offset, is_last }))
    }
}

/// `PUT nar/<NAR hash>.nar…`: a NAR, whole or in parts.
pub(super) fn nar(uploads: &Arc<Uploads>, name: &str, grant: Grant, request: Request) -> Result<Response, ServeError> {
    let target = target(name)?;
    let part = Part::parse(request.query())?;
    let length = announced(&request);
    // Before the body is read: a client that waits for 100 Continue need not send it.
    let upload = match uploads.cache.begin(target, length.filter(|_| part.is_none()), &grant)? {
        Begin::Known(stored) => return Ok(uploads.known(&stored)),
        Begin::Receive(upload) => upload,
    };
    let (this, key, name) = (Arc::clone(uploads), key(uploads, name, &grant), name.to_owned());
    let Some(part) = part else {
        return uploads.receive(request, move |body| {
            let stored = upload.receive(&mut CountedBody::new(body, &this.metrics, (&name, length)))?;
            Ok(this.created(&stored))
        });
    };
    if length.is_some_and(|length| length > PART_BYTES_MAX) {
        return Err(too_large());
    }
    let expected = uploads.pool.parts.received(&key).unwrap_or(0);
    if part.offset > 0 && part.offset != expected {
        return Ok(offset_conflict(expected));
    }
    uploads.receive(request, move |body| {
        let mut body = CountedBody::new(body, &this.metrics, (&name, length));
        this.cache.make_disk_room(length.unwrap_or(PART_BYTES_MAX));
        let received = this.pool.parts.append(&key, part.offset, &mut body, || this.cache.incoming_file());
        match received {
            Ok(length) if !part.is_last => {
                return Ok(Response::new(StatusCode::ACCEPTED).header(UPLOAD_OFFSET, length.to_string()));
            }
            Ok(_) => {}
            Err(PartError::Offset(expected)) => return Ok(offset_conflict(expected)),
            Err(error) => return Err(this.refuse_part(error)),
        }
        let (file, length) = this.pool.parts.finish(&key).ok_or(malformed("another request has ended this upload"))?;
        match this.cache.begin(target, Some(length), &grant)? {
            Begin::Known(stored) => Ok(this.known(&stored)),
            Begin::Receive(upload) => Ok(this.created(&upload.adopt(file)?)),
        }
    })
}

/// `POST nars`: small NARs, which are recorded together.
pub(super) fn nars(uploads: &Arc<Uploads>, grant: Grant, request: Request) -> Result<Response, ServeError> {
    let (this, length) = (Arc::clone(uploads), announced(&request));
    uploads.receive_at_most(NARS_BYTES_MAX, request, move |body| {
        let body = read(&mut CountedBody::new(body, &this.metrics, ("small NARs", length)), NARS_BYTES_MAX)?;
        let nars = read_nars(&body)?;
        let named = nars.iter().map(|(name, file)| Ok((target(name)?, *file)));
        let named = named.collect::<Result<Vec<_>, ServeError>>()?;
        let stored = this.cache.receive_nars(&named, &grant)?;
        let mut answer = String::new();
        for (stored, (name, _)) in stored.iter().zip(&nars) {
            this.stored(stored);
            let lines = narinfo_lines(stored);
            answer.push_str(&format!("{name} {}\n{lines}", lines.len()));
        }
        answer.push_str(&format!("end {}\n", stored.len()));
        Ok(text(StatusCode::OK, answer))
    })
}

/// `HEAD nar/<NAR hash>.nar…`: whether the cache has the NAR, and otherwise how much of it was received.
pub(super) fn progress(uploads: &Uploads, name: &str, grant: &Grant) -> Result<Response, ServeError> {
    if let Begin::Known(stored) = uploads.cache.begin(target(name)?, None, grant)? {
        return Ok(uploads.known(&stored));
    }
    let answer = text(StatusCode::NOT_FOUND, "This cache does not have the NAR.\n".to_owned());
    Ok(match uploads.pool.parts.received(&key(uploads, name, grant)) {
        Some(length) => answer.header(UPLOAD_OFFSET, length.to_string()),
        None => answer,
    })
}

/// `POST commit`: all narinfos of a push. Either all become visible, or none.
pub(super) fn commit(uploads: &Arc<Uploads>, grant: Grant, request: Request) -> Result<Response, ServeError> {
    let coding = coding(&request.head())?;
    let this = Arc::clone(uploads);
    uploads.receive_at_most(COMMIT_BYTES_MAX, request, move |body| {
        let body = read(&mut decoded(coding, body)?, COMMIT_BYTES_MAX)?;
        let narinfos = read_commit(&body)?;
        let committed = this.cache.commit_narinfos(&narinfos, &grant)?;
        let mut answer = String::new();
        for Committed { path, outcome, is_signed, .. } in &committed {
            let unsigned = if *is_signed { "" } else { " unsigned" };
            answer.push_str(&format!("{} {}{unsigned}\n", path.hash_part(), word(*outcome)));
        }
        answer.push_str(&format!("end {}\n", committed.len()));
        Ok(text(StatusCode::OK, answer))
    })
}

const fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Added => "created",
        Outcome::Signed | Outcome::Unchanged => "merged",
        Outcome::Replaced => "replaced",
    }
}

impl Uploads {
    fn known(&self, stored: &Stored) -> Response {
        self.metrics.uploads_known.inc();
        text(StatusCode::OK, narinfo_lines(stored))
    }

    fn created(&self, stored: &Stored) -> Response {
        self.stored(stored);
        text(StatusCode::CREATED, narinfo_lines(stored))
    }

    fn refuse_part(&self, error: PartError) -> ServeError {
        match error {
            PartError::Offset(_) => malformed("the part does not continue what was received"),
            PartError::TooMany => {
                Rejection::conflict("too many uploads in parts at the same time: finish some first").into()
            }
            PartError::TooLarge => too_large(),
            PartError::Replaced => malformed("another request is writing to this upload"),
            PartError::Body(error) => ended_early(&error),
            PartError::Rejected(rejection) => rejection.into(),
            PartError::File(error) => {
                tracing::error!("cannot write to '{}': {error}", self.data.path().join("incoming").display());
                match error.kind() {
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Rejection::new(
                        RejectionKind::NoSpace,
                        "the cache's disk is full: free space there, then push again",
                    )
                    .into(),
                    _ => Rejection::failed("the upload cannot be written; see the server's log").into(),
                }
            }
        }
    }
}

/// Identifies an upload by the token that began it, and its cache.
fn key(uploads: &Uploads, name: &str, grant: &Grant) -> Key {
    (grant.token.clone(), format!("{}/{name}", uploads.cache.name()))
}

fn malformed(message: &str) -> ServeError {
    ServeError::Upload(message.to_owned())
}

fn too_large() -> ServeError {
    Rejection::too_large(format!("a part has at most {PART_BYTES_MAX} bytes")).into()
}

fn offset_conflict(expected: u64) -> Response {
    text(StatusCode::CONFLICT, format!("the server has {expected} bytes of this NAR: continue there\n"))
        .header(UPLOAD_OFFSET, expected.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may say so")]

    use narval_nix::Compression;

    use super::*;

    #[test]
    fn queries_of_parts() {
        let part = |query| Part::parse(Some(query)).ok().flatten();
        assert_eq!(part("offset=5"), Some(Part { offset: 5, is_last: false }));
        assert_eq!(part("offset=0&last=1"), Some(Part { offset: 0, is_last: true }));
        assert_eq!(Part::parse(None).unwrap(), None);
        for wrong in ["", "offset=", "offset=-1", "last=1", "offset=1&x=2"] {
            assert!(part(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn names_of_nars() {
        let nar_hash = Sha256::of(b"x");
        let hash = nar_hash.to_nix32();
        for (extension, compression) in [("", Compression::None), (".zst", Compression::Zstd)] {
            let parsed = target(&format!("{hash}.nar{extension}")).unwrap();
            assert_eq!(parsed, NarTarget::Nar { nar_hash, compression });
        }
        for wrong in [hash.as_str(), "x.nar", &format!("{hash}.nar.zip"), &format!("{hash}.zst")] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }
}
