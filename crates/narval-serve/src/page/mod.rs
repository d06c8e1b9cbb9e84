//! The page that browsers get: how to use this cache, what is in it, and what the server does now.
//!
//! Each view has an address, and is a document that the server renders (`view/`), with style and script inlined (`assets/`). Below [its path](crate::routes::pages::PATH) is what
//! the script requests, and files. What everybody may see is read-only, and queries the sources like any client; browsers that have signed in
//! with a token (`session.rs`) can manage the cache (`manage.rs`).

mod catalog;
mod check;
mod compare;
mod contents;
mod inside;
mod json;
mod manage;
mod parts;
mod paths;
pub(crate) mod places;
pub(crate) mod session;
mod tar;
mod usage;
mod view;
pub(crate) mod visit;

use std::sync::Arc;

use narval_http::{HeadRef, Request, Response, header};
use narval_keep::{Grant, Rejection};

use crate::auth::client_text;
use crate::auth::sessions::Session;
use crate::error::ServeError;
use crate::metrics::Metrics;
use crate::piecework::{Answered, Piecework};
use crate::routes::pages::{PageRoute, View};
use crate::state::ServerState;
use crate::upload::receive::Uploads;
use inside::Inside;
use json::{json, json_response};
use manage::{Action, Form};
use parts::Parts;
use places::Places;
use visit::Visit;

/// The page sends this field with its requests.
pub(crate) const FIELD: &str = "x-narval-page";

/// The page and its requests.
#[derive(Debug)]
pub(crate) struct Page {
    parts: Arc<Parts>,
    work: Arc<Piecework>,
    metrics: Arc<Metrics>,
}

impl Page {
    pub(crate) fn new(places: Places, state: ServerState, metrics: Arc<Metrics>) -> Self {
        let work = state.page_work();
        let parts = Parts { places: Arc::new(places), catalog: Arc::default(), frames: Arc::default(), state };
        Self { parts: Arc::new(parts), work, metrics }
    }

    /// Whether a request for `/` comes from a browser: `Accept` names HTML.
    pub(crate) fn is_wanted(head: &HeadRef<'_>) -> bool {
        let accept = head.header_bytes(header::ACCEPT.as_str()).unwrap_or_default();
        accept.split(|byte| *byte == b',').any(|range| range.trim_ascii().starts_with(b"text/html"))
    }

    /// The document for callers that may not read, or have to sign in first. It contains nothing about the cache.
    pub(crate) fn sign_in(head: &HeadRef<'_>) -> Response {
        view::layout::sign_in(head)
    }

    /// Answers with a view, which is rendered by threads of the page's own.
    pub(crate) fn view(&self, view: View, visit: Visit, request: Request) -> Result<Response, ServeError> {
        let parts = Arc::clone(&self.parts);
        self.on_a_thread(request, move |request| view::answer(&parts, &view, &visit, request).map(Answered::Whole))
    }

    /// Does what a form asks for, on the threads for small uploads, and answers with the view that has it.
    pub(crate) fn submit(
        &self,
        part: String,
        visit: Visit,
        session: Session,
        uploads: &Arc<Uploads>,
        request: Request,
    ) -> Result<Response, ServeError> {
        let (parts, head) = (Arc::clone(&self.parts), request.head());
        let (peer, accepts_zstd) = (client_text(&head), view::layout::accepts_zstd(&head));
        let grant = Grant::clone(&session.grant).from_peer(peer);
        uploads.run(request, move |data, cache, body| {
            let form = Form::read(body)?;
            if !session.is_proved_by(form.value("proof").unwrap_or_default().as_bytes()) {
                let message = "the form lacks the session's proof: go back and reload the page";
                return Err(Rejection::forbidden(message).into());
            }
            let done = Action::of(&form).and_then(|action| action.run(&form, data, cache, &grant));
            Ok(view::after_form(&parts, part, &visit, (&form, done), accepts_zstd))
        })
    }

    /// Answers a request of the document. What decodes, walks or compares is answered by threads of the page's own.
    pub(crate) fn answer(&self, route: PageRoute<'_>, request: Request) -> Result<Response, ServeError> {
        let Parts { places, catalog, frames, .. } = &*self.parts;
        let (places, catalog, frames) = (Arc::clone(places), Arc::clone(catalog), Arc::clone(frames));
        match route {
            PageRoute::Check => self.on_a_thread(request, move |request| {
                json(&check::check(&places, &catalog, &|| request.is_connected())?).map(Answered::Whole)
            }),
            PageRoute::Paths => self.on_a_thread(request, move |request| {
                let query = catalog::SearchQuery::parse(request.query());
                json(&catalog.search(&places, &query)?).map(Answered::Whole)
            }),
            PageRoute::Closure(hash_part) => self.on_a_thread(request, move |_| {
                let (of, source) = paths::closure(&places, hash_part)?;
                Ok(Answered::Pieces { response: json_response(), source: Box::new(source), length: None, of })
            }),
            // The path was decoded with the request's.
            PageRoute::File(hash_part, path) => {
                let path = path.to_owned();
                self.on_a_thread(request, move |request| {
                    contents::answer(&Inside::open(&places, &frames, hash_part)?, path.as_bytes(), &request.head())
                })
            }
            PageRoute::Tar(hash_part, path) => {
                let path = path.to_owned();
                self.on_a_thread(request, move |_| {
                    tar::answer(&Inside::open(&places, &frames, hash_part)?, path.as_bytes())
                })
            }
            // A server that accepts no uploads has no tokens. The page asks all the same: browsers log every answer with an error.
            PageRoute::Session => session::none(),
        }
    }

    fn on_a_thread(
        &self,
        request: Request,
        answer: impl FnOnce(&Request) -> Result<Answered, ServeError> + Send + 'static,
    ) -> Result<Response, ServeError> {
        self.work.answer(request, &self.metrics, answer)
    }
}
