//! Records what real Nix sends: a server that stores every request of a `nix copy --to` and answers as an empty cache does.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use narval_http::{Limits, Listen, Request, Response, Server, StatusCode};

use super::trace::{Exchange, Trace};
use crate::{Context, Result, failure};

/// Fields that describe the upload. All others depend on the client or the connection.
const FIELDS: [&str; 3] = ["content-type", "content-encoding", "expect"];
/// The largest NAR.
const BODY_BYTES_MAX: u64 = 64 << 30;
/// Time for the last request to finish after Nix has ended.
const GRACE: Duration = Duration::from_secs(10);

/// Returns the trace of a `nix copy --to` of these paths with these URL parameters: the one in `folder`, or a new one.
///
/// # Errors
/// If `nix copy` fails.
pub fn trace(folder: &Path, paths: &[String], parameters: &str) -> Result<Trace> {
    // named by the set of paths, so that another closure in the same folder is not mistaken for this one
    let (set, complete) = (paths.join("\n"), folder.join("paths"));
    if fs::read_to_string(&complete).ok().as_ref() == Some(&set) {
        return Trace::load(folder);
    }
    if folder.exists() {
        fs::remove_dir_all(folder).context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).context(|| format!("cannot make {}", folder.display()))?;
    eprintln!("recording {}", folder.display());
    let recorder = Recorder::start(folder)?;
    nix_copy(&format!("{}?{parameters}", recorder.url), paths, &folder.join("home"))?;
    let trace = Trace::of(folder, recorder.stop()?)?;
    trace.save()?;
    fs::write(&complete, set).context(|| format!("cannot write {}", complete.display()))?;
    Ok(trace)
}

/// Runs `nix copy` with its own home folder, since Nix remembers what it has sent to an address.
fn nix_copy(url: &str, paths: &[String], home: &Path) -> Result<()> {
    let mut command = Command::new("nix");
    command.args(["--extra-experimental-features", "nix-command", "copy", "--no-check-sigs", "--to", url]).args(paths);
    command.env_remove("NIX_REMOTE").env("HOME", home).env("XDG_CACHE_HOME", home.join(".cache"));
    let output = command.output().context(|| "cannot start nix".to_owned())?;
    if home.exists() {
        fs::remove_dir_all(home).context(|| format!("cannot remove {}", home.display()))?;
    }
    if !output.status.success() {
        return Err(failure!("nix copy --to {url}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(())
}

/// A running server that records.
struct Recorder {
    url: String,
    handle: narval_http::ServerHandle,
    recorded: Arc<Recorded>,
}

#[derive(Default)]
struct Recorded {
    folder: PathBuf,
    exchanges: Mutex<Vec<Exchange>>,
    /// Targets that have been sent.
    present: Mutex<HashSet<String>>,
}

impl Recorder {
    fn start(folder: &Path) -> Result<Recorder> {
        let recorded = Arc::new(Recorded { folder: folder.to_owned(), ..Recorded::default() });
        let keeping = Arc::clone(&recorded);
        let server = Server::builder(move |request: Request| keeping.answer(request))
            .listen(Listen::Tcp((Ipv4Addr::LOCALHOST, 0).into()))
            .limits(Limits { body_max: BODY_BYTES_MAX, ..Limits::default() })
            .build()
            .context(|| "cannot start the recording server".to_owned())?;
        let address = server.addresses().into_iter().next().map(|address| address.to_string());
        let url = address.ok_or_else(|| failure!("the recording server has no address"))?;
        let url = if url.starts_with("http") { url } else { format!("http://{url}") };
        let handle = server.spawn().context(|| "cannot start the recording server".to_owned())?;
        Ok(Recorder { url, handle, recorded })
    }

    fn stop(self) -> Result<Vec<Exchange>> {
        self.handle.shutdown(GRACE);
        self.handle.wait().context(|| "the recording server".to_owned())?;
        Ok(std::mem::take(&mut *self.recorded.exchanges.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Recorded {
    fn answer(&self, mut request: Request) -> Response {
        match self.keep(&mut request) {
            Ok(status) => Response::new(status),
            // Nix prints it and fails, and so does the harness
            Err(error) => Response::text(StatusCode::INSUFFICIENT_STORAGE, format!("cannot record: {error}\n")),
        }
    }

    fn keep(&self, request: &mut Request) -> io::Result<StatusCode> {
        let method = request.method().as_str().to_owned();
        let target = request.path().to_owned();
        let fields = FIELDS.iter().filter_map(|name| {
            let value = request.header(name)?.to_owned();
            Some(((*name).to_owned(), value))
        });
        let mut exchange = Exchange { method, fields: fields.collect(), ..Exchange::get(&target) };
        if exchange.method == "PUT" {
            let name = target.trim_start_matches('/').replace('/', "_");
            exchange.body_bytes = io::copy(request.body(), &mut File::create(self.folder.join(&name))?)?;
            exchange.body = Some(name);
        }
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let status = match exchange.method.as_str() {
            "PUT" => {
                present.insert(target);
                StatusCode::CREATED
            }
            _ if present.contains(&target) => StatusCode::OK,
            _ => StatusCode::NOT_FOUND,
        };
        exchange.status = status.as_u16();
        self.exchanges.lock().unwrap_or_else(PoisonError::into_inner).push(exchange);
        Ok(status)
    }
}
