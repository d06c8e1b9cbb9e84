//! `/<hash part>.narinfo`: from memory on the shard, else of what a worker has read ([`Narinfos::read`]).

use std::sync::Arc;

use narval_http::semantics::conditional::{Outcome, Validators, evaluate};
use narval_http::{HeadRef, HeaderValue, Prepared, Response, StatusCode, header};
use narval_nix::HashPart;

use crate::config::Dialect;
use crate::narinfo::memo::Answer;
use crate::narinfo::sources::Narinfos;
use crate::prepared::prepared;

impl Narinfos {
    /// Answers from memory, on the shard.
    #[inline]
    pub(crate) fn inline(&self, head: &HeadRef<'_>, hash_part: &HashPart) -> Option<Response> {
        let mut answer = Answer::Absent;
        if let Some(live) = &self.live {
            answer = live.remembered(hash_part)?;
        }
        if let (Answer::Absent, Some(writable)) = (&answer, &self.writable) {
            answer = writable.remembered(hash_part)?;
        }
        if let (Answer::Absent, Some(upstream)) = (&answer, &self.upstream) {
            answer = upstream.remembered(hash_part)?;
        }
        Some(self.respond(head, answer))
    }

    /// The answer to one request.
    #[inline]
    pub(crate) fn respond(&self, head: &HeadRef<'_>, answer: Answer) -> Response {
        let present = match answer {
            Answer::Absent => return Arc::clone(&self.absent).into(),
            Answer::Present(present) => present,
        };
        if let Some(etag) = &present.etag {
            let current = Validators { etag: Some(etag), last_modified: None };
            match evaluate(head, Some(&current)) {
                Outcome::Proceed => {}
                Outcome::NotModified => {
                    return Response::new(StatusCode::NOT_MODIFIED).header(header::ETAG, etag.clone());
                }
                Outcome::PreconditionFailed => return Response::new(StatusCode::PRECONDITION_FAILED),
            }
        }
        Response::within(present)
    }
}

/// The answer for absent paths. Proxies must not cache it: the path may be built a moment later.
pub(crate) fn absent(dialect: Dialect) -> Arc<Prepared> {
    let content_type = match dialect {
        Dialect::Narval => "text/plain; charset=utf-8",
        Dialect::NixServe => "text/plain",
    };
    let no_store = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Arc::new(prepared(StatusCode::NOT_FOUND, content_type, &[no_store], "No such path.\n"))
}
