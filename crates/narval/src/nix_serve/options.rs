//! The command line of `nix-serve`: all options of Perl nix-serve (starman, Plack::Runner) and nix-serve-ng. Options
//! without a meaning here are accepted with a note; options that cannot work are errors before anything listens.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use narval_http::{LogFormat, TrustedProxy};

use crate::server::PORT_DEFAULT;
use crate::values::listen::{Host, Listen, ListenError};

mod table;

#[cfg(test)]
mod tests;

use table::{Meaning, Spec};

/// The action of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Serve.
    Serve(Box<Options>),
    /// Print the help.
    Help,
    /// Print the version.
    Version,
}

/// The options of `nix-serve`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where to listen; if empty, on systemd's sockets or port 5000.
    pub listen: Vec<Listen>,
    /// Backlog of the listening sockets.
    pub backlog: u32,
    /// Certificate and key files, which enable TLS.
    pub tls: Option<TlsFiles>,
    /// `Priority` in `nix-cache-info`.
    pub priority: u32,
    /// Store URI; `None`: the environment (`NIX_REMOTE`) decides.
    pub store: Option<String>,
    /// How long a connection may be idle between requests; zero closes it after each response.
    pub keep_alive: Option<Duration>,
    /// How long a client may take to send a request head.
    pub read_timeout: Option<Duration>,
    /// How long a response may make no progress.
    pub timeout: Option<Duration>,
    /// The secret key file, from `NIX_SECRET_KEY_FILE`.
    pub secret_key_file: Option<PathBuf>,
    /// The path prefix of all routes (`--path`), without a trailing slash.
    pub prefix: Option<String>,
    /// The access log.
    pub access_log: AccessLog,
    /// The file for errors and notes, instead of standard error.
    pub error_log: Option<PathBuf>,
    /// The user to become after listening.
    pub user: Option<String>,
    /// The group to become after listening.
    pub group: Option<String>,
    /// The file that gets the process id.
    pub pid_file: Option<PathBuf>,
    /// Go to the background.
    pub daemonize: bool,
    /// HTTPS without HTTP/2.
    pub no_http2: bool,
    /// The proxies in front.
    pub trusted_proxies: Vec<TrustedProxy>,
    /// Whether they speak the PROXY protocol.
    pub proxy_protocol: bool,
    /// One line for each accepted option without a meaning here.
    pub notes: Vec<String>,
}

impl Default for Options {
    /// What both originals do without options.
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            backlog: 1024,
            tls: None,
            priority: 30,
            store: None,
            keep_alive: None,
            read_timeout: None,
            timeout: None,
            secret_key_file: None,
            prefix: None,
            access_log: AccessLog::default(),
            error_log: None,
            user: None,
            group: None,
            pid_file: None,
            daemonize: false,
            no_http2: false,
            trusted_proxies: Vec::new(),
            proxy_protocol: false,
            notes: Vec::new(),
        }
    }
}

/// The files for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM certificate chain.
    pub cert: PathBuf,
    /// PEM private key.
    pub key: PathBuf,
}

/// The access log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessLog {
    /// The format of a line; `None` logs nothing, like Perl nix-serve.
    pub format: Option<LogFormat>,
    /// The file (`--access-log`); `None` is standard output.
    pub file: Option<PathBuf>,
}

/// An invalid command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// The last option needs a value.
    #[error("option {option}: a value is missing: give {allowed}")]
    Missing {
        /// The option as given.
        option: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A value that is not allowed.
    #[error("option {option}: '{value}' is not allowed: give {allowed}")]
    Value {
        /// The option as given.
        option: String,
        /// The value as given.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// An invalid place to listen on.
    #[error("option {option}: {error}")]
    Listen {
        /// The option as given.
        option: String,
        /// Why.
        error: ListenError,
    },
    /// One TLS file without the other.
    #[error("option {given} needs {missing} too: TLS takes a certificate and its key")]
    HalfTls {
        /// The option that was given.
        given: &'static str,
        /// The option that is missing.
        missing: &'static str,
    },
    /// An argument that is not UTF-8.
    #[error("argument '{0}' is not UTF-8: give options and values in UTF-8")]
    NotUtf8(String),
}

/// Parses a command line (without the program's name). `env` returns environment variables.
///
/// # Errors
/// The first option whose value is missing or not allowed.
pub fn parse(
    args: impl IntoIterator<Item = OsString>,
    env: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Command, OptionError> {
    let mut args = args
        .into_iter()
        .map(|arg| arg.into_string().map_err(|arg| OptionError::NotUtf8(arg.to_string_lossy().into_owned())))
        .collect::<Result<VecDeque<_>, _>>()?;
    let mut given = Given::default();
    while let Some(arg) = args.pop_front() {
        if arg == "--" {
            break;
        }
        // In the originals, positional arguments follow the .psgi file and are ignored.
        if arg.len() < 2 || !arg.starts_with('-') {
            continue;
        }
        let argument = Argument::split(&arg);
        let Some(spec) = argument.spec else {
            skip_unknown(&arg, &argument, &mut args, &mut given);
            continue;
        };
        match spec.meaning {
            Meaning::Help => return Ok(Command::Help),
            Meaning::Version => return Ok(Command::Version),
            _ => {}
        }
        let value = match (spec.allowed, argument.value) {
            (None, _) => String::new(),
            (Some(_), Some(value)) => value,
            (Some(allowed), None) => {
                args.pop_front().ok_or_else(|| OptionError::Missing { option: argument.shown.clone(), allowed })?
            }
        };
        given.take(spec, &argument.shown, value)?;
    }
    given.finish(env).map(|options| Command::Serve(Box::new(options)))
}

/// An unknown `--foo V` is skipped with its value, as in Plack::Runner; `--foo=V`, `--enable-foo` and `--disable-foo`
/// have none. An option that follows directly is not skipped (Plack skips that, too): it is more likely intended.
fn skip_unknown(arg: &str, argument: &Argument, args: &mut VecDeque<String>, given: &mut Given) {
    let switch = argument.name.starts_with("enable-") || argument.name.starts_with("disable-");
    let followed = args.front().is_some_and(|next| !(next.len() > 1 && next.starts_with('-')));
    if argument.value.is_none() && !switch && followed {
        let value = args.pop_front().unwrap_or_default();
        given.note(&format!("{arg} {value}"), "is unknown");
    } else {
        given.note(arg, "is unknown");
    }
}

/// A parsed argument that starts with `-`.
struct Argument {
    /// Name without dashes, `_` written as `-`.
    name: String,
    /// Name with dashes, as given.
    shown: String,
    /// The value after `=`, or directly after a short option (`-l:5000`).
    value: Option<String>,
    spec: Option<&'static Spec>,
}

impl Argument {
    fn split(arg: &str) -> Self {
        let (shown, value) = match arg.split_once('=') {
            Some((shown, value)) => (shown, Some(value.to_owned())),
            None => (arg, None),
        };
        // Getopt::Long accepts long names after one dash, and short ones after two.
        let name = shown.trim_start_matches('-').replace('_', "-");
        if let Some(spec) = table::find(&name) {
            return Self { name, shown: shown.to_owned(), value, spec: Some(spec) };
        }
        let mut chars = arg.chars();
        if let (Some('-'), Some(letter)) = (chars.next(), chars.next())
            && let Some(spec) = table::find(letter.encode_utf8(&mut [0; 4])).filter(|spec| spec.allowed.is_some())
        {
            let value = Some(chars.collect());
            return Self { name: letter.to_string(), shown: format!("-{letter}"), value, spec: Some(spec) };
        }
        Self { name, shown: shown.to_owned(), value, spec: None }
    }
}

/// What has been read so far, with what is only known to be right at the end.
#[derive(Default)]
struct Given {
    options: Options,
    host: Option<Host>,
    port: Option<u16>,
    socket: Option<Listen>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    keep_alive_off: bool,
    quiet: bool,
}

impl Given {
    fn note(&mut self, option: &str, why: &str) {
        self.options.notes.push(format!("option {option} {why} and is ignored"));
    }

    fn take(&mut self, spec: &Spec, shown: &str, value: String) -> Result<(), OptionError> {
        let allowed = spec.allowed.unwrap_or_default();
        let bad = |value: &str| OptionError::Value { option: shown.to_owned(), value: value.to_owned(), allowed };
        let listen_error = |error| OptionError::Listen { option: shown.to_owned(), error };
        let seconds = |value: &str| match value.parse::<f64>() {
            Ok(seconds) if (0.0..=SECONDS_MAX).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
            _ => Err(bad(value)),
        };
        let options = &mut self.options;
        match spec.meaning {
            Meaning::Listen => options.listen.push(value.parse().map_err(listen_error)?),
            Meaning::Host => self.host = Some(Host::parse(&value).map_err(listen_error)?),
            Meaning::Port => self.port = Some(value.parse().map_err(|_| bad(&value))?),
            Meaning::Socket => self.socket = Some(format!("unix:{value}").parse().map_err(listen_error)?),
            Meaning::Backlog => match value.parse() {
                Ok(backlog @ 1..=BACKLOG_MAX) => options.backlog = backlog,
                _ => return Err(bad(&value)),
            },
            Meaning::SslCert => self.cert = Some(value.into()),
            Meaning::SslKey => self.key = Some(value.into()),
            Meaning::Priority => options.priority = value.parse().map_err(|_| bad(&value))?,
            Meaning::Store => options.store = Some(value),
            Meaning::KeepAliveTimeout => options.keep_alive = Some(seconds(&value)?),
            Meaning::KeepAliveOff => self.keep_alive_off = true,
            Meaning::ReadTimeout => options.read_timeout = Some(seconds(&value)?),
            Meaning::Timeout => options.timeout = Some(seconds(&value)?),
            Meaning::Prefix => options.prefix = prefix(&value).ok_or_else(|| bad(&value))?,
            Meaning::Quiet => (self.quiet, options.access_log.format) = (true, None),
            Meaning::Verbose => (self.quiet, options.access_log.format) = (false, Some(LogFormat::Verbose)),
            Meaning::LogFormat => {
                (self.quiet, options.access_log.format) = log_format(&value).ok_or_else(|| bad(&value))?;
            }
            Meaning::AccessLog => options.access_log.file = Some(value.into()),
            Meaning::ErrorLog => options.error_log = Some(value.into()),
            Meaning::User => options.user = Some(value),
            Meaning::Group => options.group = Some(value),
            Meaning::PidFile => options.pid_file = Some(value.into()),
            Meaning::Daemonize => options.daemonize = true,
            Meaning::NoHttp2 => options.no_http2 = true,
            Meaning::TrustedProxy => options.trusted_proxies.push(value.parse().map_err(|_| bad(&value))?),
            Meaning::ProxyProtocol => options.proxy_protocol = true,
            Meaning::Nothing if spec.allowed.is_some() => self.note(&format!("{shown} {value}"), "means nothing here"),
            Meaning::Nothing => self.note(shown, "means nothing here"),
            Meaning::Help | Meaning::Version => {}
        }
        Ok(())
    }

    fn finish(mut self, env: &dyn Fn(&str) -> Option<OsString>) -> Result<Options, OptionError> {
        self.options.tls = match (self.cert.take(), self.key.take()) {
            (Some(cert), Some(key)) => Some(TlsFiles { cert, key }),
            (None, None) => None,
            (Some(_), None) => return Err(OptionError::HalfTls { given: "--ssl-cert", missing: "--ssl-key" }),
            (None, Some(_)) => return Err(OptionError::HalfTls { given: "--ssl-key", missing: "--ssl-cert" }),
        };
        self.options.listen = self.places();
        let filled = |name: &str| env(name).filter(|value| !value.is_empty());
        self.options.secret_key_file = filled("NIX_SECRET_KEY_FILE").map(PathBuf::from);
        if self.keep_alive_off {
            self.options.keep_alive = Some(Duration::ZERO);
        }
        // Perl nix-serve logs nothing unless --access-log is given; nix-serve-ng's options select a format.
        let log = &mut self.options.access_log;
        if log.file.is_some() && log.format.is_none() && !self.quiet {
            log.format = Some(LogFormat::Combined);
        }
        Ok(self.options)
    }

    /// `--listen` takes precedence, then `--socket`, then `--host` and `--port`, as in Plack::Runner.
    fn places(&mut self) -> Vec<Listen> {
        if !self.options.listen.is_empty() {
            for (given, option) in
                [(self.host.is_some(), "--host"), (self.port.is_some(), "--port"), (self.socket.is_some(), "--socket")]
            {
                if given {
                    self.note(option, "gives way to --listen");
                }
            }
            return std::mem::take(&mut self.options.listen);
        }
        if let Some(socket) = self.socket.take() {
            return vec![socket];
        }
        if self.host.is_none() && self.port.is_none() {
            return Vec::new();
        }
        vec![Listen::Tcp { host: self.host.take().unwrap_or(Host::Any), port: self.port.unwrap_or(PORT_DEFAULT) }]
    }
}

/// The maximum of a timeout: a year, in seconds.
const SECONDS_MAX: f64 = 31_536_000.0;
/// `listen(2)` truncates it to net.core.somaxconn anyway.
const BACKLOG_MAX: u32 = 1 << 20;

/// A `--path`: `/` is none, `/cache/` is `/cache`.
fn prefix(value: &str) -> Option<Option<String>> {
    let plain = value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~+".contains(&byte));
    if !value.starts_with('/') || !plain || value.contains("//") {
        return None;
    }
    let trimmed = value.trim_end_matches('/');
    Some((!trimmed.is_empty()).then(|| trimmed.to_owned()))
}

/// nix-serve-ng's `--log-format`; its help says `normal` where its parser wants `default`, so both are read.
fn log_format(value: &str) -> Option<(bool, Option<LogFormat>)> {
    Some(match value {
        "quiet" => (true, None),
        "default" | "normal" => (false, Some(LogFormat::Combined)),
        "real-ip" => (false, Some(LogFormat::RealIp)),
        "verbose" | "debug" => (false, Some(LogFormat::Verbose)),
        _ => return None,
    })
}
