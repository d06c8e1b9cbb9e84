//! Looking into a NAR that lies in a cache: its listing, and single files of it.

use std::io::{Read, Write};
use std::sync::Arc;

use narval_nix::Compression;
use narval_nix::nar::{Decoder as NarDecoder, Event};
use serde_json::{Map, Value, json};

use crate::cache::{Caches, Found};
use crate::decode::{Decoder, OUTPUT_LEN};
use crate::http::{Request, ResumingBody};
use crate::{Error, Wanted};

/// The largest listing read.
const LISTING_LEN_MAX: u64 = 64 * 1024 * 1024;

fn damaged(found: &Found, reason: impl ToString) -> Error {
    Error::Damaged { cache: found.cache.url().to_string(), path: found.info.path.clone(), reason: reason.to_string() }
}

/// The listing of a NAR, as `.ls` files have it: from the cache's own, or else by reading the NAR.
///
/// # Errors
/// When no cache has the path, or its NAR is damaged.
pub fn listing(caches: &Caches, wanted: &Wanted) -> Result<Value, Error> {
    let found = caches.find(wanted)?;
    let url = found.cache.url().child(&format!("{}.ls", found.info.path.hash_part()))?;
    if let Ok(Some(text)) = found.cache.client().metadata(&url, LISTING_LEN_MAX)
        && let Ok(listing) = serde_json::from_slice::<Value>(&text)
        && listing.get("version") == Some(&json!(1))
    {
        return Ok(listing);
    }
    let mut tree = Tree::default();
    read_nar(&found, &mut |event, offset| {
        tree.add(event, offset);
        Ok(())
    })?;
    Ok(json!({"version": 1, "root": tree.root.unwrap_or(Value::Null)}))
}

/// The entry of a listing at a path below its root.
pub fn entry<'a>(listing: &'a Value, below: &str) -> Option<&'a Value> {
    let names = below.split('/').filter(|name| !name.is_empty());
    names.into_iter().try_fold(listing.get("root")?, |node, name| node.get("entries")?.get(name))
}

/// Writes one file of a NAR: by a range where the NAR is not compressed and the cache has a listing, else by reading it up
/// to there.
///
/// # Errors
/// [`Error::NotFound`] when there is no such file.
pub fn cat(caches: &Caches, wanted: &Wanted, below: &str, out: &mut dyn Write) -> Result<(), Error> {
    let found = caches.find(wanted)?;
    let listing = listing(caches, wanted)?;
    let absent = |why: &str| Error::NotFound {
        what: format!("{below} in {} ({why})", found.info.path),
        caches: found.cache.url().to_string(),
    };
    let node = entry(&listing, below).ok_or_else(|| absent("no such file"))?;
    if node.get("type").and_then(Value::as_str) != Some("regular") {
        return Err(absent("not a regular file"));
    }
    let number = |key: &str| node.get(key).and_then(Value::as_u64);
    let broken_pipe = |error: std::io::Error| Error::Usage(format!("cannot write: {error}"));
    if let (Compression::None, Some(size), Some(offset)) = (found.info.compression, number("size"), number("narOffset"))
    {
        let url = found.cache.nar_url(&found.info)?;
        let request = Request { from: offset, ..Request::get(&url) };
        let fetched = found.cache.client().send(&request).map_err(|error| found.cache.fetch_error(below, error))?;
        if fetched.head.status == 206 {
            let copied = std::io::copy(&mut fetched.body.take(size), out).map_err(broken_pipe)?;
            return if copied == size { Ok(()) } else { Err(damaged(&found, "the file is cut short")) };
        }
    }
    let (mut names, mut last, mut writes) = (Vec::<Vec<u8>>::new(), Vec::new(), false);
    let wanted: Vec<&[u8]> = below.split('/').filter(|name| !name.is_empty()).map(str::as_bytes).collect();
    read_nar(&found, &mut |event, _| {
        match event {
            Event::Entry { name } => last = name.to_vec(),
            Event::Directory => names.push(std::mem::take(&mut last)),
            Event::EndDirectory => drop(names.pop()),
            Event::Regular { .. } => {
                let here = names.iter().skip(1).chain(std::iter::once(&last)).filter(|name| !name.is_empty());
                writes = here.map(Vec::as_slice).eq(wanted.iter().copied());
            }
            Event::Contents(bytes) if writes => out.write_all(bytes).map_err(broken_pipe)?,
            _ => {}
        }
        Ok(())
    })
}

/// Reads a NAR to its end, and checks its hash.
fn read_nar(found: &Found, take: &mut dyn FnMut(Event<'_>, u64) -> Result<(), Error>) -> Result<(), Error> {
    let url = found.cache.nar_url(&found.info)?;
    let client: &Arc<_> = found.cache.client();
    let opened = ResumingBody::open(client, &url).map_err(|error| found.cache.fetch_error(&found.info.url, error))?;
    let gone =
        || Error::NarGone { cache: found.cache.url().to_string(), path: found.info.path.clone(), url: url.to_string() };
    let source = std::io::BufReader::with_capacity(crate::decode::INPUT_LEN, Reader(opened.ok_or_else(gone)?));
    let decoder = Decoder::new(&found.info.compression, source, 1);
    let mut decoder = decoder.map_err(|error| damaged(found, error))?;
    let mut nar = NarDecoder::with_nar_size(found.info.nar_size);
    let (mut hasher, mut buffer) = (narval_nix::Sha256Hasher::new(), vec![0; OUTPUT_LEN]);
    loop {
        let len = decoder.read(&mut buffer).map_err(|error| damaged(found, error))?;
        let mut bytes = buffer.get(..len).unwrap_or_default();
        if bytes.is_empty() {
            break;
        }
        hasher.update(bytes);
        loop {
            let before = nar.offset();
            let (used, event) = nar.next(bytes).map_err(|error| damaged(found, error))?;
            let Some(event) = event else { break };
            take(event, before)?;
            bytes = bytes.get(used..).unwrap_or_default();
        }
    }
    nar.finish().map_err(|error| damaged(found, error))?;
    if hasher.finish() == found.info.nar_hash {
        Ok(())
    } else {
        Err(damaged(found, "its hash is not that of the narinfo"))
    }
}

struct Reader(ResumingBody);

impl Read for Reader {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.0.read_some(out).map_err(std::io::Error::other)
    }
}

/// A listing in the making.
#[derive(Default)]
struct Tree {
    open: Vec<(String, Map<String, Value>)>,
    name: String,
    root: Option<Value>,
}

impl Tree {
    fn add(&mut self, event: Event<'_>, _offset: u64) {
        match event {
            Event::Entry { name } => self.name = String::from_utf8_lossy(name).into_owned(),
            Event::Directory => self.open.push((std::mem::take(&mut self.name), Map::new())),
            Event::Regular { executable: true, size } => {
                self.put(json!({"type": "regular", "size": size, "executable": true}))
            }
            Event::Regular { executable: false, size } => self.put(json!({"type": "regular", "size": size})),
            Event::Symlink { target } => {
                self.put(json!({"type": "symlink", "target": String::from_utf8_lossy(target)}))
            }
            Event::EndDirectory => {
                if let Some((name, entries)) = self.open.pop() {
                    self.name = name;
                    self.put(json!({"type": "directory", "entries": entries}));
                }
            }
            Event::Contents(_) | Event::EndRegular => {}
        }
    }

    fn put(&mut self, node: Value) {
        match self.open.last_mut() {
            Some((_, entries)) => drop(entries.insert(std::mem::take(&mut self.name), node)),
            None => self.root = Some(node),
        }
    }
}
