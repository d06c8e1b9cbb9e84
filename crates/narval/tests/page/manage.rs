//! Browsers that sign in with a token, and manage the cache.

use crate::browser::Browser;
use crate::lab::{Lab, Session};
use crate::support::{hash_part, stdout};

/// Every form of the page: the part of Manage, what it sends, and the scope that it needs.
fn forms(path: &str) -> [(&'static str, String, &'static str); 7] {
    let hash = hash_part(path);
    [
        ("tokens", "do=create&label=x&scope=pull&caches=*".into(), "admin"),
        ("tokens", "do=revoke&id=0123456789abcdfg".into(), "admin"),
        ("jobs", "do=collect".into(), "admin"),
        ("jobs", "do=cancel&id=0123456789abcdfg".into(), "admin"),
        ("pins", format!("do=pin&name=x&path={hash}"), "pin"),
        ("pins", format!("do=unpin&name=x&path={hash}"), "pin"),
        ("delete", format!("do=delete&path={hash}"), "delete"),
    ]
}

/// A view of Manage, as the server renders it.
fn view(lab: &Lab, part: &str, fields: &[&str]) -> String {
    let answer = lab.server.ask("GET", &format!("/_narval/manage/{part}"), &fields[..1]);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.text().split("<main").nth(1).unwrap().split("<footer").next().unwrap().to_owned()
}

/// The same without one of the fields, or with others.
fn refused(lab: &Lab, session: &Session, path: &str) {
    let [cookie, _, origin, host] = session.fields();
    let evil = "Origin: http://evil.example";
    let bearer = format!("Authorization: Bearer {}", lab.token(&["--admin"]));
    let other = lab.sign_in(&lab.token(&["--admin"]));
    for (part, form, _) in forms(path) {
        let good = session.form(&form);
        let cases: [(&str, &[&str], &str); 9] = [
            ("no cookie", &[origin, host], &good),
            ("a token instead", &[origin, host, &bearer], &good),
            ("no proof", &[cookie, origin, host], &form),
            ("a wrong proof", &[cookie, origin, host], &format!("proof=x&{form}")),
            ("the proof of another session", &[cookie, origin, host], &other.form(&form)),
            ("another origin", &[cookie, evil, host], &good),
            ("no origin", &[cookie, host], &good),
            ("a null origin", &[cookie, "Origin: null", host], &good),
            ("another site, says the browser", &[cookie, origin, host, "Sec-Fetch-Site: cross-site"], &good),
        ];
        for (what, fields, form) in cases {
            let answer = lab.form(part, fields, form);
            assert_eq!(answer.status, 403, "{part} with {what}: {}", answer.text());
            // A browser would ask for a password.
            assert_eq!(answer.field("www-authenticate"), None);
        }
    }
    let [cookie, proof, origin, host] = session.fields();
    for (fields, status) in [
        (&[proof, origin, host][..], 401),
        (&[cookie, origin, host], 403),
        (&[cookie, &other.proof, origin, host], 403),
        (&[cookie, proof, evil, host], 403),
        (&[cookie, proof, host], 403),
    ] {
        assert_eq!(lab.ask("DELETE", "session", fields, "").status, status, "{fields:?}");
    }
}

#[test]
fn every_write_needs_the_session_its_proof_and_our_page() {
    let lab = Lab::new(&[]);
    let path = lab.store.add_tree("tree");
    lab.push(&path);
    let session = lab.sign_in(&lab.token(&["--admin"]));
    assert!(session.set_cookie.contains("; Path=/; ") && session.set_cookie.contains("; HttpOnly; SameSite=Strict"));
    assert!(!session.set_cookie.contains("Secure"), "there is no TLS");
    refused(&lab, &session, &path);
    assert!(lab.has(&path) && stdout(lab.run(&["pin", "list"])).is_empty());
    let tokens = stdout(lab.run(&["token", "list"]));
    assert!(!tokens.contains("  x  "), "{tokens}");
    // Signing in needs our page, too.
    let bearer = format!("Authorization: Bearer {}", lab.token(&["--admin"]));
    for origin in ["Origin: http://evil.example", "X: y"] {
        assert_eq!(lab.ask("POST", "session", &[origin, &bearer], "").status, 403, "{origin}");
    }
    // Documents let browsers say where a form comes from.
    let document = lab.server.ask("GET", "/_narval/manage", &[&session.cookie]);
    assert_eq!(document.field("referrer-policy"), Some("same-origin"));
    assert!(document.field("content-security-policy").unwrap().contains("form-action 'self'"));
    // And with all of it, each does what it says.
    let fields = session.fields();
    let done = |part: &str, form: &str, message: &str| {
        let answer = lab.form(part, &fields, &session.form(form));
        assert!(answer.status == 200 && answer.text().contains(message), "{}", answer.text());
    };
    let hash = hash_part(&path);
    let pin = format!("do=pin&name=keep+%3Cb%3Ethis%3C%2Fb%3E&path={path}&keep=2");
    done("pins", &pin, "keep &lt;b&gt;this&lt;/b&gt;");
    let pins = view(&lab, "pins", &fields);
    assert!(pins.contains("keep &lt;b&gt;this&lt;/b&gt;") && pins.contains("the newest 2"), "{pins}");
    assert!(view(&lab, "space", &fields).contains(">pinned<"));
    // With the size of its closure.
    assert!(pins.contains(">1 path<"), "{pins}");
    assert!(stdout(lab.run(&["pin", "list"])).contains("keep <b>this</b>"));
    done("pins", &format!("do=unpin&name=keep+%3Cb%3Ethis%3C%2Fb%3E&path={hash}"), "Removed the pin.");
    assert!(stdout(lab.run(&["pin", "list"])).is_empty());
    let space = view(&lab, "space", &fields);
    assert!(space.contains("Nothing: everything is pinned") && space.contains(">tree<"), "{space}");
    assert!(space.contains("Less than a day ago</td><td class=\"n\">1</td>"), "{space}");
    done("jobs", "do=collect", "A collection is under way.");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let jobs = loop {
        let jobs = view(&lab, "jobs", &fields);
        if jobs.contains("removed: 0") || std::time::Instant::now() > end {
            break jobs;
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    };
    assert!(jobs.contains("<b>gc</b>") && jobs.contains("done") && jobs.contains("kept: 1"), "{jobs}");
    assert!(!jobs.contains("Cancel"), "it has ended: {jobs}");
    assert!(lab.has(&path));
    let question = view(&lab, &format!("delete?path={hash}"), &fields);
    assert!(question.contains("Delete 1 path, "), "{question}");
    done("delete", &format!("do=delete&path={hash}"), "1 path was deleted");
    assert!(!lab.has(&path));
    assert_eq!(lab.form("delete", &fields, &session.form(&format!("do=delete&path={hash}"))).status, 404);
    let audit = view(&lab, "audit", &fields);
    assert!(audit.contains(">sign-in<") && audit.contains(">delete<") && audit.contains("127.0.0.1"), "{audit}");
    let audit = view(&lab, &format!("audit?path={hash}&token=page"), &fields);
    assert!(audit.contains(">delete<") && !audit.contains(">sign-in<"), "{audit}");
    let audit = view(&lab, "audit?token=nobody", &fields);
    assert!(audit.contains("There is no such line"), "{audit}");
    assert_eq!(lab.ask("DELETE", "session", &fields, "").status, 204);
    assert!(lab.server.ask("GET", "/_narval/manage/pins", &fields[..1]).text().contains("Sign in"));
    let audit = std::fs::read_to_string(lab.store.path("data/audit.jsonl")).unwrap();
    assert!(audit.contains(r#""action":"sign-in""#) && audit.contains(r#""action":"delete""#), "{audit}");
}

/// Paths that refer to each other are deleted in whatever order they were chosen; what others need stays, and it is said why.
#[test]
fn chosen_paths_are_deleted_together() {
    let lab = Lab::new(&[]);
    let base = lab.store.add_file("base-1.0", "x");
    let one = lab.store.add_file("one-1.0", format!("{base}\n"));
    let two = lab.store.add_file("two-1.0", format!("{base}\n"));
    let database = lab.store.path("root/nix/var/nix/db/db.sqlite");
    let statement = format!(
        "update ValidPaths set ca = null; insert into Refs select one.id, base.id from ValidPaths one, ValidPaths base \
         where base.path = '{base}' and one.path in ('{one}', '{two}')"
    );
    assert!(std::process::Command::new("sqlite3").arg(database).arg(statement).status().unwrap().success());
    [&one, &two].into_iter().for_each(|path| lab.push(path));
    let session = lab.sign_in(&lab.token(&["--admin"]));
    let fields = session.fields();
    let [base_hash, one_hash, two_hash] = [&base, &one, &two].map(|path| hash_part(path));
    let question = view(&lab, &format!("delete?path={base_hash}&path={one_hash}"), &fields);
    assert!(question.contains("Delete 2 paths, ") && question.contains("1 other path refers to them"), "{question}");
    let form = format!("do=delete&path={base_hash}&path={one_hash}");
    let answer = lab.form("delete", &fields, &session.form(&form));
    assert!(
        answer.status == 409 && answer.text().contains("Deleted 1 path. Left 1 path: other paths"),
        "{}",
        answer.text()
    );
    assert!(lab.has(&base) && !lab.has(&one) && lab.has(&two));
    let answer = lab.form("delete", &fields, &session.form(&format!("do=delete&path={base_hash}&path={two_hash}")));
    assert!(answer.text().contains("2 paths were deleted"), "{}", answer.text());
    assert!(!lab.has(&base) && !lab.has(&two));
}

#[test]
fn tokens_are_made_shown_once_and_revoked() {
    let lab = Lab::new(&["--private"]);
    let admin = lab.token(&["--admin", "--cache", "*"]);
    let session = lab.sign_in(&admin);
    let fields = session.fields();
    // First whom it is for.
    assert!(!view(&lab, "tokens", &fields).contains("name=\"scope\""));
    let for_ci = view(&lab, "tokens?for=ci", &fields);
    for scope in ["pull", "push", "sign"] {
        assert!(for_ci.contains(&format!("value=\"{scope}\" checked")), "{for_ci}");
    }
    assert!(!for_ci.contains("value=\"admin\" checked") && for_ci.contains("without it, clients refuse"), "{for_ci}");
    let wanted = "do=create&label=%3Cscript%3Ealert(1)%3C%2Fscript%3E&scope=pull&scope=pin&caches=default&days=30";
    let created = lab.form("tokens", &fields, &session.form(wanted));
    assert_eq!(created.status, 200, "{}", created.text());
    let text = created.text().to_owned();
    let token = text.split("nv1_").nth(1).unwrap().split('<').next().unwrap();
    let token = &format!("nv1_{token}");
    let id = token.split('_').nth(1).unwrap();
    assert!(text.contains(&format!("narval use http://{} --token-file token", lab.server.address)), "{text}");
    assert!(text.contains("&lt;script&gt;alert(1)") && !text.contains("may push and not sign"), "{text}");
    let listed = view(&lab, "tokens", &fields);
    assert!(!listed.contains(token) && !listed.contains(&admin));
    assert!(listed.contains(id) && listed.contains("pull, pin") && listed.contains("never"), "{listed}");
    let unsigned = lab.form("tokens", &fields, &session.form("do=create&label=x&scope=push&caches=*"));
    assert!(unsigned.text().contains("may push and not sign"), "{}", unsigned.text());
    for wrong in [
        "do=create",
        "do=create&label=x&caches=*",
        "do=create&label=x&scope=pull",
        "do=create&label=x&scope=all&caches=*",
        "do=create&label=&scope=pull&caches=*",
        "do=create&label=x&scope=pull&caches=*&days=x",
        "do=other",
    ] {
        assert_eq!(lab.form("tokens", &fields, &session.form(wrong)).status, 400, "{wrong}");
    }
    // The new one works, sees what it may, and its sessions end with it.
    let bearer = format!("Authorization: Bearer {token}");
    assert_eq!(lab.ask("GET", "paths", &[&bearer], "").status, 200);
    let theirs = lab.sign_in(token);
    assert_eq!(theirs.info["scopes"], serde_json::json!(["pull", "pin"]));
    for (part, form, scope) in forms("/nix/store/0i4073ldk2aplbmaarmp5c8gf3wmbl84-x") {
        let answer = lab.form(part, &theirs.fields(), &theirs.form(&form));
        assert_eq!(answer.status == 403, ["admin", "delete"].contains(&scope), "{form}: {}", answer.text());
    }
    for part in ["tokens", "space", "audit", "delete"] {
        let shown = view(&lab, part, &theirs.fields());
        assert!(shown.contains("Add a pin") && !shown.contains("Create a token"), "{part}: {shown}");
    }
    assert_eq!(lab.ask("GET", "paths", &[&theirs.cookie], "").status, 200, "the session reads a private cache");
    // When and from where it was used.
    let listed = view(&lab, "tokens", &fields);
    let row = listed.split("<tr>").find(|row| row.contains(id)).unwrap();
    assert!(row.contains("just now") && row.contains("from 127.0.0.1"), "{row}");
    // One that nobody has used for long is marked.
    assert!(!listed.contains("unused for 90 days"), "{listed}");
    lab.token(&["--pull"]);
    let statement = "update tokens set last_used = null, created = created - 91 * 86400 where scopes = 'pull'";
    let index = lab.store.path("data/index.sqlite");
    assert!(std::process::Command::new("sqlite3").arg(index).arg(statement).status().unwrap().success());
    let marked = view(&lab, "tokens", &fields);
    assert_eq!(marked.matches("unused for 90 days").count(), 1, "{marked}");
    let revoked = lab.form("tokens", &fields, &session.form(&format!("do=revoke&id={id}")));
    assert!(revoked.text().contains("refused from now on"), "{}", revoked.text());
    assert_eq!(lab.ask("GET", "paths", &[&theirs.cookie], "").status, 401);
    assert_eq!(lab.form("pins", &theirs.fields(), &theirs.form("do=pin")).status, 403);
    // A session reads, but uploads and the like need the token itself.
    {
        let hash = "0i4073ldk2aplbmaarmp5c8gf3wmbl84";
        let request = format!(
            "PUT /{hash}.narinfo HTTP/1.1\r\n{}\r\n{}\r\n{}\r\n{}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            fields[0], fields[1], fields[2], fields[3]
        );
        let answer = lab.server.send(request.as_bytes());
        assert!(answer.starts_with(b"HTTP/1.1 401 "), "{}", String::from_utf8_lossy(&answer));
    }
}

#[test]
fn an_administrator_of_one_cache_manages_the_tokens_of_that_cache() {
    let lab = Lab::new(&[]);
    let session = lab.sign_in(&lab.token(&["--admin", "--cache", "default"]));
    let other = lab.token(&["--admin", "--cache", "*"]);
    let fields = session.fields();
    let listed = view(&lab, "tokens", &fields);
    let other_id = other.split('_').nth(1).unwrap();
    assert!(!listed.contains(other_id), "{listed}");
    let form = |form: String| lab.form("tokens", &fields, &session.form(&form)).status;
    assert_eq!(form(format!("do=revoke&id={other_id}")), 404);
    assert_eq!(form("do=create&label=x&scope=pull&caches=*".into()), 403);
    assert_eq!(form("do=create&label=x&scope=pull&caches=default".into()), 200);
    // What is about all caches is not theirs to read.
    let all = lab.sign_in(&other);
    assert!(view(&lab, "audit", &all.fields()).contains("create token"));
    assert!(!view(&lab, "audit", &fields).contains("create token"));
    // A token for other caches cannot sign in here.
    let elsewhere = format!("Authorization: Bearer {}", lab.token(&["--admin", "--cache", "team"]));
    let answer = lab.ask("POST", "session", &[&lab.origin(), &elsewhere], "");
    assert_eq!((answer.status, answer.field("set-cookie")), (403, None));
}

#[test]
fn wrong_tokens_are_noted_until_there_are_too_many() {
    let lab = Lab::new(&[]);
    let guess = |secret: &str| {
        let bearer = format!("Authorization: Bearer {secret}");
        let answer = lab.ask("POST", "session", &[&lab.origin(), &bearer, "X-Narval-Page: 1"], "");
        assert_eq!((answer.status, answer.field("set-cookie")), (401, None));
        // A browser would ask for a password by itself.
        assert_eq!(answer.field("www-authenticate"), Some("Bearer"));
        answer.text().to_owned()
    };
    let texts: Vec<_> = (0..12).map(|number| guess(&format!("nv1_{number}"))).collect();
    assert!(texts[0].contains("unknown, expired or revoked"), "{texts:?}");
    assert!(texts[11].contains("too many wrong tokens"), "{texts:?}");
    let audit = std::fs::read_to_string(lab.store.path("data/audit.jsonl")).unwrap();
    let lines: Vec<_> = audit.lines().filter(|line| line.contains(r#""action":"sign-in""#)).collect();
    assert!(lines.len() == 10 && lines.iter().all(|line| line.contains("127.0.0.1") && line.contains("refused")));
    assert!(!audit.contains("nv1_0"));
}

#[test]
fn the_cookie_is_for_tls_and_for_the_cache() {
    let lab = Lab::new(&[]);
    let [cert, key] = crate::support::certificate(lab.store.dir.path()).map(|path| path.to_str().unwrap().to_owned());
    let token = lab.token(&["--admin"]);
    let secure = Lab::serve(&lab.store, &["--tls-cert", &cert, "--tls-key", &key]);
    let url = format!("https://localhost:{}/_narval/page/session", secure.address.port());
    let output = std::process::Command::new("curl")
        .args([
            "-sSk",
            "-D",
            "-",
            "-o",
            "/dev/null",
            "-X",
            "POST",
            "-H",
            &format!("Authorization: Bearer {token}"),
            "-H",
        ])
        .args([&format!("Origin: https://localhost:{}", secure.address.port()), &url])
        .output()
        .unwrap();
    let head = stdout(output);
    assert!(head.contains("; Secure; SameSite=Strict"), "{head}");
}

#[test]
fn a_browser_signs_in_creates_a_token_pins_looks_and_deletes() {
    let Some(mut browser) = Browser::start() else { return };
    let lab = Lab::new(&["--private"]);
    let (one, two) = (lab.store.add_file("first-1.0", "one"), lab.store.add_file("second-2.0", "two"));
    lab.push(&one);
    lab.push(&two);
    let url = lab.server.url();
    browser.open(&format!("{url}/#/find"), "This cache is private");
    browser.fill("#token", "nv1_wrong");
    browser.press("Enter", 13);
    browser.shows("unknown, expired or revoked");
    browser.fill("#token", &lab.token(&["--admin"]));
    browser.press("Enter", 13);
    browser.shows("first 1.0");
    assert_eq!(browser.eval("document.cookie"), "", "no script reads the cookie");
    assert_eq!(browser.eval("Object.keys(sessionStorage).length + Object.keys(localStorage).length"), 0);
    // A token with a name that is HTML.
    browser.click("nav a", "Manage");
    browser.shows("What can go?");
    browser.shows("Nothing: everything is pinned, or was used recently enough.");
    browser.click("nav a", "Tokens");
    browser.click("a", "Something else");
    let label = "<img src=x onerror=document.title='run'>\u{202e}";
    browser.fill("#token-label", label);
    browser.eval("document.getElementById('scope-pull').click()");
    browser.click("button", "Create");
    browser.shows("cannot be shown again");
    let token = browser.eval("document.querySelector('#made code[aria-label=\"the token\"]').textContent");
    let token = token.as_str().unwrap().to_owned();
    assert_eq!(lab.sign_in(&token).info["scopes"], serde_json::json!(["pull"]));
    browser.shows(&label.replace('\u{202e}', "\u{fffd}"));
    assert_ne!(browser.eval("document.title"), "run");
    assert_eq!(browser.eval("document.querySelectorAll('main img').length"), 0);
    // A pin, from the page of a path.
    browser.click("nav a", "Packages");
    browser.click("a", "first 1.0");
    browser.click("a", "Pin");
    browser.fill("#pin-name", "release");
    browser.click("form button", "Pin");
    browser.shows("Pinned ");
    assert!(stdout(lab.run(&["pin", "list"])).contains("release"));
    let token = lab.token(&["--pull"]);
    let has = |path: &str| {
        let field = format!("Authorization: Bearer {token}");
        lab.server.ask("GET", &format!("/{}.narinfo", hash_part(path)), &[&field]).status == 200
    };
    // Cancel leaves everything as it is; deleting deletes.
    browser.click("nav a", "Packages");
    browser.click("a", "second 2.0");
    browser.click("a", "Delete");
    browser.shows("Delete this path?");
    browser.click("a", "Cancel");
    browser.shows("What can go?");
    assert!(has(&two));
    // The button says how much is chosen.
    browser.wait("document.querySelector('#choose button').textContent === 'Delete the chosen…'");
    browser.eval(&format!("document.querySelector('#choose input[value=\"{}\"]').click()", hash_part(&two)));
    browser.wait("/^Delete 1 path, .*B…$/.test(document.querySelector('#choose button').textContent)");
    browser.click("#choose button", "Delete 1 path");
    // The button of before has the same words.
    browser.shows("Delete this path?");
    browser.click("form button", "Delete 1 path, ");
    browser.shows("1 path was deleted");
    assert!(has(&one) && !has(&two));
    browser.click("nav a", "Status");
    browser.shows("All is well");
    browser.click("nav a", "Manage");
    browser.click("button", "Sign out");
    browser.shows("Sign in");
    assert_eq!(
        browser.eval(
            "fetch('/_narval/page/check', { headers: { 'X-Narval-Page': '1' } }).then((answer) => answer.status)"
        ),
        401
    );
    browser.complaints.retain(|complaint| !complaint.contains("status of 401"));
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

/// Forms do all of it where scripts are off.
#[test]
fn manage_works_without_script() {
    let Some(mut browser) = Browser::start() else { return };
    let lab = Lab::new(&[]);
    let paths: Vec<_> = (0..3).map(|number| lab.store.add_file(&format!("old-{number}"), number.to_string())).collect();
    paths.iter().for_each(|path| lab.push(path));
    let url = lab.server.url();
    browser.open(&format!("{url}/_narval/manage"), "With a token of this cache");
    browser.fill("#token", &lab.token(&["--admin"]));
    browser.press("Enter", 13);
    browser.shows("What can go?");
    browser.call("Emulation.setScriptExecutionDisabled", serde_json::json!({ "value": true }));
    browser.open(&format!("{url}/_narval/manage/space?name=old&unused="), "3 paths, ");
    browser.click("a", "Choose all 3");
    browser.wait("document.querySelectorAll('#choose input:checked').length === 3");
    browser.eval("document.querySelector('#choose input').click()");
    browser.click("button", "Delete the chosen");
    browser.shows("Delete these paths?");
    browser.click("button", "Delete 2 paths, ");
    browser.shows("2 paths were deleted");
    assert_eq!(paths.iter().filter(|path| lab.has(path)).count(), 1);
    browser.click("nav a", "Tokens");
    browser.click("a", "CI that pushes");
    browser.fill("#token-label", "ci");
    browser.click("button", "Create");
    browser.shows("--token-file token");
    browser.shows("pull, push, sign");
    browser.click("nav a", "Pins");
    browser.fill("#pin-name", "release");
    browser.fill("#pin-path", paths.iter().find(|path| lab.has(path)).unwrap());
    browser.click("button", "Pin");
    browser.shows("Pinned ");
    browser.click("td button", "Remove");
    browser.shows("Removed the pin.");
    browser.click("nav a", "Audit");
    browser.shows("unpin");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}
