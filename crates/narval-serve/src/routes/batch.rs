//! `POST /batch-lookup-v1`: many narinfos, or those of a whole closure, in one answer. The protocol is described in
//! `docs/batch-protocol.md`.

use std::io::{self, Write};
use std::sync::Arc;

use narval_client::request_id::{self, Carried};
use narval_http::semantics::accept::{Coding, negotiate_coding};
use narval_http::{Body, BodySource, Fill, HeaderValue, Method, Request, Response, SegmentBuf, StatusCode, header};
use narval_nix::{ClosureWalk, HashPart};
use zstd::stream::write::Encoder;

use crate::error::ServeError;
use crate::narinfo::memo::{Answer, Present};
use crate::narinfo::sources::Narinfos;

/// The key in `nix-cache-info` that tells clients where batch lookups are answered.
pub(crate) const CACHE_INFO_KEY: &str = "BatchLookup";
/// Its value.
pub(crate) const PATH: &str = "batch-lookup-v1";

/// The most hash parts in one request.
const HASH_PARTS_MAX: usize = 65_536;
/// The most paths in one answer, those of the closure included.
const PATHS_MAX: usize = 262_144;
/// A hash part and its newline.
const LINE_BYTES: usize = 33;
/// Fast: narinfos are mostly hashes.
const LEVEL: i32 = 1;

/// What is asked of each hash part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    /// Whether it is there.
    Presence,
    /// Its narinfo.
    NarInfos,
    /// Its narinfo, and those of all that it refers to.
    Closure,
}

/// Reads the hash parts, and answers while they are looked up.
pub(crate) fn answer(narinfos: &Arc<Narinfos>, mut request: Request) -> Result<Response, ServeError> {
    if *request.method() != Method::POST {
        return Err(ServeError::Method("POST"));
    }
    let want = match request.query() {
        None | Some("want=narinfos") => Want::NarInfos,
        Some("want=presence") => Want::Presence,
        Some("want=closure") => Want::Closure,
        Some(_) => {
            return Err(ServeError::Batch("the query must be want=presence, want=narinfos or want=closure"));
        }
    };
    let compressed = negotiate_coding(&request.head(), &[Coding::Zstd, Coding::Identity]) == Some(Coding::Zstd);
    let walk = hash_parts(&mut request)?;
    let response = Response::new(StatusCode::OK)
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/x-nix-batch-lookup"))
        .header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let mut source = Lookups {
        narinfos: Arc::clone(narinfos),
        want,
        walk,
        answered: 0,
        encoder: None,
        carried: request_id::current(),
    };
    if !compressed {
        return Ok(response.body(Body::source(source, None)));
    }
    source.encoder = Encoder::new(Vec::new(), LEVEL).ok();
    let response = match source.encoder {
        Some(_) => response.header(header::CONTENT_ENCODING, HeaderValue::from_static("zstd")),
        None => response,
    };
    Ok(response.body(Body::source(source, None)))
}

/// One hash part on each line.
fn hash_parts(request: &mut Request) -> Result<ClosureWalk<HashPart>, ServeError> {
    let text = request.body().bytes(HASH_PARTS_MAX * LINE_BYTES).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => ServeError::Batch("at most 65536 hash parts are allowed in one request"),
        _ => ServeError::Batch("the request ended too early"),
    })?;
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let parse =
        |line| HashPart::parse(line).map_err(|_| ServeError::Batch("each line must be a hash part of 32 characters"));
    Ok(ClosureWalk::new(lines.map(parse).collect::<Result<Vec<_>, _>>()?))
}

/// The answer: looked up while the client reads it.
struct Lookups {
    narinfos: Arc<Narinfos>,
    want: Want,
    walk: ClosureWalk<HashPart>,
    answered: usize,
    encoder: Option<Encoder<'static, Vec<u8>>>,
    /// What its requests carry.
    carried: Carried,
}

impl BodySource for Lookups {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let _entered = request_id::enter(self.carried.clone());
        let room = out.room();
        let mut text = Vec::with_capacity(room.min(64 * 1024));
        while text.len() < room {
            let Some(hash_part) = self.walk.next() else {
                text.extend_from_slice(format!("end {}\n", self.answered).as_bytes());
                self.put(&text, out)?;
                if let Some(encoder) = self.encoder.take() {
                    out.memory().extend_from_slice(&encoder.finish()?);
                }
                return Ok(Fill::Done);
            };
            self.look_up(hash_part, &mut text)?;
        }
        self.put(&text, out)?;
        Ok(Fill::More)
    }
}

impl Lookups {
    fn look_up(&mut self, hash_part: HashPart, text: &mut Vec<u8>) -> io::Result<()> {
        let answer = match self.want {
            Want::Presence => self.narinfos.look_up_local(hash_part),
            Want::NarInfos | Want::Closure => self.narinfos.look_up(hash_part),
        };
        let answer = answer.map_err(|error| {
            tracing::error!("batch lookup aborted: {error}");
            io::Error::other(error)
        })?;
        self.answered += 1;
        match answer {
            Answer::Absent => text.extend_from_slice(format!("{hash_part} absent\n").as_bytes()),
            Answer::Present(_) if self.want == Want::Presence => {
                text.extend_from_slice(format!("{hash_part} present\n").as_bytes());
            }
            Answer::Present(present) => {
                text.extend_from_slice(format!("{hash_part} {}\n", present.text.len()).as_bytes());
                text.extend_from_slice(&present.text);
                if self.want == Want::Closure {
                    self.follow(&present)?;
                }
            }
        }
        Ok(())
    }

    /// Queues the references of a path.
    fn follow(&mut self, present: &Present) -> io::Result<()> {
        let lines = present.text.split(|byte| *byte == b'\n');
        let references = lines
            .filter_map(|line| line.strip_prefix(b"References: "))
            .flat_map(|line| line.split(|byte| *byte == b' '));
        self.walk.add(references.filter_map(|reference| HashPart::parse(reference.get(..32)?).ok()));
        // The connection is aborted: half a closure must not look like a whole one.
        if self.walk.seen_count() > PATHS_MAX {
            Err(io::Error::other("the closure has too many paths"))
        } else {
            Ok(())
        }
    }

    fn put(&mut self, text: &[u8], out: &mut SegmentBuf) -> io::Result<()> {
        match &mut self.encoder {
            None => out.memory().extend_from_slice(text),
            Some(encoder) => {
                encoder.write_all(text)?;
                out.memory().append(encoder.get_mut());
            }
        }
        Ok(())
    }
}
