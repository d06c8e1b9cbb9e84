//! Compares two paths: their files (by their listings, and by their contents where that is cheap), and their closures.

use std::io;

use narval_nix::listing::Node;
use narval_nix::{ClosureDifference, HashPart, Sha256, Sha256Hasher};

use super::inside::{Frames, Inside, Reader};
use super::paths::{self, Closure};
use super::places::Places;
use crate::error::ServeError;

/// The maximum number of files and of paths in the answer.
const LISTED_MAX: usize = 2_000;
/// The maximum length of the paths and targets of files in the answer, in bytes: whoever made the NARs chose them.
const LISTED_BYTES_MAX: usize = 256 << 10;
/// The maximum length of the contents that are read of each path, in bytes; files beyond it are compared by their sizes.
const READ_BYTES_MAX: u64 = 64 << 20;
/// The maximum number of files whose contents are read.
const READ_FILES_MAX: usize = 20_000;

/// What differs.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) before: Side,
    pub(super) after: Side,
    /// `None` if one of them has no listing.
    pub(super) files: Option<Files>,
    pub(super) closure: Closures,
}

#[derive(Debug)]
pub(super) struct Side {
    pub(super) hash: String,
    pub(super) name: String,
    pub(super) nar_size: u64,
    pub(super) file_size: Option<u64>,
    pub(super) closure_paths: usize,
    pub(super) closure_size: u64,
}

#[derive(Debug, Default)]
pub(super) struct Files {
    /// The first of those that differ, in the order of the NARs.
    pub(super) list: Vec<File>,
    pub(super) added: usize,
    pub(super) removed: usize,
    pub(super) changed: usize,
    pub(super) same: usize,
    /// Files of the same size whose contents were not compared.
    pub(super) unread: usize,
}

#[derive(Debug)]
pub(super) struct File {
    pub(super) path: String,
    pub(super) change: Change,
    /// Before and after: `file`, `executable`, `symlink` or `directory`, and its size in bytes or its target.
    pub(super) before: Option<Entry>,
    pub(super) after: Option<Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Added,
    Removed,
    Changed,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) kind: &'static str,
    pub(super) size: Option<u64>,
    pub(super) target: Option<String>,
}

/// The paths that only one of the closures has, the largest first.
#[derive(Debug)]
pub(super) struct Closures {
    pub(super) only_before: Vec<paths::WithSize>,
    pub(super) only_after: Vec<paths::WithSize>,
    pub(super) paths_before: usize,
    pub(super) paths_after: usize,
    pub(super) size_before: u64,
    pub(super) size_after: u64,
    pub(super) both: usize,
}

pub(super) fn compare(
    places: &Places,
    frames: &Frames,
    [one, other]: [HashPart; 2],
    is_wanted: &dyn Fn() -> bool,
) -> Result<Comparison, ServeError> {
    let closure = |of| paths::read_closure(places, of, is_wanted);
    let (before, after) = (closure(one)?, closure(other)?);
    let insides = [one, other].map(|hash_part| Inside::open(places, frames, hash_part));
    let files = match insides {
        [Ok(before), Ok(after)] => Some(files(&before, &after, is_wanted)),
        // A path of an upstream, or without a listing.
        [Err(ServeError::NoPath), _] | [_, Err(ServeError::NoPath)] => None,
        [Err(error), _] | [_, Err(error)] => return Err(error),
    };
    let closure = closures(&before, &after);
    Ok(Comparison { before: Side::of(&before)?, after: Side::of(&after)?, files, closure })
}

impl Side {
    fn of(closure: &Closure) -> Result<Self, ServeError> {
        let info = &closure.of;
        Ok(Self {
            hash: info.path.hash_part().to_string(),
            name: info.path.name().to_string(),
            nar_size: info.nar_size,
            file_size: info.file_size,
            closure_paths: closure.paths.len(),
            closure_size: closure.paths.iter().map(|path| path.size).sum(),
        })
    }
}

fn closures(before: &Closure, after: &Closure) -> Closures {
    let ClosureDifference { only_before, only_after, both } = ClosureDifference::of(&before.paths, &after.paths);
    let size = |paths: &[&paths::WithSize]| paths.iter().map(|path| path.size).sum();
    let listed = |paths: &[&paths::WithSize]| paths.iter().take(LISTED_MAX).copied().cloned().collect();
    Closures {
        paths_before: only_before.len(),
        paths_after: only_after.len(),
        size_before: size(&only_before),
        size_after: size(&only_after),
        both,
        only_before: listed(&only_before),
        only_after: listed(&only_after),
    }
}

fn files(before: &Inside, after: &Inside, is_wanted: &dyn Fn() -> bool) -> Files {
    let contents = [Contents::new(before), Contents::new(after)];
    let mut walk = Walk { files: Files::default(), listed_bytes: 0, contents, is_wanted };
    walk.nodes([Some(&before.listing.root), Some(&after.listing.root)]);
    walk.files
}

/// Walks two trees at the same time: in the order of each NAR, which is that of the names. So contents are read in their order.
struct Walk<'w> {
    files: Files,
    /// The bytes of paths and targets that are listed.
    listed_bytes: usize,
    contents: [Contents; 2],
    is_wanted: &'w dyn Fn() -> bool,
}

/// A folder that is being walked.
struct Folder<'a> {
    nodes: [Option<&'a Node>; 2],
    /// The names that are left of both.
    names: std::vec::IntoIter<&'a [u8]>,
    /// The length of its path.
    path_len: usize,
}

impl<'a> Folder<'a> {
    /// `None` if neither node is one.
    fn of(nodes: [Option<&'a Node>; 2], path_len: usize) -> Option<Self> {
        let mut folders = nodes.iter().flatten().filter_map(|node| match node {
            Node::Directory(entries) => Some(entries),
            _ => None,
        });
        let mut names: Vec<&[u8]> = folders.next()?.keys().map(|name| &**name).collect();
        if let Some(other) = folders.next() {
            names.extend(other.keys().map(|name| &**name));
            names.sort_unstable();
            names.dedup();
        }
        Some(Self { nodes, names: names.into_iter(), path_len })
    }
}

impl Walk<'_> {
    fn nodes(&mut self, roots: [Option<&Node>; 2]) {
        let mut path = String::new();
        self.node(&path, roots);
        // Not recursive: the depth is chosen by whoever made the NAR. One path at a time is in memory, however deep its files are.
        let mut open = Vec::from_iter(Folder::of(roots, 0));
        while let Some(folder) = open.last_mut().filter(|_| (self.is_wanted)()) {
            path.truncate(folder.path_len);
            let Some(name) = folder.names.next() else {
                open.pop();
                continue;
            };
            let nodes = folder.nodes.map(|node| child(node, name));
            if !path.is_empty() {
                path.push('/');
            }
            path.push_str(&String::from_utf8_lossy(name));
            self.node(&path, nodes);
            open.extend(Folder::of(nodes, path.len()));
        }
    }

    fn node(&mut self, path: &str, [before, after]: [Option<&Node>; 2]) {
        if let (
            Some(Node::Regular { executable, size, nar_offset: Some(offset) }),
            Some(Node::Regular { executable: executable_after, size: size_after, nar_offset: Some(offset_after) }),
        ) = (before, after)
            && (executable, size) == (executable_after, size_after)
        {
            let [one, other] = &mut self.contents;
            match (one.hash(*offset, *size, self.is_wanted), other.hash(*offset_after, *size, self.is_wanted)) {
                (Some(one), Some(other)) if one == other => self.files.same += 1,
                (Some(_), Some(_)) => self.list(path, Change::Changed, before.map(entry), after.map(entry)),
                _ => self.files.unread += 1,
            }
            return;
        }
        let (before, after) = (before.map(entry), after.map(entry));
        match (&before, &after) {
            (Some(one), Some(other)) if one == other => self.files.same += usize::from(one.kind != "directory"),
            (None, _) => self.list(path, Change::Added, before, after),
            (_, None) => self.list(path, Change::Removed, before, after),
            _ => self.list(path, Change::Changed, before, after),
        }
    }

    /// Counts a difference, and lists it if there is room.
    fn list(&mut self, path: &str, change: Change, before: Option<Entry>, after: Option<Entry>) {
        *match change {
            Change::Added => &mut self.files.added,
            Change::Removed => &mut self.files.removed,
            Change::Changed => &mut self.files.changed,
        } += 1;
        let targets = [&before, &after].into_iter().flatten().filter_map(|entry| entry.target.as_ref());
        let bytes = targets.map(String::len).sum::<usize>() + path.len();
        if self.files.list.len() < LISTED_MAX && self.listed_bytes + bytes <= LISTED_BYTES_MAX {
            self.listed_bytes += bytes;
            self.files.list.push(File { path: path.to_owned(), change, before, after });
        }
    }
}

fn child<'a>(node: Option<&'a Node>, name: &[u8]) -> Option<&'a Node> {
    match node {
        Some(Node::Directory(entries)) => entries.get(name),
        _ => None,
    }
}

fn kind(executable: bool) -> &'static str {
    if executable { "executable" } else { "file" }
}

fn entry(node: &Node) -> Entry {
    match node {
        Node::Regular { executable, size, .. } => Entry { kind: kind(*executable), size: Some(*size), target: None },
        Node::Symlink { target } => {
            let target = Some(String::from_utf8_lossy(target).into_owned());
            Entry { kind: "symlink", size: None, target }
        }
        Node::Directory(_) => Entry { kind: "directory", size: None, target: None },
    }
}

/// Hashes the contents of files, up to a limit on what is read.
struct Contents {
    reader: Option<Reader>,
    bytes_left: u64,
    files_left: usize,
    /// Where the reader is in the NAR: what it skips must be decoded, too.
    position: Option<u64>,
}

impl Contents {
    fn new(inside: &Inside) -> Self {
        let position = inside.is_decoded().then_some(0);
        Self { reader: Some(inside.reader()), bytes_left: READ_BYTES_MAX, files_left: READ_FILES_MAX, position }
    }

    fn hash(&mut self, offset: u64, size: u64, is_wanted: &dyn Fn() -> bool) -> Option<Sha256> {
        let end = offset.checked_add(size)?;
        let cost = self.position.map_or(size, |position| end.saturating_sub(position));
        self.bytes_left = self.bytes_left.checked_sub(cost)?;
        self.files_left = self.files_left.checked_sub(1)?;
        self.position = self.position.map(|_| end);
        let hashed = hash(self.reader.as_mut()?, offset, size, is_wanted);
        if hashed.is_err() {
            // After an error, the rest is not read, either.
            self.reader = None;
        }
        hashed.ok()
    }
}

fn hash(reader: &mut Reader, offset: u64, size: u64, is_wanted: &dyn Fn() -> bool) -> io::Result<Sha256> {
    let mut hasher = Sha256Hasher::new();
    if size > 0 {
        reader.begin(offset, size)?;
        reader.read_all(is_wanted, &mut |bytes| hasher.update(bytes))?;
    }
    Ok(hasher.finish())
}
