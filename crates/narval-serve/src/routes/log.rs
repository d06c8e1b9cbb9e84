//! `/log/<base name>`: the build log of a derivation, or of the derivation that made a path.

use std::io::Read;

use narval_http::{Body, BodySource, FileRange, Fill, HeaderValue, Response, SegmentBuf, StatusCode, header};
use narval_nix::StorePath;
use narval_store::{LogCompression, Store, StoreError};

use crate::error::ServeError;

/// Answers with the text of the log, or 404 when there is none. (Perl nix-serve answers an empty 200, so that clients ask no other
/// cache. nix-serve-ng asks the host's own substituters over the network, which clients do themselves.)
pub(crate) fn answer(store: &Store, path: &StorePath) -> Result<Response, ServeError> {
    let derivation = if path.is_derivation() {
        path.clone()
    } else {
        let info = store.path_info(path)?.ok_or(ServeError::NoPath)?;
        info.deriver.ok_or(ServeError::NoPath)?
    };
    let log = store.build_log(&derivation)?.ok_or(ServeError::NoPath)?;
    let response = Response::new(StatusCode::OK).header(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    if log.compression == LogCompression::None {
        let range = FileRange { file: log.file.into(), offset: 0, length: log.size_bytes };
        return Ok(response.body(Body::file(range)));
    }
    let at = log.path.clone();
    let reader = log.into_reader().map_err(|source| StoreError::Io { action: "read", path: at, source })?;
    Ok(response.body(Body::source(Text { reader }, None)))
}

/// The text of a compressed log.
struct Text {
    reader: Box<dyn Read + Send>,
}

impl BodySource for Text {
    fn fill(&mut self, out: &mut SegmentBuf) -> std::io::Result<Fill> {
        let room = out.room() as u64;
        let got = (&mut self.reader).take(room).read_to_end(out.memory())?;
        Ok(if got == 0 { Fill::Done } else { Fill::More })
    }
}
