//! Folders of this user.

use std::path::PathBuf;

/// A folder of this user as the XDG base directory specification has it: `variable`, or `below` the home. Relative ones do not count.
pub(crate) fn user_folder(variable: &str, below: &str) -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable).or_else(|| Some(absolute("HOME")?.join(below)))
}
