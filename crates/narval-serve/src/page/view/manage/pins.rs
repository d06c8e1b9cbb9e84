//! Pins, and what they keep.

use std::collections::HashMap;

use maud::{Markup, html};
use narval_client::clock;

use super::Manage;
use crate::error::ServeError;
use crate::page::view::words::{bytes, date, many, name, number};

/// Pins that are listed.
const LISTED_MAX: usize = 500;

impl Manage<'_> {
    pub(super) fn pins(&self) -> Result<Markup, ServeError> {
        let pins = self.cache.pins()?;
        let sizes = if pins.is_empty() { Vec::new() } else { self.cache.pin_sizes(LISTED_MAX)? };
        let sizes: HashMap<_, _> =
            sizes.into_iter().map(|size| ((size.pin.name, size.pin.path), (size.paths, size.bytes))).collect();
        let path = self.params.value("path").unwrap_or_default();
        let now = clock::now();
        let until = |until: u64| format!("{} {}", if until < now { "ended" } else { "until" }, date(until));
        Ok(html! {
            p { "A pin keeps a path with its closure." }
            @if pins.is_empty() { p.soft { "There are no pins yet." } } @else {
                div.scroll tabindex="0" role="region" aria-label="Pins" {
                    table aria-label="Pins" {
                        thead { tr {
                            th scope="col" { "Name" } th scope="col" { "Path" } th.n scope="col" { "Keeps" } th.w.s scope="col" { "Since" }
                            th scope="col" { "Kept" } th scope="col" { span.hidden-text { "Remove" } }
                        } }
                        tbody {
                            @for pin in pins.iter().take(LISTED_MAX) {
                                @let (hash, base) = pin.path.split_once('-').unwrap_or((&pin.path, ""));
                                tr {
                                    td { (name(&pin.name)) }
                                    td { a href=(self.visit.path(hash)) { (name(base)) } }
                                    td.n {
                                        @match sizes.get(&(pin.name.clone(), pin.path.clone())) {
                                            Some((paths, size)) => { (bytes(*size)) div.soft { (many(*paths, "path")) } }
                                            None => "is not here",
                                        }
                                    }
                                    td.w.s { (date(pin.created)) }
                                    td {
                                        @if let Some(keep) = pin.holds.keep { "the newest " (keep) " " }
                                        @if let Some(end) = pin.holds.until { (until(end)) }
                                        @if pin.holds.keep.is_none() && pin.holds.until.is_none() { "for ever" }
                                    }
                                    td {
                                        (self.form("pins", "unpin", "", &html! {
                                            input type="hidden" name="path" value=(hash);
                                            input type="hidden" name="name" value=(pin.name);
                                            button aria-label=(format!("Remove the pin {}", pin.name)) { "Remove" }
                                        }))
                                    }
                                }
                            }
                        }
                    }
                }
                @if pins.len() > LISTED_MAX { p.soft { (number(pins.len() - LISTED_MAX)) " more are not listed." } }
            }
            h2 { "Add a pin" }
            (self.form("pins", "pin", "", &html! {
                div.fields {
                    (super::field("pin-name", "Name", &html! { input #pin-name name="name" required maxlength="128" autocomplete="off"; }))
                    (super::field("pin-path", "Store path", &html! { input #pin-path name="path" required value=(path) autocomplete="off" spellcheck="false"; }))
                    (super::field("pin-keep", "Keep the newest", &html! { input #pin-keep name="keep" type="number" min="1" max="1000000" placeholder="all"; }))
                    (super::field("pin-days", "For days", &html! { input #pin-days name="days" type="number" min="1" max="36500" placeholder="for ever"; }))
                    button.main { "Pin" }
                }
            }))
        })
    }
}
