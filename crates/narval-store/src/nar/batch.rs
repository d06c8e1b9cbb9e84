//! Batches: the small files of a NAR that are read together.

use std::ops::Range;
use std::sync::Arc;

use rustix::buffer::spare_capacity;

use super::layout::{NarLayout, Record};
use super::open::Root;
use super::{NarIoError, WHOLE_FILE_MIN};

/// A batch of small files ends when it has this many bytes, and so has less than 256 KiB.
const BATCH_LEN_MIN: u64 = 64 * 1024;

/// A batch has at most this many entries.
const BATCH_ENTRIES_MAX: usize = 128;

/// Entries that are read together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) layout: Arc<NarLayout>,
    pub(super) root: Arc<Root>,
    pub(super) entries: Range<usize>,
}

/// Whether a record is a large file, which is in no batch.
pub(super) fn is_whole(record: &Record) -> bool {
    record.contents_len() >= WHOLE_FILE_MIN
}

/// The batch of entries that starts with this one; always the same for the same start.
pub(super) fn plan_batch(layout: &NarLayout, first: usize, end: u64) -> Range<usize> {
    let start = layout.start(first);
    let mut next = first + 1;
    while next - first < BATCH_ENTRIES_MAX
        && let Some(record) = layout.record(next)
        && !is_whole(record)
        && record.start < end
        && record.start - start < BATCH_LEN_MIN
    {
        next += 1;
    }
    first..next
}

/// Appends the NAR bytes of entries, none of them a large file.
pub(super) fn read_batch(
    layout: &NarLayout,
    root: &Root,
    entries: &Range<usize>,
    out: &mut Vec<u8>,
) -> Result<(), NarIoError> {
    let span = layout.span(entries);
    // One byte more than planned, to detect a file that has grown.
    out.reserve(usize::try_from(span.end - span.start).unwrap_or(0) + 1);
    let mut path = Vec::new();
    let mut path_of: Option<(u32, usize)> = None;
    for index in entries.clone() {
        let Some(record) = layout.record(index) else { break };
        layout.push_head(record, out);
        if record.is_regular() {
            // Files of one directory are consecutive: only their names differ.
            match path_of {
                Some((parent, len)) if parent == record.parent && record.name_len > 0 => path.truncate(len),
                _ => {
                    path.clear();
                    layout.push_path(record.parent as usize, &mut path);
                    if !path.is_empty() {
                        path.push(b'/');
                    }
                    path_of = Some((record.parent, path.len()));
                }
            }
            path.extend_from_slice(layout.name(record));
            path.push(0);
            read_small(layout, root, index, record, &path, out)?;
        }
        NarLayout::push_tail(record, out);
    }
    Ok(())
}

fn read_small(
    layout: &NarLayout,
    root: &Root,
    index: usize,
    record: &Record,
    below: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), NarIoError> {
    let path = || layout.path(&root.path, index);
    let file = root.open_file(below).map_err(|error| NarIoError::io("open", &path(), error))?;
    let from = out.len();
    let until = from.saturating_add(usize::try_from(record.extent).unwrap_or(usize::MAX));
    loop {
        if out.capacity() <= until {
            out.reserve(until + 1 - out.len());
        }
        let before = out.len();
        rustix::io::read(&file, spare_capacity(out)).map_err(|error| NarIoError::io("read", &path(), error))?;
        let read = out.len() - before;
        if out.len() == until && (read > 0 || record.extent == 0) {
            return Ok(());
        }
        if read == 0 || out.len() > until {
            out.truncate(from);
            return Err(NarIoError::Changed { path: path(), change: "its size has changed" });
        }
    }
}
