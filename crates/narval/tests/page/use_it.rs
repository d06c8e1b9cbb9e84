//! The texts of "Use this cache" do what they say: real Nix and our own client run them as they are on the page.

use std::process::Command;

use crate::browser::Browser;
use crate::lab::Lab;
use crate::support::{NARVAL, Nix};

/// A text of the page that can be copied, by its label.
fn text(browser: &mut Browser, label: &str) -> String {
    browser
        .eval(&format!("document.querySelector('pre[aria-label=\"{label}\"]').textContent"))
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn both_ways_to_give_a_token_work_as_they_are_on_the_page() {
    let Some(mut browser) = Browser::start() else { return };
    let lab = Lab::new(&[]);
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
