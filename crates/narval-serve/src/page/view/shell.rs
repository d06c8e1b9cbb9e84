//! Views that the script fills.

use maud::{Markup, html};

use super::{View, Visit};

/// The title and the contents of a view that the script renders.
pub(super) fn shell(view: &View) -> (String, Markup) {
    let (title, name) = match view {
        View::Compare(..) => ("Compared", "compare"),
        _ => ("Manage", "manage"),
    };
    (
        title.to_owned(),
        html! { div #view data-view=(name) { h1 { (title) } noscript { p { "This view needs JavaScript." } } } },
    )
}

/// What is not here.
pub(super) fn absent(visit: &Visit) -> Markup {
    html! {
        h1 { "Not found" }
        p { "This cache does not have it." }
        p { a href=(visit.link("?q=")) { "Search for something else" } }
    }
}
