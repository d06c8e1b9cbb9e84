//! Views that the script fills.

use maud::{Markup, html};

use super::Visit;

/// The title and the contents of the view to manage the cache, which the script renders.
pub(super) fn manage() -> (String, Markup) {
    let main =
        html! { div #view data-view="manage" { h1 { "Manage" } noscript { p { "This view needs JavaScript." } } } };
    ("Manage".to_owned(), main)
}

/// What is not here.
pub(super) fn absent(visit: &Visit) -> Markup {
    html! {
        h1 { "Not found" }
        p { "This cache does not have it." }
        p { a href=(visit.link("?q=")) { "Search for something else" } }
    }
}
