//! `[[destination]]`: where jobs may copy caches to.

use std::path::PathBuf;

use narval_client::{Scheme, Url};
use narval_keep::{Database, Destination as KeepDestination};

use crate::config::ConfigError;
use crate::config::field::table;
use crate::config::kinds::{parsed, path, path_unless, text};
use crate::config::location::place_of;

table! {
    /// A place that jobs may copy caches to. Whoever administers a cache names it; nobody chooses another one.
    Destination {
        /// Name by which `narval cache export` and `migrate` with `--at` call it; see docs/api.md#jobs
        name: String = text(),
        /// Address of plain binary caches, for `narval cache export`: `file:///folder` or `s3://BUCKET`. Each cache is below it, in a folder with its name
        url: Option<Url> = parsed::<Url>("file:///FOLDER or s3://BUCKET,"),
        /// Data folder or bucket of other servers, for `narval cache migrate`
        data: Option<PathBuf> = path_unless(crate::config::is_bucket),
        /// Database with its index
        database: Option<Database> = parsed::<Database>("the address of a database, postgres://USER@HOST/DATABASE,").secret().nix("database"),
        /// If `data` is a bucket: folder on this machine for uploads on their way, and for the index unless a database has it
        cache_dir: Option<PathBuf> = path(),
    }
}

impl Destination {
    /// What it is.
    ///
    /// # Errors
    /// It is neither of the two, or not complete.
    pub fn resolved(&self) -> Result<(String, KeepDestination), ConfigError> {
        let wrong = |why: &dyn std::fmt::Display| self.origin.error("destination", format!("'{}': {why}", self.name));
        let to = match (&self.url, &self.data) {
            (Some(url), None) if self.database.is_some() || self.cache_dir.is_some() => {
                return Err(wrong(&format!("a plain binary cache ('{url}') has neither 'database' nor 'cache-dir'")));
            }
            (Some(url), None) if matches!(url.scheme(), Scheme::File | Scheme::S3) => {
                KeepDestination::Export(url.clone())
            }
            (Some(_), None) => return Err(wrong(&"'url' is file:///FOLDER or s3://BUCKET")),
            (None, Some(data)) => {
                let place = place_of(data, self.cache_dir.clone(), None).map_err(|failure| wrong(&failure))?;
                KeepDestination::Migrate { place, database: self.database.clone() }
            }
            _ => return Err(wrong(&"it has either 'url', to export to, or 'data', to migrate to")),
        };
        Ok((self.name.clone(), to))
    }
}
