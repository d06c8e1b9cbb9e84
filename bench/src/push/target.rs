//! Servers to push to: each measurement starts its own, with an empty data folder.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::put::Sending;
use crate::server::{Server, free_port};
use crate::{Context, Result, failure, nginx, process};

/// The system calls that sync data to disk.
const DURABLE_CALLS: &str = "fsync,fdatasync,sync_file_range,syncfs,sync,msync";

/// How a server is started.
#[derive(Debug, Clone)]
pub enum Target {
    /// nginx with its DAV module: stores uploads, verifies nothing, and syncs nothing.
    Nginx,
    /// A shell command line with `{port}`, `{data}` (an empty folder) and `{token}` (a file into which the command may write a
    /// token before the server listens).
    Command {
        /// Its name in the rows.
        name: String,
        /// The command line.
        command: String,
    },
}

impl std::str::FromStr for Target {
    type Err = crate::Failure;

    fn from_str(text: &str) -> Result<Target> {
        let (name, command) = text.split_once('=').ok_or_else(|| failure!("'{text}': it must be NAME=COMMAND"))?;
        Ok(Target::Command { name: name.to_owned(), command: command.to_owned() })
    }
}

/// A running server with an empty cache. Its folder is removed when it is dropped.
#[derive(Debug)]
pub struct Fresh {
    /// The server.
    pub server: Server,
    /// The token that its command wrote.
    pub token: Option<String>,
    folder: PathBuf,
    calls: Option<PathBuf>,
}

impl Target {
    /// Its name in the rows.
    pub fn name(&self) -> &str {
        match self {
            Target::Nginx => "nginx",
            Target::Command { name, .. } => name,
        }
    }

    /// Starts it over an empty folder below `work`. With `trace_calls`, strace (which slows everything down) logs
    /// each sync system call.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(&self, work: &Path, trace_calls: bool) -> Result<Fresh> {
        let folder = work.join(format!("push-{}", self.name()));
        remove(&folder)?;
        fs::create_dir_all(&folder).context(|| format!("cannot make {}", folder.display()))?;
        let (data, token) = (folder.join("data"), folder.join("token"));
        let port = free_port()?;
        let calls = trace_calls.then(|| folder.join("calls"));
        let (program, arguments) = match self {
            Target::Nginx => (nginx::program(), nginx::dav_arguments(&data, &folder, port)?),
            Target::Command { command, .. } => {
                fs::create_dir(&data).context(|| format!("cannot make {}", data.display()))?;
                let command = command.replace("{port}", &port.to_string());
                let command = command.replace("{data}", &data.display().to_string());
                let command = command.replace("{token}", &token.display().to_string());
                (PathBuf::from("sh"), vec!["-c".into(), command.into()])
            }
        };
        let mut command = Command::new(if trace_calls { Path::new("strace") } else { &program });
        if let Some(calls) = &calls {
            command.args(["-f", "-qq", "-e", &format!("trace={DURABLE_CALLS}"), "-o"]).arg(calls).arg(&program);
        }
        command.args(arguments);
        let server = Server::spawn(self.name(), command, port, work)?;
        let token = fs::read_to_string(token).ok().map(|token| token.trim().to_owned());
        Ok(Fresh { server, token, folder, calls })
    }
}

impl Fresh {
    /// The client options for this server. A token is sent with Basic, as Nix does.
    pub fn sending(&self) -> Sending {
        let basic = |token: &String| format!("Basic {}", STANDARD.encode(format!("narval:{token}")));
        Sending { authorization: self.token.as_ref().map(basic), ..Sending::default() }
    }

    /// Its URL for a client, with the token if there is one. `address` may be that of a proxy.
    pub fn url(&self, address: Option<SocketAddr>) -> String {
        let address = address.unwrap_or(self.server.base.address);
        let user = self.token.as_ref().map_or(String::new(), |token| format!("narval:{token}@"));
        format!("http://{user}{address}")
    }

    /// The number of sync system calls so far, by name.
    pub fn durable_calls(&self) -> Vec<(&'static str, usize)> {
        let Some(calls) = &self.calls else { return Vec::new() };
        // the log may not exist yet: then there was none
        let text = fs::read_to_string(calls).unwrap_or_default();
        let count = |call| text.lines().filter(|line| line.contains(&format!(" {call}("))).count();
        DURABLE_CALLS.split(',').map(|call| (call, count(call))).filter(|(_, count)| *count > 0).collect()
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // a process below strace or a shell does not end with it
        let ids = self.server.pid.map(process::tree).unwrap_or_default();
        for id in ids.into_iter().skip(1) {
            let id = i32::try_from(id).ok().and_then(rustix::process::Pid::from_raw);
            // it may have ended already
            let _ = id.map(|id| rustix::process::kill_process(id, rustix::process::Signal::TERM));
        }
        self.server.end();
        if let Err(failure) = remove(&self.folder) {
            eprintln!("narval-bench: {failure}");
        }
    }
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(failure!("cannot remove {}: {error}", folder.display()))
        }
        _ => Ok(()),
    }
}
