//! The lines of an access log.

use std::io::{self, Write};
use std::net::IpAddr;
use std::time::SystemTime;

use serde_json::{Map, Value};

use super::access_log::{AccessLog, Entry};
use super::logfmt::push_logfmt;
use crate::http1;
use crate::peer::Peer;

/// The maximum number of bytes of one field in a line.
const FIELD_BYTES_MAX: usize = 2048;
/// Bytes buffered before they are written, unless flushed earlier.
const BUFFER: usize = 64 * 1024;

/// The format of the lines of an access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFormat {
    /// Apache's combined log format.
    Combined,
    /// The same with the address from `X-Real-IP` or `X-Forwarded-For`, which is only meaningful behind a proxy that
    /// sets them.
    RealIp,
    /// Address, request, status, bytes and duration, human-readable.
    Verbose,
    /// A JSON object: `time` (RFC 3339), `request_id`, `client`, `request`, `status`, `bytes`, `seconds`, `aborted`, and, if the
    /// client sent them, `referer`, `user_agent`, `forwarded_for` and `trace_id`.
    Json,
    /// The same as pairs: `time=… request_id=… client=… request="GET / HTTP/1.1" status=200 …`
    Logfmt,
}

/// An [`AccessLog`] in one of the usual formats, written to any [`Write`]. A failure is logged once, as an error event;
/// writing resumes when it is possible.
///
/// ```no_run
/// use std::fs::OpenOptions;
///
/// use narval_http::{LogFormat, LogWriter, Server};
///
/// let file = OpenOptions::new().append(true).create(true).open("access.log")?;
/// let server = Server::builder(|| "hello\n").access_log(LogWriter::new(LogFormat::Combined, file));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct LogWriter<W: Write> {
    format: LogFormat,
    out: io::BufWriter<W>,
    failed: bool,
}

impl<W: Write> LogWriter<W> {
    /// Writes lines in this format.
    pub fn new(format: LogFormat, out: W) -> Self {
        Self { format, out: io::BufWriter::with_capacity(BUFFER, out), failed: false }
    }

    /// Whether the current failure was logged: a full disk must not fill the other log, too.
    fn note(&mut self, result: io::Result<()>) {
        match result {
            Ok(()) => self.failed = false,
            Err(error) if !self.failed => {
                self.failed = true;
                tracing::error!("cannot write the access log: {error}");
            }
            Err(_) => {}
        }
    }
}

impl<W: Write + Send + 'static> AccessLog for LogWriter<W> {
    fn write(&mut self, entry: &Entry) {
        let result = self.out.write_all(self.format.line(entry).as_bytes());
        self.note(result);
    }

    fn flush(&mut self) {
        let result = self.out.flush();
        self.note(result);
    }
}

impl LogFormat {
    /// The line of an entry, including its end. No input of a client can end the line or reach a terminal unescaped.
    pub fn line(self, entry: &Entry) -> String {
        match self {
            Self::Combined => combined(&client(entry), entry),
            Self::RealIp => combined(&real_ip(entry).unwrap_or_else(|| client(entry)), entry),
            Self::Verbose => verbose(entry),
            Self::Json => json(entry),
            Self::Logfmt => logfmt(entry),
        }
    }
}

fn combined(client: &str, entry: &Entry) -> String {
    let mut line = String::with_capacity(200);
    line.push_str(&format!("{client} - - [{}] \"", time(entry.time)));
    push(&mut line, &entry.request_line);
    line.push_str(&format!("\" {} {} \"", entry.status, entry.bytes));
    push(&mut line, entry.referer.as_deref().unwrap_or_default());
    line.push_str("\" \"");
    push(&mut line, entry.user_agent.as_deref().unwrap_or_default());
    line.push_str("\"\n");
    line
}

fn verbose(entry: &Entry) -> String {
    let mut line = client(entry);
    line.push(' ');
    push(&mut line, &entry.request_line);
    line.push_str(&format!(" {} {} bytes {:?}", entry.status, entry.bytes, entry.duration));
    line.push_str(if entry.aborted { " aborted\n" } else { "\n" });
    line
}

fn json(entry: &Entry) -> String {
    let object: Map<_, _> = pairs(entry).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    format!("{}\n", Value::Object(object))
}

fn logfmt(entry: &Entry) -> String {
    let mut line = String::with_capacity(300);
    for (name, value) in pairs(entry) {
        match value {
            Value::Null => {}
            Value::String(text) => push_logfmt(&mut line, name, &text),
            // Without an exponent.
            Value::Number(number) if number.is_f64() => {
                push_logfmt(&mut line, name, &number.as_f64().unwrap_or_default().to_string());
            }
            value => push_logfmt(&mut line, name, &value.to_string()),
        }
    }
    line.push('\n');
    line
}

/// What the structured formats say.
fn pairs(entry: &Entry) -> Vec<(&'static str, Value)> {
    let mut pairs = vec![
        ("time", rfc_3339(entry.time).into()),
        ("request_id", entry.id.to_string().into()),
        ("client", client(entry).into()),
        ("client_port", port(entry).into()),
        ("request", short(&entry.request_line).into()),
        ("status", entry.status.into()),
        ("bytes", entry.bytes.into()),
        ("seconds", entry.duration.as_secs_f64().into()),
        ("aborted", entry.aborted.into()),
    ];
    let sent = [
        ("referer", &entry.referer),
        ("user_agent", &entry.user_agent),
        ("forwarded_for", &entry.forwarded_for),
        ("trace_id", &entry.trace_id),
    ];
    pairs.extend(sent.into_iter().filter_map(|(name, value)| Some((name, short(value.as_deref()?).into()))));
    pairs
}

fn client(entry: &Entry) -> String {
    entry.client.map_or_else(|| "unix".to_owned(), |address| address.to_string())
}

/// It tells which requests came over one connection, unless that is a proxy's.
fn port(entry: &Entry) -> Option<u16> {
    match &entry.peer {
        Peer::Tcp(address) if entry.client == entry.peer.ip() => Some(address.port()),
        _ => None,
    }
}

/// The client's address according to any proxy in front, if the server does not know which to trust.
fn real_ip(entry: &Entry) -> Option<String> {
    let said = entry.forwarded_for.as_deref().filter(|_| !entry.knows_proxies)?;
    said.split(',').next()?.trim().parse::<IpAddr>().ok().map(|address| address.to_string())
}

/// Untrusted text: characters that could end the field or the line, or control a terminal, are escaped as `\xHH`.
fn push(out: &mut String, text: &str) {
    for byte in text.bytes().take(FIELD_BYTES_MAX) {
        match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f.. => out.push_str(&format!("\\x{byte:02X}")),
            _ => out.push(char::from(byte)),
        }
    }
}

/// Truncates a text to the maximum length of a field.
fn short(text: &str) -> &str {
    text.get(..text.floor_char_boundary(FIELD_BYTES_MAX)).unwrap_or_default()
}

/// `17/May/2025:10:28:15 +0000`, always in UTC, from `Sat, 17 May 2025 10:28:15 GMT`.
fn time(time: SystemTime) -> String {
    let date = http1::date::format(time);
    let part = |range: std::ops::Range<usize>| {
        date.get(range).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    };
    format!("{}/{}/{}:{} +0000", part(5..7), part(8..11), part(12..16), part(17..25))
}

/// `2025-05-17T10:28:15.125Z`.
fn rfc_3339(time: SystemTime) -> String {
    let millis = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.subsec_millis());
    format!("{}.{millis:03}Z", http1::date::rfc_3339(time))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::observe::request_id::RequestId;

    fn entry() -> Entry {
        let head = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let parts = http1::head::parse_head(head, &Default::default()).unwrap().unwrap().parts;
        let mut entry = Entry::new(&crate::HeadRef::new(head, &parts, &Peer::Unix.into()), RequestId::NONE);
        entry.peer = Peer::Tcp("[::ffff:127.0.0.1]:9".parse().unwrap());
        entry.client = entry.peer.ip();
        entry.time = UNIX_EPOCH + Duration::from_millis(1_747_477_695_125);
        entry.request_line = "GET /a\"b HTTP/1.1".to_owned();
        entry.user_agent = Some("curl/8 \x1b[1m".to_owned());
        entry.forwarded_for = Some("192.0.2.7, 10.0.0.1".to_owned());
        (entry.status, entry.bytes, entry.duration) = (404, 5, Duration::from_millis(3));
        entry
    }

    #[test]
    fn combined_lines_with_what_could_break_them_escaped() {
        let want =
            "127.0.0.1 - - [17/May/2025:10:28:15 +0000] \"GET /a\\x22b HTTP/1.1\" 404 5 \"\" \"curl/8 \\x1B[1m\"\n";
        assert_eq!(LogFormat::Combined.line(&entry()), want);
    }

    #[test]
    fn the_address_behind_a_proxy() {
        assert!(LogFormat::RealIp.line(&entry()).starts_with("192.0.2.7 - - ["));
        let mut direct = entry();
        direct.forwarded_for = Some("no address".to_owned());
        assert!(LogFormat::RealIp.line(&direct).starts_with("127.0.0.1 - - ["));
        let mut trusted = entry();
        (trusted.client, trusted.knows_proxies) = ("198.51.100.1".parse().ok(), true);
        for format in [LogFormat::RealIp, LogFormat::Combined] {
            assert!(format.line(&trusted).starts_with("198.51.100.1 - - ["));
        }
        let line = LogFormat::Logfmt.line(&trusted);
        assert!(line.contains(" client=198.51.100.1 request=") && line.contains("forwarded_for="), "{line}");
    }

    #[test]
    fn verbose_lines() {
        let mut aborted = entry();
        aborted.aborted = true;
        let line = LogFormat::Verbose.line(&aborted);
        assert_eq!(line, "127.0.0.1 GET /a\\x22b HTTP/1.1 404 5 bytes 3ms aborted\n");
    }

    #[test]
    fn logfmt_lines() {
        let want = "time=2025-05-17T10:28:15.125Z request_id=0000000000000000 client=127.0.0.1 client_port=9 request=\"GET /a\\\"b HTTP/1.1\" \
                    status=404 bytes=5 seconds=0.003 aborted=false user_agent=\"curl/8 \\u001b[1m\" \
                    forwarded_for=\"192.0.2.7, 10.0.0.1\"\n";
        assert_eq!(LogFormat::Logfmt.line(&entry()), want);
    }

    #[test]
    fn the_trace_of_a_request_and_nothing_else_that_says_it_is_one() {
        let line = |parent: &str| {
            let head = format!("GET / HTTP/1.1\r\nhost: a\r\ntraceparent: {parent}\r\n\r\n").into_bytes();
            let parts = http1::head::parse_head(&head, &Default::default()).unwrap().unwrap().parts;
            let entry = Entry::new(&crate::HeadRef::new(&head, &parts, &Peer::Unix.into()), RequestId::NONE);
            LogFormat::Logfmt.line(&entry)
        };
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert!(line(&format!("00-{id}-00f067aa0ba902b7-01")).ends_with(&format!(" trace_id={id}\n")));
        let upper = id.to_uppercase();
        for wrong in [
            format!("00-{id}"),
            format!("00-{upper}-00f067aa0ba902b7-01"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
        ] {
            assert!(!line(&wrong).contains("trace_id"), "{wrong}");
        }
    }

    #[test]
    fn json_lines() {
        let mut entry = entry();
        entry.referer = Some("ä".repeat(2000));
        let line = LogFormat::Json.line(&entry);
        assert!(line.ends_with("}\n") && line.trim_end().bytes().all(|byte| byte >= b' '), "{line}");
        let object: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(object["time"], "2025-05-17T10:28:15.125Z");
        assert_eq!(object["request_id"], "0000000000000000");
        assert_eq!((&object["client"], &object["request"]), (&"127.0.0.1".into(), &"GET /a\"b HTTP/1.1".into()));
        assert_eq!(object["client_port"], 9);
        assert_eq!((&object["status"], &object["bytes"]), (&404.into(), &5.into()));
        assert_eq!((&object["seconds"], &object["aborted"]), (&0.003.into(), &false.into()));
        assert_eq!(object["user_agent"], "curl/8 \x1b[1m");
        assert_eq!(object["referer"].as_str().unwrap().len(), FIELD_BYTES_MAX);
        assert_eq!(object["forwarded_for"], "192.0.2.7, 10.0.0.1");
    }
}
