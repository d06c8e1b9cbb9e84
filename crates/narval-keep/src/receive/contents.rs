//! Whether the contents of a path are those that its content address names.
//!
//! A NAR arrives before its narinfo, so its content address is not known yet. The hash of a single file, which `text:` and flat
//! `fixed:` addresses name, is computed in the pass over the upload and remembered; the rare ones of other algorithms, and those of
//! paths that refer to themselves, are computed by reading the stored NAR again.

use std::collections::HashMap;
use std::io::{self, BufReader, Read};

use narval_nix::{Algorithm, ContentsCheck, ContentsClaim, ContentsHasher, HashedContents, NarHash, NarInfo};

use super::no_window;
use crate::cache::Cache;
use crate::records::paths::NarRecord;
use crate::rejection::Rejection;
use crate::settings::CacheSettings;
use narval_codec::decode::{DecodeError, Decoder, INPUT_LEN, is_no_window};

/// The maximum number of bytes of NARs that one commit reads again, besides the first.
const READ_AGAIN_MAX: u64 = 16 << 30;

/// What a commit has found out about NARs: paths of different names may have the same contents.
#[derive(Default)]
pub(crate) struct Checked {
    are_right: HashMap<(NarHash, ContentsCheck), bool>,
    read: u64,
}

impl Cache {
    /// Refuses a path whose NAR does not have the hash of its content address.
    pub(crate) fn check_contents(
        &self,
        info: &NarInfo,
        (name, nar): (&str, &NarRecord),
        settings: &CacheSettings,
        checked: &mut Checked,
    ) -> Result<(), Rejection> {
        // A content address that belongs to another path was refused before, and one with BLAKE3 cannot be checked.
        let ContentsClaim::Check(check) = info.path_info(0).contents_claim(&settings.store_dir) else { return Ok(()) };
        let is_right = match checked.are_right.get(&(nar.nar_hash, check)) {
            Some(is_right) => *is_right,
            None => {
                let is_right = self.are_contents(&check, (name, nar), checked)?;
                checked.are_right.insert((nar.nar_hash, check), is_right);
                is_right
            }
        };
        if is_right {
            return Ok(());
        }
        let ca = info.ca.map(|ca| ca.to_string()).unwrap_or_default();
        let message = format!(
            "'{}' is refused: its contents do not have the hash of its CA '{ca}': the store that it comes from is damaged \
             ('nix-store --verify-path' says so)",
            info.path
        );
        Err(Rejection::unprocessable(message))
    }

    fn are_contents(
        &self,
        check: &ContentsCheck,
        (name, nar): (&str, &NarRecord),
        checked: &mut Checked,
    ) -> Result<bool, Rejection> {
        let (expected, of) = match check {
            ContentsCheck::Nar => return Ok(true),
            ContentsCheck::Hash { expected, of } => (expected, of),
        };
        let is_sha256 = expected.algorithm() == Algorithm::Sha256;
        if is_sha256 && *of == HashedContents::Nar {
            // It would be `ContentsCheck::Nar`.
            return Ok(false);
        }
        if is_sha256
            && *of == HashedContents::File
            && let Some(file) = self.shared().file_hashes.0.get(&(self.id(), nar.nar_hash))
        {
            return Ok(expected.sha256() == Ok(file));
        }
        let Some(mut hasher) = ContentsHasher::new(check) else { return Ok(true) };
        if checked.read > 0 && checked.read.saturating_add(nar.nar_size) > READ_AGAIN_MAX {
            let message = format!(
                "NARs of more than {READ_AGAIN_MAX} bytes must be read again to check this commit; commit fewer at once"
            );
            return Err(Rejection::too_large(message));
        }
        checked.read = checked.read.saturating_add(nar.nar_size);
        let failed = |error: io::Error| Rejection::of_file("read", name, &error);
        let file = self.files().read(&format!("nar/{name}")).map_err(failed)?;
        let file = file.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let input = BufReader::with_capacity(INPUT_LEN, file);
        let mut decoder =
            Decoder::with_window(&nar.compression, input, self.shared().window_memory.window()).map_err(|error| {
                match error {
                    DecodeError::NoWindow(_) => no_window(),
                    error => failed(io::Error::other(error.to_string())),
                }
            })?;
        let mut buffer = vec![0; INPUT_LEN];
        loop {
            let read = decoder.read(&mut buffer);
            match read.map_err(|error| if is_no_window(&error) { no_window() } else { failed(error) })? {
                0 => break,
                len => hasher.update(buffer.get(..len).unwrap_or_default()),
            }
        }
        Ok(hasher.finish() == Some(*expected))
    }
}
