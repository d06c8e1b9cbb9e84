//! What every view looks like and how it is used, in a real browser: contrast, names, focus, width. Nothing may violate the page's policy.

use std::process::Command;

use serde_json::json;

use crate::browser::Browser;
use crate::lab::Lab;
use crate::support::{NARVAL, Server, hash_part};

/// Finds what is wrong with the current view: an array of texts. As axe-core's rules color-contrast, button-name, link-name, label, image-alt,
/// heading-order, region, and that nothing is wider than the window.
const CHECK: &str = r#"(() => {
  const wrong = [];
  const parse = (text) => { const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number); return { r, g, b, a }; };
  const over = (top, under) => ({ r: top.r * top.a + under.r * (1 - top.a), g: top.g * top.a + under.g * (1 - top.a), b: top.b * top.a + under.b * (1 - top.a), a: 1 });
  const ground = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      // A text of the treemap lies on its rectangle.
      const style = getComputedStyle(at), rect = at.matches?.('svg text') && at.parentElement.querySelector('rect');
      if (rect) return parse(getComputedStyle(rect).fill);
      layers.push(parse(style.backgroundColor));
      if (layers.at(-1).a === 1) break;
    }
    return layers.reverse().reduce((under, top) => over(top, under), matchMedia('(prefers-color-scheme: dark)').matches ? { r: 18, g: 18, b: 18, a: 1 } : { r: 255, g: 255, b: 255, a: 1 });
  };
  const light = ({ r, g, b }) => {
    const [x, y, z] = [r, g, b].map((c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode, node = text.parentElement;
    if (!text.data.trim() || !node.checkVisibility() || node.closest('script,style,title,noscript,.hidden-text,.skip')) continue;
    const style = getComputedStyle(node), under = ground(node);
    let opacity = 1;
    for (let at = node; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
    const ink = parse(node.matches('svg text') ? style.fill : style.color);
    ink.a *= opacity;
    const [one, other] = [light(over(ink, under)), light(under)].sort((a, b) => b - a);
    const contrast = (one + 0.05) / (other + 0.05);
    if (contrast < 4.5) wrong.push('contrast ' + contrast.toFixed(2) + ': ' + text.data.trim().slice(0, 40));
  }
  const named = (node) => (node.getAttribute('aria-label') || (node.getAttribute('aria-labelledby') && document.getElementById(node.getAttribute('aria-labelledby'))?.textContent) || node.labels?.[0]?.textContent || (node.matches('input,select,textarea') ? '' : node.textContent) || node.title || '').trim();
  for (const node of document.querySelectorAll('a[href],button,input,select,textarea,summary,[tabindex="0"],table,nav,[role=region],[role=group]')) {
    if (node.checkVisibility() && !named(node)) wrong.push('no name: ' + node.outerHTML.slice(0, 80));
  }
  for (const image of document.querySelectorAll('img:not([alt])')) wrong.push('no alternative text: ' + image.outerHTML.slice(0, 80));
  for (const image of document.querySelectorAll('svg:not([aria-hidden]):not([aria-label])')) wrong.push('an unnamed picture: ' + image.outerHTML.slice(0, 80));
  const ids = [...document.querySelectorAll('[id]')].map((node) => node.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push('twice: #' + id);
  if (document.querySelectorAll('h1').length !== 1) wrong.push('headings of the first level: ' + document.querySelectorAll('h1').length);
  if (!document.documentElement.lang || !document.title) wrong.push('no language or no title');
  for (const cell of document.querySelectorAll('th:not([scope])')) wrong.push('a header without a scope: ' + cell.textContent);
  const width = document.documentElement.clientWidth;
  const header = document.querySelector('header:has(.brand)')?.getBoundingClientRect().height;
  if (header > 96) wrong.push('the header is ' + header + ' px high');
  if (document.documentElement.scrollWidth > width) {
    const wide = [...document.querySelectorAll('body *')].filter((node) => node.getBoundingClientRect().right > width + 0.5 && !node.closest('.scroll,pre,.hidden-text,.skip'));
    wrong.push('wider than the window: ' + wide.slice(0, 3).map((node) => node.outerHTML.slice(0, 80)).join(' '));
  }
  // What can be pressed is large enough for a finger, unless it stands in a text or a table (WCAG 2.5.8).
  for (const node of document.querySelectorAll('button,input:not([type=checkbox]),nav a')) {
    const box = node.getBoundingClientRect();
    if (node.checkVisibility() && (box.height < 24 || box.width < 24)) wrong.push('too small: ' + node.outerHTML.slice(0, 80));
  }
  return wrong;
})()"#;

/// Goes through everything with the Tab key. Returns how many stops there were; what is wrong is in the second.
const FOCUS: &str = r#"(() => {
  const node = document.activeElement;
  if (!node || node === document.body) return null;
  const style = getComputedStyle(node), box = node.getBoundingClientRect();
  const ring = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1;
  const marked = ring || node.querySelector?.('rect');
  const all = [...document.querySelectorAll('*')];
  return { at: all.indexOf(node), seen: Boolean(marked) && box.width > 0 && box.right > 0 && box.bottom > 0, what: node.outerHTML.slice(0, 90) };
})()"#;
/// What a keyboard must reach.
const REACHABLE: &str = "[...document.querySelectorAll('a[href],button,input,select,textarea,summary')].filter((node) => node.checkVisibility() && !node.disabled && !(node.type === 'radio' && !node.checked)).length";

pub fn check(browser: &mut Browser, name: &str) {
    for width in [320, 390, 1280] {
        browser.resize(width);
        for scheme in ["light", "dark"] {
            browser.prefer(scheme);
            let wrong = browser.eval(CHECK);
            assert_eq!(wrong, json!([]), "{name} at {width} px, {scheme}");
            browser.screenshot(&format!("{name}-{width}-{scheme}"));
        }
    }
    browser.prefer("light");
    assert!(browser.complaints.is_empty(), "{name}: {:?}", browser.complaints);
}

/// The keyboard reaches everything in the order of the document, and shows where it is.
pub fn keyboard(browser: &mut Browser, name: &str) {
    browser.eval("document.activeElement.blur(); window.getSelection().removeAllRanges(); document.body.setAttribute('tabindex', '-1'); document.body.focus(); document.body.removeAttribute('tabindex')");
    let expected = browser.eval(REACHABLE).as_u64().unwrap();
    let (mut stops, mut last) = (0, -1);
    while stops <= expected + 50 {
        browser.press("Tab", 9);
        let focus = browser.eval(FOCUS);
        let Some(at) = focus["at"].as_i64() else { break };
        if at <= last {
            assert!(stops >= expected, "{name}: goes back to {focus}");
            break;
        }
        assert_eq!(focus["seen"], true, "{name}: no mark of the focus: {focus}");
        (last, stops) = (at, stops + 1);
    }
    assert!(stops >= expected, "{name}: the keyboard reaches {stops} of {expected}");
}

#[test]
fn every_view_can_be_read_and_used_by_everybody() {
    let Some(mut browser) = Browser::start() else { return };
    let lab = Lab::signing(&[]);
    let pages = lab.store.path("pages");
    std::fs::create_dir_all(pages.join("share/doc")).unwrap();
    std::fs::write(pages.join("share/doc/README"), "A text.\n".repeat(30)).unwrap();
    std::fs::write(pages.join("share/<img src=x onerror=alert(1)> & \u{202e}txt.exe"), "x").unwrap();
    std::fs::write(pages.join(format!("share/{}", "long-name-".repeat(25))), "y").unwrap();
    std::os::unix::fs::symlink("share/doc", pages.join("doc")).unwrap();
    let tree = lab.store.add(&pages);
    std::fs::write(pages.join("share/doc/README"), "Another text.\n".repeat(30)).unwrap();
    std::fs::write(pages.join("share/doc/NEWS"), "It is new.\n").unwrap();
    let newer = lab.store.add(&pages);
    [&tree, &newer].into_iter().for_each(|path| lab.push(path));
    let url = lab.server.url();
    let (hash, newer) = (hash_part(&tree), hash_part(&newer));
    let views = [
        ("overview", String::new(), "is a binary cache"),
        ("find", "#/find/pages".to_owned(), "1 of 1 package"),
        ("find-nothing", "#/find/nothing-like-this".to_owned(), "0 of 1 package"),
        ("path", format!("#/path/{hash}"), "1 path,"),
        ("files", format!("#/files/{hash}/share/doc/README"), "A text."),
        ("compare", format!("#/compare/{hash}/{newer}"), "1 added, 0 removed, 1 changed"),
        ("status", "_narval/status".to_owned(), "All is well"),
        ("sign-in", "#/manage".to_owned(), "With a token of this cache"),
    ];
    // The checks find what is wrong.
    browser.open(&url, "is a binary cache");
    browser.eval(
        "document.querySelector('main').insertAdjacentHTML('beforeend', '<p class=soft id=x>faint</p><button></button><div id=wide>wide</div>'); \
         document.getElementById('x').style.color = '#999'; document.getElementById('wide').style.width = '1400px'",
    );
    let wrong = browser.eval(CHECK).to_string();
    for expected in ["contrast 2.", "no name: <button>", "wider than the window"] {
        assert!(wrong.contains(expected), "{wrong}");
    }
    for (name, at, text) in views {
        browser.open(&format!("{url}/{at}"), text);
        check(&mut browser, name);
        keyboard(&mut browser, name);
    }
    // Names that are HTML or turn the text around.
    browser.open(&format!("{url}/_narval/files/{hash}/share"), "long-name-");
    browser.shows("<img src=x onerror=alert(1)> & \u{fffd}txt.exe");
    browser.open(&format!("{url}/#/path/nothing"), "Not found");
    browser.complaints.retain(|complaint| !complaint.contains("status of 404"));
    check(&mut browser, "absent");
    browser.open(&format!("{url}/#/manage"), "With a token of this cache");
    browser.fill("#token", &lab.token(&["--admin"]));
    browser.press("Enter", 13);
    browser.shows("What can go?");
    check(&mut browser, "space");
    keyboard(&mut browser, "space");
    browser.open(&format!("{url}/_narval/manage/tokens?for=ci"), "It allows to");
    check(&mut browser, "tokens");
    keyboard(&mut browser, "tokens");
    lab.run(&["pin", "add", "release", &tree]);
    browser.open(&format!("{url}/#/manage/pins"), "release");
    check(&mut browser, "pins");
    keyboard(&mut browser, "pins");
    let report = json!({
        "release": "@web", "state": "wentBack", "revision": 41, "since": 1_764_000_000, "generation": 8, "nextWithin": 0,
        "path": format!("/nix/store/{}", "long-name-".repeat(20)), "errorAt": 1_764_000_000, "version": "0.1.0",
        "error": format!("<img src=x onerror=alert(1)> & \u{202e}txt.exe {}", "word".repeat(200)),
    });
    let bearer = format!("Authorization: Bearer {}", lab.token(&["--report"]));
    let body = report.to_string();
    let fields = ["Content-Type: application/json", bearer.as_str()];
    for name in ["web-1", &"w".repeat(64)] {
        let answer = lab.send("POST", &format!("/_narval/v1/machines/{name}"), &fields, &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    browser.open(&format!("{url}/_narval/manage/machines"), "gone back");
    browser.shows("<img src=x onerror=alert(1)> & \u{fffd}txt.exe");
    browser.shows("2 machines with an error");
    check(&mut browser, "machines");
    keyboard(&mut browser, "machines");
    let far = r#"{"step":"removing","things":"paths","done":2048,"of":7100,"bytes":0,"ofBytes":0,"secondsLeft":200}"#;
    let failed = json!({"error": format!("<img src=x onerror=alert(1)> {}", "word".repeat(200))});
    let key = r#"{"name":"default-1","publicKey":"default-1:nIfGhEJyf7WG5gHB3QEfGWdcJZuUxa9TbGPxvYRmGZE=","signed":41,"failed":0}"#;
    let rows = [
        ("gc", "running", "null", "null"),
        ("export", "failed", "5", &*failed.to_string()),
        ("rotate", "done", "5", key),
    ];
    for (number, (kind, state, ended, result)) in rows.into_iter().enumerate() {
        let statement = format!(
            "insert into jobs (id, cache, kind, options, token, label, state, created, started, ended, progress, result, owner, fence, until, cancelled) \
             values ('0a1b2c3d4f5g6h7{number}', 'default', '{kind}', '{{\"to\":\"mirror\"}}', '', 'laptop', '{state}', 5, 5, {ended}, '{far}', '{result}', 'process 1 on host', 1, 99999999999, 0)"
        );
        let index = lab.store.path("data/index.sqlite");
        assert!(Command::new("sqlite3").arg(index).arg(statement).status().unwrap().success());
    }
    browser.open(&format!("{url}/_narval/manage/jobs"), "2,048 of 7,100 paths");
    browser.shows("about 4 minutes left");
    browser.shows("<img src=x onerror=alert(1)>");
    browser.shows("signed: 41");
    check(&mut browser, "jobs");
    keyboard(&mut browser, "jobs");
    browser.open(&format!("{url}/_narval/manage/audit"), "sign-in");
    check(&mut browser, "audit");
    keyboard(&mut browser, "audit");
    browser.open(&format!("{url}/_narval/manage/delete?path={hash}"), "Delete this path?");
    check(&mut browser, "delete");
    keyboard(&mut browser, "delete");
    browser.open(&format!("{url}/#/path/{hash}"), "1 path,");
    browser.shows("pinned as release");
    check(&mut browser, "path-signed-in");
    keyboard(&mut browser, "path-signed-in");
}

/// The listing of `narval static` has the same look, and stands the same checks.
#[test]
fn the_listing_of_the_static_server_looks_the_same() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("docs/empty")).unwrap();
    std::fs::write(folder.path().join("docs/README.txt"), "x".repeat(12_345)).unwrap();
    std::fs::write(folder.path().join("docs/<img src=x onerror=alert(1)>"), "x").unwrap();
    std::fs::write(folder.path().join("docs/\u{202e}txt.exe"), "x").unwrap();
    std::fs::write(folder.path().join(format!("docs/{}", "long-name-".repeat(25))), "y").unwrap();
    let mut command = Command::new(NARVAL);
    command.args(["static", "--listen", "127.0.0.1:0", "--listing"]).arg(folder.path());
    let server = Server::start(command, &[]);
    for (name, at, text) in
        [("listing", "docs/", "1 folder, 4 files, 12.3 kB"), ("listing-empty", "docs/empty/", "This folder is empty.")]
    {
        browser.open(&format!("{}/{at}", server.url()), text);
        // A browser asks for an icon.
        browser.complaints.retain(|complaint| !complaint.contains("favicon.ico"));
        check(&mut browser, name);
        keyboard(&mut browser, name);
    }
    browser.open(&format!("{}/docs/", server.url()), "<img src=x onerror=alert(1)>");
    assert_eq!(browser.eval("document.images.length"), 0);
}
