//! Every option of both originals: its names, its allowed values, and its meaning here.

/// What an option means here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Listen,
    Host,
    Port,
    Socket,
    Backlog,
    SslCert,
    SslKey,
    Priority,
    Store,
    KeepAliveTimeout,
    KeepAliveOff,
    ReadTimeout,
    Timeout,
    Prefix,
    Quiet,
    Verbose,
    LogFormat,
    AccessLog,
    ErrorLog,
    User,
    Group,
    PidFile,
    Daemonize,
    NoHttp2,
    TrustedProxy,
    ProxyProtocol,
    Help,
    Version,
    /// Accepted with a note.
    Nothing,
}

/// One option.
#[derive(Debug)]
pub(super) struct Spec {
    /// Names without dashes.
    names: &'static [&'static str],
    /// The allowed values, for messages; `None` if it takes no value.
    pub(super) allowed: Option<&'static str>,
    pub(super) meaning: Meaning,
}

const fn value(names: &'static [&'static str], allowed: &'static str, meaning: Meaning) -> Spec {
    Spec { names, allowed: Some(allowed), meaning }
}

const fn switch(names: &'static [&'static str], meaning: Meaning) -> Spec {
    Spec { names, allowed: None, meaning }
}

const SECONDS: &str = "seconds";
const FILE: &str = "a file name";

static OPTIONS: &[Spec] = &[
    // Both.
    value(&["listen", "l"], "HOST:PORT, :PORT, [IPV6]:PORT or the path of a unix socket", Meaning::Listen),
    value(&["host", "o"], "*, *4, !4, *6, !6 or an address", Meaning::Host),
    value(&["port", "p"], "a port (0 to 65535)", Meaning::Port),
    value(&["socket", "S"], "the path of a unix socket", Meaning::Socket),
    value(&["backlog"], "a number (1 to 1048576)", Meaning::Backlog),
    value(&["ssl-cert"], FILE, Meaning::SslCert),
    value(&["ssl-key"], FILE, Meaning::SslKey),
    switch(&["enable-ssl"], Meaning::Nothing),
    switch(&["help", "h"], Meaning::Help),
    // nix-serve-ng (src/Options.hs).
    value(&["priority"], "a number (0 and up; lower is queried first)", Meaning::Priority),
    value(&["timeout"], SECONDS, Meaning::Timeout),
    value(&["store"], "a store URI, such as daemon, local or a folder", Meaning::Store),
    switch(&["quiet"], Meaning::Quiet),
    switch(&["verbose"], Meaning::Verbose),
    value(&["log-format"], "quiet, default, real-ip, verbose or debug", Meaning::LogFormat),
    // starman (script/starman, Starman::Server).
    switch(&["disable-keepalive"], Meaning::KeepAliveOff),
    switch(&["enable-keepalive"], Meaning::Nothing),
    value(&["keepalive-timeout"], SECONDS, Meaning::KeepAliveTimeout),
    value(&["read-timeout"], SECONDS, Meaning::ReadTimeout),
    value(&["user"], "a user", Meaning::User),
    value(&["group"], "a group", Meaning::Group),
    value(&["pid"], FILE, Meaning::PidFile),
    value(&["error-log"], FILE, Meaning::ErrorLog),
    value(&["workers"], "a number", Meaning::Nothing),
    value(&["max-requests"], "a number", Meaning::Nothing),
    value(&["min-servers"], "a number", Meaning::Nothing),
    value(&["min-spare-servers"], "a number", Meaning::Nothing),
    value(&["max-spare-servers"], "a number", Meaning::Nothing),
    value(&["max-servers"], "a number", Meaning::Nothing),
    switch(&["preload-app"], Meaning::Nothing),
    switch(&["disable-proctitle"], Meaning::Nothing),
    // Plack::Runner.
    value(&["access-log"], FILE, Meaning::AccessLog),
    value(&["path"], "a path such as /cache", Meaning::Prefix),
    switch(&["daemonize", "D"], Meaning::Daemonize),
    switch(&["no-http2"], Meaning::NoHttp2),
    // Ours.
    value(&["trusted-proxy"], "an IP address, a network such as 10.0.0.0/8, or unix", Meaning::TrustedProxy),
    switch(&["proxy-protocol"], Meaning::ProxyProtocol),
    switch(&["version", "v"], Meaning::Version),
    value(&["env", "E"], "a name", Meaning::Nothing),
    value(&["app", "a"], FILE, Meaning::Nothing),
    value(&["e"], "Perl code", Meaning::Nothing),
    value(&["I"], "a folder", Meaning::Nothing),
    value(&["M"], "a Perl module", Meaning::Nothing),
    value(&["loader", "L"], "a name", Meaning::Nothing),
    value(&["server", "s"], "a name", Meaning::Nothing),
    value(&["Reload", "R"], "folders", Meaning::Nothing),
    switch(&["reload", "r"], Meaning::Nothing),
    switch(&["default-middleware"], Meaning::Nothing),
    switch(&["no-default-middleware", "nodefault-middleware"], Meaning::Nothing),
];

/// The option of this name (without dashes, `-` inside).
pub(super) fn find(name: &str) -> Option<&'static Spec> {
    OPTIONS.iter().find(|spec| spec.names.contains(&name))
}
