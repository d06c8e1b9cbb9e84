//! The single pass over an uploaded NAR.

use std::fs::File;
use std::io::{BufRead, Read, Write};

use narval_nix::nar::{Decoder as NarDecoder, Event};
use narval_nix::{Compression, HashPart, NarHash, Sha256, Sha256Hasher};

use super::listing::{ListingWriter, NoListing};
use super::scan::Scan;
use super::tee::{Tee, TeeError};
use crate::name::NarTarget;
use crate::records::paths::NarRecord;
use crate::rejection::Rejection;
use narval_codec::decode::{DecodeError, Decoder, Window, is_no_window};

/// Size of the pieces of a NAR that are decoded, hashed and scanned. They fit into the inner CPU caches, and are small
/// enough for many concurrent uploads.
const PIECE_LEN: usize = 64 * 1024;

/// The expected properties of an upload.
pub(super) struct Claims<'a> {
    pub(super) target: &'a NarTarget,
    /// The announced length in bytes.
    pub(super) length: Option<u64>,
    pub(super) nar_size_max: u64,
    /// Only for measurements: an uncompressed file is not verified.
    pub(super) is_unverified: bool,
    /// Whether the name may belong to another file of the same NAR.
    pub(super) is_alias: bool,
}

/// A verified upload.
pub(super) struct Verified {
    pub(super) nar: NarRecord,
    /// SHA-256 of the contents, if the NAR is a single file that is not executable.
    pub(super) file: Option<Sha256>,
}

/// Reads an upload to its end: writes it to a file, unless it is one, writes its listing to another file, and verifies
/// it. Without `window`, it is a file that the cache has already: no memory is reserved for it, and skippable frames are accepted.
///
/// Memory: one buffer before and one after the decoder, the decoder's window, and the results of [`Scan`].
pub(super) fn verify<'a>(
    claims: &Claims<'_>,
    window: Option<Window>,
    body: &'a mut dyn Read,
    file: Option<&'a mut dyn Write>,
    listing: Option<&File>,
) -> Result<Verified, Rejection> {
    let len_max = claims.length.unwrap_or_else(|| file_size_max(claims.nar_size_max));
    if claims.is_unverified
        && let NarTarget::File(name) = claims.target
        && file.is_some()
        && name.compression().is_none()
    {
        return believe(claims, *name.hash(), Tee::new(body, file, len_max).without_hash());
    }
    let mut tee = Tee::new(body, file, len_max);
    let decoded = decode(claims, window, &mut tee, listing);
    check(claims, &mut tee)?;
    let decoded = decoded?;
    let (file_hash, file_size) = tee.finish();
    if claims.length.is_some_and(|length| length != file_size) {
        return Err(wrong_length(claims));
    }
    let is_upload = !claims.is_alias;
    if is_upload && decoded.compression != Compression::None && file_size > file_size_max(decoded.nar_size) {
        let message = format!(
            "'{}' has {file_size} bytes for a NAR of {}: it has padding, which would be sent to every client; compress the NAR again",
            claims.target, decoded.nar_size
        );
        return Err(Rejection::unprocessable(message));
    }
    let nar_hash = decoded.nar_hash.unwrap_or(file_hash);
    let (claimed, found) = match claims.target {
        NarTarget::File(name) => (*name.hash(), file_hash),
        NarTarget::Nar { nar_hash: claimed, .. } => (*claimed, nar_hash),
    };
    if claimed != found && !claims.is_alias {
        let message =
            format!("'{}' has the SHA-256 {}: it was damaged in transit; push again", claims.target, found.to_nix32());
        return Err(Rejection::unprocessable(message));
    }
    let Decoded { nar_size, compression, listing_size, found, file, .. } = decoded;
    let nar = NarRecord { nar_hash, nar_size, compression, file_hash, file_size, listing_size, found };
    Ok(Verified { nar, file })
}

/// The maximum size of the file of a NAR of this size: what does not compress becomes slightly larger.
pub(super) const fn file_size_max(nar_size: u64) -> u64 {
    nar_size.saturating_add(nar_size / 100 + 64 * 1024)
}

/// Reports the cause of a failure before the decoder, which only sees that reading failed.
fn check(claims: &Claims<'_>, tee: &mut Tee<'_>) -> Result<(), Rejection> {
    match tee.take_failure() {
        Some(TeeError::Body(error)) => {
            Err(Rejection::malformed(format_args!("the upload of '{}' ended early: {error}", claims.target)))
        }
        Some(TeeError::File(error)) => Err(Rejection::of_file("write", claims.target, &error)),
        Some(TeeError::TooLong) if claims.length.is_none() => Err(too_large(claims)),
        Some(TeeError::TooLong) => Err(wrong_length(claims)),
        None => Ok(()),
    }
}

/// Trusts an uncompressed file, to measure the cost of verification.
fn believe(claims: &Claims<'_>, hash: Sha256, mut tee: Tee<'_>) -> Result<Verified, Rejection> {
    while let Ok(piece @ [_, ..]) = tee.fill_buf() {
        let len = piece.len();
        tee.consume(len);
    }
    check(claims, &mut tee)?;
    let (_, file_size) = tee.finish();
    let nar = NarRecord {
        nar_hash: hash,
        nar_size: file_size,
        compression: Compression::None,
        file_hash: hash,
        file_size,
        listing_size: None,
        found: Vec::new(),
    };
    Ok(Verified { nar, file: None })
}

struct Decoded {
    /// `None` without compression, because it equals the file's.
    nar_hash: Option<NarHash>,
    nar_size: u64,
    compression: Compression,
    listing_size: Option<u64>,
    found: Vec<HashPart>,
    file: Option<Sha256>,
}

fn decode(
    claims: &Claims<'_>,
    window: Option<Window>,
    tee: &mut Tee<'_>,
    listing: Option<&File>,
) -> Result<Decoded, Rejection> {
    let invalid = |reason: &dyn std::fmt::Display| {
        Rejection::unprocessable(format_args!("'{}' is refused: {reason}", claims.target))
    };
    let first = tee.fill_buf().map_err(|error| invalid(&error))?;
    let compression = match claims.target.compression() {
        Some(compression) => compression,
        None => sniff(first).ok_or_else(|| invalid(&"it is neither a NAR nor in a known compression format"))?,
    };
    let made = match window {
        Some(window) => Decoder::of_upload(&compression, &mut *tee, window),
        None => Decoder::new(&compression, &mut *tee, 1),
    };
    let mut decoder = made.map_err(|error| match error {
        DecodeError::NoWindow(_) => no_window(),
        error => invalid(&error),
    })?;
    let mut hasher = (compression != Compression::None).then(Sha256Hasher::new);
    let mut contents = Contents {
        nar: NarDecoder::new(),
        listing: Listing::begin(listing)?,
        scan: Scan::default(),
        file: None,
        is_empty: true,
        size: 0,
    };
    let mut buffer = if hasher.is_some() { vec![0; PIECE_LEN] } else { Vec::new() };
    loop {
        // Without compression, a piece of the file is also a piece of the NAR, and is scanned in place.
        let piece = match &mut hasher {
            None => decoder.source_mut().fill_buf().map_err(|error| invalid(&error))?,
            Some(hasher) => {
                let len = decoder.read(&mut buffer).map_err(|error| match is_no_window(&error) {
                    true => no_window(),
                    false => invalid(&error),
                })?;
                let piece = buffer.get(..len).unwrap_or_default();
                hasher.update(piece);
                piece
            }
        };
        if piece.is_empty() {
            break;
        }
        contents.update(piece, claims, &invalid)?;
        let len = piece.len();
        if hasher.is_none() {
            decoder.source_mut().consume(len);
        }
    }
    if !decoder.source_mut().fill_buf().map_err(|error| invalid(&error))?.is_empty() {
        return Err(invalid(&"there are bytes after the end of the compressed data"));
    }
    drop(decoder);
    let nar_hash = hasher.map(Sha256Hasher::finish);
    let Contents { nar, listing, scan, file, size: nar_size, .. } = contents;
    nar.finish().map_err(|error| invalid(&error))?;
    let (listing_size, file) = (listing.finish()?, file.map(Sha256Hasher::finish));
    Ok(Decoded { nar_hash, nar_size, compression, listing_size, found: scan.finish(), file })
}

/// The contents of a NAR, piece by piece.
struct Contents<'a> {
    nar: NarDecoder,
    listing: Listing<'a>,
    scan: Scan,
    /// Hashes the contents of a NAR that is a single file, which content addresses name.
    file: Option<Sha256Hasher>,
    /// Whether nothing of it has come yet.
    is_empty: bool,
    size: u64,
}

impl Contents<'_> {
    fn update(
        &mut self,
        piece: &[u8],
        claims: &Claims<'_>,
        invalid: &dyn Fn(&dyn std::fmt::Display) -> Rejection,
    ) -> Result<(), Rejection> {
        self.size += piece.len() as u64;
        if self.size > claims.nar_size_max {
            return Err(too_large(claims));
        }
        self.scan.update(piece);
        self.parse(piece, invalid)
    }

    fn parse(&mut self, piece: &[u8], invalid: &dyn Fn(&dyn std::fmt::Display) -> Rejection) -> Result<(), Rejection> {
        let mut rest = piece;
        while let (used, Some(event)) = self.nar.next(rest).map_err(|error| invalid(&error))? {
            match event {
                Event::Contents(contents) => {
                    if let Some(file) = &mut self.file {
                        file.update(contents);
                    }
                }
                Event::EndRegular => {}
                Event::Regular { executable, size } => {
                    self.file = (self.is_empty && !executable).then(Sha256Hasher::new);
                    self.listing.push(&Event::Regular { executable, size }, self.nar.offset())?;
                }
                event => self.listing.push(&event, 0)?,
            }
            self.is_empty = false;
            rest = rest.get(used..).unwrap_or_default();
        }
        Ok(())
    }
}

/// A listing, unless there cannot be one.
struct Listing<'a>(Option<ListingWriter<&'a File>>);

impl<'a> Listing<'a> {
    fn begin(file: Option<&'a File>) -> Result<Self, Rejection> {
        let Some(file) = file else { return Ok(Self(None)) };
        match ListingWriter::new(file) {
            Ok(writer) => Ok(Self(Some(writer))),
            Err(error) => Self(None).without(error),
        }
    }

    fn push(&mut self, event: &Event<'_>, offset: u64) -> Result<(), Rejection> {
        if let Some(writer) = &mut self.0
            && let Err(error) = writer.push(event, offset)
        {
            *self = Self(None).without(error)?;
        }
        Ok(())
    }

    fn finish(self) -> Result<Option<u64>, Rejection> {
        match self.0.map(ListingWriter::finish) {
            None => Ok(None),
            Some(Ok(len)) => Ok(Some(len)),
            Some(Err(error)) => Self(None).without(error).map(|_| None),
        }
    }

    /// Without a listing, if JSON cannot express it; Nix has none then either.
    fn without(self, error: NoListing) -> Result<Self, Rejection> {
        match error {
            NoListing::Inexpressible => Ok(self),
            NoListing::Io(error) => Err(Rejection::of_file("write", "a listing", &error)),
        }
    }
}

/// Detects the compression of a file whose name does not determine it.
fn sniff(first: &[u8]) -> Option<Compression> {
    const MAGICS: [(&[u8], Compression); 5] = [
        (b"\x0d\0\0\0\0\0\0\0nix-archive-1", Compression::None),
        (b"\x1f\x8b", Compression::Gzip),
        (b"\x1f\x9d", Compression::Compress),
        (b"\x5d\0\0", Compression::Lzma),
        (b"LZIP", Compression::Lzip),
    ];
    MAGICS.into_iter().find(|(magic, _)| first.starts_with(magic)).map(|(_, compression)| compression)
}

/// A temporary refusal: others hold the memory.
pub(crate) fn no_window() -> Rejection {
    let message = "too many NARs with large windows are being received at the moment: nothing was stored, try again";
    Rejection::unavailable(message)
}

fn too_large(claims: &Claims<'_>) -> Rejection {
    let message = format!(
        "'{}' is larger than {} bytes, the largest NAR that this cache accepts",
        claims.target, claims.nar_size_max
    );
    Rejection::too_large(message)
}

fn wrong_length(claims: &Claims<'_>) -> Rejection {
    let length = claims.length.unwrap_or_default();
    Rejection::malformed(format_args!("the upload of '{}' does not have the announced {length} bytes", claims.target))
}
