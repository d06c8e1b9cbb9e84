//! Keys of other cache servers' configuration files, for who brings one.

/// The program, its key at the top of the file, and what stands for it here: a key, a section or a command. Those of `docs/replacing-harmonia.md` and
/// `docs/replacing-attic.md`, which a test compares.
pub const FOREIGN: [(&str, &str, &str); 17] = [
    ("harmonia", "bind", "listen"),
    ("harmonia", "sign_key_paths", "sign-keys"),
    ("harmonia", "sign_key_path", "sign-keys"),
    ("harmonia", "daemon_socket", "store"),
    ("harmonia", "enable_compression", "[nar-cache]"),
    ("harmonia", "virtual_nix_store", "store"),
    ("harmonia", "real_nix_store", "store"),
    ("harmonia", "tls_cert_path", "[[tls.certificate]]"),
    ("harmonia", "tls_key_path", "[[tls.certificate]]"),
    ("harmonia", "workers", "limits.connections"),
    ("harmonia", "max_connection_rate", "limits.connections"),
    ("attic", "allowed-hosts", "cache.host"),
    ("attic", "api-endpoint", "cache.host"),
    ("attic", "storage", "data"),
    ("attic", "compression", "cache.recompress"),
    ("attic", "garbage-collection", "cache.retention"),
    ("attic", "jwt", "narval token create"),
];

/// What to say of an unknown key that another program has.
pub(super) fn hint(key: &str) -> Option<String> {
    let (program, _, here) = FOREIGN.iter().find(|(_, known, _)| *known == key)?;
    Some(format!("{program}'s '{key}' is '{here}' here (docs/replacing-{program}.md)"))
}
