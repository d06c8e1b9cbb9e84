//! Large responses, produced in every way, and the engine's metrics.
//!
//! `cargo run --release -p narval-http --example streaming -- --port 8080 [--workers N]`, then
//! `curl -o /dev/null 'http://localhost:8080/source?bytes=1000000000' & curl http://localhost:8080/metrics`

#[path = "arguments/mod.rs"]
mod arguments;

use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, OnceLock};
use std::thread;

use narval_http::{
    Body, BodySource, Builder, FileRange, Fill, Request, Response, Router, SegmentBuf, Snapshot, StatusCode,
};

/// A function that returns the server's counters.
type CounterSource = Box<dyn Fn() -> Snapshot + Send + Sync>;

const BYTES_DEFAULT: u64 = 1_000_000_000;
/// The largest response.
const BYTES_MAX: u64 = 1 << 40;

/// Produces zeros, piece by piece, as fast as the client reads them. Between two pieces, it holds no thread.
struct Zeros(u64);

impl BodySource for Zeros {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let piece = self.0.min(out.room() as u64);
        self.0 -= piece;
        let length = out.memory().len() + usize::try_from(piece).unwrap_or_default();
        out.memory().resize(length, 0);
        Ok(if self.0 == 0 { Fill::Done } else { Fill::More })
    }

    fn never_blocks(&self) -> bool {
        true
    }
}

/// A separate thread writes the body, and blocks while the client is slow.
fn written(bytes: u64) -> Body {
    let (body, mut writer) = Body::writer(Some(bytes));
    thread::spawn(move || -> io::Result<()> {
        let (piece, mut left) = ([0; 64 * 1024], bytes);
        while left > 0 {
            let now = left.min(piece.len() as u64);
            writer.write_all(piece.get(..usize::try_from(now).unwrap_or_default()).unwrap_or_default())?;
            left -= now;
        }
        writer.finish()
    });
    body
}

fn stream(request: &Request, file: &Arc<File>) -> Response {
    let bytes = request.query_value("bytes").and_then(|digits| digits.parse().ok());
    let bytes = bytes.unwrap_or(BYTES_DEFAULT).min(BYTES_MAX);
    let body = match request.path() {
        "/source" => Body::source(Zeros(bytes), Some(bytes)),
        "/file" => Body::file(FileRange { file: file.clone(), offset: 0, length: bytes }),
        _ => written(bytes),
    };
    Response::new(StatusCode::OK).header("content-type", "application/octet-stream").body(body)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = arguments::Arguments::read(&["--workers"])?;
    let workers = arguments.get("--workers").map(str::parse).transpose()?;
    // A sparse file of the largest size, unlinked.
    let path = std::env::temp_dir().join(format!("narval-streaming-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    file.set_len(BYTES_MAX)?;
    let file = Arc::new(file);
    // The handlers are created before the server whose counters they show.
    let counters: Arc<OnceLock<CounterSource>> = Arc::default();
    let shown = counters.clone();
    let app = ["/source", "/file", "/writer"]
        .into_iter()
        .fold(Router::new(), |router, path| {
            let file = file.clone();
            router.get(path, move |request: Request| stream(&request, &file))
        })
        .get("/quick", || "quick\n")
        .get("/metrics", move || match shown.get() {
            Some(counters) => Response::text(StatusCode::OK, counters().openmetrics() + "# EOF\n"),
            None => Response::new(StatusCode::SERVICE_UNAVAILABLE),
        })
        .build()?;
    let set = |builder: Builder| match workers {
        Some(workers) => builder.workers(workers),
        None => builder,
    };
    arguments.serve_and(app, set, |handle| {
        // It was not set before.
        let _ = counters.set(Box::new(handle.counter_source()));
    })
}
