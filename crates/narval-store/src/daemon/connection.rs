//! A connection of the worker protocol: handshake, requests, and the log messages before each reply.

use std::collections::BTreeSet;
use std::io::{BufReader, Read, Write};

use narval_nix::{ContentAddress, HashPart, NarHash, PathInfo, Signature, StoreDir, StorePath};

use super::error::DaemonError;
use super::operation::Operation;
use super::wire::{Request, WireError, WireReader};

const CLIENT_MAGIC: u64 = 0x6e69_7863;
const SERVER_MAGIC: u64 = 0x6478_696f;

/// Our protocol version: 1.38, without features.
const PROTOCOL_VERSION: u64 = 0x126;

/// The oldest supported version: 1.32, Nix 2.4.
const PROTOCOL_VERSION_MIN: u64 = 0x120;

/// The maximum number of messages before a reply, in case a daemon never sends the reply.
const MESSAGES_MAX: u64 = 64 << 20;

const STDERR_NEXT: u64 = 0x6f6c_6d67;
const STDERR_LAST: u64 = 0x616c_7473;
const STDERR_ERROR: u64 = 0x6378_7470;
const STDERR_START_ACTIVITY: u64 = 0x5354_5254;
const STDERR_STOP_ACTIVITY: u64 = 0x5354_4f50;
const STDERR_RESULT: u64 = 0x5253_4c54;

/// Whether the daemon trusts this client (protocol ≥ 1.35).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// The daemon is too old to tell.
    Unknown,
    /// Unsigned paths may be added.
    Trusted,
    /// Paths need a signature that the daemon trusts.
    NotTrusted,
}

/// A connection after the handshake.
pub(super) struct Connection<S> {
    input: WireReader<BufReader<S>>,
    output: S,
    store_dir: StoreDir,
    pub(super) version: u64,
    pub(super) daemon_version: String,
    pub(super) trust: Trust,
}

impl<S: Read + Write> Connection<S> {
    /// Performs the handshake with the daemon over `input` and `output`, two handles of one stream.
    pub(super) fn greet(input: S, mut output: S, store_dir: StoreDir) -> Result<Self, DaemonError> {
        let mut input = WireReader { input: BufReader::with_capacity(16 * 1024, input) };
        send(&mut output, &Request::default().number(CLIENT_MAGIC).number(PROTOCOL_VERSION))?;
        let magic = input.number()?;
        if magic != SERVER_MAGIC {
            return Err(
                WireError::Value { what: "not a Nix daemon, its magic is", found: format!("{magic:#x}") }.into()
            );
        }
        let offered = input.number()?;
        let version = offered.min(PROTOCOL_VERSION);
        if version < PROTOCOL_VERSION_MIN || offered >> 8 != PROTOCOL_VERSION >> 8 {
            return Err(DaemonError::Version { major: offered >> 8, minor: offered & 0xff });
        }
        if version >= 0x126 {
            send(&mut output, &Request::default().number(0))?;
            input.list(WireReader::bytes)?;
        }
        // Obsolete: CPU affinity, reserved space.
        send(&mut output, &Request::default().number(0).number(0))?;
        let daemon_version = if version >= 0x121 { input.text()? } else { String::new() };
        let trust = match if version >= 0x123 { input.number()? } else { 0 } {
            1 => Trust::Trusted,
            2 => Trust::NotTrusted,
            _ => Trust::Unknown,
        };
        let mut connection = Self { input, output, store_dir, version, daemon_version, trust };
        connection.messages(Operation::Greeting)?;
        Ok(connection)
    }

    /// Sends a request, and reads the messages before its reply.
    pub(super) fn call(&mut self, operation: Operation, arguments: Request) -> Result<(), DaemonError> {
        let code = Request::default().number(operation.code());
        let bytes = [code.as_bytes(), arguments.as_bytes()].concat();
        self.output.write_all(&bytes).map_err(WireError::from)?;
        self.messages(operation)
    }

    /// Sends a request whose reply follows after the frames of [`Connection::frame`].
    pub(super) fn begin(&mut self, operation: Operation, arguments: &Request) -> Result<(), DaemonError> {
        send(&mut self.output, &Request::default().number(operation.code()))?;
        send(&mut self.output, arguments)
    }

    /// Reads messages until the reply begins.
    pub(super) fn messages(&mut self, operation: Operation) -> Result<(), DaemonError> {
        for _ in 0..MESSAGES_MAX {
            match self.input.number()? {
                STDERR_LAST => return Ok(()),
                STDERR_ERROR => return Err(self.error(operation)?),
                STDERR_NEXT => drop(self.input.bytes()?),
                STDERR_START_ACTIVITY => {
                    for _ in 0..3 {
                        self.input.number()?;
                    }
                    self.input.bytes()?;
                    self.fields()?;
                    self.input.number()?;
                }
                STDERR_STOP_ACTIVITY => drop(self.input.number()?),
                STDERR_RESULT => {
                    self.input.number()?;
                    self.input.number()?;
                    self.fields()?;
                }
                // This includes the messages with which Nix before 2.4 requested and sent data.
                tag => {
                    return Err(WireError::Value { what: "unknown message", found: format!("{tag:#x}") }.into());
                }
            }
        }
        Err(WireError::TooLarge { what: "messages before a reply", found: MESSAGES_MAX, limit: MESSAGES_MAX }.into())
    }

    fn fields(&mut self) -> Result<(), DaemonError> {
        for _ in 0..self.input.count()? {
            match self.input.number()? {
                0 => drop(self.input.number()?),
                1 => drop(self.input.bytes()?),
                kind => return Err(WireError::Value { what: "unknown kind of field", found: kind.to_string() }.into()),
            }
        }
        Ok(())
    }

    fn error(&mut self, operation: Operation) -> Result<DaemonError, DaemonError> {
        self.input.bytes()?;
        self.input.number()?;
        self.input.bytes()?;
        let message = String::from_utf8_lossy(&self.input.bytes()?).into_owned();
        self.input.number()?;
        for _ in 0..self.input.count()? {
            self.input.number()?;
            self.input.bytes()?;
        }
        Ok(DaemonError::Refused { operation: operation.name(), message: one_line(&message) })
    }

    pub(super) fn number(&mut self) -> Result<u64, DaemonError> {
        Ok(self.input.number()?)
    }

    pub(super) fn boolean(&mut self) -> Result<bool, DaemonError> {
        Ok(self.input.boolean()?)
    }

    /// A store path; `None` for the empty string.
    pub(super) fn optional_path(&mut self) -> Result<Option<StorePath>, DaemonError> {
        Ok(optional_path(&mut self.input, &self.store_dir)?)
    }

    pub(super) fn texts(&mut self) -> Result<Vec<String>, DaemonError> {
        Ok(self.input.list(WireReader::text)?)
    }

    pub(super) fn paths(&mut self) -> Result<Vec<StorePath>, DaemonError> {
        let store_dir = &self.store_dir;
        Ok(self.input.list(|input| path(input, store_dir))?)
    }

    /// The metadata of a valid path: `UnkeyedValidPathInfo` in the format of protocol ≥ 1.16.
    pub(super) fn path_info(&mut self, path: StorePath) -> Result<PathInfo, DaemonError> {
        Ok(path_info(&mut self.input, &self.store_dir, path)?)
    }

    pub(super) fn full(&self, path: &StorePath) -> String {
        self.store_dir.display(path).to_string()
    }

    pub(super) fn output(&mut self) -> &mut S {
        &mut self.output
    }
}

fn send(output: &mut impl Write, request: &Request) -> Result<(), DaemonError> {
    Ok(output.write_all(request.as_bytes()).map_err(WireError::from)?)
}

fn path<R: Read>(input: &mut WireReader<R>, store_dir: &StoreDir) -> Result<StorePath, WireError> {
    optional_path(input, store_dir)?.ok_or_else(|| WireError::Value { what: "not a store path", found: "''".into() })
}

fn optional_path<R: Read>(input: &mut WireReader<R>, store_dir: &StoreDir) -> Result<Option<StorePath>, WireError> {
    let bytes = input.bytes()?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let value = |error: narval_nix::store_path::StorePathError| WireError::Value {
        what: "not a store path",
        found: format!("'{}': {error}", bytes.escape_ascii()),
    };
    store_dir.parse_bytes(&bytes).map(Some).map_err(value)
}

fn path_info<R: Read>(input: &mut WireReader<R>, store_dir: &StoreDir, path: StorePath) -> Result<PathInfo, WireError> {
    let deriver = optional_path(input, store_dir)?;
    let nar_hash = parsed("not a NAR hash", &input.text()?, NarHash::parse_digest)?;
    let references = input.list(|input| self::path(input, store_dir))?;
    let registration_time = input.number()?;
    let nar_size = input.number()?;
    let ultimate = input.boolean()?;
    let signatures = input.list(WireReader::text)?;
    let ca = input.text()?;
    Ok(PathInfo {
        path,
        nar_hash,
        nar_size,
        references: BTreeSet::from_iter(references),
        deriver,
        registration_time,
        ultimate,
        // As with the database: a signature that cannot be parsed cannot be verified either.
        signatures: signatures.iter().filter_map(|text| text.parse::<Signature>().ok()).collect(),
        ca: if ca.is_empty() {
            None
        } else {
            Some(parsed("not a content address", &ca, str::parse::<ContentAddress>)?)
        },
    })
}

fn parsed<'a, T, E: std::fmt::Display>(
    what: &'static str,
    text: &'a str,
    parse: impl FnOnce(&'a str) -> Result<T, E>,
) -> Result<T, WireError> {
    parse(text).map_err(|error| WireError::Value { what, found: format!("'{}': {error}", text.escape_debug()) })
}

/// The daemon's message without colour codes and line breaks.
fn one_line(message: &str) -> String {
    let mut plain = String::new();
    let mut characters = message.chars();
    while let Some(character) = characters.next() {
        match character {
            '\x1b' => drop(characters.by_ref().find(char::is_ascii_alphabetic)),
            character if character.is_whitespace() || character.is_control() => plain.push(' '),
            character => plain.push(character),
        }
    }
    let plain = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    plain.strip_prefix("error: ").map(str::to_owned).unwrap_or(plain)
}

/// For fuzzing: feeds bytes to the parsers of everything that a daemon can send. Must not panic.
#[doc(hidden)]
pub fn read_anything(bytes: &[u8]) {
    struct Half<'a>(&'a [u8]);
    impl Read for Half<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(buffer)
        }
    }
    impl Write for Half<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let Ok(mut connection) = Connection::greet(Half(bytes), Half(b""), StoreDir::default()) else { return };
    let Ok(hash_part) = HashPart::parse(&[b'0'; 32]) else { return };
    let Ok(path) = StorePath::parse(&format!("{hash_part}-x")) else { return };
    for round in 0..64 {
        let step = match round % 4 {
            0 => connection
                .call(Operation::QueryPathInfo, Request::default())
                .and_then(|()| connection.path_info(path.clone()).map(drop)),
            1 => connection
                .call(Operation::QueryValidPaths, Request::default())
                .and_then(|()| connection.paths().map(drop)),
            2 => connection
                .call(Operation::QueryPathFromHashPart, Request::default())
                .and_then(|()| connection.optional_path().map(drop)),
            _ => connection
                .call(Operation::IsValidPath, Request::default())
                .and_then(|()| connection.boolean().map(drop)),
        };
        if matches!(step, Err(ref error) if !matches!(error, DaemonError::Refused { .. })) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn messages_become_one_plain_line() {
        assert_eq!(one_line("\x1b[31;1merror:\x1b[0m path '/x'\n  is bad\x07"), "path '/x' is bad");
    }
}
