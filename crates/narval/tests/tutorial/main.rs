//! The commands of `docs/tutorial.md` and of the README, copied from the pages and run: by a shell for each terminal, with the built programs, real
//! Nix and a real browser.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod page;
#[path = "../support/mod.rs"]
mod support;
mod terminal;

use std::collections::HashMap;
use std::net::TcpListener;
use std::path::Path;

use page::{Step, steps};
use support::browser::browse;
use terminal::Terminal;

/// The port on the pages.
const PORT: &str = "5000";

/// A user who copies what a page says.
struct Newcomer {
    home: tempfile::TempDir,
    port: String,
    terminals: HashMap<String, Terminal>,
    /// The terminal that was used last.
    last: String,
    /// What the browser showed at each address, without the origin.
    seen: Vec<(String, String)>,
}

impl Newcomer {
    fn new() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let home = tempfile::tempdir().unwrap();
        Self { home, port, terminals: HashMap::new(), last: String::new(), seen: Vec::new() }
    }

    /// Runs commands that no page shows.
    fn prepare(&mut self, terminal: &str, commands: &str) {
        self.act(&Step::Run { terminal: terminal.to_owned(), commands: commands.to_owned() });
    }

    fn follow(&mut self, text: &str) {
        for step in steps(text) {
            self.act(&step);
        }
    }

    fn act(&mut self, step: &Step) {
        match step {
            Step::Run { terminal, commands } => {
                let home = self.home.path();
                let shell = self.terminals.entry(terminal.clone()).or_insert_with(|| Terminal::open(home, terminal));
                shell.run(&commands.replace(PORT, &self.port));
                self.last.clone_from(terminal);
            }
            Step::Prints(text) => self.terminals[&self.last].shows(&text.replace(PORT, &self.port)),
            Step::Browse(path) => {
                let url = format!("http://127.0.0.1:{}{path}", self.port);
                // Without a browser everything else is still tested.
                let Some((shown, complaints)) = browse(&url, &self.home.path().join("browser"), 1280) else { return };
                assert_eq!(complaints, "", "{url}");
                self.seen.push((path.clone(), shown));
            }
            Step::Interrupt => self.terminals["server"].interrupt(),
        }
    }

    /// What the browser showed at an address; `None` without a browser.
    fn saw(&self, path: &str) -> Option<&str> {
        assert!(self.seen.is_empty() || self.seen.iter().any(|(seen, _)| seen == path), "{path} was not opened");
        self.seen.iter().rev().find(|(seen, _)| seen == path).map(|(_, shown)| shown.as_str())
    }
}

fn read(page: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page)).unwrap()
}

/// Whether this user can build into the store of this machine: the pages do, as most users can.
fn can_build() -> bool {
    let can = rustix::fs::access("/nix/store", rustix::fs::Access::WRITE_OK).is_ok()
        || Path::new("/nix/var/nix/daemon-socket/socket").exists();
    if !can {
        eprintln!("skipped: this user cannot build with Nix");
    }
    can
}

#[test]
fn the_tutorial_works_as_it_is_written() {
    let page = read("docs/tutorial.md");
    assert!(page.contains("```sh install\ncargo install --locked --path crates/narval\n```"), "another first command");
    if !can_build() {
        return;
    }
    let mut newcomer = Newcomer::new();
    newcomer.follow(&page);
    if let Some(use_it) = newcomer.saw("/") {
        assert!(use_it.contains("team-1:"), "{use_it}");
        let found = newcomer.saw("/#/find/greeting").unwrap();
        assert!(found.contains("greeting-for-team") && found.contains("greeting-for-world"), "{found}");
        // The figures arrive over the page's socket.
        let now = newcomer.saw("/#/now").unwrap();
        assert!(now.contains("Requests per second") && now.contains("3 NARs taken"), "{now}");
    }
    // Everything is as it was before.
    let conf = std::fs::read_to_string(newcomer.home.path().join(".config/nix/nix.conf")).unwrap_or_default();
    assert_eq!(conf.trim(), "");
    assert!(!newcomer.home.path().join("narval-tutorial").exists());
}

#[test]
fn the_readme_works_as_it_is_written() {
    if !can_build() {
        return;
    }
    let mut newcomer = Newcomer::new();
    let built = "echo 'derivation { name = \"result-of-the-readme\"; system = builtins.currentSystem; builder = \"/bin/sh\";\
                 args = [ \"-c\" \"echo built > $out\" ]; }' > default.nix && nix-build";
    newcomer.prepare("laptop", &format!("export NIX_CONFIG='extra-experimental-features = nix-command'\n{built}"));
    newcomer.follow(&read("README.md"));
    newcomer.act(&Step::Browse("/#/now".to_owned()));
    if let Some(now) = newcomer.saw("/#/now") {
        assert!(now.contains("1 NARs taken"), "{now}");
    }
}
