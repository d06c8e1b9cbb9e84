//! What a page tells a newcomer to do.

/// One thing to do, or to see.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A block whose info string is `sh` and the name of a terminal: commands to copy into it.
    Run { terminal: String, commands: String },
    /// A block `text`: lines that the last commands print, among others. `…` stands for anything.
    Prints(String),
    /// `<http://127.0.0.1:5000/…>` in the text: an address to open, given from its path on.
    Browse(String),
    /// "Ctrl-C" in the text.
    Interrupt,
}

/// The terminals that a page may name; other blocks are not run.
const TERMINALS: [&str; 3] = ["server", "laptop", "colleague"];

const ORIGIN: &str = "<http://127.0.0.1:5000";

/// The steps of a page, in its order.
pub(crate) fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(info) = line.strip_prefix("```") {
            let block = lines.by_ref().take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect();
            match info.split_once(' ') {
                Some(("sh", terminal)) if TERMINALS.contains(&terminal) => {
                    steps.push(Step::Run { terminal: terminal.to_owned(), commands: block });
                }
                None if info == "text" && steps.iter().any(|step| matches!(step, Step::Run { .. })) => {
                    steps.push(Step::Prints(block));
                }
                _ => {}
            }
            continue;
        }
        for at in line.split(ORIGIN).skip(1) {
            steps.push(Step::Browse(at.split('>').next().unwrap().to_owned()));
        }
        if line.contains("Ctrl-C") {
            steps.push(Step::Interrupt);
        }
    }
    steps
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
    let page = "Open <http://127.0.0.1:5000/#/now>.\n```sh server\na\nb\n```\n```sh\nnot this\n```\n```text\nis /x…y\n```\nCtrl-C\n";
    let run = Step::Run { terminal: "server".into(), commands: "a\nb\n".into() };
    let want = [Step::Browse("/#/now".into()), run, Step::Prints("is /x…y\n".into()), Step::Interrupt];
    assert_eq!(steps(page), want);
    assert!(has_line("one\nit is /x and y, too", "is /x…y") && !has_line("is /x\ny", "is /x…y"));
}
