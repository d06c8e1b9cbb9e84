//! Settings of Nix: `nix.conf`, the user's own files and `NIX_CONFIG`.
//!
//! Rules: Nix `libutil/configuration.cc`, `libstore/globals.cc`.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The maximum depth of files that include each other.
const DEPTH_MAX: usize = 16;

/// The maximum size of a settings file.
const FILE_LEN_MAX: u64 = 1 << 20;

/// The settings for garbage collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GarbageSettings {
    /// Whether outputs of live derivations are kept.
    pub keep_outputs: bool,
    /// Whether derivers of live paths are kept.
    pub keep_derivations: bool,
}

impl Default for GarbageSettings {
    fn default() -> Self {
        Self { keep_outputs: false, keep_derivations: true }
    }
}

impl GarbageSettings {
    /// The settings of this process's environment. Files that cannot be read are ignored.
    pub fn of_process() -> Self {
        Self::of(&Assignments::of(&of_process))
    }

    fn of(assignments: &Assignments) -> Self {
        let default = Self::default();
        let of = |names: &[&str], otherwise| assignments.boolean(names).unwrap_or(otherwise);
        Self {
            keep_outputs: of(&["keep-outputs", "gc-keep-outputs"], default.keep_outputs),
            keep_derivations: of(&["keep-derivations", "gc-keep-derivations"], default.keep_derivations),
        }
    }
}

/// Nix's setting `use-sqlite-wal` in this process's environment; `None` if nothing sets it.
pub(crate) fn sqlite_wal_of_process() -> Option<bool> {
    Assignments::of(&of_process).boolean(&["use-sqlite-wal"])
}

fn boolean(value: &str) -> Option<bool> {
    match value {
        "true" | "yes" | "1" => Some(true),
        "false" | "no" | "0" => Some(false),
        _ => None,
    }
}

/// Nix's settings for binary caches: which are queried, which keys are trusted, and the credentials.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubstituterSettings {
    /// The caches to query; `None` if no file sets them: cache.nixos.org.
    pub substituters: Option<Vec<String>>,
    /// Additional caches (`extra-substituters`).
    pub extra_substituters: Vec<String>,
    /// Caches that untrusted users may request.
    pub trusted_substituters: Vec<String>,
    /// Public keys, `name:base64`; `None` if no file sets them: that of cache.nixos.org.
    pub trusted_public_keys: Option<Vec<String>>,
    /// Additional public keys (`extra-trusted-public-keys`).
    pub extra_trusted_public_keys: Vec<String>,
    /// The file with the certificates that are trusted (`ssl-cert-file`).
    pub ssl_cert_file: Option<PathBuf>,
    /// The file with credentials, if one is set. Nix's own default is `netrc` beside the system's `nix.conf`.
    pub netrc_file: Option<PathBuf>,
    /// Users, `@group`s or `*` that the daemon trusts; `None` if no file sets them: root.
    pub trusted_users: Option<Vec<String>>,
}

impl SubstituterSettings {
    /// The settings of this process's environment: the system's file, the user's files, `NIX_CONFIG`. Files that cannot
    /// be read are ignored.
    pub fn of_process() -> Self {
        Self::of(&Assignments::of(&of_process))
    }

    /// The settings that the daemon starts with: only those of the system's `nix.conf`.
    pub fn of_system() -> Self {
        let mut assignments = Assignments::default();
        assignments.read(&system_folder(&of_process).join("nix.conf"), 0);
        Self::of(&assignments)
    }

    /// As [`of_process`](Self::of_process), if this file had that text.
    pub fn of_process_with(file: &Path, text: &str) -> Self {
        let instead = Some((file.to_owned(), text.to_owned()));
        Self::of(&Assignments { instead, ..Assignments::default() }.with(&of_process))
    }

    /// The settings of a file of this text, and of the files that it includes.
    pub fn of_text(file: &Path, text: &str) -> Self {
        let mut assignments = Assignments::default();
        assignments.apply(text, file.parent().unwrap_or(file), 0);
        Self::of(&assignments)
    }

    /// The caches that files set: `substituters`, then `extra-substituters`.
    pub fn caches(&self) -> impl Iterator<Item = &String> {
        self.substituters.iter().flatten().chain(&self.extra_substituters)
    }

    /// The public keys that files set: `trusted-public-keys`, then `extra-trusted-public-keys`.
    pub fn public_keys(&self) -> impl Iterator<Item = &String> {
        self.trusted_public_keys.iter().flatten().chain(&self.extra_trusted_public_keys)
    }

    fn of(assignments: &Assignments) -> Self {
        let mut settings = Self::default();
        for (name, values) in &assignments.set {
            let values = || values.iter().cloned();
            match name.as_str() {
                // This also replaces what was added before.
                "substituters" | "binary-caches" => {
                    settings.substituters = Some(values().collect());
                    settings.extra_substituters.clear();
                }
                "extra-substituters" | "extra-binary-caches" => settings.extra_substituters.extend(values()),
                "trusted-substituters" | "trusted-binary-caches" => settings.trusted_substituters = values().collect(),
                "extra-trusted-substituters" => settings.trusted_substituters.extend(values()),
                "trusted-public-keys" | "binary-cache-public-keys" => {
                    settings.trusted_public_keys = Some(values().collect());
                    settings.extra_trusted_public_keys.clear();
                }
                "extra-trusted-public-keys" => settings.extra_trusted_public_keys.extend(values()),
                "netrc-file" => settings.netrc_file = Some(values().collect::<Vec<_>>().join(" ").into()),
                "ssl-cert-file" => {
                    let file = values().collect::<Vec<_>>().join(" ");
                    settings.ssl_cert_file = Some(file).filter(|file| !file.is_empty()).map(PathBuf::from);
                }
                "trusted-users" => settings.trusted_users = Some(values().collect()),
                "extra-trusted-users" => {
                    settings.trusted_users.get_or_insert_with(|| vec!["root".to_owned()]).extend(values());
                }
                _ => {}
            }
        }
        settings
    }
}

/// This user's `nix.conf` with the highest precedence, which need not exist: the first of `NIX_USER_CONF_FILES`,
/// otherwise `$XDG_CONFIG_HOME/nix/nix.conf`. `None` without a home directory.
pub fn user_nix_conf() -> Option<PathBuf> {
    user_files(&of_process).into_iter().next()
}

/// The folder of the system's `nix.conf`: `NIX_CONF_DIR`, otherwise `/etc/nix`.
pub fn system_nix_folder() -> PathBuf {
    system_folder(&of_process)
}

fn of_process(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn system_folder(variable: &dyn Fn(&str) -> Option<OsString>) -> PathBuf {
    variable("NIX_CONF_DIR").map_or_else(|| PathBuf::from("/etc/nix"), PathBuf::from)
}

/// The user's files. The first one has the highest precedence.
fn user_files(variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let split = |list: OsString| std::env::split_paths(&list).collect::<Vec<_>>();
    variable("NIX_USER_CONF_FILES").map(split).unwrap_or_else(|| {
        let home = variable("XDG_CONFIG_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".config")));
        let others = variable("XDG_CONFIG_DIRS").unwrap_or_else(|| "/etc/xdg".into());
        home.into_iter().chain(split(others)).map(|folder| folder.join("nix/nix.conf")).collect()
    })
}

/// `name = values`, in the order in which Nix applies them.
#[derive(Default)]
struct Assignments {
    set: Vec<(String, Vec<String>)>,
    /// A file, and the text that it is taken to have.
    instead: Option<(PathBuf, String)>,
}

impl Assignments {
    fn of(variable: &dyn Fn(&str) -> Option<OsString>) -> Self {
        Self::default().with(variable)
    }

    fn with(mut self, variable: &dyn Fn(&str) -> Option<OsString>) -> Self {
        self.read(&system_folder(variable).join("nix.conf"), 0);
        user_files(variable).iter().rev().for_each(|file| self.read(file, 0));
        if let Some(text) = variable("NIX_CONFIG") {
            self.apply(&text.to_string_lossy(), Path::new("/"), 0);
        }
        self
    }

    /// The last valid value of a setting, which may have several names.
    fn boolean(&self, names: &[&str]) -> Option<bool> {
        let of_setting = self.set.iter().filter(|(name, _)| names.contains(&name.as_str()));
        let mut values = of_setting.filter_map(|(_, values)| match values.as_slice() {
            [value] => boolean(value),
            _ => None,
        });
        values.next_back()
    }

    fn read(&mut self, path: &Path, depth: usize) {
        if let Some((_, text)) = self.instead.take_if(|(file, _)| file == path) {
            return self.apply(&text, path.parent().unwrap_or(path), depth);
        }
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
            match words.as_slice() {
                ["include" | "!include", file] if depth < DEPTH_MAX => self.read(&folder.join(file), depth + 1),
                [name, "=", values @ ..] => {
                    self.set.push(((*name).to_owned(), values.iter().map(|&value| value.to_owned()).collect()));
                }
                _ => {}
            }
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
        write("more", "gc-keep-derivations = false\nkeep-outputs true\nkeep-outputs = no and no\n");
        write("user", "keep-derivations = yes\n");
        let of = |user: &str, config: &str| {
            GarbageSettings::of(&Assignments::of(&|name| match name {
                "NIX_CONF_DIR" => Some(dir.path().into()),
                "NIX_USER_CONF_FILES" => Some(dir.path().join(user).into()),
                "NIX_CONFIG" => Some(config.into()),
                _ => None,
            }))
        };
        assert_eq!(of("none", ""), GarbageSettings { keep_outputs: true, keep_derivations: false });
        assert_eq!(of("user", "keep-outputs = 0"), GarbageSettings { keep_outputs: false, keep_derivations: true });
        let nowhere = Assignments::of(&|_| Some("/nonexistent".into()));
        assert_eq!(GarbageSettings::of(&nowhere), GarbageSettings::default());
    }

    #[test]
    fn caches_are_replaced_and_added() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("nix.conf", "substituters = https://a https://b\ntrusted-public-keys = a:A=\nextra-trusted-users = me\n");
        write(
            "first",
            "extra-substituters = https://c\nextra-substituters = https://d\nnetrc-file = /home/a b/netrc\n",
        );
        write(
            "second",
            "substituters = https://e\nextra-trusted-public-keys = e:E=\nnetrc-file = /other\nssl-cert-file = /etc/my certificates.pem\n",
        );
        let list = format!("{0}/first:{0}/second", dir.path().display());
        let settings = SubstituterSettings::of(&Assignments::of(&|name| match name {
            "NIX_CONF_DIR" => Some(dir.path().into()),
            "NIX_USER_CONF_FILES" => Some(list.clone().into()),
            _ => None,
        }));
        let expected = SubstituterSettings {
            substituters: Some(vec!["https://e".into()]),
            extra_substituters: vec!["https://c".into(), "https://d".into()],
            trusted_substituters: vec![],
            trusted_public_keys: Some(vec!["a:A=".into()]),
            extra_trusted_public_keys: vec!["e:E=".into()],
            ssl_cert_file: Some("/etc/my certificates.pem".into()),
            netrc_file: Some("/home/a b/netrc".into()),
            trusted_users: Some(vec!["root".into(), "me".into()]),
        };
        assert_eq!(settings, expected);
    }

    #[test]
    fn the_users_file_is_where_nix_looks() {
        let of = |set: &[(&str, &str)]| {
            let find = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
            user_files(&find).into_iter().next()
        };
        assert_eq!(of(&[("HOME", "/h")]), Some("/h/.config/nix/nix.conf".into()));
        assert_eq!(of(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")]), Some("/x/nix/nix.conf".into()));
        assert_eq!(of(&[("HOME", "/h"), ("NIX_USER_CONF_FILES", "/u:/v")]), Some("/u".into()));
    }
}
