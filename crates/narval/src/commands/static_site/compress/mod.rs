//! Makes the encodings of a site in advance: compressed files, and deltas from previous releases.

mod delta;
mod files;
mod place;
mod site;

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use flate2::write::GzEncoder;
use narval_files::Work;
use narval_http::files::sidecar_ending;
use narval_http::semantics::accept::Coding;
use parking_lot::Mutex;

use delta::Deltas;
use files::{Source, is_of_time, named, with_ending};
use place::{Limited, place};
pub(super) use site::{Site, Summary};

/// The maximum number of previous releases, and so of deltas per file.
pub(super) const PREVIOUS_MAX: usize = 8;
/// brotli's highest level, and the window that browsers must support (RFC 7932 section 9.1).
const BROTLI_QUALITY: u32 = 11;
const BROTLI_WINDOW_BITS: u32 = 22;
/// zstd's highest level whose window every browser must support (RFC 8878 section 3.1.1.1.2: 8 MiB).
const ZSTD_LEVEL: i32 = 19;

/// Writes the encodings of all compressible files of a folder, if they are smaller, each with the modification time of
/// its source.
///
/// # Errors
/// The first folder or file that cannot be read or written, by name. Encodings written before are complete.
pub(super) fn compress(site: &Site, work: &Work) -> io::Result<Summary> {
    let deltas = Deltas::prepare(site)?;
    let mut sources = files::compressible(&site.root)?;
    // The largest first, so that the last one to finish is small.
    sources.sort_by_key(|source| source.size);
    work.begin("compressing", "files", sources.len() as u64, 0);
    let (sources, failure) = (Mutex::new(sources), Mutex::new(None));
    let summary = Mutex::new(Summary::default());
    let run = || {
        loop {
            let next = sources.lock().pop();
            let Some(source) = next else { break };
            let done = work.check().and_then(|()| site.encode_all(&source, &deltas, &summary));
            if let Err(error) = done {
                let error = named("cannot compress", &site.root.join(&source.path), &error);
                failure.lock().get_or_insert(error);
                sources.lock().clear();
            }
            work.count(1);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..site.threads.get() {
            scope.spawn(run);
        }
    });
    failure.into_inner().map_or(Ok(summary.into_inner()), Err)
}

impl Site {
    /// The folder of the encodings.
    fn target(&self) -> &Path {
        self.into.as_deref().unwrap_or(&self.root)
    }

    fn encode_all(&self, source: &Source, deltas: &Deltas, summary: &Mutex<Summary>) -> io::Result<()> {
        let path = self.root.join(&source.path);
        let base = self.target().join(&source.path);
        if let (Some(_), Some(folder)) = (&self.into, base.parent()) {
            fs::create_dir_all(folder).map_err(|error| named("cannot make the folder", folder, &error))?;
        }
        for &coding in &self.codings {
            let Some(ending) = sidecar_ending(coding) else { continue };
            let target = with_ending(&base, ending);
            if is_of_time(&target, source.modified) {
                summary.lock().fresh += 1;
                continue;
            }
            let placed = place(source, &target, |file| encode(BufReader::new(File::open(&path)?), coding, file))?;
            let mut summary = summary.lock();
            match placed {
                Some(size) => (summary.made, summary.made_bytes) = (summary.made + 1, summary.made_bytes + size),
                None => summary.larger += 1,
            }
        }
        deltas.make(&path, source, &base, &self.codings, summary)?;
        let mut summary = summary.lock();
        (summary.files, summary.file_bytes) = (summary.files + 1, summary.file_bytes + source.size);
        Ok(())
    }
}

fn encode(mut source: impl Read, coding: Coding, target: &mut Limited<'_>) -> io::Result<()> {
    match coding {
        Coding::Zstd => {
            let mut encoder = zstd::stream::write::Encoder::new(target, ZSTD_LEVEL)?;
            io::copy(&mut source, &mut encoder)?;
            encoder.finish()?;
        }
        Coding::Brotli => {
            let mut encoder = brotli::CompressorWriter::new(target, 64 * 1024, BROTLI_QUALITY, BROTLI_WINDOW_BITS);
            io::copy(&mut source, &mut encoder)?;
            encoder.flush()?;
            encoder.into_inner();
        }
        _ => {
            let mut encoder = GzEncoder::new(target, flate2::Compression::best());
            io::copy(&mut source, &mut encoder)?;
            encoder.finish()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
