//! The files of a path: as a tree, a folder, or one of them.

use maud::{Markup, html};
use narval_http::Request;
use narval_nix::HashPart;
use narval_nix::listing::{Listing, Node};

use super::packages::title;
use super::words::{bytes, encoded, name, plain};
use crate::error::ServeError;
use crate::page::inside::Inside;
use crate::page::parts::Parts;
use crate::page::paths;
use crate::page::visit::Visit;

/// Entries of the tree in the view of a path, and its depth. What is beyond has views of its own.
const TREE_MAX: usize = 400;
const TREE_DEPTH_MAX: usize = 6;
/// Entries of a folder.
const FOLDER_MAX: usize = 5_000;
/// The longest file that is shown, in bytes.
const SHOWN_BYTES_MAX: u64 = 256 << 10;
/// The part of it in which a NUL tells that it is no text.
const LOOKED_AT: usize = 8_000;
const IMAGES: [&str; 7] = [".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".ico"];

/// The tree of a path's files, as far as it is not too large.
pub(super) fn tree(visit: &Visit, hash_part: HashPart, listing: &Listing) -> Markup {
    let mut left = TREE_MAX;
    let tar = visit.link(&format!("_narval/page/tar/{hash_part}/"));
    html! {
        @match &listing.root {
            Node::Directory(_) => ul.tree.top { (entries(visit, hash_part, &listing.root, "", 0, &mut left)) },
            node => p { (one(visit, hash_part, "", "the file", node)) },
        }
        p.links { a href=(visit.link(&format!("_narval/files/{hash_part}"))) { "Browse" } a href=(tar) download { "Download as tar" } }
    }
}

fn entries(visit: &Visit, hash_part: HashPart, node: &Node, at: &str, depth: usize, left: &mut usize) -> Markup {
    let Node::Directory(all) = node else { return html! {} };
    html! {
        @for (key, node) in all.iter() {
            @let key = String::from_utf8_lossy(key);
            @let path = if at.is_empty() { key.to_string() } else { format!("{at}/{key}") };
            @if take(left) {
                li {
                    @match node {
                        Node::Directory(inner) if depth < TREE_DEPTH_MAX && *left > 0 => {
                            details open[depth == 0 && all.len() == 1] {
                                summary { (name(&format!("{key}/"))) " " span.soft { (inner.len()) @if inner.len() == 1 { " entry" } @else { " entries" } } }
                                ul.tree { (entries(visit, hash_part, node, &path, depth + 1, left)) }
                            }
                        }
                        node => (one(visit, hash_part, &path, &key, node)),
                    }
                }
            }
        }
        @if *left == 0 { li.soft { "…" } }
    }
}

fn take(left: &mut usize) -> bool {
    let is_left = *left > 0;
    *left = left.saturating_sub(1);
    is_left
}

/// A file, a link or a folder that is not unfolded here.
fn one(visit: &Visit, hash_part: HashPart, path: &str, key: &str, node: &Node) -> Markup {
    let link = visit.link(&format!("_narval/files/{hash_part}/{}", encoded(path.as_bytes())));
    html! {
        @match node {
            Node::Regular { size, executable, .. } => {
                a href=(link) { (name(key)) } " " span.soft { (bytes(*size)) @if *executable { ", executable" } }
            }
            Node::Symlink { target } => { (name(key)) " " span.soft { "→ " (name(&String::from_utf8_lossy(target))) } }
            Node::Directory(_) => a href=(link) { (name(&format!("{key}/"))) },
        }
    }
}

/// A folder or a file.
pub(super) fn files(
    parts: &Parts,
    visit: &Visit,
    (hash_part, path): (HashPart, &str),
    request: &Request,
) -> Result<(String, Markup), ServeError> {
    let path = path.trim_matches('/');
    let info = paths::look_up(&parts.places, hash_part)?.ok_or(ServeError::NoPath)?;
    let full = info.path.name().to_string();
    let inside = match Inside::open(&parts.places, &parts.frames, hash_part) {
        Err(ServeError::NoPath) => {
            let main = html! {
                h1 { "Files of " (name(&full)) }
                p { "It has no listing: it was pushed without one, or has names that are not UTF-8." }
                p { a href=(visit.path(hash_part)) { "Back to the path" } }
            };
            return Ok((plain(&full), main));
        }
        inside => inside?,
    };
    let node = if path.is_empty() { Some(&inside.listing.root) } else { inside.listing.get(path.as_bytes()) };
    let node = node.ok_or(ServeError::NoPath)?;
    let key = path.rsplit('/').next().filter(|key| !key.is_empty()).unwrap_or(&full);
    let main = html! {
        h1 { "Files of " a href=(visit.path(hash_part)) { (title(&full)) } }
        (crumbs(visit, hash_part, &full, path))
        @match node {
            Node::Directory(all) => {
                ul.tree.top {
                    @for (key, node) in all.iter().take(FOLDER_MAX) {
                        @let key = String::from_utf8_lossy(key);
                        @let path = if path.is_empty() { key.to_string() } else { format!("{path}/{key}") };
                        li { (one(visit, hash_part, &path, &key, node)) }
                    }
                    @if all.len() > FOLDER_MAX { li.soft { "The first " (FOLDER_MAX) " of " (all.len()) "." } }
                }
                p.links { a href=(visit.link(&format!("_narval/page/tar/{hash_part}/{}", encoded(path.as_bytes())))) download { "Download as tar" } }
            }
            Node::Symlink { target } => p { "A link to " code { (name(&String::from_utf8_lossy(target))) } "." },
            Node::Regular { size, executable, nar_offset } => {
                (file(visit, hash_part, (path, key), *size, *executable))
                (contents(&inside, visit, (hash_part, path, key), (*nar_offset, *size), request)?)
            }
        }
    };
    Ok((plain(key), main))
}

fn crumbs(visit: &Visit, hash_part: HashPart, full: &str, path: &str) -> Markup {
    let link = |path: &str| visit.link(&format!("_narval/files/{hash_part}/{}", encoded(path.as_bytes())));
    let ends = path.match_indices('/').map(|(at, _)| at).chain((!path.is_empty()).then_some(path.len()));
    html! {
        nav.crumbs aria-label="Folders" {
            a href=(link("")) { (name(full)) }
            @for end in ends {
                @let to = path.get(..end).unwrap_or_default();
                " / " a href=(link(to)) { (name(to.rsplit('/').next().unwrap_or_default())) }
            }
        }
    }
}

fn file(visit: &Visit, hash_part: HashPart, (path, key): (&str, &str), size: u64, executable: bool) -> Markup {
    html! {
        h2 { (name(key)) }
        p.soft {
            (bytes(size)) @if executable { ", executable" } " · "
            a href=(format!("{}?download", raw(visit, hash_part, path))) download=(plain(key)) { "Download" }
        }
    }
}

fn raw(visit: &Visit, hash_part: HashPart, path: &str) -> String {
    visit.link(&format!("_narval/page/file/{hash_part}/{}", encoded(path.as_bytes())))
}

/// What is in a file, if it can be shown.
fn contents(
    inside: &Inside,
    visit: &Visit,
    (hash_part, path, key): (HashPart, &str, &str),
    (offset, size): (Option<u64>, u64),
    request: &Request,
) -> Result<Markup, ServeError> {
    let lower = key.to_lowercase();
    if IMAGES.iter().any(|extension| lower.ends_with(extension)) {
        return Ok(html! { div.view { img src=(raw(visit, hash_part, path)) alt=(plain(key)); } });
    }
    let Some(offset) = offset.filter(|_| size <= SHOWN_BYTES_MAX) else {
        return Ok(html! { p.soft { "Too large to display." } });
    };
    let mut bytes = Vec::new();
    if size > 0 {
        inside.may_skip_to(offset)?;
        let mut reader = inside.reader();
        let read = reader.begin(offset, size);
        let read = read
            .and_then(|()| reader.read_all(&|| request.is_connected(), &mut |piece| bytes.extend_from_slice(piece)));
        read.map_err(|error| ServeError::of_files(&inside.path, &error))?;
    }
    let is_text = !bytes.iter().take(LOOKED_AT).any(|byte| *byte == 0);
    Ok(html! {
        @if is_text {
            div.view tabindex="0" role="region" aria-label=(format!("Contents of {}", plain(key))) { pre { (String::from_utf8_lossy(&bytes)) } }
        } @else { p.soft { "Not text." } }
    })
}
