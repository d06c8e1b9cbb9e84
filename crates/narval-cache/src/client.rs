//! The HTTP client as binary caches need it: with decoders for their content codings, and with folders.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use narval_store::open_in_folder;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::bucket::BucketSigner;
use crate::bucket::credentials::Environment;
use crate::codings::CODINGS;
use narval_client::{Buckets, Client, ClientOptions};

/// A client for binary caches: it decodes the content codings that they use, and answers for `file://` caches. Requests to
/// buckets (`s3://`) are signed with the credentials that this process' environment leads to, unless `options` says how.
pub fn client(options: ClientOptions) -> Client {
    let of_process = || Arc::new(BucketSigner::new(Environment::of_process())) as Arc<dyn Buckets>;
    let buckets = options.buckets.clone().unwrap_or_else(of_process);
    Client::new(ClientOptions { codings: CODINGS, open_file: Some(open_file), buckets: Some(buckets), ..options })
}

/// Opens a file below a folder, and nowhere else.
fn open_file(folder: &Path, below: &CStr) -> io::Result<File> {
    // Not for reading: a folder may be entered that may not be listed.
    let flags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    match open_in_folder(folder.as_fd(), below) {
        Ok(file) => Ok(file.into()),
        Err(Errno::XDEV | Errno::LOOP) => Err(io::Error::other("it leads out of the folder of the cache")),
        // A socket. A FIFO can be opened; the client then finds that it is no regular file.
        Err(Errno::NXIO) => Err(io::Error::other("it is not a regular file")),
        Err(error) => Err(error.into()),
    }
}
