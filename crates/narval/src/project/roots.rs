//! Roots of projects: the locked paths that a project has used are no garbage, as long as its folder has `narval.lock`.
//!
//! They are links in the user's state, not in the project's folder: that may be read-only, and links in it may lead anywhere.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use narval_install::Destination;
use narval_nix::StorePath;

use super::locked::FILE;
use super::{Project, all_states};
use crate::ui::failure::Failure;

/// The folder with the links, one for each path.
const ROOTS: &str = "roots";
/// The link to the project's folder.
const FOLDER: &str = "folder";

/// Makes paths the roots of a project, in place of those before. `is_new`: whether the store may not know them.
pub(crate) fn protect(
    destination: &Destination,
    project: &Project,
    paths: &[StorePath],
    is_new: bool,
) -> Result<(), Failure> {
    forget_deleted();
    let state = project.state()?;
    let roots = state.join(ROOTS);
    let failed = |path: &Path, error: std::io::Error| Failure::of_file(&path.display().to_string(), &error);
    let link = |path: &StorePath| roots.join(path.base_name());
    let target = |path: &StorePath| PathBuf::from(destination.store_dir().display(path).to_string());
    let before: BTreeSet<PathBuf> = entries(&roots).collect();
    let wanted: BTreeSet<PathBuf> = paths.iter().map(link).collect();
    if before != wanted || is_new {
        fs::create_dir_all(&roots).map_err(|error| failed(&roots, error))?;
        let folder = state.join(FOLDER);
        if fs::read_link(&folder).ok().as_deref() != Some(project.folder()) {
            symlink(project.folder(), &folder).map_err(|error| failed(&folder, error))?;
        }
        for path in paths {
            if fs::read_link(link(path)).ok() != Some(target(path)) {
                drop(fs::remove_file(link(path)));
                symlink(target(path), link(path)).map_err(|error| failed(&link(path), error))?;
            }
        }
        destination.add_indirect_roots(paths.iter().map(link))?;
        // Only now: another system's, or another store's paths are roots of the project until it is used with these.
        before.difference(&wanted).for_each(|old| drop(fs::remove_file(old)));
    }
    Ok(())
}

/// Removes the roots of projects that are not there any more.
pub(crate) fn forget_deleted() {
    let Ok(all) = all_states() else { return };
    for state in entries(&all) {
        let exists = fs::read_link(state.join(FOLDER)).map(|folder| folder.join(FILE).exists());
        if matches!(exists, Ok(false)) {
            // What cannot be removed is tried again.
            drop(fs::remove_dir_all(state.join(ROOTS)));
            drop(fs::remove_file(state.join(FOLDER)));
        }
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}
