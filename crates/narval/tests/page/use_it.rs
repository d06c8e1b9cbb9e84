//! The texts of "Use this cache" do what they say: real Nix and our own client run them as they are on the page.

use std::process::Command;

use crate::browser::Browser;
use crate::lab::Lab;
use crate::support::{NARVAL, Nix};

/// A text of the page that can be copied, by its label.
fn text(browser: &mut Browser, label: &str) -> String {
    browser
        .eval(&format!("document.querySelector('[aria-label=\"{label}\"]').textContent"))
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn both_ways_to_give_a_token_work_as_they_are_on_the_page() {
    let Some(mut browser) = Browser::start() else { return };
    let lab = Lab::signing(&[]);
    let (by_nix, by_narval) = (lab.store.add_file("by-nix", "x"), lab.store.add_file("by-narval", "y"));
    let token = lab.token(&["--push", "--pull"]);
    browser.open(&lab.server.url(), "Push to it");

    // Nix alone: a line of nix.conf, and one of the file that it names.
    let netrc = lab.store.path("etc-netrc");
    std::fs::write(&netrc, text(&mut browser, "line for netrc").replace("TOKEN", &token)).unwrap();
    let line = text(&mut browser, "line for nix.conf with the netrc file");
    let conf = line.replace("/etc/nix/netrc", netrc.to_str().unwrap());
    let command = text(&mut browser, "command for nix copy").replace("./result", &by_nix);
    let words: Vec<&str> = command.split_whitespace().skip(1).chain(["--from"]).collect();
    let from = lab.store.uri();
    let args = [&words[..], &[from.as_str()]].concat();
    let pushed = Nix::Newest.nix_with(lab.store.dir.path(), &[("NIX_CONFIG", &conf)], &args);
    assert!(pushed.status.success() && lab.has(&by_nix), "{}", String::from_utf8_lossy(&pushed.stderr));

    // `narval use` with the token's file, then the push, in a home of its own.
    let home = lab.store.path("home");
    std::fs::create_dir(&home).unwrap();
    std::fs::write(home.join("token"), &token).unwrap();
    let run = |command: String, more: &[&str]| {
        let mut program = Command::new(NARVAL);
        program.args(command.split_whitespace().skip(1)).args(more).current_dir(&home);
        program.env("HOME", &home).env("XDG_CONFIG_HOME", home.join("config")).env_remove("NETRC");
        program.env_remove("NARVAL_STORE").env_remove("NARVAL_TOKEN_FILE");
        let output = program.output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run(text(&mut browser, "command for narval use with a token"), &["--yes"]);
    let push = text(&mut browser, "command for narval push").replace("./result", &by_narval);
    run(push, &["--store", &from]);
    assert!(lab.has(&by_narval));
}

/// What is made of a Rust string says that it is UTF-8: browsers guess something else.
#[test]
fn text_is_read_as_utf_8() {
    use narval_http::{Listen, ListenAddress, Server};
    let Some(mut browser) = Browser::start() else { return };
    let listen = Listen::Tcp("127.0.0.1:0".parse().unwrap());
    let server = Server::builder(|| "café – naïve ✓\n").listen(listen).build().unwrap().spawn().unwrap();
    let [ListenAddress::Tcp(address), ..] = server.addresses() else { panic!("no address") };
    browser.open(&format!("http://{address}/"), "café – naïve ✓");
    assert_eq!(browser.eval("document.characterSet"), "UTF-8");
}

#[test]
fn one_sees_where_one_is_what_is_unsigned_and_how_to_get_a_path() {
    let Some(mut browser) = Browser::start() else { return };
    let lab = Lab::signing(&[]);
    let path = lab.store.add_file("alone-1.0", "x");
    let statement = format!("update ValidPaths set ca = null where path = '{path}'");
    let database = lab.store.path("root/nix/var/nix/db/db.sqlite");
    assert!(Command::new("sqlite3").arg(database).arg(statement).status().unwrap().success());
    // By a token that may not sign.
    lab.push(&path);
    let hash = crate::support::hash_part(&path).to_owned();
    browser.open(&format!("{}/#/find", lab.server.url()), "alone 1.0");
    for text in ["default", &lab.server.address.to_string()] {
        let shown = format!(
            "document.title.includes('{text}') && document.getElementById('brand').textContent.includes('{text}')"
        );
        assert_eq!(browser.eval(&shown), true, "{text}");
    }
    let row = browser.eval("document.querySelector('.packages li').textContent").as_str().unwrap().to_owned();
    assert!(row.contains(&hash[..8]) && row.contains("not signed") && row.contains("just now"), "{row}");
    assert_eq!(browser.eval("document.activeElement.id"), "q");
    // Enter opens the only hit.
    browser.press("Enter", 13);
    browser.shows("1 of 1 path is not signed by this server: clients will refuse this.");
    assert_eq!(text(&mut browser, "store path"), path);
    for way in ["nix copy", "nix-store", "narval install", "narval run"] {
        assert!(text(&mut browser, &format!("command for {way}")).ends_with(&path), "{way}");
    }
    assert_eq!(browser.eval("[...document.links].filter((link) => link.textContent === 'build log').length"), 0);
    browser.open(&format!("{}/#/find/aloen", lab.server.url()), "Did you mean alone?");
}
