//! Binary caches: the nix-serve-ng table, narinfo throughput, whole closures, trees of small files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::client::{Connection, Request};
use crate::fixture::{Fixture, fields, hash_part};
use crate::load::Load;
use crate::rows::{Placement, RequestsOf, Row, Run};
use crate::server::Server;
use crate::{Context, Result, failure};

/// A hash part that is in no store.
const ABSENT: &str = "00000000000000000000000000000000";
/// The `Accept-Encoding` field of requests for compressed NARs.
const ACCEPT_ZSTD: &str = "Accept-Encoding: zstd\r\n";

/// The prefix under which nginx and the echo server serve the compressed flat files.
pub const ZSTD_PREFIX: &str = "/zstd/";

/// The fixture as flat files.
#[derive(Debug)]
pub struct Folders {
    /// Uncompressed NARs.
    pub plain: PathBuf,
    /// NARs compressed with zstd.
    pub zstd: PathBuf,
}

/// The URLs and encodings that one server uses for the fixture's paths, learned from its own narinfos.
struct View {
    narinfos: HashMap<String, Request>,
    nars: HashMap<String, Request>,
    zstd: HashMap<String, Request>,
}

/// Measures all rows of binary caches.
///
/// # Errors
/// If a server lacks a path of the fixture, or answers incorrectly.
pub fn run(run: &mut Run<'_>, fixture: &Fixture, folders: &Folders) -> Result<()> {
    let views = run.servers.iter().map(|server| Ok((server.name.clone(), View::learn(server, fixture, folders)?)));
    let views = views.collect::<Result<HashMap<_, _>>>()?;
    sequential_rows(run, fixture, &views)?;
    narinfo_rows(run, fixture, &views)?;
    closure_rows(run, fixture, &views)?;
    tree_rows(run, fixture, &views)
}

type Views = HashMap<String, View>;

fn requests_of<'a>(views: &'a Views, choose: impl Fn(&View, usize) -> Vec<Request> + 'a) -> RequestsOf<'a> {
    Box::new(move |server, repetition| views.get(&server.name).map(|v| choose(v, repetition)).unwrap_or_default())
}

fn sequential_rows(run: &mut Run<'_>, fixture: &Fixture, views: &Views) -> Result<()> {
    let one = |passes| Load { connections: 1, passes, close: false };
    let mut row = |title: &str, passes, requests| {
        let (title, placement) = (title.to_owned(), Placement::Together);
        run.row(&Row { title, load: one(passes), placement, warm: true, requests })
    };
    let ten = fixture.closure.iter().take(10).collect::<Vec<_>>();
    let present = requests_of(views, |view, _| ten.iter().filter_map(|p| view.narinfos.get(*p).cloned()).collect());
    row("10 present narinfos, sequential", 200, present)?;
    row("1 absent narinfo, sequential", 2000, Box::new(|s, _| vec![Request::get(&s.base, &narinfo(ABSENT), "", 404)]))?;
    let with_narinfo = |path: &String, view: &View| -> Vec<Request> {
        let pair = [view.narinfos.get(path), view.nars.get(path)];
        let pair = pair.into_iter().flatten().cloned().collect::<Vec<_>>();
        std::iter::repeat_n(pair, 10).flatten().collect()
    };
    row("empty NAR ×10, each after its narinfo", 100, requests_of(views, |v, _| with_narinfo(&fixture.empty, v)))?;
    row("10 MB NAR ×10, each after its narinfo", 5, requests_of(views, |v, _| with_narinfo(&fixture.large, v)))
}

fn narinfo_rows(run: &mut Run<'_>, fixture: &Fixture, views: &Views) -> Result<()> {
    for connections in [1, 16, 64] {
        let load = Load { connections, passes: 20_000 / fixture.closure.len().max(1), close: false };
        let all = |view: &View| fixture.closure.iter().filter_map(|p| view.narinfos.get(p).cloned()).collect();
        let requests = requests_of(views, move |view, _| all(view));
        let title = format!("all narinfos of the closure, {connections} connections");
        run.row(&Row { title, load, placement: Placement::Apart, warm: true, requests })?;
    }
    let load = Load { connections: 64, passes: 20_000, close: false };
    let requests = Box::new(|s: &Server, _| vec![Request::get(&s.base, &narinfo(ABSENT), "", 404)]);
    let title = "absent narinfo, 64 connections".to_owned();
    run.row(&Row { title, load, placement: Placement::Apart, warm: true, requests })
}

fn closure_rows(run: &mut Run<'_>, fixture: &Fixture, views: &Views) -> Result<()> {
    let requests = requests_of(views, |view, repetition| {
        // only the first repetition finds the server's cache empty
        let once = fixture.closure.iter().filter(|_| repetition == 0);
        once.filter_map(|path| view.zstd.get(path).cloned()).collect()
    });
    let load = Load { connections: 1, passes: 1, close: false };
    let title = "all NARs of the closure, zstd, first time (if the server's cache was empty)".to_owned();
    run.row(&Row { title, load, placement: Placement::Apart, warm: false, requests })?;
    for (what, zstd) in [("identity", false), ("zstd", true)] {
        for connections in [1, 4, 16] {
            let load = Load { connections, passes: 1, close: false };
            let requests = requests_of(views, move |view, _| {
                let of = if zstd { &view.zstd } else { &view.nars };
                fixture.closure.iter().filter_map(|path| of.get(path).cloned()).collect()
            });
            let title = format!("all NARs of the closure, {what}, {connections} connections");
            run.row(&Row { title, load, placement: Placement::Apart, warm: true, requests })?;
        }
    }
    Ok(())
}

fn tree_rows(run: &mut Run<'_>, fixture: &Fixture, views: &Views) -> Result<()> {
    // New to the server, but already in the kernel's page cache: otherwise the first server that serves a live store would
    // read from the disk, and the ones after it from the page cache.
    fixture.trees.iter().for_each(|tree| read_through(Path::new(tree)));
    for (title, warm) in
        [("a tree of 30,000 small files, first time", false), ("a tree of 30,000 small files, again", true)]
    {
        let load = Load { connections: 1, passes: 1, close: false };
        let requests = requests_of(views, move |view, repetition| {
            let tree = fixture.trees.get(if warm { 0 } else { repetition });
            tree.and_then(|path| view.nars.get(path).cloned()).into_iter().collect()
        });
        run.row(&Row { title: title.to_owned(), load, placement: Placement::Apart, warm, requests })?;
    }
    Ok(())
}

/// Reads a tree into the kernel's caches. A tree in another store root is skipped.
fn read_through(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            read_through(&entry.path());
        } else {
            // read only for the side effect
            let _ = std::fs::read(entry.path());
        }
    }
}

fn narinfo(hash_part: &str) -> String {
    format!("/{hash_part}.narinfo")
}

impl View {
    fn learn(server: &Server, fixture: &Fixture, folders: &Folders) -> Result<View> {
        let mut view = View { narinfos: HashMap::new(), nars: HashMap::new(), zstd: HashMap::new() };
        let odd = [&fixture.empty, &fixture.large].into_iter().chain(&fixture.trees);
        let mut connection = Connection::open(&server.base)?;
        for path in fixture.closure.iter().chain(odd) {
            if server.flat {
                view.learn_flat(server, folders, path)?;
            } else {
                view.learn_live(server, &mut connection, path).map_err(|e| failure!("{}: {e}", server.name))?;
            }
        }
        if !server.flat {
            view.negotiate_zstd(&mut connection)?;
        }
        Ok(view)
    }

    /// For prepared files, the answers come from the files themselves.
    fn learn_flat(&mut self, server: &Server, folders: &Folders, path: &str) -> Result<()> {
        let target = narinfo(hash_part(path)?);
        let read = |folder: &Path| {
            let file = folder.join(target.trim_start_matches('/'));
            std::fs::read_to_string(&file).context(|| format!("cannot read {}", file.display()))
        };
        let plain = read(&folders.plain)?;
        let request = Request::get(&server.base, &target, "", 200);
        self.narinfos.insert(path.to_owned(), Request { body_bytes: Some(plain.len() as u64), ..request });
        self.nars.insert(path.to_owned(), nar_of(server, "/", &plain)?);
        self.zstd.insert(path.to_owned(), nar_of(server, ZSTD_PREFIX, &read(&folders.zstd)?)?);
        Ok(())
    }

    fn learn_live(&mut self, server: &Server, connection: &mut Connection, path: &str) -> Result<()> {
        let hash = hash_part(path)?;
        let request = Request::get(&server.base, &narinfo(hash), "", 200);
        let text = connection.fetch(&request)?;
        // no expected length: the narinfo grows once there is a compressed NAR
        self.narinfos.insert(path.to_owned(), request);
        let text = String::from_utf8_lossy(&text);
        let fields = fields(&text);
        let field =
            |name: &str| fields.get(name).copied().ok_or_else(|| failure!("no {name} in the narinfo of {path}"));
        let (nar_hash, nar_size) = (field("NarHash")?.trim_start_matches("sha256:"), field("NarSize")?.parse().ok());
        let compression = fields.get("Compression").copied();
        if compression == Some("zstd") {
            self.zstd.insert(path.to_owned(), nar_of(server, "/", &text)?);
        }
        // the URLs of nix-serve, which every server of a live store understands
        let dialect = format!("nar/{hash}-{nar_hash}.nar");
        let url = if compression == Some("none") { field("URL")? } else { &dialect };
        let nar = Request::get(&server.base, &format!("/{url}"), "", 200);
        self.nars.insert(path.to_owned(), Request { body_bytes: nar_size, ..nar });
        Ok(())
    }

    /// A server may compress NARs that its narinfos do not announce as compressed. If so, all paths are treated as compressible.
    fn negotiate_zstd(&mut self, connection: &mut Connection) -> Result<()> {
        let accepting = |request: &Request| {
            let head = request.bytes.strip_suffix(b"\r\n").unwrap_or(&request.bytes);
            let bytes = [head, ACCEPT_ZSTD.as_bytes(), b"\r\n"].concat();
            Request { bytes, body_bytes: None, ..request.clone() }
        };
        let trial = self.nars.values().find(|r| r.body_bytes.is_some_and(|size| (1 << 16..1 << 22).contains(&size)));
        let Some(trial) = trial else { return Ok(()) };
        if connection.ask(&accepting(trial))?.zstd {
            for (path, request) in &self.nars {
                self.zstd.entry(path.clone()).or_insert_with(|| accepting(request));
            }
        }
        Ok(())
    }
}

/// The request for the NAR that a narinfo names, expecting the length given there.
fn nar_of(server: &Server, prefix: &str, narinfo: &str) -> Result<Request> {
    let fields = fields(narinfo);
    let url = fields.get("URL").ok_or_else(|| failure!("a narinfo without URL"))?;
    let size = fields.get("FileSize").and_then(|size| size.parse().ok());
    Ok(Request { body_bytes: size, ..Request::get(&server.base, &format!("{prefix}{url}"), "", 200) })
}
