//! Launchers: what a profile's `bin` holds in place of links if the store is not at its logical place. Such programs start in a
//! namespace only (see [`crate::run`]).

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use narval_nix::StorePath;
use narval_store::StoreConfig;

use crate::run::{CERTIFICATE_VARIABLES, SYSTEM_CERTIFICATES, certificates, is_at_home, real_place};

/// The folders of a profile whose programs are started by their names.
const FOLDERS: [&str; 2] = ["bin", "sbin"];
/// The most files and folders of a folder in which links to the store are looked for.
const ENTRIES_MAX: usize = 100_000;
/// The most that is read of a launcher.
const SIZE_MAX: u64 = 64 << 10;

/// Makes the launchers of a store.
pub(super) struct Launchers<'a> {
    config: &'a StoreConfig,
    narval: PathBuf,
    /// The certificates of authorities that the profile has.
    certificates: Option<PathBuf>,
}

impl<'a> Launchers<'a> {
    /// `None` if the programs of this store start by themselves.
    pub(super) fn of(config: &'a StoreConfig) -> Option<Self> {
        // Without its own name, it is the one on PATH.
        let narval = std::env::current_exe().unwrap_or_else(|_| "narval".into());
        (!is_at_home(config)).then_some(Self { config, narval, certificates: None })
    }

    /// The same for a profile of these paths.
    pub(super) fn with<'p>(self, paths: impl IntoIterator<Item = &'p StorePath>) -> Self {
        Self { certificates: certificates(self.config, paths), ..self }
    }

    /// Whether programs in this folder of a profile need launchers.
    pub(super) fn are_in(folder: &OsStr) -> bool {
        FOLDERS.iter().any(|name| folder == *name)
    }

    /// Where a file or folder of the store is after its symlinks, if these stay in the store.
    pub(super) fn real(&self, path: &Path) -> Option<PathBuf> {
        Some(real_place(self.config, path)).filter(|real| real.starts_with(&self.config.real_store_dir))
    }

    /// Whether a link below a folder names the logical place of the store: only programs that are started by a launcher find something there.
    pub(super) fn leads_inside(&self, folder: &Path) -> bool {
        let (mut folders, mut left) = (vec![folder.to_owned()], ENTRIES_MAX);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let Ok(kind) = entry.file_type() else { continue };
                left = left.saturating_sub(1);
                if left == 0 {
                    return false;
                }
                if kind.is_symlink()
                    && fs::read_link(entry.path())
                        .is_ok_and(|target| target.starts_with(self.config.store_dir.as_str()))
                {
                    return true;
                }
                if kind.is_dir() {
                    folders.push(entry.path());
                }
            }
        }
        false
    }

    /// The launcher of a file in the real store; `None` if it is no program.
    pub(super) fn for_program(&self, file: &Path) -> Option<Vec<u8>> {
        let found = fs::metadata(real_place(self.config, file)).ok()?;
        if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
            return None;
        }
        let config = self.config;
        let store_dir = Path::new(config.store_dir.as_str());
        let inside = store_dir.join(file.strip_prefix(&config.real_store_dir).ok()?);
        let mut text = b"#!/bin/sh\n# By narval: the store of this program is bound to its place first, unless it is there.\nprogram=".to_vec();
        quote(&mut text, &inside);
        if let Some(roots) = &self.certificates {
            text.extend(b"\nroots=");
            quote(&mut text, roots);
            text.extend(
                format!("\nfor file in {}; do [ -e \"$file\" ] && roots=; done", SYSTEM_CERTIFICATES.join(" ")).bytes(),
            );
            let set = CERTIFICATE_VARIABLES.map(|variable| format!("{variable}=\"${{{variable}:-$roots}}\"")).join(" ");
            text.extend(format!("\n[ -z \"$roots\" ] || export {set}").bytes());
        }
        text.extend(b"\n[ -x \"$program\" ] && exec \"$program\" \"$@\"\nnarval=");
        quote(&mut text, &self.narval);
        text.extend(b"\n[ -x \"$narval\" ] || narval=narval\nexec \"$narval\" internal-enter");
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
