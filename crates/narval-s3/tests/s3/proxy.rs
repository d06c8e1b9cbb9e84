//! A proxy in front of an object store that writes down requests, and answers some of them itself, or badly.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is answered by the store.
    None,
    /// It is refused: the store has too much to do.
    SlowDown,
    /// It is refused: not allowed.
    Denied,
    /// It is answered 404 with this body.
    NotFound(&'static str),
    /// It is answered with this status and body if it has a field `x-amz-checksum-…`, and otherwise by the store.
    NoChecksums(&'static str, &'static str),
    /// The last byte of the response is wrong.
    Damaged,
    /// Half of the response arrives.
    Cut,
    /// Half of the response arrives, and then nothing until the client hangs up.
    Stalled,
}

/// Decides about a request by its method and target.
type Choice = Box<dyn FnMut(&str, &str) -> Fault + Send>;

/// A running proxy. Its threads end with the process.
pub struct Proxy {
    pub port: u16,
    requests: Arc<Mutex<Vec<String>>>,
    choice: Arc<Mutex<Choice>>,
}

impl Proxy {
    /// Passes everything on to this port.
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().port();
        let (requests, choice): (Arc<Mutex<Vec<_>>>, Arc<Mutex<Choice>>) =
            (Arc::default(), Arc::new(Mutex::new(Box::new(|_: &str, _: &str| Fault::None))));
        let proxy = Self { port: own, requests: Arc::clone(&requests), choice: Arc::clone(&choice) };
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (requests, choice) = (Arc::clone(&requests), Arc::clone(&choice));
                // Errors: a client that gives up.
                std::thread::spawn(move || drop(pass(&client, port, &requests, &choice)));
            }
        });
        proxy
    }

    /// From now on, this decides.
    pub fn set(&self, choice: impl FnMut(&str, &str) -> Fault + Send + 'static) {
        *self.choice.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(choice);
    }

    /// The method and target of each request since the last call.
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Handles one request, after which the connection ends.
fn pass(client: &TcpStream, port: u16, requests: &Mutex<Vec<String>>, choice: &Mutex<Choice>) -> std::io::Result<()> {
    client.set_read_timeout(Some(Duration::from_secs(120)))?;
    let (mut from, mut to) = (BufReader::new(client), client);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line)?;
        match line.trim_end() {
            "" if lines.is_empty() => return Ok(()),
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let field = |name: &str| {
        lines.iter().find_map(|line| {
            line.split_once(": ").filter(|(key, _)| key.eq_ignore_ascii_case(name))?.1.parse::<u64>().ok()
        })
    };
    let len = field("content-length").unwrap_or(0);
    let mut words = lines[0].split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    requests.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{method} {target}"));
    let fault = choice.lock().unwrap_or_else(PoisonError::into_inner)(&method, &target);
    let is_expecting = |line: &String| line.to_ascii_lowercase().starts_with("expect:");
    if lines.iter().any(is_expecting) {
        to.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let mut body = (&mut from).take(len);
    if let Some((status, text)) = match fault {
        Fault::SlowDown => Some(("503 Slow Down", "<Error><Code>SlowDown</Code></Error>")),
        Fault::Denied => Some(("403 Forbidden", "<Error><Code>AccessDenied</Code></Error>")),
        Fault::NotFound(text) => Some(("404 Not Found", text)),
        Fault::NoChecksums(status, text) => {
            let has_one = lines.iter().any(|line| line.to_ascii_lowercase().starts_with("x-amz-checksum-"));
            has_one.then_some((status, text))
        }
        _ => None,
    } {
        std::io::copy(&mut body, &mut std::io::sink())?;
        let text = if method == "HEAD" { "" } else { text };
        let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", text.len());
        return to.write_all((head + text).as_bytes());
    }
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    // Neither of them is signed.
    lines.retain(|line| !is_expecting(line) && !line.to_ascii_lowercase().starts_with("connection:"));
    server.write_all(format!("{}\r\nConnection: close\r\n\r\n", lines.join("\r\n")).as_bytes())?;
    std::io::copy(&mut body, &mut server)?;
    if matches!(fault, Fault::None | Fault::NoChecksums(..)) {
        std::io::copy(&mut server, &mut to)?;
        return to.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    let head_len = answer.windows(4).position(|four| four == b"\r\n\r\n").map_or(answer.len(), |at| at + 4);
    match fault {
        Fault::Cut | Fault::Stalled => answer.truncate(head_len + (answer.len() - head_len) / 2),
        _ if answer.len() > head_len => *answer.last_mut().unwrap() ^= 1,
        _ => {}
    }
    to.write_all(&answer)?;
    if fault == Fault::Stalled {
        from.fill_buf()?;
    }
    to.shutdown(Shutdown::Both)
}
