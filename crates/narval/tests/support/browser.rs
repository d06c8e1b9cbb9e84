//! A real browser: Debian's chromium, where it is installed.

use std::path::Path;
use std::process::{Command, Stdio};

/// What a browser shows at an address, as HTML, and what it complained of. `profile` is the folder of its state.
/// `None`: there is no browser.
pub fn browse(url: &str, profile: &Path, width: u32) -> Option<(String, String)> {
    // A browser that hangs must not hang the test.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "120", "chromium"]);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]);
    command.args(["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]);
    command.args(["--enable-logging=stderr", "--virtual-time-budget=8000", "--dump-dom"]);
    command.args(["--ignore-certificate-errors", &format!("--window-size={width},800")]);
    command.arg(format!("--user-data-dir={}", profile.display())).arg(url);
    let output = command.stdin(Stdio::null()).output().ok()?;
    if output.status.code() == Some(127) {
        eprintln!("skipped: chromium is not installed");
        return None;
    }
    let complaints = String::from_utf8_lossy(&output.stderr);
    let complaints: Vec<_> =
        complaints.lines().filter(|line| line.contains("CONSOLE") || line.contains("Refused")).collect();
    Some((String::from_utf8(output.stdout).unwrap(), complaints.join("\n")))
}
