//! Large uploads with progress as seen by the server: the page sends a form, and server-sent events report how much has
//! arrived.
//!
//! `cargo run --release -p narval-http --example upload -- --port 8080 [--folder DIR]`, then open the address that is printed, or
//! `curl -F file=@/etc/services http://localhost:8080/uploads/1`

#[path = "../arguments/mod.rs"]
mod arguments;

use std::collections::HashMap;
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use narval_http::{Body, Event, EventOptions, EventStream, Limits, Request, Response, Router, StatusCode};

/// How often an upload reports its progress.
const TELL_EVERY: Duration = Duration::from_millis(100);
/// The largest upload.
const UPLOAD_BYTES_MAX: u64 = 16 << 30;
/// Pages that may wait for the progress of uploads.
const WATCHERS_MAX: usize = 10_000;

/// The target folder, and the pages that watch uploads.
struct Uploads {
    folder: PathBuf,
    next: AtomicU64,
    /// By the name that the page gave to its upload.
    watchers: Mutex<HashMap<String, EventStream>>,
}

impl Uploads {
    fn watchers(&self) -> MutexGuard<'_, HashMap<String, EventStream>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the progress events of an upload that the page is about to start.
    fn watch(&self, request: &Request) -> Response {
        let mut watchers = self.watchers();
        watchers.retain(|_, events| events.is_open());
        if watchers.len() >= WATCHERS_MAX {
            return Response::text(StatusCode::SERVICE_UNAVAILABLE, "too many uploads are being watched\n");
        }
        let (response, events) = Response::events(EventOptions::default());
        // Progress is optional: an upload does not fail because its page is gone.
        let _ = events.send(&Event::new("watching").name("ready"));
        watchers.insert(name(request), events);
        response
    }

    /// Receives a form: each of its files is written to disk as it arrives, whatever its size.
    fn receive(&self, mut request: Request) -> io::Result<String> {
        let watcher = self.watchers().remove(&name(&request));
        let mut answer = String::new();
        let mut form = request.multipart()?;
        while let Some(mut part) = form.next_part()? {
            let Some(filename) = part.head().filename.clone() else { continue };
            // The client's file name is only displayed; the file gets a name of ours.
            let path = self.folder.join(format!("upload-{}", self.next.fetch_add(1, Ordering::Relaxed)));
            let bytes = store(&path, &mut part, watcher.as_ref())?;
            answer += &format!("{filename}: {bytes} bytes, stored as {}\n", path.display());
        }
        if let Some(events) = watcher {
            let _ = events.send(&Event::new(&answer).name("done"));
        }
        Ok(answer)
    }
}

/// The name of an upload.
fn name(request: &Request) -> String {
    request.params().get("name").unwrap_or_default().to_owned()
}

/// Writes a source to a file, which is removed if the source fails.
fn store(path: &Path, source: &mut impl Read, watcher: Option<&EventStream>) -> io::Result<u64> {
    let stored = copy(&mut File::create_new(path)?, source, watcher);
    if stored.is_err() {
        // If removing it fails too, the first error is the one to report.
        let _ = fs::remove_file(path);
    }
    stored
}

fn copy(file: &mut File, source: &mut impl Read, watcher: Option<&EventStream>) -> io::Result<u64> {
    let mut buffer = vec![0; 256 * 1024];
    let (mut total, mut told) = (0, Instant::now());
    loop {
        let n = source.read(&mut buffer)?;
        file.write_all(buffer.get(..n).unwrap_or_default())?;
        total += n as u64;
        if let Some(events) = watcher
            && (n == 0 || told.elapsed() >= TELL_EVERY)
        {
            told = Instant::now();
            let _ = events.send(&Event::new(total.to_string()).name("received"));
        }
        if n == 0 {
            return Ok(total);
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = arguments::Arguments::read(&["--folder"])?;
    let folder = match arguments.get("--folder") {
        Some(folder) => PathBuf::from(folder),
        None => std::env::temp_dir().join(format!("narval-uploads-{}", std::process::id())),
    };
    fs::create_dir_all(&folder).map_err(|error| format!("cannot create '{}': {error}", folder.display()))?;
    println!("uploads go to {}", folder.display());
    let uploads = Arc::new(Uploads { folder, next: AtomicU64::new(1), watchers: Mutex::default() });
    let receiving = uploads.clone();
    let page = || {
        Response::new(StatusCode::OK)
            .header("content-type", "text/html; charset=utf-8")
            .body(Body::bytes(include_str!("page.html")))
    };
    let app = Router::new()
        .get("/", page)
        .get("/uploads/@name", move |request: Request| uploads.watch(&request))
        .post("/uploads/@name", move |request: Request| receiving.receive(request))
        .build()?;
    let limits = Limits { body_max: UPLOAD_BYTES_MAX, ..Limits::default() };
    arguments.serve(app, |builder| builder.limits(limits))
}
