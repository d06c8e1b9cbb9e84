//! Space: what can go?

use std::collections::HashSet;

use maud::{Markup, html};
use narval_client::clock;
use narval_keep::{CollectOptions, Grant, Listed, Scope};

use super::Manage;
use crate::error::ServeError;
use crate::page::manage::DELETED_MAX;
use crate::page::usage::{self, Age};
use crate::page::view::parts::bar;
use crate::page::view::words::{ago, bytes, encoded, many, name, number};

/// Names in the table of names.
const NAMES_MAX: usize = 20;
const DAY_SECONDS: u64 = 24 * 60 * 60;
/// What can be chosen: unused for so many days.
const UNUSED: [(&str, &str); 5] =
    [("", "any time"), ("7", "a week"), ("30", "30 days"), ("90", "90 days"), ("365", "a year")];

/// The name of a path without its hash part.
fn name_of(path: &Listed) -> &str {
    path.path.get(33..).unwrap_or_default()
}

fn hash_of(path: &Listed) -> &str {
    path.path.get(..32).unwrap_or_default()
}

impl Manage<'_> {
    pub(super) fn space(&self) -> Result<Markup, ServeError> {
        let (total, mut listed, now) = (self.cache.usage()?, self.cache.list()?, clock::now());
        let (ages, names) = (usage::by_age(&listed, now), usage::by_name(&listed));
        let wanted = self.params.value("name").unwrap_or_default();
        let unused = self.params.value("unused").unwrap_or_default();
        let before = unused.parse::<u64>().map_or(u64::MAX, |days| now.saturating_sub(days * DAY_SECONDS));
        listed.retain(|path| path.used <= before && name_of(path).contains(wanted));
        listed.sort_by(|one, other| (one.used, &one.path).cmp(&(other.used, &other.path)));
        let (count, size) = (listed.len(), listed.iter().map(|path| path.file_size).sum());
        listed.truncate(DELETED_MAX);
        let pinned: HashSet<String> = self.cache.pins()?.into_iter().map(|pin| pin.path).collect();
        let may_delete = self.who.may(Scope::Delete);
        let is_all = self.params.value("all").is_some();
        let here = format!("name={}&unused={unused}", encoded(wanted.as_bytes()));
        Ok(html! {
            p.says {
                b { (bytes(total.bytes + total.small_bytes)) } " in " (many(total.paths, "path")) ", of them "
                (bytes(total.small_bytes)) " of logs and the like."
            }
            h2 { "What can go?" }
            form.fields action=(self.link("space")) {
                (super::field("name", "Name has", &html! { input #name name="name" value=(wanted) maxlength="100" autocomplete="off" spellcheck="false"; }))
                (super::field("unused", "Unused for", &html! {
                    select #unused name="unused" {
                        @for (days, text) in UNUSED { option value=(days) selected[days == unused] { (text) } }
                    }
                }))
                button { "Show" }
            }
            p {
                (many(count, "path")) ", " (bytes(size)) @if count > listed.len() { "; those unused for longest" } "."
                @if may_delete && count > 0 && !is_all {
                    " " a href=(format!("{}?{here}&all=1", self.link("space"))) { "Choose all " (number(listed.len())) " that are listed" }
                }
            }
            @if !listed.is_empty() {
                form #choose action=(self.link(super::DELETE)) {
                    (self.paths(&listed, &pinned, may_delete, is_all))
                    @if may_delete { p { button.danger { "Delete the chosen…" } } }
                }
            }
            (self.collection()?)
            div.split {
                section { h2 { "By last use" } (by_age(&ages)) }
                section { h2 { "By name" } (self.by_name(&names)) }
            }
            p.soft { "A NAR that several paths share counts for each of them here." }
        })
    }

    fn paths(&self, listed: &[Listed], pinned: &HashSet<String>, may_delete: bool, is_all: bool) -> Markup {
        html! {
            div.scroll tabindex="0" role="region" aria-label="Paths" {
                table aria-label="Paths" {
                    thead { tr {
                        @if may_delete { th.c scope="col" { span.hidden-text { "Chosen" } } }
                        th scope="col" { "Path" } th.s scope="col" { "Last used" } th.n scope="col" { "Size" }
                    } }
                    tbody {
                        @for path in listed {
                            tr {
                                @if may_delete {
                                    td.c {
                                        input type="checkbox" name="path" value=(hash_of(path)) checked[is_all] data-size=(path.file_size)
                                            aria-label=(format!("Choose {}", name_of(path)));
                                    }
                                }
                                td { a href=(self.visit.path(hash_of(path))) { (name(name_of(path))) } " " code.soft { (hash_of(path).get(..8).unwrap_or_default()) } @if pinned.contains(&path.path) { " " span.soft { "pinned" } } }
                                td.s { (ago(path.used)) }
                                td.n { (bytes(path.file_size)) }
                            }
                        }
                    }
                }
            }
        }
    }

    /// What a collection would remove, and the button for it.
    fn collection(&self) -> Result<Markup, ServeError> {
        let options = CollectOptions { dry_run: true, ..CollectOptions::default() };
        let would = self.cache.collect(&options, &Grant::clone(&self.who.grant))?;
        let size: u64 = would.forgotten.iter().map(|path| path.file_size).sum();
        let is_empty = would.forgotten.is_empty() && would.files == 0;
        Ok(html! {
            h2 { "What a collection would remove" }
            @if is_empty {
                p.soft { "Nothing: everything is pinned, or was used recently enough." }
            } @else {
                p {
                    (many(would.forgotten.len(), "path")) " that nothing keeps, with NARs of " (bytes(size)) ": they are hidden at once, and their NARs are \
                    deleted a day later, because clients may still ask for them. " (many(would.files, "NAR")) " without a path, "
                    (bytes(would.bytes)) ": deleted now."
                }
                (self.form("jobs", "collect", "", &html! { p { button.danger { "Run a collection" } } }))
            }
        })
    }

    fn by_name(&self, names: &[usage::Name]) -> Markup {
        let most = names.first().map_or(0, |name| name.bytes);
        html! {
            @if names.is_empty() { p.soft { "There are no paths yet." } } @else {
                table aria-label="Size by name" {
                    thead { tr { th scope="col" { "Name" } th.n scope="col" { "Paths" } th.n scope="col" { "Size" } th scope="col" { span.hidden-text { "Share" } } } }
                    tbody {
                        @for one in names.iter().take(NAMES_MAX) {
                            tr {
                                td { a href=(format!("{}?name={}", self.link("space"), encoded(one.name.as_bytes()))) { (name(&one.name)) } }
                                td.n { (number(one.paths)) }
                                td.n { (bytes(one.bytes)) }
                                td.b { (bar(one.bytes, most)) }
                            }
                        }
                    }
                }
                @if names.len() > NAMES_MAX { p.soft { "And " (many(names.len() - NAMES_MAX, "smaller name")) "." } }
            }
        }
    }

    /// The question before paths are deleted.
    pub(super) fn delete(&self) -> Result<Markup, ServeError> {
        let chosen = self.params.paths()?;
        let mut listed = self.cache.list()?;
        listed.retain(|path| chosen.iter().any(|part| part.as_str() == hash_of(path)));
        let size: u64 = listed.iter().map(|path| path.file_size).sum();
        if listed.is_empty() {
            return Ok(html! { p { "No path is chosen." } });
        }
        let mut referrers = Vec::new();
        for part in &chosen {
            referrers.extend(self.cache.referrers(part)?.into_iter().filter(|part| !chosen.contains(part)));
        }
        referrers.sort_unstable();
        referrers.dedup();
        let contents = html! {
            @for path in &listed { input type="hidden" name="path" value=(hash_of(path)); }
            @if !referrers.is_empty() {
                p { (many(referrers.len(), "other path")) (if referrers.len() == 1 { " refers" } else { " refer" }) " to them." }
                label.check { input type="checkbox" name="referrers" value="1"; "Also delete what refers to them" }
            }
            p.actions {
                button.danger { "Delete " (many(listed.len(), "path")) ", " (bytes(size)) }
                a href=(self.link("space")) { "Cancel" }
            }
        };
        Ok(html! {
            h2 { (if listed.len() == 1 { "Delete this path?" } else { "Delete these paths?" }) }
            p { "They and their NARs are deleted at once, whatever pins them. Nobody can get them from here then." }
            (self.paths(&listed, &HashSet::new(), false, false))
            (self.form(super::DELETE, "delete", "", &contents))
        })
    }
}

fn by_age(ages: &[Age]) -> Markup {
    let most = ages.iter().map(|age| age.bytes).max().unwrap_or(0);
    let texts =
        ages.iter().enumerate().map(|(at, age)| match (at.checked_sub(1).and_then(|at| ages.get(at)), age.days) {
            (None, _) => "Less than a day ago".to_owned(),
            (Some(before), Some(days)) => format!("{} to {days} days ago", before.days.unwrap_or(0)),
            (Some(_), None) => "Over a year ago".to_owned(),
        });
    html! {
        table aria-label="Size by last use" {
            thead { tr { th scope="col" { "Last used" } th.n scope="col" { "Paths" } th.n scope="col" { "Size" } th scope="col" { span.hidden-text { "Share" } } } }
            tbody {
                @for (text, age) in texts.zip(ages) {
                    tr { td { (text) } td.n { (number(age.paths)) } td.n { (bytes(age.bytes)) } td.b { (bar(age.bytes, most)) } }
                }
            }
        }
    }
}
