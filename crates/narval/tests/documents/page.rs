//! What a page tells its reader to do.

use std::path::{Path, PathBuf};

/// One thing to do, or to see.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A block whose info string is `sh` and the name of a terminal: commands to copy into it.
    Run { terminal: String, commands: String },
    /// A block whose first line is a comment with an absolute path: that file.
    Write { path: String, text: String },
    /// A block `text`: lines that the last commands print, among others. `…` stands for anything.
    Prints(String),
    /// `<http://127.0.0.1:5000/…>` in the text: an address to open, given from its path on.
    Browse(String),
    /// "Stop the server with Ctrl-C" in the text.
    Interrupt,
}

const ORIGIN: &str = "<http://127.0.0.1:5000";

/// A code block.
#[derive(Debug)]
pub(crate) struct Block {
    /// The line where it begins, from 1.
    pub line: usize,
    /// Its language.
    pub language: String,
    /// What follows the language: the terminal of a block `sh`.
    pub label: Option<String>,
    pub text: String,
    pub mark: Option<Mark>,
}

/// Says why a block is not run: a comment on the line before it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// `<!-- not run: REASON -->`
    Not(String),
    /// `<!-- run by: TEST -->`: with the program or the places of that test.
    By(String),
    /// `<!-- needs: PROGRAM -->`: not run on a machine without it.
    Needs(String),
}

impl Block {
    pub(crate) fn has_commands(&self) -> bool {
        let is_command = |line: &str| ["narval ", "nix ", "tools/", "cargo "].iter().any(|word| line.starts_with(word));
        self.language == "sh" || self.language.is_empty() && self.text.lines().any(is_command)
    }

    /// The file that it is, if it says so.
    fn file(&self) -> Option<&str> {
        let path = self.text.lines().next()?.strip_prefix("# ")?;
        (path.starts_with('/') && !path.contains(' ') && self.language != "sh").then_some(path)
    }

    fn is_run(&self) -> bool {
        match &self.mark {
            Some(Mark::Not(_) | Mark::By(_)) => false,
            Some(Mark::Needs(program)) => is_installed(program),
            None => true,
        }
    }
}

pub(crate) fn is_installed(program: &str) -> bool {
    find(program).is_some()
}

/// Where a program is on this machine: one of the checkout's tools, or in the path.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let ours = root().join("target/tools");
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian keeps the server's programs out of the path.
    let postgres = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let postgres = postgres.map(|entry| entry.path().join("bin"));
    let folders = std::iter::once(ours).chain(std::env::split_paths(&path)).chain(postgres);
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn mark(line: &str) -> Option<Mark> {
    let (kind, what) = line.trim().strip_prefix("<!-- ")?.strip_suffix(" -->")?.split_once(": ")?;
    match kind {
        "not run" => Some(Mark::Not(what.to_owned())),
        "run by" => Some(Mark::By(what.to_owned())),
        "needs" => Some(Mark::Needs(what.to_owned())),
        _ => None,
    }
}

enum Piece<'a> {
    Line(&'a str),
    Block(Block),
}

fn pieces(page: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut lines = page.lines().enumerate();
    let mut before = "";
    while let Some((number, line)) = lines.next() {
        if let Some(info) = line.strip_prefix("```") {
            let text = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
            let text = text.map(|line| format!("{line}\n")).collect();
            let (language, label) = info.split_once(' ').map_or((info, None), |(one, two)| (one, Some(two.to_owned())));
            let language = language.to_owned();
            pieces.push(Piece::Block(Block { line: number + 1, language, label, text, mark: mark(before) }));
        } else {
            pieces.push(Piece::Line(line));
        }
        before = line;
    }
    pieces
}

/// All code blocks of a page.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let blocks = pieces(page).into_iter().filter_map(|piece| match piece {
        Piece::Block(block) => Some(block),
        Piece::Line(_) => None,
    });
    blocks.collect()
}

/// The steps of a page, in its order.
pub(crate) fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for piece in pieces(page) {
        match piece {
            Piece::Block(block) => steps.extend(step(block, !steps.is_empty())),
            Piece::Line(line) => {
                for at in line.split(ORIGIN).skip(1) {
                    steps.push(Step::Browse(at.split('>').next().unwrap().to_owned()));
                }
                if line.contains("Stop the server with Ctrl-C") {
                    steps.push(Step::Interrupt);
                }
            }
        }
    }
    steps
}

fn step(block: Block, has_begun: bool) -> Option<Step> {
    if !block.is_run() {
        return None;
    }
    if let Some(path) = block.file() {
        return Some(Step::Write { path: path.to_owned(), text: block.text });
    }
    match (&*block.language, block.label) {
        ("sh", Some(terminal)) => Some(Step::Run { terminal, commands: block.text }),
        ("text", None) if has_begun => Some(Step::Prints(block.text)),
        _ => None,
    }
}

/// The text of a page, from the repository's root.
pub(crate) fn read(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).unwrap()
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The address of the repository.
pub(crate) fn address() -> String {
    let manifest = read("Cargo.toml");
    let (_, rest) = manifest.split_once("\nrepository = \"").unwrap();
    rest.split('"').next().unwrap().to_owned()
}

/// A part of a page: from a heading to the next one of its level.
pub(crate) fn section(page: &str, heading: &str) -> String {
    let level = heading.split(' ').next().unwrap().len();
    let (_, rest) = page.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("there is no '{heading}'"));
    let mut in_block = false;
    let ends = |line: &&str| {
        in_block ^= line.starts_with("```");
        let hashes = line.len() - line.trim_start_matches('#').len();
        !in_block && (1..=level).contains(&hashes)
    };
    let until = rest.lines().take_while({
        let mut ends = ends;
        move |line| !ends(line)
    });
    until.map(|line| format!("{line}\n")).collect()
}

/// Whether a text has a line that contains this one. `…` stands for anything.
pub(crate) fn has_line(text: &str, wanted: &str) -> bool {
    text.lines().any(|line| {
        let mut rest = line;
        wanted.split('…').all(|part| {
            let found = rest.find(part);
            rest = found.map_or("", |at| &rest[at + part.len()..]);
            found.is_some()
        })
    })
}

#[test]
fn a_page_is_split_into_its_steps() {
    let page = "Open <http://127.0.0.1:5000/#/now>.\n```sh server\na\nb\n```\n<!-- not run: x -->\n```sh server\nnot this\n```\n```text\n\
                is /x…y\n```\nStop the server with Ctrl-C.\n```toml\n# /etc/a\nb = 1\n```\n```toml\nc = 1\n```\n";
    let run = Step::Run { terminal: "server".into(), commands: "a\nb\n".into() };
    let write = Step::Write { path: "/etc/a".into(), text: "# /etc/a\nb = 1\n".into() };
    let want = [Step::Browse("/#/now".into()), run, Step::Prints("is /x…y\n".into()), Step::Interrupt, write];
    assert_eq!(steps(page), want);
    assert!(has_line("one\nit is /x and y, too", "is /x…y") && !has_line("is /x\ny", "is /x…y"));
    assert_eq!(section("\n## A\n```\n# a\n```\n### B\nb\n## C\nc\n", "## A"), "```\n# a\n```\n### B\nb\n");
}
