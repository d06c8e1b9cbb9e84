//! What is computed of a NAR on its way: its hash, and where a path's name says the hash of a file's contents, that too.

use narval_nix::hash::Sha256Hasher;
use narval_nix::nar::{Decoder, Event};
use narval_nix::{ContentsCheck, PathInfo, Sha256, StoreDir};

/// The hashes of one NAR.
pub(crate) struct Hashes {
    nar: Sha256Hasher,
    file: Option<FileHasher>,
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hashed {
    /// The hash of the NAR.
    pub(crate) nar: Sha256,
    /// The hash that the path's name wants of the file's contents, and what they have; none if it is no file.
    pub(crate) file: Option<(Sha256, Option<Sha256>)>,
}

impl Hashed {
    /// Whether the contents are those that the name wants, if it wants any.
    pub(crate) fn fits_the_name(&self) -> bool {
        self.file.is_none_or(|(expected, found)| found == Some(expected))
    }
}

impl Hashes {
    /// For a path of which this is known.
    pub(crate) fn of(info: &PathInfo, store_dir: &StoreDir) -> Self {
        let file = match info.check_by_contents(store_dir) {
            Some(ContentsCheck::File(expected)) => Some(FileHasher::new(expected)),
            Some(ContentsCheck::Nar) | None => None,
        };
        Self { nar: Sha256Hasher::new(), file }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.nar.update(bytes);
        if let Some(file) = &mut self.file {
            file.update(bytes);
        }
    }

    pub(crate) fn finish(self) -> Hashed {
        Hashed { nar: self.nar.finish(), file: self.file.map(|file| (file.expected, file.finish())) }
    }
}

/// The contents of a NAR that is one regular file: store paths named by `text:` and `fixed:` without `r:`.
struct FileHasher {
    expected: Sha256,
    decoder: Decoder,
    hasher: Option<Sha256Hasher>,
    /// Whether the NAR is one file and nothing else.
    is_file: bool,
}

impl FileHasher {
    fn new(expected: Sha256) -> Self {
        Self { expected, decoder: Decoder::new(), hasher: None, is_file: true }
    }

    fn update(&mut self, mut bytes: &[u8]) {
        while self.is_file {
            match self.decoder.next(bytes) {
                Ok((_, None)) => return,
                Ok((used, Some(event))) => {
                    match event {
                        // An executable file has a hash of another kind (Nix `content-address.cc`: flat and text are plain).
                        Event::Regular { executable: false, .. } => self.hasher = Some(Sha256Hasher::new()),
                        Event::Contents(contents) => {
                            if let Some(hasher) = &mut self.hasher {
                                hasher.update(contents);
                            }
                        }
                        Event::EndRegular => {}
                        _ => self.is_file = false,
                    }
                    bytes = bytes.get(used..).unwrap_or_default();
                }
                // Whoever unpacks it says what is wrong.
                Err(_) => self.is_file = false,
            }
        }
    }

    fn finish(self) -> Option<Sha256> {
        self.hasher.filter(|_| self.is_file).map(Sha256Hasher::finish)
    }
}
