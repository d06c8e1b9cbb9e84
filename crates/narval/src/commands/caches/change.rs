//! Changes of settings files, which are shown before they are made.

use narval_install::settings::{NixConfError, Settled, diff, replace};

use crate::ui::failure::Failure;
use crate::ui::output::out;

/// A file and its new contents.
pub(super) struct Change {
    pub(super) file: Settled,
    pub(super) after: String,
    pub(super) mode: u32,
    pub(super) show: fn(&str) -> String,
}

impl Change {
    /// Whether anything changes.
    pub(super) fn is_one(&self) -> bool {
        self.file.text != self.after
    }

    /// Shows what changes.
    pub(super) fn print(&self) {
        out!("{}", self.file.path.display());
        for (mark, line) in diff::lines(&self.file.text, &self.after, self.show) {
            out!("{mark} {line}");
        }
    }

    /// Refuses to change a file that is made by others.
    pub(super) fn is_changeable(&self) -> Result<(), Failure> {
        if self.file.path.starts_with("/nix/store") {
            return Err(Failure::usage(format!(
                "{} is in the Nix store: add the lines above where it is generated (Home Manager: nix.settings)",
                self.file.path.display()
            )));
        }
        Ok(())
    }

    /// Writes it.
    pub(super) fn make(&self) -> Result<(), Failure> {
        self.is_changeable()?;
        Ok(replace(&self.file, &self.after, self.mode)?)
    }
}

/// An error in a settings file.
pub(super) fn in_file(conf: &Settled, error: NixConfError) -> Failure {
    Failure::usage(format!("{}: {error}", conf.path.display()))
}
