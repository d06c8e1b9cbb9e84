//! The data folder of writable caches, and one of its caches.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub use narval_client::clock::now;
use narval_keep::{Cache, CacheName, Data, DataOptions, Database, Destination, Grant};
use narval_nix::SecretKey;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::fs::Mode;
use rustix::process::umask;

use crate::args::secret_key::read_secret_key;
use crate::config::ServeConfig;
use crate::config::location::place_of;
use crate::ui::failure::Failure;

/// The default data folder.
pub const DATA_DEFAULT: &str = "/var/lib/narval";

/// The configuration file that is looked at if none is named.
const CONFIG_DEFAULT: &str = "/etc/narval/serve.toml";

/// The data folder.
#[derive(Clone, Debug, clap::Args)]
pub struct DataArgs {
    /// Data folder of the server, or the address of its bucket (`s3://…`); a server may be running with it [default: the one in the
    /// configuration file, or else /var/lib/narval]
    #[arg(long, value_name = "DIR|URL", env = "NARVAL_DATA", hide_env_values = true)]
    data: Option<PathBuf>,
    /// Configuration file of the server, which names its data folder [default: /etc/narval/serve.toml, if it exists]
    #[arg(long, value_name = "FILE", env = "NARVAL_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
    /// Database with the index of the data folder, if the server has one [default: the one in the configuration file]
    #[arg(long, value_name = "URL", env = "NARVAL_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// With a bucket: folder on this machine for uploads on their way, and the index unless it is in a database [default: the one in the
    /// configuration file]
    #[arg(long, value_name = "DIR", env = "NARVAL_CACHE_DIR", hide_env_values = true)]
    cache_dir: Option<PathBuf>,
}

/// The data to work on, and where its index is.
#[derive(Clone, Debug)]
pub struct DataLocation {
    /// The folder or the bucket.
    pub storage: narval_keep::StorageLocation,
    /// The database with its index; `None`: the index is in the folder.
    pub database: Option<Database>,
}

/// A data folder, and one of its caches.
#[derive(Clone, Debug, clap::Args)]
pub struct WritableCacheArgs {
    /// The folder.
    #[command(flatten)]
    pub data: DataArgs,
    /// Name of the cache
    #[arg(long, value_name = "NAME", default_value_t)]
    pub cache: CacheName,
}

impl DataArgs {
    /// As if these were given, and no configuration file.
    pub fn named_explicitly(data: PathBuf, database: Option<String>, cache_dir: Option<PathBuf>) -> Self {
        Self { data: Some(data), config: None, database, cache_dir }
    }

    /// The folder, to be worked on: root's new files will belong to its owner, and only that user may read them, unless the
    /// configuration file shares the folder.
    ///
    /// # Errors
    /// The configuration file cannot be used, or this process cannot act for the owner.
    pub fn place(&self) -> Result<DataLocation, Failure> {
        let (place, is_shared) = self.named()?;
        create_files_as_owner(place.storage.folder())?;
        if !is_shared {
            create_private_files();
        }
        Ok(place)
    }

    /// The keys that the configuration file has for a cache: those of the cache at `/` stand at the top, or in its section; and there are some for all
    /// that the file does not name.
    ///
    /// # Errors
    /// The file or a key cannot be read.
    pub fn sign_keys(&self, cache: &CacheName) -> Result<Vec<SecretKey>, Failure> {
        let config = self.file()?;
        let section = config.caches().into_iter().find(|section| section.name == *cache);
        let keys = section.map_or(Some(config.managed_sign_keys), |section| section.sign_keys);
        keys.iter().flatten().map(|at| read_secret_key(&at.value)).collect()
    }

    /// A destination of the configuration file.
    ///
    /// # Errors
    /// The file cannot be read, or the destination is not complete.
    pub fn destination(&self, name: &str) -> Result<Option<Destination>, Failure> {
        let config = self.file()?;
        let found =
            config.destination.iter().find(|to| to.name == name).map(|to| to.resolved().map_err(Failure::usage));
        Ok(found.transpose()?.map(|(_, to)| to))
    }

    /// The configuration file, if it is named or a usual one.
    fn file(&self) -> Result<ServeConfig, Failure> {
        let usual = || Some(PathBuf::from(CONFIG_DEFAULT)).filter(|file| self.data.is_none() && file.exists());
        match self.config.clone().or_else(usual) {
            Some(file) => ServeConfig::load(&file).map_err(Failure::usage),
            None => ServeConfig::parse("", "").map_err(Failure::usage),
        }
    }

    /// What was named, or else what the configuration file has, and whether it shares the folder. A folder that is named is not taken for
    /// the one in the usual file.
    fn named(&self) -> Result<(DataLocation, bool), Failure> {
        let file = self.file()?;
        let database = self.database.as_deref().map(parse_database).transpose()?;
        let data = self.data.clone().or(file.data).unwrap_or_else(|| PathBuf::from(DATA_DEFAULT));
        let storage = place_of(&data, self.cache_dir.clone().or(file.cache_dir), None)?;
        let database = database.or(file.database.map(|at| at.value));
        Ok((DataLocation { storage, database }, file.share_data))
    }

    /// Opens the folder, and creates it if it does not exist.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn create(&self) -> Result<Data, Failure> {
        let DataLocation { storage, database } = self.place()?;
        self.configured(
            Data::open(storage, DataOptions { database, ..DataOptions::default() }).map_err(Failure::runtime)?,
        )
    }

    /// What the configuration file says of new caches.
    fn configured(&self, data: Data) -> Result<Data, Failure> {
        data.set_makes_keys(self.file()?.managed_sign_keys.is_empty());
        Ok(data)
    }

    /// Opens the folder, which must exist.
    ///
    /// # Errors
    /// If it does not exist, or cannot be used.
    pub fn open(&self) -> Result<Data, Failure> {
        let DataLocation { storage, database } = self.place()?;
        let options = DataOptions { must_exist: true, database, ..DataOptions::default() };
        self.configured(Data::open(storage, options).map_err(Failure::usage)?)
    }
}

impl WritableCacheArgs {
    /// Opens the cache.
    ///
    /// # Errors
    /// If the folder cannot be used, or has no such cache.
    pub fn open(&self) -> Result<(Data, Cache), Failure> {
        let data = self.data.open()?;
        let cache = cache_of(&data, &self.cache)?;
        Ok((data, cache))
    }
}

/// A cache in the data of this machine.
///
/// # Errors
/// There is none with this name.
pub(crate) fn cache_of(data: &Data, name: &CacheName) -> Result<Cache, Failure> {
    let absent = || Failure::usage(format!("there is no cache '{name}' in '{}'", data.path().display()));
    data.cache(name).map_err(Failure::runtime)?.ok_or_else(absent)
}

/// Makes root's new files belong to the owner of the folder: otherwise a server that runs as that user could not write
/// to them.
///
/// Only the owner of new files changes. root can still open all other files, such as keys and archives elsewhere: the
/// capabilities for that, which the kernel drops with the user ID (capabilities(7)), are restored.
fn create_files_as_owner(data: &Path) -> Result<(), Failure> {
    let Ok(folder) = std::fs::metadata(data) else { return Ok(()) };
    if !rustix::process::geteuid().is_root() || folder.uid() == 0 {
        return Ok(());
    }
    let failed = |error| Failure::runtime(format!("cannot act as the owner of '{}': {error}", data.display()));
    let capabilities = rustix::thread::capabilities(None).map_err(failed)?;
    setfsgid(Gid::from_raw(folder.gid()));
    setfsuid(Uid::from_raw(folder.uid()));
    rustix::thread::set_capabilities(None, capabilities).map_err(failed)
}

/// From now on, other users can open none of the files and folders that this process creates: private NARs, narinfos and the hashes of
/// tokens are among them. Returns the umask of before.
///
/// This is the one rule for all of them, also for those that SQLite creates.
pub fn create_private_files() -> Mode {
    let before = umask(Mode::RWXG | Mode::RWXO);
    umask(before | Mode::RWXG | Mode::RWXO);
    before
}

/// The address of a database. Not parsed by clap, whose messages repeat the password.
///
/// # Errors
/// It is none.
pub fn parse_database(address: &str) -> Result<Database, Failure> {
    address.parse().map_err(|error| Failure::usage(format!("option --database: {error}")))
}

/// Everything is allowed to those who can use these commands: they have access to the folder.
pub fn administrator() -> Grant {
    Grant::administrator(&format!("user {}", rustix::process::geteuid().as_raw()))
}

/// The approximate age of a time: `3 days ago`.
pub fn ago(time: u64) -> String {
    let seconds = now().saturating_sub(time);
    let (number, unit) = match seconds {
        0..120 => return "just now".to_owned(),
        120..7200 => (seconds / 60, "minutes"),
        7200..172_800 => (seconds / 3600, "hours"),
        _ => (seconds / 86_400, "days"),
    };
    format!("{number} {unit} ago")
}

/// The approximate distance of a time: `in 3 days`.
pub fn ahead(time: u64) -> String {
    let seconds = time.saturating_sub(now());
    match seconds {
        0 => "expired".to_owned(),
        1..7200 => format!("in {} minutes", seconds.div_ceil(60)),
        7200..172_800 => format!("in {} hours", seconds / 3600),
        _ => format!("in {} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!((ago(now()), ago(now() - 3 * 86_400)), ("just now".to_owned(), "3 days ago".to_owned()));
        assert_eq!((ahead(1), ahead(now() + 3 * 86_400 + 5)), ("expired".to_owned(), "in 3 days".to_owned()));
    }
}
