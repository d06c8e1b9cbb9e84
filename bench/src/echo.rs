//! The floor: a server that only answers known targets with a given number of bytes, with one
//! blocking thread per connection and one `send` per response (for a large body, as few as possible).

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use crate::{Context, Result, failure};

const HEAD_BYTES_MAX: usize = 16 * 1024;
/// The bytes of one `send`; the first one starts with the head.
const SEND_BYTES: usize = 256 * 1024;

/// Targets and the sizes of their bodies. Any other target is answered 404.
pub type Sizes = HashMap<String, u64>;

/// Serves until the process ends.
///
/// # Errors
/// When the listener fails.
pub fn serve(listener: &TcpListener, sizes: Sizes) -> Result<()> {
    let sizes = Arc::new(sizes);
    for stream in listener.incoming() {
        let stream = stream.context(|| "accept".to_owned())?;
        let sizes = Arc::clone(&sizes);
        thread::spawn(move || {
            // a client that disconnects is not an error here
            let _ = answer_all(stream, &sizes);
        });
    }
    Ok(())
}

fn answer_all(mut stream: TcpStream, sizes: &Sizes) -> Result<()> {
    stream.set_nodelay(true).context(|| "TCP_NODELAY".to_owned())?;
    let mut head = vec![0; HEAD_BYTES_MAX];
    let mut filled = 0;
    let mut out = Vec::with_capacity(SEND_BYTES);
    loop {
        let space = head.get_mut(filled..).filter(|space| !space.is_empty());
        let space = space.ok_or_else(|| failure!("a head of more than {HEAD_BYTES_MAX} bytes"))?;
        let count = stream.read(space).context(|| "read".to_owned())?;
        if count == 0 {
            return Ok(());
        }
        filled += count;
        let received = head.get(..filled).unwrap_or_default();
        if !received.ends_with(b"\r\n\r\n") {
            continue;
        }
        filled = 0;
        let target = received.split(|&byte| byte == b' ').nth(1).and_then(|target| std::str::from_utf8(target).ok());
        let size = target.and_then(|target| sizes.get(target));
        answer(&mut stream, &mut out, size.copied())?;
    }
}

fn answer(stream: &mut TcpStream, out: &mut Vec<u8>, size: Option<u64>) -> Result<()> {
    let (status, mut left) = match size {
        Some(size) => ("200 OK", size),
        None => ("404 Not Found", 9),
    };
    out.clear();
    // writing to a Vec cannot fail
    let _ =
        write!(out, "HTTP/1.1 {status}\r\nContent-Type: application/octet-stream\r\nContent-Length: {left}\r\n\r\n");
    let first = zeros(left, SEND_BYTES - HEAD_BYTES_MAX);
    out.extend_from_slice(first);
    stream.write_all(out).context(|| "write".to_owned())?;
    left -= first.len() as u64;
    while left > 0 {
        let next = zeros(left, SEND_BYTES);
        stream.write_all(next).context(|| "write".to_owned())?;
        left -= next.len() as u64;
    }
    Ok(())
}

fn zeros(left: u64, most: usize) -> &'static [u8] {
    static ZEROS: [u8; SEND_BYTES] = [0; SEND_BYTES];
    ZEROS.get(..usize::try_from(left).unwrap_or(most).min(most)).unwrap_or(&ZEROS)
}
