//! One path: whether it can be installed, how to get it, what it needs and what is in it.

use std::collections::HashSet;

use maud::{Markup, html};
use narval_http::Request;
use narval_keep::{Pin, Scope};
use narval_nix::HashPart;

use super::parts::{Way, bar, copied, sized, ways};
use super::words::{ago, bytes, date, encoded, many, name, number, plain};
use super::{files, packages};
use crate::error::ServeError;
use crate::page::catalog::{CatalogEntry, SearchQuery};
use crate::page::inside::Inside;
use crate::page::parts::Parts;
use crate::page::paths::{self, Details, Named, Source, Tree};
use crate::page::usage::package_name;
use crate::page::visit::Visit;

/// Rows of the table of a closure; the others are added up.
const CLOSURE_ROWS_MAX: usize = 500;
/// Paths in the list of those that are not signed.
const UNSIGNED_MAX: usize = 50;
/// Other versions.
const VERSIONS_MAX: usize = 10;
const DAY_SECONDS: u64 = 24 * 60 * 60;

/// The view of a path.
pub(super) fn package(
    parts: &Parts,
    visit: &Visit,
    hash_part: HashPart,
    request: &Request,
) -> Result<(String, Markup), ServeError> {
    let places = &parts.places;
    let details = paths::details(places, hash_part)?;
    let tree = Tree::read(places, hash_part, &|| request.is_connected())?;
    let listed = parts.catalog.find(places, hash_part)?;
    let listing = match Inside::listing(places, hash_part) {
        Ok(listing) => Some(listing),
        Err(ServeError::NoPath) => None,
        Err(error) => return Err(error),
    };
    let full = details.info.path.name().to_string();
    let store_path = format!("{}/{}", places.store_dir, details.info.path);
    let package = package_name(&full);
    let version = full.get(package.len()..).unwrap_or_default().trim_start_matches('-');
    let why = crate::page::catalog::text_of(request.query(), "why").parse().ok();
    let versions = parts
        .catalog
        .packages(places, &SearchQuery::parse(Some(&format!("package={}", encoded(package.as_bytes())))))?;
    let main = html! {
        h1.package {
            (name(package))
            @if !version.is_empty() { " " span.chip { (name(version)) } }
            " " code.soft { (hash_part.as_str().get(..8).unwrap_or_default()) }
        }
        (copied("store path", plain(&store_path)))
        (verdict(visit, parts, &tree))
        @if details.source == Source::Cache && (visit.may(Scope::Pin) || visit.may(Scope::Delete)) {
            p.actions {
                @if visit.may(Scope::Pin) { a href=(visit.link(&format!("_narval/manage/pins?path={hash_part}"))) { "Pin" } }
                @if visit.may(Scope::Delete) { a href=(visit.link(&format!("_narval/manage/delete?path={hash_part}"))) { "Delete" } }
            }
        }
        (get_it(visit, &store_path, &full, hash_part, listing.is_some()))
        h2 { "Facts" }
        (facts(parts, &details, &tree, listed.as_ref(), visit))
        (closure(visit, &tree, why.as_ref()))
        (other_versions(visit, &versions, hash_part, package))
        div.split {
            section { h2 { "Refers to (" (details.references.len()) ")" } (list(visit, &details.references)) }
            section {
                h2 { "Referred to by (" (details.referrers.len()) @if details.more_referrers { "+" } ")" }
                (list(visit, &details.referrers))
            }
        }
        h2 #files { "Files" }
        @match &listing {
            Some(listing) => (files::tree(visit, hash_part, listing)),
            None => p.soft { (no_listing(details.source)) },
        }
    };
    Ok((plain(&full), main))
}

/// Why the files of a path cannot be shown.
pub(super) fn no_listing(source: Source) -> &'static str {
    match source {
        Source::Upstream => "It is an upstream's: its files are not here.",
        Source::Store | Source::Cache => {
            "It has no listing: it was pushed without one, or has names that are not UTF-8."
        }
    }
}

/// Whether a client that trusts only this server can install it, and if not, why.
fn verdict(visit: &Visit, parts: &Parts, tree: &Tree) -> Markup {
    let all = tree.nodes.len();
    let lacking: Vec<_> = tree.nodes.iter().filter(|node| node.accepted == Some(false)).collect();
    let keys: Vec<_> = parts.places.sign_keys.iter().map(|key| key.name()).collect();
    html! {
        div.verdict {
            @if keys.is_empty() {
                p.warn { "▲ This server has no key: clients accept what somebody else has signed whom they trust." }
            } @else if !lacking.is_empty() {
                p.bad {
                    "✗ " (number(lacking.len() as u64)) " of " (many(all as u64, "path"))
                    @if lacking.len() == 1 { " is" } @else { " are" } " not signed by this server: clients will refuse this."
                }
                details {
                    summary { "Which" }
                    ul.rows {
                        @for node in lacking.iter().take(UNSIGNED_MAX) { li { (sized(&visit.path(node.path.hash), &node.path.name, Some(node.path.size))) } }
                        @if lacking.len() > UNSIGNED_MAX { li.soft { (number((lacking.len() - UNSIGNED_MAX) as u64)) " more" } }
                    }
                }
            } @else if tree.missing > 0 {
                p.warn { "▲ " (many(tree.missing as u64, "path")) " that it needs " @if tree.missing == 1 { "is" } @else { "are" } " not here: clients have to get them elsewhere." }
            } @else if tree.more {
                p.warn { "▲ Its closure has more than " (many(all as u64, "path")) ": the first of them are signed by " (keys.join(", ")) "." }
            } @else {
                @let signed = tree.nodes.iter().filter(|node| node.signed).count();
                p.good {
                    "✓ Can be installed: "
                    @if signed == 0 { "contents prove themselves, by their content address" }
                    @else {
                        @if all == 1 { "it is" } @else { "all " (many(all as u64, "path")) " are" } " signed by " (keys.join(", "))
                        @if signed < all { ", or prove themselves by a content address" }
                    }
                    @if !visit.is_public { ". Clients need a token, too" } "."
                }
            }
        }
    }
}

fn get_it(visit: &Visit, store_path: &str, full: &str, hash_part: HashPart, has_files: bool) -> Markup {
    let (url, path) = (&visit.url, plain(store_path));
    let mut all = vec![
        Way::text("Nix", "command for nix copy", &format!("nix copy --from {url} {path}")),
        Way::text(
            "nix-store",
            "command for nix-store",
            &format!("nix-store --option extra-substituters {url} -r {path}"),
        ),
        Way::text("Narval", "command for narval install", &format!("narval install --from {url} {path}")),
        Way::text("Run", "command for narval run", &format!("narval run --from {url} {path}")),
    ];
    if has_files {
        let link = visit.link(&format!("_narval/page/tar/{hash_part}/"));
        let file = plain(&format!("{full}.tar"));
        all.push(Way {
            title: "tar",
            pane: html! { p { a href=(link) download=(file) { "Download " (name(&file)) } } },
        });
    }
    html! { h2 { "Get it" } (ways("get", "Ways to get it", &all)) }
}

fn facts(parts: &Parts, details: &Details, tree: &Tree, listed: Option<&CatalogEntry>, visit: &Visit) -> Markup {
    let info = &details.info;
    let total: u64 = tree.nodes.iter().map(|node| node.path.size).sum();
    let is_kept = details.source == Source::Cache;
    let used = listed.and_then(|found| found.used).filter(|_| is_kept);
    let pushed = listed.map(|found| found.time).filter(|_| used.is_some());
    html! {
        dl.facts {
            dt { "Size" }
            dd {
                (bytes(info.nar_size)) " unpacked"
                @if let Some(size) = info.file_size.filter(|size| *size != info.nar_size) {
                    ", " (bytes(size)) " to download (" (info.compression.to_string()) ")"
                }
            }
            dt { "Closure" }
            dd { (many(tree.nodes.len() as u64, "path")) @if tree.more { "+" } ", " (bytes(total)) }
            dt { "From" }
            dd { (match details.source { Source::Store => "this machine’s store", Source::Cache => "pushed to this cache", Source::Upstream => "an upstream cache" }) }
            @if let (Some(pushed), Some(used)) = (pushed, used) {
                dt { "Pushed" }
                dd {
                    (ago(pushed)) ", last used " (ago(used))
                    // Labels of tokens are for who administers the cache.
                    @if visit.may(Scope::Admin) {
                        ", " a href=(visit.link(&format!("_narval/manage/audit?path={}", info.path.hash_part()))) { "by whom" }
                    }
                }
            }
            @if is_kept { dt { "Kept" } dd { (kept(parts, &details.pins, used)) } }
            dt { "Signatures" }
            dd {
                @if details.signatures.is_empty() && info.ca.is_some() { span.soft { "none: its contents prove themselves" } }
                @if details.signatures.is_empty() && info.ca.is_none() { span.bad { "none" } }
                @for signature in &details.signatures {
                    div {
                        code { (plain(&signature.key)) } " "
                        @match signature.ours {
                            Some(true) => span.good { "✓ this server’s key" },
                            Some(false) => span.bad { "✗ not valid for this server’s key" },
                            None => span.soft { "another key" },
                        }
                    }
                }
            }
            @if let Some(deriver) = &info.deriver {
                dt { "Built by" }
                dd {
                    (name(deriver.name()))
                    @if details.has_log { " · " a href=(visit.link(&format!("log/{}", encoded(deriver.base_name().as_bytes())))) { "build log" } }
                }
            }
            @if let Some(ca) = &info.ca { dt { "Content address" } dd { code { (ca.to_string()) } } }
            dt { "NAR hash" }
            dd { code { (info.nar_hash.to_string()) } }
        }
    }
}

/// How long a path is kept, and why.
fn kept(parts: &Parts, pins: &[Pin], used: Option<u64>) -> Markup {
    let days = parts.places.writable.as_ref().and_then(|cache| cache.settings().retention_days);
    html! {
        @for pin in pins {
            div { "◆ pinned as " b { (name(&pin.name)) } @if let Some(until) = pin.holds.until { " until " (date(until)) } }
        }
        @if pins.is_empty() {
            @match (days, used) {
                (None, _) => "for ever: this cache removes nothing by age",
                (Some(days), Some(used)) => { "until " (date(used + u64::from(days) * DAY_SECONDS)) " at least: " (days) " days after its last use" },
                (Some(days), None) => { (days) " days after its last use" },
            }
        }
    }
}

fn closure(visit: &Visit, tree: &Tree, why: Option<&HashPart>) -> Markup {
    let total: u64 = tree.nodes.iter().map(|node| node.path.size).sum();
    let mut sorted: Vec<_> = tree.nodes.iter().collect();
    sorted.sort_by_key(|node| std::cmp::Reverse(node.path.size));
    let (shown, others) = sorted.split_at(sorted.len().min(CLOSURE_ROWS_MAX));
    let largest = shown.first().map_or(0, |node| node.path.size);
    let chain = why.map(|to| tree.chain(to)).unwrap_or_default();
    let on_chain: HashSet<HashPart> = chain.iter().map(|node| node.path.hash).collect();
    html! {
        h2 #closure { "Closure" }
        p.soft {
            (many(tree.nodes.len() as u64, "path")) ", " (bytes(total)) " unpacked"
            @if tree.missing > 0 { "; " (number(tree.missing as u64)) " more are not here" }
            @if tree.more { "; these are the first of them" } "."
        }
        @if chain.len() > 1 {
            h3 #why tabindex="-1" { "Why " (name(chain.last().map_or("", |node| &node.path.name))) " is needed" }
            ol.chain { @for node in &chain { li { a href=(visit.path(node.path.hash)) { (name(&node.path.name)) } " " span.soft { (bytes(node.path.size)) } } } }
        }
        @if tree.nodes.len() > 1 {
            div.ways #closure-ways role="group" aria-label="The closure" {
                div.choice {
                    label { input type="radio" name="closure" checked; "Table" }
                    label #as-map hidden { input type="radio" name="closure"; "Map" }
                }
                div.panes {
                    div.scroll {
                        table.closure aria-label="Paths of the closure" {
                            thead { tr { th scope="col" { "Path" } th.b scope="col" { "Size" } th.n scope="col" { span.hidden-text { "Bytes" } } th.s scope="col" { "" } } }
                            tbody {
                                @for node in shown {
                                    tr data-size=(node.path.size) data-depth=(node.depth) data-chosen[on_chain.contains(&node.path.hash)] {
                                        td { a href=(visit.path(node.path.hash)) { (name(&node.path.name)) } @if node.accepted == Some(false) { " " span.bad { "✗ not signed" } } }
                                        td.b { (bar(node.path.size, largest)) }
                                        td.n { (bytes(node.path.size)) }
                                        td.s { @if node.depth > 0 { a href=(format!("?why={}#why", node.path.hash)) aria-label=(format!("Why {} is needed", plain(&node.path.name))) { "why" } } }
                                    }
                                }
                                @if !others.is_empty() {
                                    tr data-size=(others.iter().map(|node| node.path.size).sum::<u64>()) data-depth="9" {
                                        td { (number(others.len() as u64)) " smaller paths" } td.b {} td.n { (bytes(others.iter().map(|node| node.path.size).sum())) } td.s {}
                                    }
                                }
                            }
                        }
                    }
                    div.map #map {}
                }
            }
        }
    }
}

fn other_versions(
    visit: &Visit,
    versions: &crate::page::catalog::Groups,
    hash_part: HashPart,
    package: &str,
) -> Markup {
    let all = versions.list.iter().flat_map(|group| std::iter::once(&group.newest).chain(&group.older));
    let others: Vec<_> = all.filter(|found| found.hash != hash_part.as_str()).collect();
    html! {
        @if !others.is_empty() {
            h2 { "Versions" }
            ul.packages {
                @for found in others.iter().take(VERSIONS_MAX) {
                    li {
                        a.name href=(visit.path(&found.hash)) { (packages::title(&found.name)) }
                        (packages::facts(found))
                        a.compare href=(visit.link(&format!("_narval/compare/{}/{hash_part}", found.hash))) aria-label=(format!("Compare with {} {}", plain(&found.name), found.hash.get(..8).unwrap_or_default())) { "compare" }
                    }
                }
            }
            @if others.len() > VERSIONS_MAX { p { a href=(visit.link(&format!("?package={}", encoded(package.as_bytes())))) { "All versions" } } }
        }
    }
}

fn list(visit: &Visit, paths: &[Named]) -> Markup {
    html! {
        @if paths.is_empty() { p.soft { "None." } } @else {
            ul.rows {
                @for Named { path, size } in paths {
                    li {
                        @match size {
                            Some(size) => (sized(&visit.path(path.hash_part()), path.name(), Some(*size))),
                            None => { (name(path.name())) span.side { "not here" } },
                        }
                    }
                }
            }
        }
    }
}
