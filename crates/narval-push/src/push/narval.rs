//! Narval's protocol (`docs/push-protocol.md`): one query for missing paths, NARs that are compressed while they are
//! sent, one commit of all narinfos.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::sync::atomic::Ordering;
use std::thread::{Scope, ScopedJoinHandle};

use narval_cache::CacheError;
use narval_client::{Answer, HttpError, Method, Payload, Request, Url};
use narval_codec::encode::{Encoding, write_nar};
use narval_nix::{HashPart, NarInfo, SecretKey, StorePath};
use narval_store::{Sink, Source, TransferError, Visible};

use super::server::{ANSWER_LEN_MAX, Sent, Server};
use super::small::{Batch, SMALL_LEN_MAX, SmallNars};
use narval_transfer::{Error, Progress};

/// Bytes in one part: less than the 32 MiB that the protocol allows, because each upload holds two parts in memory.
const PART_LEN: usize = 16 * 1024 * 1024;
/// The maximum number of hash parts in one query, and of narinfos in one commit.
const BATCH_MAX: usize = 65_536;
/// Bytes of narinfos in one commit: less than the 16 MiB that the protocol allows, with a line for each.
const COMMIT_LEN_MAX: usize = 15 * 1024 * 1024;
/// The maximum size of the response to a query or a commit.
const LIST_LEN_MAX: u64 = 16 * 1024 * 1024;
/// How often one NAR is sent from the start: a restarted server has lost its parts.
const STARTS_MAX: usize = 3;

/// How many seconds a derivation took to build, if that is known.
pub(crate) type BuildSeconds = Box<dyn Fn(&StorePath) -> Option<u64> + Send + Sync>;

/// A cache, as a sink.
pub(super) struct NarvalCache<'a> {
    pub(super) server: &'a Server,
    /// The base of the protocol's URLs.
    pub(super) protocol: &'a Url,
    /// Small NARs, if the cache takes several in one request.
    pub(super) small: Option<SmallNars>,
    pub(super) encoding: Encoding,
    pub(super) key: Option<&'a SecretKey>,
    pub(super) build_seconds: Option<&'a BuildSeconds>,
    pub(super) progress: &'a Progress,
}

impl Sink for NarvalCache<'_> {
    type Put = NarInfo;
    type Error = Error;

    const VISIBLE: Visible = Visible::AtTheEnd;

    fn missing(&self, paths: &[&StorePath]) -> Result<HashSet<StorePath>, Error> {
        let mut missing = HashSet::new();
        for batch in paths.chunks(BATCH_MAX) {
            let by_hash: HashMap<HashPart, &StorePath> = batch.iter().map(|path| (path.hash_part(), *path)).collect();
            let question: String = batch.iter().map(|path| format!("{}\n", path.hash_part())).collect();
            let answer = self.post("missing", question.as_bytes())?;
            for line in lines_to_end(&answer).ok_or_else(|| self.malformed("missing"))? {
                let path = HashPart::parse(line.as_bytes()).ok().and_then(|part| by_hash.get(&part).copied());
                missing.insert(path.ok_or_else(|| self.malformed("missing"))?.clone());
            }
        }
        Ok(missing)
    }

    fn put<S: Source>(
        &self,
        source: &S,
        entry: &S::Entry,
        _threads: usize,
    ) -> Result<NarInfo, TransferError<S::Error, Error>> {
        let info = source.info(entry);
        let kept = source.narinfo(entry);
        let compression = kept.map_or_else(|| self.encoding.compression(), |narinfo| narinfo.compression);
        let name = format!("{}.nar{}", info.nar_hash.to_nix32(), compression.file_extension());
        if let Some(small) = self.small.as_ref().filter(|_| info.nar_size <= SMALL_LEN_MAX) {
            return self.put_small(small, source, entry, name);
        }
        let name = format!("nar/{name}");
        let mut offset = self.offset(&name, info.nar_size).map_err(TransferError::Sink)?;
        if offset > 0 {
            self.progress.resumed(&info.path, offset);
        }
        for _ in 0..STARTS_MAX {
            let sent = std::thread::scope(|scope| {
                let mut parts = Parts::new(scope, self, &name, offset);
                let written = write_nar(source, entry, (self.encoding, self.key), &mut parts);
                match (parts.outcome.take(), written) {
                    (Some(outcome), _) => Err(Err(outcome)),
                    (None, Err(error)) => Err(Ok(error)),
                    (None, Ok(narinfo)) => parts.finish().map(|text| (narinfo, text)).map_err(Err),
                }
            });
            let (mut narinfo, text) = match sent {
                Ok(sent) => sent,
                Err(Ok(error)) => return Err(error.map_sink(|source| Error::Copy { path: info.path.clone(), source })),
                Err(Err(Outcome::Failed(error))) => return Err(TransferError::Sink(error)),
                Err(Err(Outcome::StartOver)) => {
                    offset = 0;
                    continue;
                }
                Err(Err(Outcome::Known(text))) => {
                    let signature = || self.key.map(|key| key.sign(info.fingerprint(source.store_dir()).as_bytes()));
                    let narinfo = match kept.cloned() {
                        Some(kept) => kept,
                        None => {
                            let mut made = NarInfo::new(info, "", compression);
                            let signed = signature().transpose();
                            made.signatures.extend(signed.map_err(|error| TransferError::Sink(Error::Sign(error)))?);
                            made
                        }
                    };
                    (narinfo, text)
                }
            };
            return match take_file_lines(&mut narinfo, &text) {
                Some(()) => Ok(narinfo),
                None => Err(TransferError::Sink(self.malformed(&name))),
            };
        }
        Err(TransferError::Sink(self.malformed(&name)))
    }

    fn commit(&self, put: Vec<NarInfo>) -> Result<Vec<StorePath>, Error> {
        let (mut body, mut count) = (String::new(), 0);
        if let Some(small) = &self.small
            && let Some(batch) = small.rest()
        {
            self.send_small(small, &batch)?;
        }
        for mut narinfo in put {
            let lines = self.small.as_ref().and_then(|small| small.lines(&narinfo));
            if let Some(lines) = lines {
                take_file_lines(&mut narinfo, &lines).ok_or_else(|| self.malformed("nars"))?;
            }
            let seconds = self.build_seconds.zip(narinfo.deriver.as_ref()).and_then(|(known, of)| known(of));
            seconds.into_iter().for_each(|seconds| narinfo.set_build_seconds(seconds));
            let text = narinfo.render(&self.server.store_dir);
            if count == BATCH_MAX || body.len() + text.len() > COMMIT_LEN_MAX {
                // The paths come in order: it may refer to those before it.
                self.post_commit(std::mem::take(&mut body), std::mem::take(&mut count))?;
            }
            body.push_str(&format!("{} {}\n{text}", narinfo.path.hash_part(), text.len()));
            count += 1;
        }
        self.post_commit(body, count)?;
        Ok(Vec::new())
    }
}

impl NarvalCache<'_> {
    /// Adds a small NAR to those that are sent together. What its narinfo says of the file is known when it is committed.
    fn put_small<S: Source>(
        &self,
        small: &SmallNars,
        source: &S,
        entry: &S::Entry,
        name: String,
    ) -> Result<NarInfo, TransferError<S::Error, Error>> {
        if self.progress.is_interrupted() {
            return Err(TransferError::Sink(Error::Interrupted));
        }
        let (info, mut file) = (source.info(entry), Vec::new());
        let written = write_nar(source, entry, (self.encoding, self.key), &mut file);
        let narinfo =
            written.map_err(|error| error.map_sink(|source| Error::Copy { path: info.path.clone(), source }))?;
        if let Some(batch) = small.add(info.nar_hash, name, &file) {
            self.send_small(small, &batch).map_err(TransferError::Sink)?;
        }
        Ok(narinfo)
    }

    fn send_small(&self, small: &SmallNars, batch: &Batch) -> Result<(), Error> {
        let (url, body) = (self.url("nars")?, batch.body());
        let (content_type, payload) = ("application/octet-stream", Payload::Bytes(&body));
        let (method, url, fields, answer_len_max) = (Method::Post, &url, &[], LIST_LEN_MAX);
        let sent = Sent { method, url, content_type, fields, payload, answer_len_max };
        let answer = self.server.send(&sent, &|len| self.progress.downloaded(len))?;
        let answer = self.server.accepted(url, answer)?;
        small.sent(batch, &answer).ok_or_else(|| self.malformed("nars"))
    }

    fn url(&self, below: &str) -> Result<Url, Error> {
        Ok(self.protocol.child(below)?)
    }

    fn post(&self, below: &str, body: &[u8]) -> Result<String, Error> {
        let url = self.url(below)?;
        let (method, payload, fields, answer_len_max) = (Method::Post, Payload::Bytes(body), &[], LIST_LEN_MAX);
        let content_type = "text/plain; charset=utf-8";
        let sent = Sent { method, url: &url, content_type, fields, payload, answer_len_max };
        let answer = self.server.send(&sent, &|_| {})?;
        let answer = self.server.accepted(&url, answer)?;
        String::from_utf8(answer).map_err(|_| self.malformed(below))
    }

    /// Commits narinfos.
    fn post_commit(&self, mut body: String, count: usize) -> Result<(), Error> {
        if count == 0 {
            return Ok(());
        }
        body.push_str(&format!("end {count}\n"));
        let answer = self.post("commit", body.as_bytes())?;
        match lines_to_end(&answer) {
            Some(lines) if lines.len() == count => {
                let unsigned = lines.iter().filter(|line| line.ends_with(" unsigned")).count();
                self.server.unsigned.fetch_add(unsigned, Ordering::Relaxed);
                Ok(())
            }
            _ => Err(self.malformed("commit")),
        }
    }

    /// How much of a NAR an earlier run has sent. Only queried for those that may have had parts.
    fn offset(&self, name: &str, nar_size: u64) -> Result<u64, Error> {
        if nar_size <= PART_LEN as u64 {
            return Ok(0);
        }
        let url = self.url(name)?;
        let request = Request { method: Method::Head, ..Request::get(&url) };
        let answer = self.server.client.retrying(&url, || self.server.client.send(&request));
        let answer = answer.map_err(|error| self.server.failed(name, error))?;
        let offset = upload_offset(answer.head.field("upload-offset"));
        answer.body.drain();
        Ok(offset.unwrap_or(0))
    }

    fn malformed(&self, what: &str) -> Error {
        let source = HttpError::Malformed("it is not what docs/push-protocol.md describes");
        CacheError::Fetch { cache: self.server.url.to_string(), what: what.to_owned(), source }.into()
    }
}

/// Why sending a NAR stopped early.
enum Outcome {
    /// The cache has it already: the lines for the narinfo.
    Known(Vec<u8>),
    /// The server expects the NAR from the start.
    StartOver,
    Failed(Error),
}

/// A NAR being sent part by part: one part is sent while the next one is produced.
struct Parts<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    cache: &'env NarvalCache<'env>,
    name: &'env str,
    /// The next part so far.
    part: Vec<u8>,
    /// Its offset.
    offset: u64,
    /// Bytes still to skip, because the server has them from an earlier run.
    skip: u64,
    is_resumed: bool,
    /// The previous part.
    sending: Option<ScopedJoinHandle<'scope, Result<(), Outcome>>>,
    outcome: Option<Outcome>,
}

impl<'scope, 'env> Parts<'scope, 'env> {
    const fn new(
        scope: &'scope Scope<'scope, 'env>,
        cache: &'env NarvalCache<'env>,
        name: &'env str,
        offset: u64,
    ) -> Self {
        let (sending, outcome) = (None, None);
        Self { scope, cache, name, part: Vec::new(), offset, skip: offset, is_resumed: offset > 0, sending, outcome }
    }

    /// Waits for the previous part, and sends the full one.
    fn pass_on(&mut self) -> Result<(), Outcome> {
        self.wait()?;
        let (cache, name, offset) = (self.cache, self.name, self.offset);
        let part = std::mem::take(&mut self.part);
        self.offset += part.len() as u64;
        self.sending = Some(self.scope.spawn(move || cache.send_part(name, offset, &part)));
        Ok(())
    }

    fn wait(&mut self) -> Result<(), Outcome> {
        let sent = self.sending.take().map(ScopedJoinHandle::join);
        sent.unwrap_or(Ok(Ok(()))).unwrap_or(Err(Outcome::Failed(Error::Died)))
    }

    /// Sends the last part. Returns the lines for the narinfo.
    fn finish(&mut self) -> Result<Vec<u8>, Outcome> {
        self.wait()?;
        let below = match self.offset {
            0 => self.name.to_owned(),
            offset => format!("{}?offset={offset}&last=1", self.name),
        };
        let (url, answer) = self.cache.send_nar(&below, &self.part).map_err(Outcome::Failed)?;
        match answer.head.status {
            // The server has lost the parts, or those of an earlier run were different.
            409 if self.offset > 0 => Err(Outcome::StartOver),
            422 if self.is_resumed => Err(Outcome::StartOver),
            _ => self.cache.server.accepted(&url, answer).map_err(Outcome::Failed),
        }
    }
}

impl NarvalCache<'_> {
    fn send_nar(&self, below: &str, bytes: &[u8]) -> Result<(Url, Answer), Error> {
        let url = self.url(below)?;
        let (content_type, payload) = ("application/x-nix-nar", Payload::Bytes(bytes));
        let (method, fields, answer_len_max) = (Method::Put, &[], ANSWER_LEN_MAX);
        let sent = Sent { method, url: &url, content_type, fields, payload, answer_len_max };
        let answer = self.server.send(&sent, &|len| self.progress.downloaded(len))?;
        Ok((url, answer))
    }

    fn send_part(&self, name: &str, offset: u64, part: &[u8]) -> Result<(), Outcome> {
        let (url, answer) = self.send_nar(&format!("{name}?offset={offset}"), part).map_err(Outcome::Failed)?;
        match (answer.head.status, upload_offset(answer.head.field("upload-offset"))) {
            (200, _) => Err(Outcome::Known(answer.body)),
            (202, _) => Ok(()),
            // The answer to an earlier attempt was lost.
            (409, Some(expected)) if expected == offset + part.len() as u64 => Ok(()),
            (409, _) => Err(Outcome::StartOver),
            (status, _) => Err(Outcome::Failed(self.server.rejected(&url.target(), status, &answer.body))),
        }
    }
}

impl Write for Parts<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.cache.progress.is_interrupted() {
            self.outcome = Some(Outcome::Failed(Error::Interrupted));
            return Err(io::ErrorKind::Other.into());
        }
        let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(bytes.len());
        self.skip -= skipped as u64;
        let mut rest = bytes.get(skipped..).unwrap_or_default();
        while !rest.is_empty() {
            // A full part is sent once more bytes follow; `finish` sends the last one.
            if self.part.len() == PART_LEN
                && let Err(outcome) = self.pass_on()
            {
                self.outcome = Some(outcome);
                return Err(io::ErrorKind::Other.into());
            }
            let (now, later) = rest.split_at(rest.len().min(PART_LEN - self.part.len()));
            self.part.extend_from_slice(now);
            rest = later;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn upload_offset(value: Option<&str>) -> Option<u64> {
    value.and_then(|value| value.parse().ok())
}

/// The lines of a response before its `end` line; `None` if that is missing or wrong.
fn lines_to_end(text: &str) -> Option<Vec<&str>> {
    let mut lines: Vec<&str> = text.lines().collect();
    let count: usize = lines.pop()?.strip_prefix("end ")?.parse().ok()?;
    (lines.len() == count).then_some(lines)
}

/// Applies the cache's lines about the file; `None` if they are not for this NAR.
fn take_file_lines(narinfo: &mut NarInfo, text: &[u8]) -> Option<()> {
    let lines: HashMap<&str, &str> =
        str::from_utf8(text).ok()?.lines().filter_map(|line| line.split_once(": ")).collect();
    let same_nar = lines.get("NarHash")?.parse().ok() == Some(narval_nix::Hash::from(narinfo.nar_hash))
        && lines.get("NarSize")?.parse() == Ok(narinfo.nar_size);
    narinfo.url = (*lines.get("URL")?).to_owned();
    narinfo.compression = lines.get("Compression")?.parse().ok()?;
    narinfo.file_hash = Some(lines.get("FileHash")?.parse().ok()?);
    narinfo.file_size = Some(lines.get("FileSize")?.parse().ok()?);
    same_nar.then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_answers_are_incomplete() {
        assert_eq!(lines_to_end("a\nb\nend 2\n"), Some(vec!["a", "b"]));
        assert_eq!(lines_to_end("end 0\n"), Some(Vec::new()));
        for cut in ["", "a\n", "a\nend 2\n", "a\nb\nend 1\n", "a\nend\n"] {
            assert_eq!(lines_to_end(cut), None, "{cut:?}");
        }
    }
}
