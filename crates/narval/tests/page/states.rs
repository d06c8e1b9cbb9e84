//! The overview in each state, and what a keyboard alone can do.

use std::process::Command;

use crate::browser::Browser;
use crate::lab::Lab;
use crate::looks::check;
use crate::support::{Nix, Store, hash_part};

/// A new cache says what is left to do, and ticks it as it is done. It offers nothing that clients would refuse.
#[test]
fn a_new_cache_shows_the_steps_that_are_left() {
    let Some(mut browser) = Browser::start() else { return };
    let lab = Lab::new(&[]);
    browser.open(&lab.server.url(), "What is left to do");
    for text in [
        "✓ The server runs",
        "○ Give it a key",
        "narval key generate",
        "○ Create a token",
        "narval push ./result --to http://",
    ] {
        browser.shows(text);
    }
    assert_eq!(browser.eval("document.querySelectorAll('.ways').length"), 0, "no text for clients without a key");
    check(&mut browser, "empty-without-key");
    drop(lab);

    let lab = Lab::signing(&[]);
    browser.open(&lab.server.url(), "✓ It has a key");
    browser.shows("○ Create a token");
    check(&mut browser, "empty");
    // Without a reload.
    browser.eval("window.mark = 1");
    let path = lab.store.add_file("first-1.0", "x");
    lab.token(&["--push"]);
    browser.shows("✓ There is a token");
    lab.push(&path);
    browser.shows("Newest packages");
    assert_eq!(browser.eval("window.mark"), 1);
    assert_eq!(browser.eval("document.querySelector('.steps')"), serde_json::Value::Null);
    browser.shows("first");
}

/// What clients refuse is said first, on the overview, in the list, for the path, and by the check, which looks at all paths.
#[test]
fn what_is_not_signed_is_seen_everywhere() {
    let Some(mut browser) = Browser::start() else { return };
    let store = Store::new();
    let (key, _) = store.key("own-1");
    let [signed, unsigned] = ["signed-1.0", "unsigned-1.0"].map(|name| store.add_file(name, name));
    // By no content address, or clients would take it without a signature.
    let statement = "update ValidPaths set ca = null";
    let database = store.path("root/nix/var/nix/db/db.sqlite");
    assert!(Command::new("sqlite3").arg(database).arg(statement).status().unwrap().success());
    let server = Lab::serve(&store, &["--sign-key", key.to_str().unwrap()]);
    let lab = Lab { store, server };
    lab.push_as(&signed, &["--push", "--sign"]);
    browser.open(&lab.server.url(), "Does it work from here?");
    browser.click("button", "Does it work from here?");
    browser.shows("✓ It works: it responds for /nix/store, and its only path has a valid signature of this server.");
    lab.push(&unsigned);
    browser.open(&lab.server.url(), "Does it work from here?");
    // The list of paths may be a moment old.
    let message =
        "✗ It responds for /nix/store, but 1 of 2 paths lacks a valid signature of this server: clients refuse it.";
    let check_again = "document.querySelector('#check button').click()";
    browser
        .wait(&format!("document.querySelector('#check [role=status]').textContent === '{message}' || {check_again}"));
    browser.open(&format!("{}/?q=&filter=unsigned", lab.server.url()), "✗ not signed");
    assert_eq!(browser.eval("document.querySelectorAll('.packages > li').length"), 1);
    let path = format!("{}/_narval/path", lab.server.url());
    browser.open(
        &format!("{path}/{}", hash_part(&unsigned)),
        "✗ 1 of 1 path is not signed by this server: clients will refuse this.",
    );
    browser.open(&format!("{path}/{}", hash_part(&signed)), "✓ Can be installed: it is signed by own-1.");
    check(&mut browser, "trouble-path");
    // The count of the overview is up to half a minute old.
    browser.open(&format!("{}/?q=", lab.server.url()), "✗ not signed");
    check(&mut browser, "trouble");
}

/// Whoever has signed in sees how to give clients the token.
#[test]
fn a_private_cache_says_that_a_token_is_needed() {
    let Some(mut browser) = Browser::start() else { return };
    let lab = Lab::signing(&["--private"]);
    lab.push(&lab.store.add_file("inside-1.0", "x"));
    browser.open(&lab.server.url(), "This cache is private");
    check(&mut browser, "private-sign-in");
    browser.fill("#token", &lab.token(&["--pull"]));
    browser.press("Enter", 13);
    browser.shows("You need a token");
    browser.shows("--token-file token");
    check(&mut browser, "private");
    // A link of another site brings no cookie: the document finds out by itself.
    browser.open(&format!("{}/_narval/status", lab.server.url()), "");
    browser.wait("!document.body.innerText.includes('This cache is private')");
}

#[test]
fn a_keyboard_alone_searches_opens_copies_and_signs_in() {
    let Some(mut browser) = Browser::start() else { return };
    let lab = Lab::signing(&[]);
    for name in ["alpha-1.0", "beta-2.0", "beta-2.1"] {
        lab.push(&lab.store.add_file(name, name));
    }
    let url = lab.server.url();
    browser.open(&url, "Newest packages");
    browser.press("/", 191);
    assert_eq!(browser.eval("document.activeElement.id + document.activeElement.value"), "q");
    browser.call("Input.insertText", serde_json::json!({ "text": "bet" }));
    browser.shows("1 of 2 packages");
    assert_eq!(browser.eval("location.search"), "?q=bet");
    let tab_to = |browser: &mut Browser, selector: &str| {
        for _ in 0..40 {
            browser.press("Tab", 9);
            if browser.eval(&format!("document.activeElement.matches('{selector}')")) == true {
                return;
            }
        }
        panic!("the keyboard does not reach {selector}");
    };
    tab_to(&mut browser, ".packages a.name");
    browser.press("Enter", 13);
    browser.wait("location.pathname.startsWith('/_narval/path/')");
    browser.shows("Can be installed");
    tab_to(&mut browser, "button.copier");
    browser.press("Enter", 13);
    browser.wait("document.getElementById('said').textContent === 'Copied'");
    // The arrows choose another way to get it.
    tab_to(&mut browser, ".choice input");
    browser.press("ArrowRight", 39);
    browser.wait("document.querySelector('[aria-label=\"command for nix-store\"]').checkVisibility()");
    // Back to what was typed, and before that to the overview.
    browser.eval("history.back()");
    browser.shows("1 of 2 packages");
    browser.eval("history.back()");
    browser.shows("Newest packages");
    tab_to(&mut browser, "a.account");
    browser.press("Enter", 13);
    browser.wait("document.activeElement.id === 'token'");
    browser.call("Input.insertText", serde_json::json!({ "text": lab.token(&["--admin"]) }));
    browser.press("Enter", 13);
    browser.shows("Sign out");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    // Whoever may administer the cache finds who has pushed a path.
    browser.open(&format!("{url}/?q=alpha"), "alpha");
    tab_to(&mut browser, ".packages a.name");
    browser.press("Enter", 13);
    browser.shows("by whom");
    browser.eval("Array.from(document.links).find((link) => link.textContent === 'by whom').click()");
    browser.shows("alpha-1.0");
    browser.wait("location.pathname === '/_narval/manage/audit' && document.querySelectorAll('tbody tr').length >= 1");
    // Old addresses.
    for (old, new) in [("#/find/beta", "/?q=beta"), ("#/now", "/_narval/status"), ("#/use", "/")] {
        browser.open(&format!("{url}/{old}"), "");
        browser.wait(&format!("location.pathname + location.search === '{new}'"));
    }
}

/// The closure of a path can be read as a table and looked at as a map, which has one hue, and says why a path is needed.
#[test]
fn a_closure_is_a_table_and_a_map() {
    let Some(mut browser) = Browser::start() else { return };
    let lab = Lab::signing(&[]);
    let refer = |name: &str, path: &str| {
        let expression = format!("builtins.toFile \"{name}\" (builtins.storePath \"{path}\")");
        let args = ["eval", "--raw", "--impure", "--store", &lab.store.uri(), "--expr", &expression];
        crate::support::stdout(Nix::Newest.nix(lab.store.dir.path(), &args))
    };
    let base = lab.store.add_file("base-1.0", "x".repeat(700));
    let middle = refer("middle-1.0", &base);
    let top = refer("top-1.0", &middle);
    let database = lab.store.path("root/nix/var/nix/db/db.sqlite");
    let statement = "update ValidPaths set ca = null";
    assert!(Command::new("sqlite3").arg(database).arg(statement).status().unwrap().success());
    lab.push_as(&base, &["--push", "--sign"]);
    lab.push(&top);
    let url = format!("{}/_narval/path/{}", lab.server.url(), hash_part(&top));
    browser.open(&url, "✗ 2 of 3 paths are not signed by this server: clients will refuse this.");
    assert_eq!(
        browser.eval("[...document.querySelectorAll('.closure tbody tr')].map((row) => row.cells[0].textContent)")[0],
        "base-1.0"
    );
    check(&mut browser, "closure");
    browser.click("tr a", "why");
    browser.shows("Why base-1.0 is needed");
    let chain = browser.eval("[...document.querySelectorAll('.chain a')].map((link) => link.textContent).join(' ')");
    assert_eq!(chain, "top-1.0 middle-1.0 base-1.0");
    browser.open(&url, "Map");
    browser.click("label", "Map");
    browser.eval("document.querySelector('#as-map input').click()");
    browser.wait("document.querySelectorAll('#map rect').length === 3");
    let hues = browser
        .eval("[...document.querySelectorAll('#map rect')].map((rect) => rect.getAttribute('class')).sort().join(' ')");
    assert_eq!(hues, "d0 d1 d2");
    check(&mut browser, "map");
    // Both directions have sizes.
    browser.open(&format!("{}/_narval/path/{}", lab.server.url(), hash_part(&middle)), "Referred to by (1)");
    let sizes =
        browser.eval("[...document.querySelectorAll('.split .side')].every((size) => /\\d B$/.test(size.textContent))");
    assert_eq!(sizes, true);
}
