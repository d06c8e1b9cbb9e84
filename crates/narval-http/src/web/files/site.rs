use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, LOCATION};
use http::{HeaderValue, Method, StatusCode};

use super::SiteOptions;
use super::answer::answer;
use super::cache::ResourceCache;
use super::dictionary::{DictionaryHash, dictionary_asked};
use super::folder::{Folder, Found, Stamp};
use super::listing;
use super::resource::{Resource, Variant};
use crate::http1::head_parts::HeadRef;
use crate::http1::path::FilePath;
use crate::message::handler::Handler;
use crate::message::request::Request;
use crate::message::response::Response;

/// How often reading a file is retried if it changes meanwhile.
const CHANGED_RETRIES_MAX: usize = 5;

/// Serves the files of a folder. Recently used files are answered from memory, on the shard.
#[derive(Debug)]
pub struct Site {
    root: Folder,
    sidecar_root: Option<Folder>,
    options: SiteOptions,
    cache: ResourceCache,
    started: Instant,
    /// Shown in errors.
    path: PathBuf,
}

impl Site {
    /// Opens the folder. It is used from then on, even if it is renamed.
    ///
    /// # Errors
    /// The folder, or that of the sidecars, cannot be opened, or the kernel is older than Linux 5.6.
    pub fn open(root: impl AsRef<Path>, options: SiteOptions) -> io::Result<Self> {
        let path = root.as_ref().to_owned();
        let opened = |path: &Path| {
            Folder::open(path).map_err(|error| {
                io::Error::new(error.kind(), format!("cannot open the folder '{}': {error}", path.display()))
            })
        };
        let root = opened(&path)?;
        let sidecar_root = options.sidecar_folder.as_deref().map(opened).transpose()?;
        Ok(Self { root, sidecar_root, cache: ResourceCache::new(&options), options, started: Instant::now(), path })
    }

    fn now_ms(&self) -> u64 {
        // Starts at 1: 0 is before everything.
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }

    fn revalidate_after_ms(&self) -> u64 {
        u64::try_from(self.options.revalidate_after.as_millis()).unwrap_or(u64::MAX)
    }

    fn get(&self, head: &HeadRef<'_>) -> io::Result<Response> {
        let Ok(path) = FilePath::decode(head.path()) else {
            return Ok(Response::text(StatusCode::BAD_REQUEST, "Bad path.\n"));
        };
        if !self.options.hidden && is_hidden(path.relative()) {
            return self.not_found(head, path.relative());
        }
        if let Some(response) = self.known(head) {
            return Ok(response);
        }
        match self.root.find(path.relative())? {
            Found::Folder(_) if !path.names_folder => Ok(redirect_to_folder(head)),
            Found::Folder(folder) => self.folder(head, &path, folder),
            // "/a.html/" is not "/a.html".
            Found::File(..) if path.names_folder => self.not_found(head, path.relative()),
            Found::File(file, stamp) => self.file(head, path.relative(), file, stamp),
            Found::Forbidden => Ok(Response::text(StatusCode::FORBIDDEN, "Forbidden.\n")),
            Found::Nothing => self.not_found(head, path.relative()),
        }
    }

    /// The response from the cache, if it is still valid.
    fn known(&self, head: &HeadRef<'_>) -> Option<Response> {
        let resource = self.cache.get(head.path())?;
        // Taken before: a change during the check is not missed for longer than the interval.
        let now = self.now_ms();
        if !resource.is_fresh(now, self.revalidate_after_ms()) {
            if !self.is_still_so(head, &resource) {
                return None;
            }
            resource.checked_at(now);
        }
        self.respond(head, &resource)
    }

    /// Worker: the response, which is a delta if the client has a version that there is one from.
    fn respond(&self, head: &HeadRef<'_>, resource: &Resource) -> Option<Response> {
        let dictionary = self.dictionary_asked(head, resource);
        let delta = dictionary.and_then(|dictionary| self.delta(head, resource, &dictionary));
        answer(head, resource, delta.as_deref().and_then(Resource::identity))
    }

    fn dictionary_asked(&self, head: &HeadRef<'_>, resource: &Resource) -> Option<DictionaryHash> {
        resource.use_as_dictionary.as_ref().and_then(|_| dictionary_asked(head, self.options.is_secure))
    }

    /// The delta from the cache, if it is still valid.
    fn known_delta(
        &self,
        head: &HeadRef<'_>,
        resource: &Resource,
        dictionary: &DictionaryHash,
    ) -> Option<Arc<Resource>> {
        let known = self.cache.delta(head.path(), dictionary)?;
        let is_fresh = known.is_fresh(self.now_ms(), self.revalidate_after_ms());
        (is_fresh && known.is_delta_of(resource, dictionary)).then_some(known)
    }

    /// Worker: the delta of a file. Absent ones are not remembered: a client may name any number of dictionaries.
    fn delta(&self, head: &HeadRef<'_>, resource: &Resource, dictionary: &DictionaryHash) -> Option<Arc<Resource>> {
        if let Some(known) = self.known_delta(head, resource, dictionary) {
            return Some(known);
        }
        let now = self.now_ms();
        match resource.load_delta(dictionary, &self.root, self.sidecar_root.as_ref(), &self.options) {
            Ok(delta) => {
                let delta = Arc::new(delta?);
                delta.checked_at(now);
                if self.revalidate_after_ms() > 0 {
                    self.cache.insert_delta(head.path(), dictionary, delta.clone());
                }
                Some(delta)
            }
            Err(error) => {
                // The file itself is a valid answer.
                tracing::warn!("cannot read the delta of '{}' in '{}': {error}", head.path(), self.path.display());
                None
            }
        }
    }

    fn folder(&self, head: &HeadRef<'_>, path: &FilePath, folder: std::os::fd::OwnedFd) -> io::Result<Response> {
        for name in &self.options.index {
            let index = path.relative().join(name);
            if let Found::File(file, stamp) = self.root.find(&index)? {
                return self.file(head, &index, file, stamp);
            }
        }
        if self.options.listing {
            return listing::list(head, folder, head.path(), self.options.hidden);
        }
        self.not_found(head, path.relative())
    }

    /// Answers with a file, and caches it under the request's path.
    fn file(&self, head: &HeadRef<'_>, path: &Path, file: File, stamp: Stamp) -> io::Result<Response> {
        let Some(resource) = self.load(path, Found::File(file, stamp))? else { return self.not_found(head, path) };
        let resource = match self.cache.get(head.path()) {
            // Keep the contents and the open files of a resource that has not changed.
            Some(known) if known.is_same_as(&resource) => known,
            _ => Arc::new(resource),
        };
        resource.checked_at(self.now_ms());
        if self.revalidate_after_ms() > 0 {
            self.cache.insert(head.path(), resource.clone());
        }
        self.respond(head, &resource).ok_or_else(|| io::Error::other("a file without content"))
    }

    /// Makes a resource of a file; retries if the file changes while it is read.
    fn load(&self, path: &Path, mut found: Found) -> io::Result<Option<Resource>> {
        for _ in 0..CHANGED_RETRIES_MAX {
            let Found::File(file, stamp) = found else { return Ok(None) };
            match Resource::load(file, stamp, path, &self.root, self.sidecar_root.as_ref(), &self.options) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => found = self.root.find(path)?,
                outcome => return outcome.map(Some),
            }
        }
        Err(io::Error::other("it keeps changing while it is read"))
    }

    /// Whether the request's path still refers to the resource.
    fn is_still_so(&self, head: &HeadRef<'_>, resource: &Resource) -> bool {
        let Ok(path) = FilePath::decode(head.path()) else { return false };
        let is_its_name = if path.names_folder {
            // An index file that is not the first choice also depends on the absence of those before it.
            self.options.index.first().is_some_and(|name| resource.is_at(&path.relative().join(name)))
        } else {
            resource.is_at(path.relative())
        };
        is_its_name && resource.is_still_so(&self.root, self.sidecar_root.as_ref(), &self.options)
    }

    /// A page of the site in place of the requested file.
    fn page(&self, status: StatusCode, name: &str) -> io::Result<Option<Response>> {
        let resource = self.load(Path::new(name), self.root.find(Path::new(name))?)?;
        Ok(resource.as_ref().and_then(Resource::identity).map(|page| page_with_status(status, page)))
    }

    fn not_found(&self, head: &HeadRef<'_>, path: &Path) -> io::Result<Response> {
        self.cache.remove(head.path());
        if let Some(fallback) = &self.options.fallback
            && wants_page(head, path)
            && let Some(page) = self.page(StatusCode::OK, fallback)?
        {
            return Ok(page);
        }
        if let Some(name) = &self.options.not_found
            && let Some(page) = self.page(StatusCode::NOT_FOUND, name)?
        {
            return Ok(page);
        }
        Ok(Response::text(StatusCode::NOT_FOUND, "Not found.\n"))
    }
}

impl Handler for Site {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        if !matches!(*head.method(), Method::GET | Method::HEAD) {
            return None;
        }
        let resource = self.cache.get(head.path())?;
        // Only a worker may check again: opening names may wait for a disk or a server, whatever the flags (a FUSE file
        // system is called at the open itself).
        if !resource.is_fresh(self.now_ms(), self.revalidate_after_ms()) {
            return None;
        }
        let delta = match self.dictionary_asked(head, &resource) {
            Some(dictionary) => Some(self.known_delta(head, &resource, &dictionary)?),
            None => None,
        };
        answer(head, &resource, delta.as_deref().and_then(Resource::identity))
    }

    fn handle(&self, request: Request) -> Response {
        let head = request.head();
        match *head.method() {
            Method::GET | Method::HEAD => {}
            Method::OPTIONS => {
                return Response::new(StatusCode::NO_CONTENT)
                    .header(ALLOW, HeaderValue::from_static("GET, HEAD, OPTIONS"));
            }
            _ => {
                return Response::text(StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD.\n")
                    .header(ALLOW, HeaderValue::from_static("GET, HEAD, OPTIONS"));
            }
        }
        self.get(&head).unwrap_or_else(|error| {
            tracing::error!("cannot serve '{}' from '{}': {error}", head.path(), self.path.display());
            Response::text(StatusCode::INTERNAL_SERVER_ERROR, "The file cannot be read.\n")
        })
    }

    fn accepts_websockets(&self) -> bool {
        false
    }
}

/// Whether a segment of the path starts with a dot, except `.well-known` at its start (RFC 8615).
fn is_hidden(path: &Path) -> bool {
    path.components().enumerate().any(|(index, component)| {
        let Component::Normal(name) = component else { return false };
        name.as_bytes().starts_with(b".") && !(index == 0 && name == OsStr::new(".well-known"))
    })
}

/// Whether the request is for a page of an application, rather than for a file that should exist.
fn wants_page(head: &HeadRef<'_>, path: &Path) -> bool {
    path.extension().is_none()
        && head
            .header_bytes("accept")
            .is_none_or(|accept| memchr::memmem::find(accept, b"text/html").is_some() || accept == b"*/*")
}

/// Not cacheable: the requested file may be created.
fn page_with_status(status: StatusCode, page: &Variant) -> Response {
    Response::new(status)
        .header(CONTENT_TYPE, page.content_type())
        .header(CACHE_CONTROL, HeaderValue::from_static("no-cache"))
        .body(page.body())
}

/// 301 to the same path with a slash; the links of a listing are relative to it.
fn redirect_to_folder(head: &HeadRef<'_>) -> Response {
    // More than one slash at the start would refer to another host.
    let path = head.path().trim_start_matches('/');
    let query = head.query().map(|query| format!("?{query}")).unwrap_or_default();
    match HeaderValue::try_from(format!("/{path}/{query}")) {
        Ok(location) => Response::text(StatusCode::MOVED_PERMANENTLY, "Moved.\n").header(LOCATION, location),
        Err(_) => Response::text(StatusCode::BAD_REQUEST, "Bad path.\n"),
    }
}
