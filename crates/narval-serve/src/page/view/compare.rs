//! Two paths compared: their sizes, their files and their closures.

use std::cmp::Ordering;

use maud::{Markup, html};
use narval_http::Request;
use narval_nix::HashPart;

use super::parts::sized;
use super::words::{bytes, encoded, many, name, number, plain};
use crate::error::ServeError;
use crate::page::compare::{self, Change, Comparison, Entry, File, Files, Side};
use crate::page::parts::Parts;
use crate::page::paths::WithSize;
use crate::page::visit::Visit;

/// The view of what differs.
pub(super) fn compared(
    parts: &Parts,
    visit: &Visit,
    of: [HashPart; 2],
    request: &Request,
) -> Result<(String, Markup), ServeError> {
    let found = compare::compare(&parts.places, &parts.frames, of, &|| request.is_connected())?;
    let Comparison { before, after, files, closure } = &found;
    let main = html! {
        h1 { "Compared" }
        (sizes(visit, before, after))
        p { a href=(visit.link(&format!("_narval/compare/{}/{}", after.hash, before.hash))) { "The other way round" } }
        h2 { "Files" }
        @match files {
            Some(files) => (changes(visit, files, before, after)),
            None => p.soft { "One of them has no listing, so their files cannot be compared." },
        }
        div.split {
            (only(visit, "Only in the closure before", &closure.only_before, closure.paths_before, closure.size_before))
            (only(visit, "Only in the closure after", &closure.only_after, closure.paths_after, closure.size_after))
        }
        p.soft { (many(closure.both as u64, "path")) @if closure.both == 1 { " is" } @else { " are" } " in both closures." }
    };
    Ok((format!("{} compared", plain(&after.name)), main))
}

fn sizes(visit: &Visit, before: &Side, after: &Side) -> Markup {
    let link = |side: &Side| html! { a href=(visit.path(&side.hash)) { (name(&side.name)) } };
    let rows = [
        ("Unpacked", Some(before.nar_size), Some(after.nar_size)),
        ("To download", before.file_size, after.file_size),
        ("Closure", Some(before.closure_size), Some(after.closure_size)),
    ];
    html! {
        div.scroll {
            table aria-label="Sizes" {
                thead { tr { th scope="col" {} th.n scope="col" { "Before" } th.n scope="col" { "After" } th.n scope="col" { "Change" } } }
                tbody {
                    tr { td { "Path" } td.n { (link(before)) } td.n { (link(after)) } td.n {} }
                    @for (title, from, to) in rows {
                        @if let (Some(from), Some(to)) = (from, to) {
                            tr { td { (title) } td.n { (bytes(from)) } td.n { (bytes(to)) } td.n { (grown(from, to)) } }
                        }
                    }
                    tr { td { "Paths in it" } td.n { (number(before.closure_paths as u64)) } td.n { (number(after.closure_paths as u64)) } td.n {} }
                }
            }
        }
    }
}

fn grown(from: u64, to: u64) -> Markup {
    let (class, sign) = match to.cmp(&from) {
        Ordering::Greater => ("minus", "+"),
        Ordering::Less => ("plus", "−"),
        Ordering::Equal => ("soft", "±"),
    };
    html! { span class=(class) { (sign) (bytes(to.abs_diff(from))) } }
}

fn changes(visit: &Visit, files: &Files, before: &Side, after: &Side) -> Markup {
    // A folder that is gone has its files in the list.
    let is_shown =
        |file: &&File| file.before.as_ref().is_none_or(|entry| entry.kind != "directory") || file.after.is_some();
    let all = files.added + files.removed + files.changed;
    html! {
        p {
            (number(files.added as u64)) " added, " (number(files.removed as u64)) " removed, " (number(files.changed as u64)) " changed, " (number(files.same as u64)) " the same"
            @if files.unread > 0 { ", and " (number(files.unread as u64)) " of the same size that were not read" } "."
        }
        @if !files.list.is_empty() {
            div.scroll {
                table aria-label="Files that differ" {
                    thead { tr { th scope="col" { "File" } th.s scope="col" { "Change" } th.n scope="col" { "Before" } th.n scope="col" { "After" } } }
                    tbody {
                        @for file in files.list.iter().filter(is_shown) {
                            tr {
                                td { (link(visit, file, if file.after.is_some() { after } else { before })) }
                                td.s { @match file.change { Change::Added => span.plus { "added" }, Change::Removed => span.minus { "removed" }, Change::Changed => "changed" } }
                                td.n { (entry(file.before.as_ref())) }
                                td.n { (entry(file.after.as_ref())) }
                            }
                        }
                    }
                }
            }
        }
        @if all > files.list.len() { p.soft { "The first " (number(files.list.len() as u64)) " are listed." } }
    }
}

fn link(visit: &Visit, file: &File, side: &Side) -> Markup {
    let kind = file.after.as_ref().or(file.before.as_ref()).map_or("", |entry| entry.kind);
    let title = if file.path.is_empty() { &side.name } else { &file.path };
    html! {
        @if ["file", "executable"].contains(&kind) {
            a href=(visit.link(&format!("_narval/files/{}/{}", side.hash, encoded(file.path.as_bytes())))) { (name(title)) }
        } @else { (name(title)) }
    }
}

fn entry(entry: Option<&Entry>) -> Markup {
    html! {
        @if let Some(Entry { kind, size, target }) = entry {
            @match (target, size) {
                (Some(target), _) => { "→ " (name(target)) },
                (None, Some(size)) => { (bytes(*size)) @if *kind == "executable" { ", executable" } },
                (None, None) => "folder",
            }
        }
    }
}

fn only(visit: &Visit, title: &str, list: &[WithSize], count: usize, size: u64) -> Markup {
    html! {
        section {
            h2 { (title) }
            p.soft { (many(count as u64, "path")) ", " (bytes(size)) }
            @if !list.is_empty() { ul.rows { @for path in list { li { (sized(&visit.path(path.hash), &path.name, Some(path.size))) } } } }
        }
    }
}
