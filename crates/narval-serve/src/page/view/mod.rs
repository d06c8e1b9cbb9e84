//! The views: documents that the server renders, each with an address of its own. They work without script, as links and GET forms; the one
//! script of all of them (`assets/`) makes search immediate, copies, signs in, and updates numbers.
//!
//! A view is a function that returns the [`Markup`] of its `<main>`, written with `maud`, which escapes whatever is put into it. Names of paths and
//! files come from whoever built them: [`words::name`] also isolates their direction. [`layout`] puts a view between header and footer. Data goes into
//! the document only, never into style or script, so the policy has constant hashes.

mod absent;
mod compare;
mod files;
pub(super) mod layout;
mod manage;
mod overview;
mod package;
mod packages;
mod parts;
mod releases;
mod status;
pub(super) mod words;

use maud::Markup;
use narval_http::{Request, Response, StatusCode};

use super::manage::{Done, Form};
use super::parts::Parts;
use super::visit::Visit;
use crate::error::ServeError;
use crate::routes::pages::View;
use layout::Frame;

/// Renders a view. Called on the page's threads: it may read, search and walk.
///
/// # Errors
/// If a source cannot be read. What is absent is a view of its own, with the status 404.
pub(super) fn answer(parts: &Parts, view: &View, visit: &Visit, request: &Request) -> Result<Response, ServeError> {
    let (title, main, status) = match render(parts, view, visit, request) {
        Ok((title, main)) => (title, main, StatusCode::OK),
        Err(ServeError::NoPath) => ("Not found".to_owned(), absent::absent(visit), StatusCode::NOT_FOUND),
        Err(error) => return Err(error),
    };
    let head = request.head();
    let frame = Frame { parts, visit, view, title: &title, main };
    Ok(frame.respond(status, head.query(), layout::accepts_zstd(&head)))
}

/// Answers with the part of Manage that has a form, and says what came of it.
pub(super) fn after_form(
    parts: &Parts,
    part: String,
    visit: &Visit,
    (form, done): (&Form, Result<Done, ServeError>),
    accepts_zstd: bool,
) -> Response {
    let (main, status) = manage::after(parts, &part, visit, form, done);
    let view = View::Manage(part);
    Frame { parts, visit, view: &view, title: "Manage", main }.respond(status, None, accepts_zstd)
}

/// The title and the contents of a view.
fn render(parts: &Parts, view: &View, visit: &Visit, request: &Request) -> Result<(String, Markup), ServeError> {
    match view {
        View::Absent => Err(ServeError::NoPath),
        View::Overview => overview::overview(parts, visit),
        View::Packages => packages::packages(parts, visit, request.query()),
        View::Path(hash_part) => package::package(parts, visit, *hash_part, request),
        View::Compare(one, other) => compare::compared(parts, visit, [*one, *other], request),
        View::Files(hash_part, path) => files::files(parts, visit, (*hash_part, path), request),
        View::Releases(view) => releases::releases(parts, visit, view, request.query()),
        View::Status => status::status(parts, visit),
        View::Manage(part) => manage::manage(parts, part, visit, request.query()),
    }
}
