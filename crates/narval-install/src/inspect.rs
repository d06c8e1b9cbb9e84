//! Looking into a NAR that lies in a cache: its listing, and single files of it.

use std::io::{Read, Write};

use narval_cache::{CacheError, Caches, Found, read_from, read_small};
use narval_nix::Compression;
use narval_nix::listing::{Listing, ListingBuilder, Node};
use narval_nix::nar::Event;
use narval_store::{NarOptions, Source, VerifiedNar};

use crate::fetch::{CacheEntry, Cores, FromCaches, damaged};
use crate::watchers::Unwatched;
use crate::{Error, Wanted};

/// The largest listing read.
const LISTING_LEN_MAX: u64 = 64 * 1024 * 1024;

/// The listing of a NAR: the cache's `.ls` file, or else made by reading the NAR.
///
/// # Errors
/// If no cache has the path, or its NAR is damaged.
pub fn listing(caches: &Caches, wanted: &Wanted) -> Result<Listing, Error> {
    let found = caches.find(wanted)?;
    let url = found.cache.url().child(&format!("{}.ls", found.info.path.hash_part()))?;
    // Without a listing that can be used, the NAR says the same.
    if let Ok(Some(text)) = read_small(found.cache.client(), &url, LISTING_LEN_MAX)
        && let Ok(listing) = Listing::parse(&text)
    {
        return Ok(listing);
    }
    let mut builder = ListingBuilder::new();
    read_nar(caches, &found, &mut |event, offset| {
        builder.push(&event, offset).map_err(|error| damaged(&found, error.to_string()))
    })?;
    builder.finish().map_err(|error| damaged(&found, error.to_string()))
}

/// Writes one file of a NAR. If the NAR is not compressed and the cache has a listing, only that range is requested;
/// otherwise the NAR is read up to the file.
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
        let rest = read_from(found.cache.client(), &url, offset);
        if let Some(rest) = rest.map_err(|error| found.cache.fetch_error(below, error))? {
            let copied = std::io::copy(&mut rest.take(size), out).map_err(broken_pipe)?;
            return if copied == size { Ok(()) } else { Err(damaged(&found, "the file is cut short".to_owned())) };
        }
    }
    let (mut names, mut last, mut writes) = (Vec::<Vec<u8>>::new(), Vec::new(), false);
    let wanted: Vec<&[u8]> = below.split('/').filter(|name| !name.is_empty()).map(str::as_bytes).collect();
    read_nar(caches, &found, &mut |event, _| {
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

/// Reads a NAR of a cache to its end, checked as if it were installed.
fn read_nar(
    caches: &Caches,
    found: &Found,
    take: &mut dyn FnMut(Event<'_>, u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let (cores, unwatched) = (Cores::new(1), Unwatched::default());
    let source = FromCaches::new(caches, &cores, unwatched.watchers());
    let entry = CacheEntry::from(found.clone());
    let nar = source.nar(&entry, NarOptions::default())?;
    VerifiedNar::read_events(nar, source.info(&entry), source.store_dir(), take)
}
