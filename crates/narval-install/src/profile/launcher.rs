//! Launchers: what a profile's `bin` holds in place of links if the store is not at its logical place. Such programs start in a
//! namespace only (see [`crate::run`]).

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use narval_store::StoreConfig;

use crate::run::is_at_home;

/// The folders of a profile whose programs are started by their names.
const FOLDERS: [&str; 2] = ["bin", "sbin"];
/// The maximum number of symlinks from a file of a profile to where it is.
const LINKS_MAX: usize = 40;
/// The most that is read of a launcher.
const SIZE_MAX: u64 = 64 << 10;

/// Makes the launchers of a store.
pub(super) struct Launchers<'a> {
    config: &'a StoreConfig,
    narval: PathBuf,
}

impl<'a> Launchers<'a> {
    /// `None` if the programs of this store start by themselves.
    pub(super) fn of(config: &'a StoreConfig) -> Option<Self> {
        // Without its own name, it is the one on PATH.
        let narval = std::env::current_exe().unwrap_or_else(|_| "narval".into());
        (!is_at_home(config)).then_some(Self { config, narval })
    }

    /// Whether programs in this folder of a profile need launchers.
    pub(super) fn are_in(folder: &OsStr) -> bool {
        FOLDERS.iter().any(|name| folder == *name)
    }

    /// Where a file or folder of the store is after its symlinks, which name the logical place.
    pub(super) fn real(&self, path: &Path) -> PathBuf {
        let mut path = path.to_owned();
        for _ in 0..LINKS_MAX {
            let Ok(target) = fs::read_link(&path) else { break };
            path = match target.strip_prefix(self.config.store_dir.as_str()) {
                Ok(below) => self.config.real_store_dir.join(below),
                Err(_) => path.parent().unwrap_or(Path::new("/")).join(target),
            };
        }
        path
    }

    /// The launcher of a file in the real store; `None` if it is no program.
    pub(super) fn for_program(&self, file: &Path) -> Option<Vec<u8>> {
        let found = fs::metadata(self.real(file)).ok()?;
        if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
            return None;
        }
        let config = self.config;
        let store_dir = Path::new(config.store_dir.as_str());
        let inside = store_dir.join(file.strip_prefix(&config.real_store_dir).ok()?);
        let mut text = b"#!/bin/sh\n# By narval: the store of this program is bound to its place first, unless it is there.\nprogram=".to_vec();
        quote(&mut text, &inside);
        text.extend(b"\n[ -x \"$program\" ] && exec \"$program\" \"$@\"\nnarval=");
        quote(&mut text, &self.narval);
        text.extend(b"\n[ -x \"$narval\" ] || narval=narval\nexec \"$narval\" __enter");
        for argument in [&*config.real_store_dir, store_dir, &config.state_dir.join("narval-root")] {
            text.push(b' ');
            quote(&mut text, argument);
        }
        text.extend(b" -- \"$program\" \"$@\"\n");
        Some(text)
    }

    /// Whether a file is a launcher of this store by this program.
    pub(super) fn made(&self, file: &Path) -> bool {
        let mut ends = Vec::new();
        for place in [&self.config.real_store_dir, &self.narval] {
            let mut quoted = Vec::new();
            quote(&mut quoted, place);
            ends.push(quoted);
        }
        let has = |text: &[u8], part: &[u8]| text.windows(part.len()).any(|window| window == part);
        let is_small = fs::metadata(file).is_ok_and(|found| found.len() <= SIZE_MAX);
        is_small && fs::read(file).is_ok_and(|text| ends.iter().all(|part| has(&text, part)))
    }
}

/// Writes a launcher.
pub(super) fn write(to: &Path, text: &[u8]) -> io::Result<()> {
    fs::write(to, text)?;
    fs::set_permissions(to, Permissions::from_mode(0o755))
}

/// One word of a shell.
fn quote(text: &mut Vec<u8>, word: &Path) {
    text.push(b'\'');
    for byte in word.as_os_str().as_bytes() {
        match byte {
            b'\'' => text.extend(b"'\\''"),
            byte => text.push(*byte),
        }
    }
    text.push(b'\'');
}
