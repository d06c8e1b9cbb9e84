//! The address of a database: `postgres://user@host:port/name?sslmode=…`, with one host or several, of which one takes writes at a time.

use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, TargetSessionAttrs};

use super::failed::describe;
use crate::index::IndexError;

/// How long a connection may take, the name's look-up and TLS included. Several hosts share it, because the first may be a machine that is silent.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What each of many hosts has of it.
const CONNECT_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// What the database sees of a connection in its list of activities.
const APPLICATION: &str = "narval";

/// A database, and what it is called in messages.
pub(super) struct Address {
    /// One for each host.
    pub(super) hosts: Vec<Config>,
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
        // Standbys are told apart once there is a connection.
        config.application_name(APPLICATION).target_session_attrs(TargetSessionAttrs::Any);
        let count = config.get_hosts().len().max(config.get_hostaddrs().len());
        if ![0, 1, count].contains(&config.get_ports().len()) {
            return Err(unusable("it has another number of ports than of hosts".to_owned()));
        }
        Ok(Self { hosts: (0..count).map(|at| one_of(&config, at)).collect(), name: name(&config) })
    }

    /// How long a connection to one of the hosts may take.
    pub(super) fn timeout(&self) -> Duration {
        (CONNECT_TIMEOUT / u32::try_from(self.hosts.len()).unwrap_or(u32::MAX)).max(CONNECT_TIMEOUT_MIN)
    }
}

/// The same address with one of its hosts.
fn one_of(all: &Config, at: usize) -> Config {
    let mut one = Config::new();
    match all.get_hosts().get(at) {
        Some(Host::Tcp(name)) => drop(one.host(name)),
        Some(Host::Unix(path)) => drop(one.host_path(path)),
        None => {}
    }
    all.get_hostaddrs().get(at).map(|address| one.hostaddr(*address));
    all.get_ports().get(at).or(all.get_ports().first()).map(|port| one.port(*port));
    all.get_user().map(|user| one.user(user));
    all.get_password().map(|password| one.password(password));
    all.get_dbname().map(|name| one.dbname(name));
    all.get_options().map(|options| one.options(options));
    all.get_application_name().map(|name| one.application_name(name));
    all.get_connect_timeout().map(|timeout| one.connect_timeout(*timeout));
    all.get_tcp_user_timeout().map(|timeout| one.tcp_user_timeout(*timeout));
    all.get_keepalives_interval().map(|interval| one.keepalives_interval(interval));
    all.get_keepalives_retries().map(|retries| one.keepalives_retries(retries));
    one.keepalives(all.get_keepalives()).keepalives_idle(all.get_keepalives_idle());
    one.ssl_mode(all.get_ssl_mode()).ssl_negotiation(all.get_ssl_negotiation());
    one.channel_binding(all.get_channel_binding()).target_session_attrs(all.get_target_session_attrs());
    one
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
    fn several_hosts_differ_in_nothing_else() {
        let address = "postgres://user:secret@a,[::1]:6432,c:5/cache?sslmode=require&keepalives_idle=7&options=-c%20x";
        let hosts = Address::parse(address).unwrap().hosts;
        let alone = |host: &str| Address::parse(&address.replace("a,[::1]:6432,c:5", host)).unwrap().hosts;
        assert_eq!(hosts, ["a", "[::1]:6432", "c:5"].map(alone).concat());
        let hosts = Address::parse("postgres:///cache?host=/run/a&host=/run/b&port=7").unwrap().hosts;
        assert_eq!(hosts[1], Address::parse("postgres:///cache?host=/run/b&port=7").unwrap().hosts[0]);
        assert!(Address::parse("postgres://a,b,c/cache?port=1").is_err());
    }

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
