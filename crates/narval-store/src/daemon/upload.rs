//! Adds paths through the daemon: one NAR or many, in frames without padding.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use narval_nix::{PathInfo, StoreDir, StorePath};

use super::connection::Connection;
use super::wire::{Request, WireError};
use super::{Daemon, DaemonError, Operation};
use crate::signatures::join_signatures;
use crate::transfer::{InOrderError, NarOptions, Sink, Source, TransferError, VerifiedNar, Visible};

/// The maximum duration of an upload.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(6 * 3600);

/// The size of a frame in bytes.
const FRAME_LEN: usize = 64 * 1024;

impl Daemon {
    /// Adds a path from its NAR. Its references must already be valid. The daemon checks hash and size, and the
    /// signatures unless it trusts this user and `check_signatures` is off.
    ///
    /// # Errors
    /// [`DaemonError::Source`] if the NAR cannot be read, otherwise the daemon's error.
    pub fn add_to_store_nar(&self, info: &PathInfo, nar: impl Read, check_signatures: bool) -> Result<(), DaemonError> {
        self.ask_once(|mut connection| {
            let (repair, operation) = (false, Operation::AddToStoreNar);
            let arguments =
                with_info(Request::default(), info, &self.store_dir).boolean(repair).boolean(!check_signatures);
            connection.begin(operation, &arguments)?;
            upload(connection, operation, |frames| frames.copy(nar))
        })
    }

    /// Adds many paths with one request, each after its references. `paths` returns them one by one; `count` is their
    /// number. None of them may already be valid ([`Daemon::valid_paths`]): Nix 2.34 does not consume such a path's
    /// NAR, and parses it as the next path.
    ///
    /// # Errors
    /// See [`Daemon::add_to_store_nar`].
    pub fn add_multiple_to_store<N: Read>(
        &self,
        count: u64,
        paths: impl Iterator<Item = io::Result<(PathInfo, N)>>,
        check_signatures: bool,
    ) -> Result<(), DaemonError> {
        self.ask_once(|mut connection| {
            let (repair, operation) = (false, Operation::AddMultipleToStore);
            connection.begin(operation, &Request::default().boolean(repair).boolean(!check_signatures))?;
            upload(connection, operation, |frames| {
                frames.write(Request::default().number(count).as_bytes())?;
                for item in paths {
                    let (info, nar) = item.map_err(DaemonError::Source)?;
                    frames.write(with_info(Request::default(), &info, &self.store_dir).as_bytes())?;
                    frames.copy(nar)?;
                }
                Ok(())
            })
        })
    }
}

/// A path is valid as soon as it has been put. The caller must check signatures; a daemon that does not trust this user
/// checks them again.
impl Sink for Daemon {
    type Put = ();
    type Error = DaemonError;

    const VISIBLE: Visible = Visible::WhenPut;

    fn missing(&self, paths: &[&StorePath]) -> Result<HashSet<StorePath>, DaemonError> {
        let mut missing: HashSet<_> = paths.iter().map(|path| (*path).clone()).collect();
        for valid in self.valid_paths(&missing.iter().cloned().collect::<Vec<_>>())? {
            missing.remove(&valid);
        }
        Ok(missing)
    }

    fn put<S: Source>(
        &self,
        source: &S,
        entry: &S::Entry,
        threads: usize,
    ) -> Result<(), TransferError<S::Error, DaemonError>> {
        let (info, mut failure) = (source.info(entry), None);
        let nar = source.nar(entry, NarOptions { threads, file: None }).map_err(TransferError::Source)?;
        let nar = VerifiedNar::new(nar, info, source.store_dir(), &mut failure);
        let added = self.add_to_store_nar(info, nar, false);
        match failure {
            Some(error) => Err(TransferError::Source(error)),
            None => added.map_err(TransferError::Sink),
        }
    }

    /// In one stream.
    fn put_in_order<S: Source>(
        &self,
        source: &S,
        entries: &[S::Entry],
    ) -> Result<(), InOrderError<S::Error, DaemonError>> {
        let mut failures: Vec<_> = entries.iter().map(|_| None).collect();
        let nars = entries.iter().zip(&mut failures).map(|(entry, failure)| {
            let info = source.info(entry);
            match source.nar(entry, NarOptions::default()) {
                Ok(nar) => Ok((info.clone(), VerifiedNar::new(nar, info, source.store_dir(), failure))),
                Err(error) => {
                    *failure = Some(error);
                    Err(io::Error::other("the source failed"))
                }
            }
        });
        let added = self.add_multiple_to_store(entries.len() as u64, nars, false);
        match failures.into_iter().enumerate().find_map(|(at, failure)| failure.map(|error| (at, error))) {
            Some((at, error)) => Err(InOrderError { at: Some(at), error: TransferError::Source(error) }),
            None => added.map_err(|error| InOrderError { at: None, error: TransferError::Sink(error) }),
        }
    }

    fn commit(&self, _: Vec<()>) -> Result<Vec<StorePath>, DaemonError> {
        Ok(Vec::new())
    }
}

/// `ValidPathInfo` in the format of protocol 1.16.
fn with_info(request: Request, info: &PathInfo, store_dir: &StoreDir) -> Request {
    let full = |path| store_dir.display(path).to_string();
    let signatures = join_signatures(&info.signatures).unwrap_or_default();
    let signatures: Vec<&str> = signatures.split_ascii_whitespace().collect();
    request
        .string(full(&info.path))
        .string(info.deriver.as_ref().map(full).unwrap_or_default())
        .string(info.nar_hash.to_hex())
        .list(info.references.iter().map(full))
        .number(info.registration_time)
        .number(info.nar_size)
        .boolean(info.ultimate)
        .list(signatures.into_iter())
        .string(info.ca.as_ref().map(ToString::to_string).unwrap_or_default())
}

/// Sends frames while a second thread reads: the daemon may return an error in the middle, and blocks if nobody reads
/// its messages.
fn upload(
    mut connection: Connection<UnixStream>,
    operation: Operation,
    send: impl FnOnce(&mut Frames) -> Result<(), DaemonError>,
) -> Result<(), DaemonError> {
    let output = connection.output().try_clone().map_err(WireError::from)?;
    // The daemon sends nothing until it has everything.
    output.set_read_timeout(Some(UPLOAD_TIMEOUT)).map_err(WireError::from)?;
    let (sent, answer) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let answer = connection.messages(operation);
            if answer.is_err() {
                // Unblocks the sender. The connection is not reused.
                connection.output().shutdown(Shutdown::Both).ok();
            }
            answer
        });
        let mut frames = Frames { output: &output };
        let sent = send(&mut frames).and_then(|()| frames.end());
        if sent.is_err() {
            // The daemon must not take the partial data for complete data: it sees the connection end.
            output.shutdown(Shutdown::Write).ok();
        }
        let answer = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (sent, answer)
    });
    match (sent, answer) {
        // The failure to read is the cause of the daemon's error.
        (Err(error @ DaemonError::Source(_)), _) => Err(error),
        (_, Err(error)) => Err(error),
        (sent, Ok(())) => sent,
    }
}

struct Frames<'a> {
    output: &'a UnixStream,
}

impl Frames<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), DaemonError> {
        for chunk in bytes.chunks(FRAME_LEN) {
            let head = (chunk.len() as u64).to_le_bytes();
            self.output.write_all(&[&head[..], chunk].concat()).map_err(WireError::from)?;
        }
        Ok(())
    }

    fn copy(&mut self, mut source: impl Read) -> Result<(), DaemonError> {
        let mut buffer = vec![0; FRAME_LEN];
        loop {
            match source.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(read) => self.write(buffer.get(..read).unwrap_or_default())?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(DaemonError::Source(error)),
            }
        }
    }

    fn end(&mut self) -> Result<(), DaemonError> {
        Ok(self.output.write_all(&0_u64.to_le_bytes()).map_err(WireError::from)?)
    }
}
