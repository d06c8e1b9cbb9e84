//! Looking into a NAR that lies in a cache: its listing, and single files of it.

use std::io::{Read, Write};

use narval_nix::listing::{Listing, ListingBuilder, Node};
use narval_nix::nar::{Decoder as NarDecoder, Event};
use narval_nix::{Compression, StoreDir};

use crate::pipeline::{Cores, Surroundings, VerifiedNar};
use crate::{Error, Progress, Trace, Wanted};
use narval_cache::decode::OUTPUT_LEN;
use narval_cache::{CacheError, Caches, Found};
use narval_client::Request;

/// The largest listing read.
const LISTING_LEN_MAX: u64 = 64 * 1024 * 1024;

fn damaged(found: &Found, reason: impl ToString) -> Error {
    CacheError::Damaged {
        cache: found.cache.url().to_string(),
        path: found.info.path.clone(),
        reason: reason.to_string(),
    }
    .into()
}

/// The listing of a NAR, as `.ls` files have it: from the cache's own, or else by reading the NAR.
///
/// # Errors
/// When no cache has the path, or its NAR is damaged.
pub fn listing(caches: &Caches, wanted: &Wanted) -> Result<Listing, Error> {
    let found = caches.find(wanted)?;
    let url = found.cache.url().child(&format!("{}.ls", found.info.path.hash_part()))?;
    // Without a listing that can be used, the NAR says the same.
    if let Ok(Some(text)) = found.cache.client().metadata(&url, LISTING_LEN_MAX)
        && let Ok(listing) = Listing::parse(&text)
    {
        return Ok(listing);
    }
    let mut builder = ListingBuilder::new();
    read_nar(&found, caches.store_dir(), &mut |event, offset| {
        builder.push(&event, offset).map_err(|error| damaged(&found, error))
    })?;
    builder.finish().map_err(|error| damaged(&found, error))
}

/// Writes one file of a NAR: by a range where the NAR is not compressed and the cache has a listing, else by reading it up
/// to there.
///
/// # Errors
/// [`CacheError::NotFound`] when there is no such file.
pub fn cat(caches: &Caches, wanted: &Wanted, below: &str, out: &mut dyn Write) -> Result<(), Error> {
    let found = caches.find(wanted)?;
    let listing = listing(caches, wanted)?;
    let absent = |why: &str| CacheError::NotFound {
        what: format!("{below} in {} ({why})", found.info.path),
        caches: found.cache.url().to_string(),
    };
    let node = listing.get(below.as_bytes()).ok_or_else(|| absent("no such file"))?;
    let &Node::Regular { size, nar_offset, .. } = node else { return Err(absent("not a regular file").into()) };
    drop(listing);
    let broken_pipe = |error: std::io::Error| Error::Usage(format!("cannot write: {error}"));
    if let (Compression::None, Some(offset)) = (found.info.compression, nar_offset) {
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
    read_nar(&found, caches.store_dir(), &mut |event, _| {
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

/// Reads a NAR to its end, checked as if it were installed. `take` gets each event, and the offset after it.
fn read_nar(
    found: &Found,
    store_dir: &StoreDir,
    take: &mut dyn FnMut(Event<'_>, u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let (cores, progress, trace) = (Cores::new(1), Progress::default(), Trace::new(false));
    cores.take(0, 0);
    let around = Surroundings { cores: &cores, progress: &progress, trace: &trace, size: 0, number: 0 };
    let mut nar = VerifiedNar::open(found, store_dir, &around, None)?;
    let (mut parser, mut offset) = (NarDecoder::with_nar_size(found.info.nar_size), 0);
    let mut buffer = vec![0; OUTPUT_LEN];
    loop {
        let len = nar.next(&mut buffer)?;
        let mut bytes = buffer.get(..len).unwrap_or_default();
        if bytes.is_empty() {
            break;
        }
        loop {
            let (used, event) = parser.next(bytes).map_err(|error| damaged(found, error))?;
            offset += used as u64;
            let Some(event) = event else { break };
            take(event, offset)?;
            bytes = bytes.get(used..).unwrap_or_default();
        }
    }
    parser.finish().map_err(|error| damaged(found, error))
}
