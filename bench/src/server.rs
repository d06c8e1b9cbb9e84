//! The servers of a run: those that the harness starts, and peers that are already running.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::BaseUrl;
use crate::{Context, Result, failure, process};

/// A server that does not listen after this long has failed.
const START_MAX: Duration = Duration::from_secs(60);

/// One server under measurement.
#[derive(Debug)]
pub struct Server {
    /// Its name in the rows.
    pub name: String,
    /// Its base URL.
    pub base: BaseUrl,
    /// The process whose processor time and memory count, with its descendants.
    pub pid: Option<u32>,
    /// Serves prepared files by the names of the fixture, not a live store.
    pub flat: bool,
    child: Option<Child>,
}

impl Server {
    /// Parses a running peer: `NAME=URL` or `NAME=URL,pid=N`.
    ///
    /// # Errors
    /// If the text has another form.
    pub fn peer(text: &str) -> Result<Server> {
        let (name, rest) = name_and_rest(text)?;
        let (url, pid) = match rest.split_once(",pid=") {
            Some((url, pid)) => (url, Some(pid.parse().context(|| format!("pid '{pid}'"))?)),
            None => (rest, None),
        };
        let base = url.parse::<BaseUrl>()?;
        let pid = pid.or_else(|| process::listening_on(base.address.port()));
        Ok(Server { name: name.to_owned(), base, pid, flat: false, child: None })
    }

    /// Starts `NAME=COMMAND` or `NAME/PATH=COMMAND`. The command is a shell command line in which `{port}` is replaced by the port;
    /// requests go below the path.
    ///
    /// # Errors
    /// If it does not listen on that port in time.
    pub fn start(text: &str, work: &Path) -> Result<Server> {
        let (name, command) = name_and_rest(text)?;
        let (name, path) = name.split_once('/').unwrap_or((name, ""));
        let port = free_port()?;
        let command = command.replace("{port}", &port.to_string());
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("exec {command}"));
        let mut server = Server::spawn(name, shell, port, work)?;
        server.base = format!("http://127.0.0.1:{port}/{path}").parse::<BaseUrl>()?;
        Ok(server)
    }

    /// Starts a program that will listen on this port of 127.0.0.1. Its output goes to a log file.
    ///
    /// # Errors
    /// If it does not listen in time.
    pub fn spawn(name: &str, mut command: Command, port: u16, work: &Path) -> Result<Server> {
        let log = work.join(format!("{name}.log"));
        let file = File::create(&log).context(|| format!("cannot write {}", log.display()))?;
        let errors = file.try_clone().context(|| "dup".to_owned())?;
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let mut child = command.spawn().context(|| format!("cannot start {name} ({command:?})"))?;
        let base = format!("http://127.0.0.1:{port}").parse::<BaseUrl>()?;
        let started = Instant::now();
        while TcpStream::connect(base.address).is_err() {
            let ended = child.try_wait().context(|| "waitpid".to_owned())?;
            if ended.is_some() || started.elapsed() > START_MAX {
                // it may have ended just now
                let _ = child.kill();
                return Err(failure!("{name} does not listen on {}; see {}", base.address, log.display()));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(Server { name: name.to_owned(), base, pid: Some(child.id()), flat: false, child: Some(child) })
    }
}

impl Server {
    /// Stops the server, if the harness started it.
    pub fn end(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // SIGTERM: nginx's master has to end its workers
        let id = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
        let asked = id.is_some_and(|id| rustix::process::kill_process(id, rustix::process::Signal::TERM).is_ok());
        let patience = Instant::now() + Duration::from_secs(5);
        while asked && Instant::now() < patience {
            if let Ok(Some(_)) = child.try_wait() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        // nobody is left to report an error to
        let _ = (child.kill(), child.wait());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn name_and_rest(text: &str) -> Result<(&str, &str)> {
    text.split_once('=').ok_or_else(|| failure!("'{text}': it must be NAME=…"))
}

/// A free port of 127.0.0.1.
///
/// # Errors
/// If there is none.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context(|| "cannot listen on 127.0.0.1".to_owned())?;
    Ok(listener.local_addr().context(|| "getsockname".to_owned())?.port())
}
