//! The address of a database: `postgres://user@host:port/name?sslmode=…`.

use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::failed::describe;
use crate::index::IndexError;

/// How long a connection may take, the name's look-up and TLS included.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What the database sees of a connection in its list of activities.
const APPLICATION: &str = "narval";

/// A database, and what it is called in messages.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) config: Config,
    /// Without the password.
    pub(super) name: String,
}

impl Address {
    /// Reads an address, with the parameters that libpq's have. The password is that of `PGPASSWORD` if it has none: addresses on a
    /// command line can be read by everybody on the machine.
    pub(super) fn parse(text: &str) -> Result<Self, IndexError> {
        let unusable = |reason: String| IndexError::Unusable { database: without_password(text), reason };
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return Err(unusable("it is not 'postgres://USER@HOST/DATABASE'".to_owned()));
        }
        // Certificates are verified whatever is asked for: the stricter modes are what 'require' means here.
        let text =
            text.replace("sslmode=verify-full", "sslmode=require").replace("sslmode=verify-ca", "sslmode=require");
        let mut config: Config = text.parse().map_err(|error: tokio_postgres::Error| unusable(describe(&error)))?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(unusable("it names no host: 'postgres://USER@HOST/DATABASE'".to_owned()));
        }
        if config.get_password().is_none()
            && let Some(password) = std::env::var_os("PGPASSWORD").filter(|password| !password.is_empty())
        {
            config.password(password.into_encoded_bytes());
        }
        config.application_name(APPLICATION).connect_timeout(CONNECT_TIMEOUT);
        let name = name(&config);
        Ok(Self { config, name })
    }
}

fn name(config: &Config) -> String {
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        })
        .collect();
    let port = config.get_ports().first().filter(|port| **port != 5432).map(|port| format!(":{port}"));
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("postgres://{}{}/{database}", hosts.join(","), port.unwrap_or_default())
}

/// The text without what may be a password: the host, the port and the name, if they can be told from a password for certain.
fn without_password(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return "…".to_owned() };
    if !scheme.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        return "…".to_owned();
    }
    let place = match rest.rsplit_once('@') {
        // Either a password with a '?', or a parameter with an '@'.
        Some((user, _)) if user.contains('?') => "…",
        Some((_, place)) => place.split('?').next().unwrap_or_default(),
        // A forgotten host: what comes after ':' may be a password.
        None => rest.split([':', '?']).next().unwrap_or_default(),
    };
    format!("{scheme}://{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_in_no_message() {
        let address = Address::parse("postgres://user:secret@db.example.org:6432/cache?sslmode=verify-full").unwrap();
        assert_eq!(address.name, "postgres://db.example.org:6432/cache");
        for wrong in [
            "mysql://u:secret@h/d",
            "postgres://u:secret@h/d?nonsense=secret",
            "postgres://u:secret@/d",
            "postgres://u:se@cret@h:port/d",
            "mysql://u:secret?more@h/d",
            "mysql://u:x?secret@h/d",
            "mysql://u@h/d?password=x@secret",
            "postgres://u:secret",
            "host=h user=u password=secret",
            "host=h password=secret options=x://y",
        ] {
            let Err(error) = Address::parse(wrong) else { panic!("{wrong}") };
            assert!(!error.to_string().contains("secret") && !error.to_string().contains("cret@"), "{error}");
        }
    }
}
