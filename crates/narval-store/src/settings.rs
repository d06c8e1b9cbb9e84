//! Settings of Nix that a writer of its store must heed: `nix.conf`, the user's own files and `NIX_CONFIG`.
//!
//! Rules: Nix `libutil/configuration.cc`, `libstore/globals.cc`.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Files that include each other are followed this deep.
const DEPTH_MAX: usize = 16;

/// The largest file of settings that is read.
const FILE_LEN_MAX: u64 = 1 << 20;

/// What a garbage collection has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GarbageSettings {
    /// Outputs of derivations that are kept stay.
    pub keep_outputs: bool,
    /// Derivations of paths that are kept stay.
    pub keep_derivations: bool,
}

impl Default for GarbageSettings {
    fn default() -> Self {
        Self { keep_outputs: false, keep_derivations: true }
    }
}

impl GarbageSettings {
    /// The settings of this process's environment. What can't be read is not set.
    pub fn of_process() -> Self {
        Self::of(&|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn of(variable: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let mut settings = Self::default();
        let folder = variable("NIX_CONF_DIR").map_or_else(|| PathBuf::from("/etc/nix"), PathBuf::from);
        settings.read(&folder.join("nix.conf"), 0);
        let split = |list: OsString| std::env::split_paths(&list).collect::<Vec<_>>();
        let files = variable("NIX_USER_CONF_FILES").map(split).unwrap_or_else(|| {
            let home = variable("XDG_CONFIG_HOME").map(PathBuf::from);
            let home = home.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".config")));
            let others = variable("XDG_CONFIG_DIRS").unwrap_or_else(|| "/etc/xdg".into());
            home.into_iter().chain(split(others)).map(|folder| folder.join("nix/nix.conf")).collect()
        });
        // The first one counts most.
        files.iter().rev().for_each(|file| settings.read(file, 0));
        if let Some(text) = variable("NIX_CONFIG") {
            settings.apply(&text.to_string_lossy(), Path::new("/"), 0);
        }
        settings
    }

    fn read(&mut self, path: &Path, depth: usize) {
        let mut text = Vec::new();
        let read = File::open(path).and_then(|file| file.take(FILE_LEN_MAX).read_to_end(&mut text));
        match read {
            Ok(_) => self.apply(&String::from_utf8_lossy(&text), path.parent().unwrap_or(path), depth),
            Err(error) => tracing::debug!(path = %path.display(), %error, "no settings from here"),
        }
    }

    fn apply(&mut self, text: &str, folder: &Path, depth: usize) {
        for line in text.lines() {
            let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_ascii_whitespace().collect();
            match *words.as_slice() {
                ["include" | "!include", file] if depth < DEPTH_MAX => self.read(&folder.join(file), depth + 1),
                [name, "=", value] => self.set(name, value),
                _ => {}
            }
        }
    }

    fn set(&mut self, name: &str, value: &str) {
        let value = match value {
            "true" | "yes" | "1" => true,
            "false" | "no" | "0" => false,
            _ => return,
        };
        match name {
            "keep-outputs" | "gc-keep-outputs" => self.keep_outputs = value,
            "keep-derivations" | "gc-keep-derivations" => self.keep_derivations = value,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_settings_count() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("nix.conf", "# keep-outputs = false\nkeep-outputs = true # for builders\n!include none\ninclude more\n");
        write("more", "gc-keep-derivations = false\nkeep-outputs true\n");
        write("user", "keep-derivations = yes\n");
        let of = |user: &str, config: &str| {
            GarbageSettings::of(&|name| match name {
                "NIX_CONF_DIR" => Some(dir.path().into()),
                "NIX_USER_CONF_FILES" => Some(dir.path().join(user).into()),
                "NIX_CONFIG" => Some(config.into()),
                _ => None,
            })
        };
        assert_eq!(of("none", ""), GarbageSettings { keep_outputs: true, keep_derivations: false });
        assert_eq!(of("user", "keep-outputs = 0"), GarbageSettings { keep_outputs: false, keep_derivations: true });
        assert_eq!(GarbageSettings::of(&|_| Some("/nonexistent".into())), GarbageSettings::default());
    }
}
