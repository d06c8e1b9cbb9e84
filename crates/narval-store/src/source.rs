//! A store as a source.

use std::fmt::Display;
use std::io::{self, ErrorKind, Read};

use narval_nix::{HashPart, NarInfo, PathInfo, StoreDir};

use crate::error::StoreError;
use crate::hashes::Hashed;
use crate::nar::NarReader;
use crate::store::Store;
use crate::transfer::{NarInput, NarOptions, Source};

impl Source for Store {
    type Entry = PathInfo;
    type Error = StoreError;

    fn store_dir(&self) -> &StoreDir {
        Self::store_dir(self)
    }

    fn find(&self, hash_part: &HashPart) -> Result<Option<PathInfo>, StoreError> {
        self.path_info_by_hash_part(hash_part)
    }

    fn info<'a>(&self, entry: &'a PathInfo) -> &'a PathInfo {
        entry
    }

    fn narinfo<'a>(&self, _: &'a PathInfo) -> Option<&'a NarInfo> {
        None
    }

    fn nar<'a>(
        &'a self,
        entry: &'a PathInfo,
        _: NarOptions<'a>,
    ) -> Result<Box<dyn NarInput<Error = StoreError> + 'a>, StoreError> {
        let path = self.real_path(&entry.path);
        let nar = NarReader::open(&path).map_err(|error| StoreError::io("read", &path, io::Error::from(error)))?;
        Ok(Box::new(Files { nar, info: entry }))
    }
}

/// The files of a path as a NAR.
struct Files<'a> {
    nar: NarReader,
    info: &'a PathInfo,
}

impl Files<'_> {
    fn changed(&self) -> StoreError {
        StoreError::Changed { path: self.info.path.clone() }
    }
}

impl NarInput for Files<'_> {
    type Error = StoreError;

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, StoreError> {
        loop {
            match self.nar.read(buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => return read.map_err(|source| StoreError::Nar { path: self.info.path.clone(), source }),
            }
        }
    }

    fn check(&mut self, nar_len: u64, hashed: &Hashed) -> Result<(), StoreError> {
        let is_registered = (nar_len, hashed.nar) == (self.info.nar_size, self.info.nar_hash);
        if is_registered && hashed.fits_the_name() { Ok(()) } else { Err(self.changed()) }
    }

    fn invalid(&self, _: &dyn Display) -> StoreError {
        self.changed()
    }
}
