//! Runs programs of a store that is not at `/nix/store`, without root: in a user and mount namespace in which it is.

mod enter;
mod follow;
mod helper;

pub use enter::{EnterError, Others, enter, others_hidden};
pub use follow::{Follow, follow};
pub use helper::helper;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use narval_nix::{PackageName, StorePath};
use narval_store::StoreConfig;

use narval_transfer::Error;

/// Whether the store is at its logical place, so that programs need no namespace.
pub fn is_at_home(config: &StoreConfig) -> bool {
    let home = Path::new(config.store_dir.as_str());
    config.real_store_dir == home
        || matches!((fs::canonicalize(&config.real_store_dir), fs::canonicalize(home)), (Ok(a), Ok(b)) if a == b)
}

/// The program to run for paths without a command: the one of this name, if the package says which that is; otherwise `bin/<name without version>`, or the only
/// one in `bin`. The result is below the logical store directory, as seen inside the namespace.
///
/// # Errors
/// [`Error::Usage`] if there is none, or more than one.
pub fn main_program(config: &StoreConfig, paths: &[StorePath], named: Option<&str>) -> Result<PathBuf, Error> {
    let programs = |path: &StorePath| -> Option<Vec<OsString>> {
        let bin = real_place(config, &config.real_store_dir.join(path.base_name()).join("bin"));
        let all = fs::read_dir(bin).ok()?.flatten().map(|entry| entry.file_name());
        // What a wrapper starts is hidden: `.rg-wrapped`.
        Some(all.filter(|name| !name.as_encoded_bytes().starts_with(b".")).collect())
    };
    let advice = "say what to run after --";
    let with_programs: Vec<_> = paths.iter().filter_map(|path| Some((path, programs(path)?))).collect();
    let inside = |path: &StorePath| Path::new(config.store_dir.as_str()).join(path.base_name()).join("bin");
    if let Some(named) = named {
        let found = with_programs.iter().find(|(_, programs)| programs.iter().any(|program| program == named));
        let none = || Error::Usage(format!("'{named}', its main program, is not in what is installed: {advice}"));
        return found.map(|(path, _)| inside(path).join(named)).ok_or_else(none);
    }
    let [(path, programs)] = with_programs.as_slice() else {
        let several = || format!("several paths have programs: {advice}");
        return Err(Error::Usage(match (with_programs.is_empty(), paths) {
            (true, [path]) => format!("{path} has no bin folder: {advice}"),
            (true, _) => format!("no path has a bin folder: {advice}"),
            (false, _) => several(),
        }));
    };
    let wanted = PackageName::of(path.name()).package;
    match programs.as_slice() {
        all if all.iter().any(|program| program == wanted) => Ok(inside(path).join(wanted)),
        [only] => Ok(inside(path).join(only)),
        all => Err(Error::Usage(format!(
            "{path} has {} programs and none is called '{wanted}': say which after --",
            all.len()
        ))),
    }
}

/// The maximum number of symlinks from a file to where it is.
const LINKS_MAX: usize = 40;

/// Where a file or folder of the store is after its symlinks, which name the logical place.
pub(crate) fn real_place(config: &StoreConfig, path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(target) = fs::read_link(&path) else { break };
        path = match target.strip_prefix(config.store_dir.as_str()) {
            Ok(below) => config.real_store_dir.join(below),
            Err(_) => path.parent().unwrap_or(Path::new("/")).join(target),
        };
    }
    path
}

/// Files with the certificates of authorities where systems have them, as Nix looks for them (`nix-profile.sh`).
pub const SYSTEM_CERTIFICATES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/certs/ca-bundle.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/var/lib/ca-certificates/ca-bundle.pem",
];
/// The same in a path or profile (package `cacert`).
pub const CERTIFICATES: &str = "etc/ssl/certs/ca-bundle.crt";
/// The variables that name such a file: Nix's, and OpenSSL's.
pub const CERTIFICATE_VARIABLES: [&str; 2] = ["NIX_SSL_CERT_FILE", "SSL_CERT_FILE"];

/// Whether this system has certificates of authorities.
pub fn has_certificates() -> bool {
    SYSTEM_CERTIFICATES.iter().any(|file| Path::new(file).exists())
}

/// The certificates that one of these paths has, at the logical place.
pub(crate) fn certificates<'a>(
    config: &StoreConfig,
    paths: impl IntoIterator<Item = &'a StorePath>,
) -> Option<PathBuf> {
    let below = |path: &StorePath| Path::new(path.base_name()).join(CERTIFICATES);
    let has = |file: &PathBuf| real_place(config, &config.real_store_dir.join(file)).exists();
    let found = paths.into_iter().map(below).find(has)?;
    Some(Path::new(config.store_dir.as_str()).join(found))
}

/// Variables for a shell with these paths: their `bin` folders before the existing values, and the certificates that one of them has if the system has none.
pub fn shell_variables(config: &StoreConfig, paths: &[StorePath]) -> Vec<(&'static str, OsString)> {
    let own = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty());
    // Without a PATH, an empty element would be the working directory; in MANPATH, it stands for the default ones.
    let folders = [
        ("PATH", "bin", None),
        ("XDG_DATA_DIRS", "share", Some("/usr/local/share:/usr/share")),
        ("MANPATH", "share/man", Some("")),
    ];
    let mut variables = Vec::new();
    for (variable, below, without) in folders {
        let has =
            |path: &&StorePath| real_place(config, &config.real_store_dir.join(path.base_name()).join(below)).is_dir();
        let place = |path: &StorePath| Path::new(config.store_dir.as_str()).join(path.base_name()).join(below);
        let mut all: Vec<OsString> = paths.iter().filter(has).map(|path| place(path).into()).collect();
        if !all.is_empty() {
            all.extend(own(variable).or(without.map(OsString::from)));
            variables.push((variable, all.join(OsStr::new(":"))));
        }
    }
    if let Some(file) = certificates(config, paths).filter(|_| !has_certificates()) {
        let open = CERTIFICATE_VARIABLES.into_iter().filter(|variable| own(variable).is_none());
        variables.extend(open.map(|variable| (variable, file.clone().into())));
    }
    variables
}
