//! The commands of `docs/tutorial.md` and of the README, copied from the pages and run: by a shell for each terminal, with the built programs, real
//! Nix and a real browser.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use crate::browser::Browser;
use crate::page::{Step, read, steps};
use crate::terminal::{STRICT, Terminal};
use crate::{ports, support::NARVAL};

/// The port on the pages.
const PORT: &str = "5000";

/// A user who copies what a page says.
struct Newcomer {
    home: tempfile::TempDir,
    port: String,
    terminals: HashMap<String, Terminal>,
    /// The terminal that was used last.
    last: String,
    /// A window of the browser for each view that was opened, by its path. An open one is not loaded again.
    windows: HashMap<String, Browser>,
    has_browser: bool,
    /// The views that the page tells to open, in order, and what each shows then.
    views: std::vec::IntoIter<(&'static str, &'static str)>,
}

impl Newcomer {
    fn new(views: &[(&'static str, &'static str)]) -> Self {
        let port = ports::free_port().to_string();
        Self {
            home: tempfile::tempdir().unwrap(),
            port,
            terminals: HashMap::new(),
            last: String::new(),
            windows: HashMap::new(),
            has_browser: true,
            views: Vec::from(views).into_iter(),
        }
    }

    /// Runs commands that no page shows.
    fn prepare(&mut self, terminal: &str, commands: &str) {
        self.act(&Step::Run { terminal: terminal.to_owned(), commands: commands.to_owned() });
    }

    fn follow(&mut self, text: &str) {
        for step in steps(text) {
            self.act(&step);
        }
        assert_eq!(self.views.next(), None, "not opened");
    }

    fn act(&mut self, step: &Step) {
        match step {
            Step::Run { terminal, commands } => {
                let home = self.home.path();
                let shell = self.terminals.entry(terminal.clone()).or_insert_with(|| open(home, terminal));
                shell.run(&commands.replace(PORT, &self.port));
                self.last.clone_from(terminal);
            }
            Step::Prints(text) => self.terminals[&self.last].shows(&text.replace(PORT, &self.port)),
            Step::Browse(path) => {
                let (expected, text) = self.views.next().unwrap_or_else(|| panic!("{path} is not expected"));
                assert_eq!(path, expected);
                self.look(expected, text);
            }
            Step::Write { path, .. } => panic!("a newcomer cannot write {path}"),
            Step::Interrupt => {
                // Without the server, they would complain.
                for (path, window) in self.windows.drain() {
                    assert!(window.complaints.is_empty(), "{path}: {:?}", window.complaints);
                }
                self.terminals["server"].interrupt();
            }
        }
    }

    /// Waits until a view shows this. Without a browser, everything else is still tested.
    fn look(&mut self, path: &str, text: &str) {
        if let Some(window) = self.windows.get_mut(path) {
            window.shows(text);
        } else if self.has_browser {
            let Some(mut window) = Browser::start() else {
                self.has_browser = false;
                return;
            };
            window.open(&format!("http://127.0.0.1:{}{path}", self.port), text);
            self.windows.insert(path.to_owned(), window);
        }
    }
}

/// A shell of a user with this home, whose first program in PATH is ours.
fn open(home: &Path, name: &str) -> Terminal {
    let path = format!("{}:{}", Path::new(NARVAL).parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    shell.args(STRICT).env_clear().env("PATH", path);
    shell.env("HOME", home).env("TMPDIR", home).env("LC_ALL", "C.UTF-8").current_dir(home);
    Terminal::open(name, shell, home.join(format!(".{name}.log")))
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
    if !can_build() {
        return;
    }
    let mut newcomer = Newcomer::new(&[
        ("/", "What is left to do"),
        ("/_narval/status", "No NAR was sent"),
        // The window of before, that nobody has touched.
        ("/", "Newest packages"),
        ("/?q=greeting", "greeting-for-world"),
    ]);
    newcomer.follow(&page);
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
    let mut newcomer = Newcomer::new(&[]);
    let built = "echo 'derivation { name = \"result-of-the-readme\"; system = builtins.currentSystem; builder = \"/bin/sh\";\
                 args = [ \"-c\" \"echo built > $out\" ]; }' > default.nix && nix-build";
    newcomer.prepare("laptop", &format!("export NIX_CONFIG='extra-experimental-features = nix-command'\n{built}"));
    newcomer.follow(&read("README.md"));
    newcomer.look("/", "1 package,");
}
