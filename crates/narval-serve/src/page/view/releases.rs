//! Releases: which names there are, those of one name, and one of them.

use std::collections::BTreeMap;

use maud::{Markup, html};
use narval_keep::{KeptRelease, ReleasePage};
use narval_nix::Release;
use narval_nix::release::ReleaseName;

use super::parts::copied;
use super::words::{ago, date, name};
use crate::error::ServeError;
use crate::page::parts::Parts;
use crate::page::visit::Visit;
use crate::routes::pages::ReleasesView;
use crate::routes::releases::{cursor, find, query_after};

pub(super) fn releases(
    parts: &Parts,
    visit: &Visit,
    view: &ReleasesView,
    query: Option<&str>,
) -> Result<(String, Markup), ServeError> {
    let cache = parts.places.writable.as_ref().ok_or(ServeError::NoPath)?;
    // What is no cursor is no page.
    let after = || cursor(query).map_err(|_| ServeError::NoPath);
    match view {
        ReleasesView::All => Ok(("Releases".to_owned(), all(visit, &cache.releases(None, after()?.as_ref())?))),
        ReleasesView::Name(of) => {
            let of: ReleaseName = of.parse().map_err(|_| ServeError::NoPath)?;
            let found = cache.releases(Some(&of), after()?.as_ref())?;
            if found.releases.is_empty() {
                return Err(ServeError::NoPath);
            }
            let main = html! {
                h1 { "Releases of " (name(of.as_str())) }
                (copied("command to install it", format!("narval install @{of} --from {}", visit.url)))
                (table(visit, &found))
            };
            Ok((of.to_string(), main))
        }
        ReleasesView::One(of, which) => {
            // Which one an address means may be nothing at all.
            let found = find(cache, of, which, (None, None)).map_err(|_| ServeError::NoPath)?;
            Ok((found.release.selector().to_string(), one(visit, &found.release)))
        }
    }
}

fn all(visit: &Visit, found: &ReleasePage) -> Markup {
    html! {
        h1 { "Releases" }
        @if found.releases.is_empty() {
            p { "There are no releases yet. A job records one with what it pushes:" }
            (copied("command to record a release", format!("narval push ./result --release NAME --to {}", visit.url)))
        } @else {
            (table(visit, found))
        }
    }
}

fn table(visit: &Visit, found: &ReleasePage) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Releases" {
            table aria-label="Releases" {
                thead { tr {
                    th scope="col" { "Name" } th.n scope="col" { "Revision" } th scope="col" { "Version" } th scope="col" { "System" }
                    th scope="col" { "Path" } th.w.s scope="col" { "Recorded" } th scope="col" { "Kept" }
                } }
                tbody {
                    @for KeptRelease { release, system, is_pinned, is_kept } in &found.releases {
                        @let below = format!("releases/{}", release.name);
                        tr {
                            td { a href=(visit.link(&below)) { (name(release.name.as_str())) } }
                            td.n {
                                a href=(visit.link(&format!("{below}/{}", release.revision))) { (release.revision) }
                                @if let Some(percent) = release.percent { div.soft { (percent) " %" } }
                            }
                            td { @if let Some(version) = &release.version { (name(version.as_str())) } }
                            td { (system) }
                            td {
                                @for (of, outputs) in &release.paths {
                                    @if of.as_str() == system {
                                        @for released in outputs.values() {
                                            div { a href=(visit.path(released.path.hash_part())) { (name(released.path.name())) } }
                                        }
                                    }
                                }
                            }
                            td.w.s { (ago(release.created)) }
                            td { @if *is_pinned { "pinned" } @else if *is_kept { "yes" } @else { span.soft { "until it is collected" } } }
                        }
                    }
                }
            }
        }
        @if let Some(next) = &found.next { p.links { a rel="next" href=(query_after(next)) { "More →" } } }
    }
}

fn one(visit: &Visit, release: &Release) -> Markup {
    let selector = release.selector();
    let by: Vec<&str> = release.signatures.iter().map(narval_nix::Signature::key_name).collect();
    html! {
        h1 { (name(&selector.to_string())) @if let Some(version) = &release.version { " is version " (name(version.as_str())) } }
        (copied("command to install it", format!("narval install {selector} --from {}", visit.url)))
        p {
            "Recorded on " (date(release.created))
            @if let Some((from, revision)) = &release.promoted_from {
                ", promoted from " a href=(visit.link(&format!("releases/{from}/{revision}"))) { (name(from.as_str())) " " (revision) }
            }
            @if let Some(percent) = release.percent { ", for " (percent) " % of the machines that follow it" }
            ", signed by " (by.join(", ")) ". "
            a href=(visit.link(&format!("releases/{}", release.name))) { "Other releases of " (name(release.name.as_str())) }
        }
        @for (system, outputs) in &release.paths {
            h2 { (system) }
            ul {
                @for (output, released) in outputs {
                    li { (name(output.as_str())) ": " a href=(visit.path(released.path.hash_part())) { code { (release.store_dir.display(&released.path)) } } }
                }
            }
        }
        @if !release.notes.is_empty() { (notes(&release.notes)) }
    }
}

fn notes(notes: &BTreeMap<String, String>) -> Markup {
    html! {
        h2 { "Notes" }
        ul { @for (key, note) in notes { li { (name(key)) ": " (name(note)) } } }
    }
}
