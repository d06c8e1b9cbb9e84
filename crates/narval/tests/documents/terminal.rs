//! A terminal with a shell.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::page::has_line;

/// How a shell is started that ends at the first command that fails.
pub(crate) const STRICT: [&str; 5] = ["--noprofile", "--norc", "-eu", "-o", "pipefail"];

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a command prints that keeps running, once it is ready.
fn says_that_it_runs(line: &str) -> Option<&'static str> {
    if line.starts_with("narval serve") {
        return Some("listening on");
    }
    (line.starts_with("narval watch-store") && !line.contains("--once")).then_some("watching ")
}

/// A shell that reads commands, and what it has printed. Everything that it started ends with it.
pub(crate) struct Terminal {
    name: String,
    shell: Child,
    output: PathBuf,
    /// Where the output of the last commands begins.
    from: usize,
}

impl Terminal {
    /// A shell, and the file for what it prints. It ends at the first command that fails.
    pub(crate) fn open(name: &str, mut shell: Command, output: PathBuf) -> Self {
        let file = File::create(&output).unwrap();
        shell.stdin(Stdio::piped()).stdout(file.try_clone().unwrap()).stderr(file).process_group(0);
        Self { name: name.to_owned(), shell: shell.spawn().unwrap(), output, from: 0 }
    }

    /// Runs commands to their end. The last one of a server or a watcher has none.
    pub(crate) fn run(&mut self, commands: &str) {
        self.from = self.text().len();
        let stays = commands.lines().find_map(says_that_it_runs);
        let mut input = self.shell.stdin.as_ref().unwrap();
        input.write_all(format!("{commands}\necho '@' done\n").as_bytes()).unwrap();
        match stays {
            Some(says) => self.wait_for(says, |text| has_line(text, says)),
            None => self.wait_for(commands, |text| text.ends_with("@ done\n")),
        }
    }

    /// Fails unless the last commands print these lines.
    pub(crate) fn shows(&self, lines: &str) {
        let text = self.text();
        let printed = &text[self.from..];
        for line in lines.lines() {
            assert!(has_line(printed, line), "{}: '{line}' is not in\n{printed}", self.name);
        }
    }

    /// What Ctrl-C does: the program in the foreground ends, and the shell continues.
    pub(crate) fn interrupt(&self) {
        self.signal("-INT");
        self.wait_for("the end of the program", |text| text.ends_with("@ done\n"));
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    fn wait_for(&self, what: &str, is_there: impl Fn(&str) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            let printed = &text[self.from..];
            if is_there(printed) {
                return;
            }
            let alive = fs::read_to_string(format!("/proc/{}/stat", self.shell.id()));
            let alive = alive.is_ok_and(|stat| !stat.contains(") Z "));
            assert!(alive && Instant::now() < until, "{}: {what}\n{printed}", self.name);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a signal to everything in this terminal.
    fn signal(&self, signal: &str) {
        let group = format!("-{}", self.shell.id());
        // There may be nothing left.
        let _ = Command::new("kill").args([signal, "--", &group]).stderr(Stdio::null()).status();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.signal("-KILL");
        let _ = self.shell.wait();
    }
}
