//! Whether the Nix daemon accepts the substituters of this user.
//!
//! Rules: Nix `libstore/daemon.cc` (`ClientSettings::apply`), `nix/unix/daemon.cc` (`matchUser`).

use narval_store::{Daemon, DaemonError, StoreConfig, SubstituterSettings, Trust};
use nix::unistd::{Gid, Group, Uid, User, getgroups};

/// Whether this user's own settings apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserTrust {
    /// No daemon runs: Nix runs as this user.
    NoDaemon,
    /// The daemon of this version (empty before Nix 2.9) trusts this user.
    Trusted(String),
    /// The daemon of this version ignores this user's substituters, keys and netrc file.
    NotTrusted(String),
}

/// Asks the daemon of a store. If it is older than Nix 2.15 and cannot tell, `trusted-users` in the system's settings
/// decides.
///
/// # Errors
/// If there is a daemon that cannot be queried.
pub fn user_trust(config: &StoreConfig, system: &SubstituterSettings) -> Result<UserTrust, DaemonError> {
    let daemon = Daemon::new(&config.daemon_socket, config.store_dir.clone());
    let (version, trust) = match daemon.hello() {
        Err(DaemonError::Connect { .. }) => return Ok(UserTrust::NoDaemon),
        hello => hello?,
    };
    let is_trusted = match trust {
        Trust::Trusted => true,
        Trust::NotTrusted => false,
        Trust::Unknown => is_listed(system.trusted_users.as_deref().unwrap_or(&["root".to_owned()])),
    };
    Ok(if is_trusted { UserTrust::Trusted(version) } else { UserTrust::NotTrusted(version) })
}

/// Whether this user is in a list of users, `@group`s and `*`.
fn is_listed(users: &[String]) -> bool {
    let uid = Uid::effective();
    let name = User::from_uid(uid).ok().flatten().map(|user| user.name);
    let mut groups = getgroups().unwrap_or_default();
    groups.push(Gid::effective());
    let in_group = |name: &str| Group::from_name(name).ok().flatten().is_some_and(|group| groups.contains(&group.gid));
    users.iter().any(|listed| match listed.strip_prefix('@') {
        Some(group) => in_group(group),
        None => listed == "*" || name.as_ref() == Some(listed),
    })
}

#[cfg(test)]
mod tests {
    use super::is_listed;

    #[test]
    fn users_groups_and_everybody() {
        let own = nix::unistd::User::from_uid(nix::unistd::Uid::effective()).unwrap().unwrap().name;
        let group = nix::unistd::Group::from_gid(nix::unistd::Gid::effective()).unwrap().unwrap().name;
        let listed = |users: &[&str]| is_listed(&users.iter().map(|user| (*user).to_owned()).collect::<Vec<_>>());
        assert!(listed(&[&own]) && listed(&["nobody-such", "*"]) && listed(&[&format!("@{group}")]));
        assert!(!listed(&[]) && !listed(&["nobody-such", "@nobody-such"]));
    }
}
