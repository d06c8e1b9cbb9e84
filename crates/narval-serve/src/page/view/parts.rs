//! Parts of several views.

use std::fmt::Display;

use maud::{Markup, html};

use super::words::{bytes, name};

/// One of several texts that mean the same: a tab, which is a radio button, so that it needs no script.
pub(super) struct Way<'a> {
    pub(super) title: &'a str,
    pub(super) pane: Markup,
}

impl<'a> Way<'a> {
    /// A text to copy. Its label says to readers of the screen what it is.
    pub(super) fn text(title: &'a str, label: &str, text: &str) -> Self {
        Self { title, pane: lines(label, text) }
    }
}

/// Several ways, one at a time. The script shows the button to copy the one that is chosen.
pub(super) fn ways(group: &str, label: &str, ways: &[Way<'_>]) -> Markup {
    html! {
        div.ways role="group" aria-label=(label) {
            div.choice {
                @for (at, way) in ways.iter().enumerate() {
                    label { input type="radio" name=(group) checked[at == 0]; (way.title) }
                }
                button.copier type="button" hidden { "Copy" }
            }
            div.panes { @for way in ways { div { (way.pane) } } }
        }
    }
}

/// Lines that are copied as a whole.
pub(super) fn lines(label: &str, text: &str) -> Markup {
    html! { pre tabindex="0" aria-label=(label) { (text) } }
}

/// One line, with a button of its own.
pub(super) fn copied(label: &str, text: impl Display) -> Markup {
    html! {
        div.copied { code aria-label=(label) { (text) } button.copier type="button" hidden aria-label=(format!("Copy: {label}")) { "Copy" } }
    }
}

/// The same with a title before it.
pub(super) fn titled(title: &str, text: impl Display) -> Markup {
    html! {
        div.copied {
            span.what { (title) }
            code aria-label=(title) { (text) }
            button.copier type="button" hidden aria-label=(format!("Copy: {title}")) { "Copy" }
        }
    }
}

/// A bar as long as a part of the whole. Its number is beside it.
pub(super) fn bar(part: u64, whole: u64) -> Markup {
    #[allow(clippy::cast_precision_loss, reason = "it is a picture")]
    let width =
        if whole == 0 { 0.0 } else { (100.0 * part as f64 / whole as f64).max(if part > 0 { 0.7 } else { 0.0 }) };
    html! {
        svg.bar viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" {
            rect width=(format!("{width:.1}")) height="8" {}
        }
    }
}

/// A link to a path, and its size.
pub(super) fn sized(link: &str, text: &str, size: Option<u64>) -> Markup {
    html! { a href=(link) { (name(text)) } span.side { (size.map(bytes).unwrap_or_default()) } }
}
