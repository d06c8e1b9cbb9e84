//! Tokens: who has them, when they were last used and from where, and new ones.

use std::collections::HashMap;

use maud::{Markup, html};
use narval_client::clock;
use narval_keep::{Scope, Scopes, TokenInfo};

use super::Manage;
use crate::api::{governs, of_tokens};
use crate::error::ServeError;
use crate::page::view::Visit;
use crate::page::view::parts::copied;
use crate::page::view::words::{ago, date, name, number};

/// Tokens that are listed.
const LISTED_MAX: usize = 500;
/// Lines of the audit log in which addresses are looked for, and how old they may be in days.
const LINES_MAX: usize = 5_000;
const LINES_DAYS: u64 = 90;
const DAY_SECONDS: u64 = 24 * 60 * 60;
/// A token that was not used for so many days is marked.
const UNUSED_DAYS: u64 = 90;

/// Whom a token is for, and what they need.
const PURPOSES: [(&str, &str, &[&str], &str); 5] = [
    (
        "ci",
        "CI that pushes",
        &["pull", "push", "sign"],
        "It pushes what it has built, the server signs it, and it reads the cache itself.",
    ),
    ("person", "A person who installs", &["pull"], "It reads this cache, and nothing else."),
    (
        "machine",
        "A machine that follows a release",
        &["pull", "report"],
        "It reads this cache, and reports what it runs.",
    ),
    ("monitoring", "Monitoring", &["pull"], "It reads /metrics and the cache, and nothing else."),
    ("other", "Something else", &[], ""),
];

const SCOPES: [(&str, &str); 8] = [
    ("pull", "read this cache if it is private"),
    ("push", "upload"),
    ("sign", "have uploads signed with the server's key; without it, clients refuse what this token pushes"),
    ("pin", "add and remove pins"),
    ("delete", "delete paths"),
    ("replace", "replace paths"),
    ("report", "report what a machine runs that follows a release"),
    ("admin", "all of these, and tokens"),
];

fn is_over(token: &TokenInfo, now: u64) -> bool {
    token.revoked.is_some() || token.expires.is_some_and(|expires| expires <= now)
}

impl Manage<'_> {
    pub(super) fn tokens(&self) -> Result<Markup, ServeError> {
        let now = clock::now();
        let mut tokens = self.data.tokens().list().map_err(of_tokens)?;
        tokens.retain(|token| governs(&self.who.grant, &token.caches));
        tokens.sort_by_key(|token| (is_over(token, now), std::cmp::Reverse(token.created)));
        let total = tokens.len();
        let since = now.saturating_sub(LINES_DAYS * DAY_SECONDS);
        let lines = self.data.last_audit(since, LINES_MAX, |line| line.peer.is_some());
        let lines = lines.inspect_err(|error| tracing::warn!("{error}")).unwrap_or_default();
        // The newest line of each token comes first.
        let mut peers = HashMap::new();
        for line in &lines {
            peers.entry(&*line.token).or_insert(line.peer.as_deref().unwrap_or_default());
        }
        Ok(html! {
            div.scroll tabindex="0" role="region" aria-label="Tokens" {
                table aria-label="Tokens" {
                    thead { tr {
                        th scope="col" { "Label" } th scope="col" { "Allows" } th.w scope="col" { "Caches" } th scope="col" { "Last used" }
                        th scope="col" { "State" } th scope="col" { span.hidden-text { "Revoke" } }
                    } }
                    tbody {
                        @for token in tokens.iter().take(LISTED_MAX) { (self.token(token, peers.get(&*token.id).copied(), now)) }
                    }
                }
            }
            @if total > LISTED_MAX { p.soft { (number(total - LISTED_MAX)) " more are not listed." } }
            p.soft { "Addresses are those of the last write that the audit log has." }
            (self.create())
        })
    }

    fn token(&self, token: &TokenInfo, peer: Option<&str>, now: u64) -> Markup {
        let last = token.last_used.unwrap_or(token.created);
        let is_unused = !is_over(token, now) && now.saturating_sub(last) > UNUSED_DAYS * DAY_SECONDS;
        html! {
            tr {
                td {
                    (name(&token.label))
                    @if token.id == self.who.grant.token { span.soft { " (this session’s)" } }
                    div.soft.mono { (token.id) }
                }
                td { (token.scopes.to_string().replace(',', ", ")) }
                td.w { (token.caches.join(", ")) }
                td {
                    @match token.last_used { Some(used) => (ago(used)), None => "never" }
                    @if let Some(peer) = peer { div.soft { "from " (peer) } }
                    @if is_unused { div.warn { "△ unused for 90 days" } }
                }
                td.s {
                    @match (token.revoked, token.expires) {
                        (Some(_), _) => "revoked",
                        (None, Some(expires)) if expires <= now => "expired",
                        (None, Some(expires)) => { "until " (date(expires)) }
                        (None, None) => "valid",
                    }
                }
                td {
                    @if !is_over(token, now) {
                        (self.form("tokens", "revoke", "", &html! {
                            input type="hidden" name="id" value=(token.id);
                            button.danger aria-label=(format!("Revoke {}", token.label)) { "Revoke" }
                        }))
                    }
                }
            }
        }
    }

    /// First whom it is for, then the rest.
    fn create(&self) -> Markup {
        let params = self.params.value("for");
        let chosen = PURPOSES.iter().find(|(key, ..)| Some(*key) == params);
        let signs = !self.cache.settings().public_keys.is_empty();
        html! {
            h2 #create { "Create a token" }
            p { "Who is it for?" }
            p.purposes {
                @for (key, title, ..) in &PURPOSES {
                    a href=(format!("{}?for={key}#create", self.link("tokens"))) aria-current=[(Some(*key) == params).then_some("true")] { (title) }
                }
            }
            @if let Some((key, _, scopes, about)) = chosen {
                @if !about.is_empty() { p.soft { (about) } }
                (self.form("tokens", "create", &format!("for={key}"), &html! {
                    div.fields {
                        (super::field("token-label", "Label", &html! { input #token-label name="label" required maxlength="128" autocomplete="off"; }))
                        (super::field("token-caches", "Caches", &html! { input #token-caches name="caches" required value=(self.cache.name()) autocomplete="off" spellcheck="false"; }))
                        (super::field("token-days", "Days", &html! { input #token-days name="days" type="number" min="1" max="36500" placeholder="no limit"; }))
                    }
                    fieldset {
                        legend { "It allows to" }
                        @for (scope, text) in SCOPES {
                            label.check for=(format!("scope-{scope}")) {
                                input id=(format!("scope-{scope}")) type="checkbox" name="scope" value=(scope) checked[scopes.contains(&scope)];
                                b { (scope) } " " (text)
                            }
                        }
                    }
                    @if !signs { p.soft { "This server has no signing key: nothing that is pushed is signed." } }
                    p { button.main { "Create" } }
                }))
            }
        }
    }
}

/// A new token, and how it is used.
pub(super) fn created(visit: &Visit, label: &str, token: &str, scopes: Scopes) -> Markup {
    let is_unsigned = scopes.has(Scope::Push) && !scopes.has(Scope::Sign);
    html! {
        div #made.notice role="status" {
            p.good { "✓ Created " b { (name(label)) } ". It is not stored, and cannot be shown again:" }
            (copied("the token", token))
            p { "Write it into a file that only its owner can read, such as " code { "token" } ", and then:" }
            (copied("command to use it", format!("narval use {} --token-file token", visit.url)))
            @if is_unsigned {
                p.warn { "△ It may push and not sign: what it pushes has no signature, and clients refuse it." }
            }
        }
    }
}
