//! A minimal server of pushes: it receives, hashes, decodes, hashes and writes. It has one blocking thread per connection, no index, no
//! validation of NARs, no scan for references, and syncs nothing. What it takes beyond the [floor](super::floor) is the kernel's share.

use std::fs::{self, File};
use std::io::{self, BufRead, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use clap::Args;
use narval_codec::decode::{Decoder, INPUT_LEN};
use narval_nix::Compression;
use sha2::{Digest, Sha256};

use super::floor::PIECE_LEN;
use crate::{Context, Result, failure};

const HEAD_BYTES_MAX: usize = 16 * 1024;
const FIELDS_MAX: usize = 32;

/// `narval-bench push-bare`.
#[derive(Debug, Args)]
pub struct BareArgs {
    /// Port of 127.0.0.1 to listen on
    #[arg(long)]
    pub port: u16,
    /// Folder to write files to
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Only receive and write
    #[arg(long)]
    pub unverified: bool,
    /// Sync each NAR
    #[arg(long)]
    pub sync: bool,
}

/// Serves until the process ends.
///
/// # Errors
/// If it cannot listen.
pub fn serve(arguments: &BareArgs) -> Result<()> {
    let address = (Ipv4Addr::LOCALHOST, arguments.port);
    let listener = TcpListener::bind(address).context(|| format!("cannot listen on {address:?}"))?;
    thread::scope(|scope| {
        for stream in listener.incoming() {
            let stream = stream.context(|| "accept".to_owned())?;
            scope.spawn(|| {
                if let Err(failure) = answer_all(stream, arguments) {
                    eprintln!("narval-bench: {failure}");
                }
            });
        }
        Ok(())
    })
}

fn answer_all(stream: TcpStream, arguments: &BareArgs) -> Result<()> {
    stream.set_nodelay(true).context(|| "TCP_NODELAY".to_owned())?;
    let mut connection = Connection { stream, buffer: vec![0; HEAD_BYTES_MAX].into(), at: 0, end: 0 };
    while let Some(request) = connection.request()? {
        let status = match request.length {
            None => "404 Not Found",
            Some(length) => {
                if request.expects {
                    let sent = connection.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
                    sent.context(|| request.target.clone())?;
                }
                put(&mut (&mut connection).take(length), &request.target, arguments)
                    .context(|| request.target.clone())?;
                "201 Created"
            }
        };
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        connection.stream.write_all(answer.as_bytes()).context(|| request.target.clone())?;
    }
    Ok(())
}

struct Request {
    target: String,
    /// Only for a PUT.
    length: Option<u64>,
    expects: bool,
}

struct Connection {
    stream: TcpStream,
    buffer: Box<[u8]>,
    at: usize,
    end: usize,
}

impl Connection {
    /// Reads the next head; `None` if the client has closed the connection.
    fn request(&mut self) -> Result<Option<Request>> {
        loop {
            let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
            let mut head = httparse::Request::new(&mut fields);
            let received = self.buffer.get(self.at..self.end).unwrap_or_default();
            if let httparse::Status::Complete(used) = head.parse(received).context(|| "a head".to_owned())? {
                let field = |name: &str| {
                    let field = head.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
                    field.and_then(|field| std::str::from_utf8(field.value).ok())
                };
                let request = Request {
                    target: head.path.unwrap_or_default().to_owned(),
                    length: field("content-length").and_then(|length| length.parse().ok()),
                    expects: field("expect").is_some(),
                };
                self.at += used;
                return Ok(Some(request));
            }
            self.buffer.copy_within(self.at..self.end, 0);
            (self.at, self.end) = (0, self.end - self.at);
            let room = self.buffer.get_mut(self.end..).filter(|room| !room.is_empty());
            let room = room.ok_or_else(|| failure!("a head of more than {HEAD_BYTES_MAX} bytes"))?;
            match self.stream.read(room).context(|| "read".to_owned())? {
                0 => return Ok(None),
                count => self.end += count,
            }
        }
    }
}

/// A body: the bytes that came with the head, then the socket's.
impl Read for Connection {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at == self.end {
            return self.stream.read(out);
        }
        let count = self.buffer.get(self.at..self.end).unwrap_or_default().read(out)?;
        self.at += count;
        Ok(count)
    }
}

fn put(body: &mut dyn Read, target: &str, arguments: &BareArgs) -> Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let doing = || target.to_owned();
    let temporary = arguments.data.join(format!("tmp-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
    let file = File::create(&temporary).context(doing)?;
    let is_nar = target.starts_with("/nar/");
    let hash = (is_nar && !arguments.unverified).then(Sha256::new);
    let mut source = Source { body, file, hash, buffer: vec![0; INPUT_LEN].into(), at: 0, end: 0 };
    if source.hash.is_none() {
        while let piece @ [_, ..] = source.fill_buf().context(doing)? {
            let count = piece.len();
            source.consume(count);
        }
    } else {
        source = verify(source, target)?;
    }
    if is_nar && arguments.sync {
        source.file.sync_all().context(doing)?;
    }
    rename(&temporary, &arguments.data, target)
}

fn verify<'a>(source: Source<'a>, target: &str) -> Result<Source<'a>> {
    let doing = || target.to_owned();
    let extension = target.rsplit_once(".nar").map_or("", |(_, extension)| extension);
    let compression = Compression::ALL.into_iter().find(|compression| compression.file_extension() == extension);
    let compression = compression.ok_or_else(|| failure!("{target}: its compression is not known"))?;
    let mut source = source;
    let mut decoder = Decoder::new(&compression, &mut source, 1).context(doing)?;
    if compression == Compression::None {
        while let piece @ [_, ..] = decoder.source_mut().fill_buf().context(doing)? {
            let count = piece.len();
            decoder.source_mut().consume(count);
        }
    } else {
        let (mut hash, mut buffer) = (Sha256::new(), vec![0; PIECE_LEN]);
        loop {
            match decoder.read(&mut buffer).context(doing)? {
                0 => break,
                count => hash.update(buffer.get(..count).unwrap_or_default()),
            }
        }
        std::hint::black_box(hash.finalize());
    }
    drop(decoder);
    let hash = source.hash.take().map(Digest::finalize);
    std::hint::black_box(hash);
    Ok(source)
}

/// A body that is hashed and written as it is read.
struct Source<'a> {
    body: &'a mut dyn Read,
    file: File,
    hash: Option<Sha256>,
    buffer: Box<[u8]>,
    at: usize,
    end: usize,
}

impl Read for Source<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(out)?;
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Source<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.end {
            (self.at, self.end) = (0, 0);
            while let Some(room) = self.buffer.get_mut(self.end..).filter(|room| !room.is_empty()) {
                match self.body.read(room)? {
                    0 => break,
                    count => self.end += count,
                }
            }
            let piece = self.buffer.get(..self.end).unwrap_or_default();
            if let Some(hash) = &mut self.hash {
                hash.update(piece);
            }
            self.file.write_all(piece)?;
        }
        Ok(self.buffer.get(self.at..self.end).unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        self.at = (self.at + count).min(self.end);
    }
}

fn rename(temporary: &Path, data: &Path, target: &str) -> Result<()> {
    let name = target.trim_start_matches('/').replace('/', "-");
    fs::rename(temporary, data.join(name)).context(|| target.to_owned())
}
