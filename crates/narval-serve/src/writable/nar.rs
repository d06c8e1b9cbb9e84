//! NARs of the writable cache: files, sent as they were uploaded, objects on their way from a bucket, and differences to a NAR that
//! the client has.

use std::io::{BufReader, Read};
use std::sync::Arc;

use narval_codec::decode::{Decoder, INPUT_LEN};
use narval_http::{Body, HeadRef, HeaderValue, Method, Response, StatusCode, header};
use narval_keep::{Cache, NarBytes, NarHead, Redirect};
use narval_nix::{Compression, NarInfo, Sha256};

use crate::error::ServeError;
use crate::metrics::Metrics;
use crate::nar::deltas::{DeltaEnd, DeltaRequest, Deltas};
use crate::nar::file::send_file;
use crate::nar::growing::{Nothing, send_growing};
use crate::nar::representation::Representation;

/// Answers with a NAR by the name of its file below `nar/`, or with ranges of it.
pub(crate) fn answer(
    cache: &Cache,
    name: &str,
    head: &HeadRef<'_>,
    (deltas, redirect): (Option<&Arc<Deltas>>, Redirect),
    metrics: &Arc<Metrics>,
) -> Result<Response, ServeError> {
    if let Some(deltas) = deltas
        && let Some(request) = DeltaRequest::of(head)
        && let Some(response) = delta(cache, name, head, (deltas, &request))?
    {
        return Ok(response);
    }
    // The index knows the length of an object: nothing is fetched for it.
    if *head.method() == Method::HEAD && !cache.is_local() {
        let nar = cache.nar_head(name)?.ok_or(ServeError::NoPath)?;
        return representation(&nar).answer(head, |_| Ok(Body::source(Nothing, Some(nar.len))));
    }
    let own_tag = || Ok(cache.nar_head(name)?.and_then(|nar| representation(&nar).etag));
    let redirect = if redirect == Redirect::Off { redirect } else { redirect_of(head, redirect, own_tag)? };
    let (nar, bytes) = cache.nar(name, redirect)?.ok_or(ServeError::NoPath)?;
    let representation = representation(&nar);
    match bytes {
        NarBytes::File(file) => {
            let bytes = match nar.compression {
                Compression::None => &metrics.nar_bytes_identity,
                _ => &metrics.nar_bytes_compressed,
            };
            send_file(&representation, head, &Arc::new(file), bytes)
        }
        NarBytes::Redirect(address) => {
            metrics.nars_redirected.inc();
            let response = Response::redirect_with(StatusCode::TEMPORARY_REDIRECT, &address);
            // The address is soon invalid.
            Ok(response.header(header::CACHE_CONTROL, HeaderValue::from_static("no-store")))
        }
        NarBytes::Growing(growing) => {
            send_growing(&representation, head, growing, (&metrics.nar_bytes_upstream, metrics))
        }
    }
}

/// The file of a NAR, as it is sent.
pub(super) fn representation(nar: &NarHead) -> Representation {
    // The same NAR with the same compression and length: the file of another upload would have another name.
    let etag = format!("\"{}.{}\"", nar.nar_hash.to_nix32(), nar.len);
    Representation {
        content_type: HeaderValue::from_static("application/x-nix-nar"),
        coding: None,
        etag: HeaderValue::from_str(&etag).ok(),
        varies: false,
        size: nar.len,
    }
}

/// Whether this request may be redirected: one for all of a NAR, or for the rest of one that the store has begun to send.
fn redirect_of(
    head: &HeadRef<'_>,
    redirect: Redirect,
    own_tag: impl FnOnce() -> Result<Option<HeaderValue>, ServeError>,
) -> Result<Redirect, ServeError> {
    let field = |name: header::HeaderName| head.header_bytes(name.as_str());
    if *head.method() != Method::GET || field(header::IF_NONE_MATCH).is_some() || field(header::IF_MATCH).is_some() {
        return Ok(Redirect::Off);
    }
    Ok(match (field(header::RANGE), field(header::IF_RANGE)) {
        (None, _) => redirect,
        (Some(_), None) => Redirect::Off,
        // The store's entity tag: what is here has another one, so the client would have to begin again.
        (Some(_), Some(tag)) => match own_tag()? {
            Some(own) if own.as_bytes() != tag => Redirect::On,
            _ => Redirect::Off,
        },
    })
}

/// Answers with the delta from the NAR that the client says it has, if this cache has it, too.
fn delta(
    cache: &Cache,
    name: &str,
    head: &HeadRef<'_>,
    (deltas, request): (&Arc<Deltas>, &DeltaRequest),
) -> Result<Option<Response>, ServeError> {
    let Some(text) = cache.narinfo(&request.base)? else { return Ok(None) };
    let Ok(info) = NarInfo::parse(&text, &cache.settings().store_dir) else { return Ok(None) };
    let Some(base_name) = info.url.strip_prefix("nar/").filter(|_| info.nar_hash == request.base_hash) else {
        return Ok(None);
    };
    let (Some(base), Some(nar)) = (cache.nar_head(base_name)?, cache.nar_head(name)?) else { return Ok(None) };
    let len = nar.len;
    let end = |name: &str, nar: NarHead| {
        let (cache, name, hash, size) = (cache.clone(), name.to_owned(), nar.nar_hash, nar.nar_size);
        DeltaEnd { hash, size, read: Box::new(move || read(&cache, &name, &nar)) }
    };
    deltas.answer(head, request, (end(base_name, base), end(name, nar)), Some(len))
}

/// Decodes a NAR, and verifies it.
fn read(cache: &Cache, name: &str, nar: &NarHead) -> Result<Vec<u8>, String> {
    let file = cache.nar_file(name).map_err(|rejection| rejection.to_string())?.ok_or("it is gone")?;
    let source = BufReader::with_capacity(INPUT_LEN, file.file);
    let decoder = Decoder::new(&file.compression, source, 1).map_err(|error| error.to_string())?;
    let mut bytes = Vec::with_capacity(usize::try_from(nar.nar_size).unwrap_or(0));
    decoder.take(nar.nar_size + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if Sha256::of(&bytes) == nar.nar_hash { Ok(bytes) } else { Err("its file does not have its hash".to_owned()) }
}
