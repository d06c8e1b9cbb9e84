//! What is not here.

use maud::{Markup, html};

use crate::page::visit::Visit;

/// The contents of a view that has nothing to show.
pub(super) fn absent(visit: &Visit) -> Markup {
    html! {
        h1 { "Not found" }
        p { "This cache does not have it." }
        p { a href=(visit.link("?q=")) { "Search for something else" } }
    }
}
