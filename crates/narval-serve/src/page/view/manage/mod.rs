//! Manage: what a token allows, as forms that work without script. Each has the session's proof, and is answered with the view that it is in.

mod audit;
mod jobs;
mod machines;
mod pins;
mod space;
mod tokens;

use std::sync::Arc;

use maud::{Markup, html};
use narval_http::StatusCode;
use narval_keep::{Cache, Data, Scope};

use super::words::name;
use crate::error::ServeError;
use crate::page::manage::{Done, Form};
use crate::page::parts::Parts;
use crate::page::visit::{Visit, Who};

/// The views: their address, their title, and the scope that they need.
const VIEWS: [(&str, &str, Scope); 6] = [
    ("space", "Space", Scope::Admin),
    ("pins", "Pins", Scope::Pin),
    ("machines", "Machines", Scope::Admin),
    ("tokens", "Tokens", Scope::Admin),
    ("jobs", "Jobs", Scope::Admin),
    ("audit", "Audit", Scope::Admin),
];

/// The question before paths are deleted.
const DELETE: &str = "delete";

/// What a view is made of.
struct Manage<'a> {
    visit: &'a Visit,
    who: &'a Who,
    data: &'a Data,
    cache: &'a Cache,
    /// What the address asks for.
    params: Form,
}

/// The title and the contents of a part of Manage.
pub(super) fn manage(
    parts: &Parts,
    part: &str,
    visit: &Visit,
    query: Option<&str>,
) -> Result<(String, Markup), ServeError> {
    let params = Form::parse(query.unwrap_or_default());
    Ok(("Manage".to_owned(), render(parts, part, visit, params, &html! {})?))
}

/// The same after a form: what came of it, and its status.
pub(super) fn after(
    parts: &Parts,
    part: &str,
    visit: &Visit,
    form: &Form,
    done: Result<Done, ServeError>,
) -> (Markup, StatusCode) {
    let (notice, status) = match done {
        Ok(done) => (confirmation(visit, done), StatusCode::OK),
        Err(ServeError::Rejected(rejection)) => {
            let status = StatusCode::from_u16(rejection.kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            (html! { p.notice.bad role="alert" { "▲ " (super::words::plain(&rejection.message)) } }, status)
        }
        Err(error) => {
            tracing::error!("{error}");
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            (html! { p.notice.bad role="alert" { "▲ This failed; see the server's log." } }, status)
        }
    };
    // What was deleted cannot be asked for again.
    let part = if part == DELETE && status == StatusCode::OK { "" } else { part };
    let params = Form::parse(form.value("back").unwrap_or_default());
    match render(parts, part, visit, params, &notice) {
        Ok(main) => (main, status),
        Err(_) => (notice, status),
    }
}

fn confirmation(visit: &Visit, done: Done) -> Markup {
    match done {
        Done::Confirmed(text) => html! { p.notice.good role="status" { "✓ " (super::words::plain(&text)) } },
        Done::Created { label, token, scopes } => tokens::created(visit, &label, &token, scopes),
    }
}

fn render(parts: &Parts, part: &str, visit: &Visit, params: Form, notice: &Markup) -> Result<Markup, ServeError> {
    let who = visit.who.as_ref().ok_or(ServeError::NoPath)?;
    let allowed: Vec<_> = VIEWS.into_iter().filter(|(.., scope)| who.may(*scope)).collect();
    let current = allowed.iter().find(|(key, ..)| *key == part).or(allowed.first()).map(|(key, ..)| *key);
    let current = if part == DELETE && who.may(Scope::Delete) { Some(DELETE) } else { current };
    // Whoever may do nothing here is told nothing: it may not exist.
    let service = current.and_then(|_| parts.service(&visit.cache));
    let service = service.as_ref().map(Arc::as_ref);
    let made = match (current, service.and_then(|service| Some((service.data()?, service.cache()?)))) {
        (Some(current), Some((data, cache))) => {
            let manage = Manage { visit, who, data, cache, params };
            Some(match current {
                "pins" => manage.pins()?,
                "tokens" => manage.tokens()?,
                "audit" => manage.audit()?,
                "jobs" => manage.jobs()?,
                "machines" => manage.machines()?,
                DELETE => manage.delete()?,
                _ => manage.space()?,
            })
        }
        _ => None,
    };
    Ok(html! {
        h1 { "Manage" }
        div.who {
            p {
                "Signed in with " b { (name(&who.label)) }
                span.soft { ", which allows " (allows(who)) " here, and is for: " (who.grant.caches.texts().join(", ")) }
            }
            button type="button" data-sign-out hidden { "Sign out" }
        }
        @if allowed.len() > 1 {
            nav.tabs aria-label="Manage" {
                @for (key, title, _) in &allowed {
                    a href=(visit.link(&format!("_narval/manage/{key}"))) aria-current=[(current == Some(*key)).then_some("page")] { (title) }
                }
            }
        }
        (notice)
        @match made {
            Some(made) => (made),
            None => p { (other(who)) },
        }
    })
}

fn allows(who: &Who) -> String {
    match who.scopes.len() {
        0 => "nothing".to_owned(),
        count if count == Scope::ALL.len() => "everything".to_owned(),
        _ => who.scopes.iter().map(|scope| scope.name()).collect::<Vec<_>>().join(", "),
    }
}

fn other(who: &Who) -> &'static str {
    match () {
        () if who.may(Scope::Delete) => "To delete a path, open it.",
        () if who.may(Scope::Pull) => "It can read this cache, but manage nothing.",
        () => "It can manage nothing here.",
    }
}

impl Manage<'_> {
    /// A form that changes something. `back`: the query of the view that is shown afterwards.
    fn form(&self, part: &str, action: &str, back: &str, contents: &Markup) -> Markup {
        html! {
            form method="post" action=(self.link(part)) {
                input type="hidden" name="proof" value=(self.who.proof);
                input type="hidden" name="do" value=(action);
                @if !back.is_empty() { input type="hidden" name="back" value=(back); }
                (contents)
            }
        }
    }

    fn link(&self, part: &str) -> String {
        self.visit.link(&format!("_narval/manage/{part}"))
    }
}

/// A field with its label.
fn field(id: &str, label: &str, input: &Markup) -> Markup {
    html! { div.field { label for=(id) { (label) } (input) } }
}
