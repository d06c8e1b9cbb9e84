//! The packages of a cache: a search, its versions together.

use maud::{Markup, html};

use super::words::{ago, bytes, encoded, many, name, number, plain};
use crate::error::ServeError;
use crate::page::catalog::{CatalogEntry, Filter, Group, Groups, PAGE_LEN, SearchQuery, text_of};
use crate::page::parts::Parts;
use crate::page::usage::package_name;
use crate::page::visit::Visit;

/// The list of packages that a query asks for.
pub(super) fn packages(parts: &Parts, visit: &Visit, raw: Option<&str>) -> Result<(String, Markup), ServeError> {
    let query = SearchQuery::parse(raw);
    let (typed, package) = (text_of(raw, "q"), text_of(raw, "package"));
    let groups = parts.catalog.packages(&parts.places, &query)?;
    let near = match groups.total {
        0 if query.filter.is_none() => parts.catalog.near(&parts.places, &typed)?,
        _ => Vec::new(),
    };
    let link = |filter: &str, from: usize| {
        let package =
            if package.is_empty() { String::new() } else { format!("&package={}", encoded(package.as_bytes())) };
        let filter = if filter.is_empty() { String::new() } else { format!("&filter={filter}") };
        let from = if from == 0 { String::new() } else { format!("&from={from}") };
        format!("?q={}{package}{filter}{from}", encoded(typed.as_bytes()))
    };
    let current = Filter::ALL.iter().find(|(filter, ..)| Some(*filter) == query.filter).map_or("", |(_, name, _)| name);
    let title = match (package.as_str(), typed.trim()) {
        ("", "") => "Packages".to_owned(),
        ("", typed) => typed.to_owned(),
        (package, _) => package.to_owned(),
    };
    let main = html! {
        h1 { @if package.is_empty() { "Packages" } @else { "Versions of " (name(&package)) } }
        div.bar-of-filters {
            p.soft role="status" { (summary(&groups, &query, &typed)) }
            nav aria-label="Filters" {
                a href=(link("", 0)) aria-current=[current.is_empty().then_some("true")] { "all" }
                @for (filter, key, text) in Filter::ALL {
                    @if is_possible(parts, filter) {
                        a href=(link(key, 0)) aria-current=[(current == key).then_some("true")] { (text) }
                    }
                }
            }
        }
        @if groups.total == 0 { (nothing(visit, parts, &query, &typed, &near)) }
        ul.packages { @for group in &groups.list { li { (row(visit, group)) } } }
        p.links {
            @if query.from > 0 { a rel="prev" href=(link(current, query.from.saturating_sub(PAGE_LEN))) { "← Previous" } }
            @if query.from + groups.list.len() < groups.total || groups.more {
                a rel="next" href=(link(current, query.from + PAGE_LEN)) { "Next →" }
            }
        }
    };
    Ok((plain(&title), main))
}

/// Whether this server can know it.
fn is_possible(parts: &Parts, filter: Filter) -> bool {
    match filter {
        Filter::Pinned | Filter::Unused => parts.places.writable.is_some(),
        Filter::Unsigned => parts.places.writable.is_some() && !parts.places.sign_keys.is_empty(),
        Filter::Largest => true,
    }
}

fn summary(groups: &Groups, query: &SearchQuery, typed: &str) -> String {
    let (found, all) = (number(groups.total as u64), many(groups.of_packages as u64, "package"));
    let more = if groups.more { "more than " } else { "" };
    let paths = many(groups.of_paths as u64, "path");
    match query.filter {
        Some(Filter::Largest) => format!("{paths}, the largest first"),
        Some(_) => format!("{more}{found} of {paths}"),
        None if typed.trim().is_empty() && query.package().is_none() => format!("{all}, {paths}"),
        None => format!("{more}{found} of {all}"),
    }
}

fn nothing(visit: &Visit, parts: &Parts, query: &SearchQuery, typed: &str, near: &[String]) -> Markup {
    html! {
        p {
            @if query.filter.is_some() || typed.trim().is_empty() { "There are none." } @else { "Nothing here is named “" (name(typed)) "”." }
            @for (at, package) in near.iter().enumerate() {
                @if at == 0 { " Did you mean " } @else { ", " }
                a href=(format!("?q={}", encoded(package.as_bytes()))) { (name(package)) }
            }
            @if !near.is_empty() { "?" }
        }
        @if query.filter.is_none() {
            @if parts.places.has_upstreams {
                p.soft { "This cache also fetches from its upstreams, whose packages cannot be searched here: clients that ask for a path get it." }
            }
            @if parts.places.writable.is_some() { p { a href=(visit.link("#push")) { "How to push" } } }
        }
    }
}

/// A package: its newest version, and the older ones folded.
pub(super) fn row(visit: &Visit, group: &Group) -> Markup {
    let newest = &group.newest;
    let package = package_name(&newest.name);
    html! {
        a.name href=(visit.path(&newest.hash)) { (title(&newest.name)) }
        (facts(newest))
        @if group.older_count > 0 {
            details.older {
                summary { "and " (number(group.older_count as u64)) " older" }
                ul {
                    @for older in &group.older {
                        li {
                            a.name href=(visit.path(&older.hash)) { (title(&older.name)) }
                            (facts(older))
                            a.compare href=(visit.link(&format!("_narval/compare/{}/{}", older.hash, newest.hash))) { "compare" }
                        }
                    }
                }
                @if group.older_count > group.older.len() {
                    p { a href=(visit.link(&format!("?package={}", encoded(package.as_bytes())))) { "all versions" } }
                }
            }
        }
    }
}

/// The name of a package, and its version apart from it.
pub(super) fn title(full: &str) -> Markup {
    let package = package_name(full);
    let version = full.get(package.len()..).unwrap_or_default().trim_start_matches('-');
    html! { b { (name(package)) } @if !version.is_empty() { " " span.version { (name(version)) } } }
}

pub(super) fn facts(found: &CatalogEntry) -> Markup {
    html! {
        span.marks {
            @if found.unsigned { span.bad { "✗ not signed" } }
            @if found.pinned { span.good { "◆ pinned" } }
        }
        code { (found.hash.get(..8).unwrap_or_default()) }
        span.n { @if found.size > 0 { (bytes(found.size)) } }
        span.n { @if found.time > 0 { (ago(found.time)) } }
    }
}
