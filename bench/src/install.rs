//! Installing clients: any command that takes a cache's URL and leaves a closure in a folder.

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::Serialize;

use crate::report::median;
use crate::{Context, Result, failure, process};

/// One client: a shell command line in which `{dest}` is an empty folder. The harness replaces the other
/// placeholders.
#[derive(Debug, Clone)]
pub struct Client {
    /// Its name in the rows.
    pub name: String,
    /// The command.
    pub command: String,
}

impl std::str::FromStr for Client {
    type Err = crate::Failure;

    fn from_str(text: &str) -> Result<Client> {
        let (name, command) = text.split_once('=').ok_or_else(|| failure!("'{text}': it must be NAME=COMMAND"))?;
        Ok(Client { name: name.to_owned(), command: command.to_owned() })
    }
}

/// One run of one client.
#[derive(Debug, Clone, Serialize)]
pub struct Installed {
    /// Elapsed time.
    pub wall_s: f64,
    /// Processor time of the client and its child processes.
    pub user_s: f64,
    /// The kernel's share of it.
    pub system_s: f64,
    /// Peak resident memory of the largest process.
    pub resident_bytes_max: u64,
}

/// All runs of one client.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The client's name.
    pub client: String,
    /// In the order in which they ran.
    pub runs: Vec<Installed>,
}

/// Runs all clients in turn, each time into a new folder below `scratch`, on these
/// processors (all if empty), and prints medians.
///
/// # Errors
/// If a client fails; its output is in the message.
pub fn run(
    clients: &[Client],
    values: &[(&str, String)],
    scratch: &Path,
    repetitions: usize,
    cpus: &[usize],
) -> Result<Vec<Row>> {
    let mut rows = clients.iter().map(|c| Row { client: c.name.clone(), runs: Vec::new() }).collect::<Vec<_>>();
    if !cpus.is_empty() {
        process::pin_self(cpus)?;
    }
    for _ in 0..repetitions {
        for (client, row) in clients.iter().zip(&mut rows) {
            row.runs.push(once(client, values, scratch)?);
        }
    }
    let mut first = None;
    for row in &rows {
        let of = |value: fn(&Installed) -> f64| median(row.runs.iter().map(value));
        let wall = of(|r| r.wall_s);
        println!(
            "  {:<20} {wall:>8.3} s  {:>6.2}× {}  user {:>7.3} s  system {:>6.3} s  {:>6.1} MB",
            row.client,
            wall / *first.get_or_insert(wall),
            clients.first().map(|c| c.name.as_str()).unwrap_or_default(),
            of(|r| r.user_s),
            of(|r| r.system_s),
            of(|r| r.resident_bytes_max as f64) / 1e6,
        );
    }
    Ok(rows)
}

/// One run of one client.
///
/// # Errors
/// If it fails; its output is in the message.
pub fn once(client: &Client, values: &[(&str, String)], scratch: &Path) -> Result<Installed> {
    let dest = scratch.join(format!("narval-bench-{}", std::process::id()));
    fs::create_dir_all(&dest).context(|| format!("cannot make {}", dest.display()))?;
    let mut command = client.command.replace("{dest}", &dest.display().to_string());
    for (name, value) in values {
        command = command.replace(&format!("{{{name}}}"), value);
    }
    // GNU time uses wait4, which includes the child processes that the client waited for
    let report = scratch.join(format!("narval-bench-{}.time", std::process::id()));
    let mut shell = Command::new("/usr/bin/time");
    shell.args(["-f", "%e %U %S %M", "-o"]).arg(&report).args(["sh", "-c", &command]);
    // the user's own store and the files in the home folder must not affect the client
    shell.env_remove("NIX_REMOTE").env("HOME", &dest).env("XDG_CACHE_HOME", dest.join(".cache")).process_group(0);
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let started = Instant::now();
    let mut child = shell.spawn().context(|| "cannot start /usr/bin/time (Debian's package time)".to_owned())?;
    let mut errors = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        // the output is used only in the error message
        let _ = stderr.read_to_string(&mut errors);
    }
    let status = child.wait().context(|| "waitpid".to_owned())?;
    let wall_s = started.elapsed().as_secs_f64();
    remove(dest)?;
    if !status.success() {
        return Err(failure!("{}: {command}: {status}: {}", client.name, errors.trim()));
    }
    let text = fs::read_to_string(&report).context(|| format!("cannot read {}", report.display()))?;
    fs::remove_file(&report).context(|| format!("cannot remove {}", report.display()))?;
    let numbers = text.split_whitespace().filter_map(|n| n.parse::<f64>().ok()).collect::<Vec<_>>();
    let &[_, user_s, system_s, kilobytes] = numbers.as_slice() else {
        return Err(failure!("/usr/bin/time said '{}'", text.trim()));
    };
    Ok(Installed { wall_s, user_s, system_s, resident_bytes_max: (kilobytes * 1024.0) as u64 })
}

/// A store's folders are read-only, so they must be made writable before they are removed. Root need not do that.
fn remove(folder: PathBuf) -> Result<()> {
    let chmod = Command::new("chmod").args(["-R", "u+w"]).arg(&folder).status();
    chmod.context(|| "cannot start chmod".to_owned())?;
    fs::remove_dir_all(&folder).context(|| format!("cannot remove {}", folder.display()))
}
