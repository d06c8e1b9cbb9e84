//! What runs beside the job: the cache for its Nix, and the watcher that pushes what is built.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime};

use narval_client::{Bearer, Client, ClientOptions, Url};
use narval_install::Error;
use narval_install::settings::{UserTrust, user_trust};
use narval_nix::StorePath;
use narval_oidc::is_safe;
use narval_push::watch::{Stop, WatchOptions, WatchReport, watch};
use narval_push::{Administered, PushOptions};
use narval_store::{Store, StoreConfig, SubstituterSettings};
use parking_lot::Mutex;

use super::hook;
use super::identity::Source;
use super::near::{self, Near, Upstream};
use super::options::Args;
use super::saved::{CacheUse, Saved};
use crate::args::push::{quick, read_token};
use crate::commands::caches::use_cache;
use crate::ui::failure::Failure;
use crate::ui::output::note;

/// How long a job waits for the cache before it starts without it.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait before the cache is asked again for a token or its keys.
const AGAIN: Duration = Duration::from_secs(1);
/// How soon a token is renewed.
const RENEWED_AT_SOONEST: Duration = Duration::from_secs(10);
/// A token is renewed after this part of its time.
const RENEWED_AFTER: f64 = 0.7;
/// How long it may take to find out what was saved.
const SAVED_WITHIN: Duration = Duration::from_secs(1);
/// How long the watcher may take to say what it has done once its time is over.
const LAST_WORD: Duration = Duration::from_secs(1);

/// What is known of the cache, and of what the job may do there.
struct Access {
    keys: Vec<String>,
    may_push: bool,
    /// For people.
    notes: Vec<String>,
}

/// What the watcher has done.
pub(super) enum Pushes {
    /// The job may not push, or nothing can be watched.
    None,
    /// It has ended by itself, or was told to.
    Done(WatchReport),
    /// It did not end in time.
    Unknown,
    /// It failed.
    Failed(String),
}

/// A running session.
pub(super) struct Session {
    folder: PathBuf,
    near: Arc<Mutex<Option<Near>>>,
    stop: Stop,
    watcher: Option<Receiver<Result<WatchReport, Error>>>,
    /// What its Nix gets as settings, beside those of the environment.
    nix_config: String,
    pub(super) is_substituter: bool,
    client: Arc<Client>,
    store: StoreConfig,
    pub(super) cache: String,
    /// Whether nothing is pushed, and it is only said what would be.
    pub(super) is_dry: bool,
    /// How long the job has waited for the cache before it began.
    waited: Duration,
}

/// Ends a session from another thread.
#[derive(Clone)]
pub(super) struct Ending(Stop);

impl Ending {
    /// Pushes what there is, for as long as there is time.
    pub(super) fn finish(&self) {
        self.0.finish();
    }

    /// Gives up.
    pub(super) fn stop(&self) {
        self.0.stop();
    }
}

impl Session {
    /// Begins it, with its files in `folder`. A cache that does not answer is no failure.
    ///
    /// # Errors
    /// Something is wrong with the options, or with this machine.
    pub(super) fn begin(args: &Args, to: &Url, folder: &Path) -> Result<Self, Failure> {
        let (bearer, urls) = (Bearer::default(), [to.clone()]);
        if let Some(file) = &args.how.token.token_file
            && !bearer.set(&read_token(file)?)
        {
            return Err(Failure::usage(format!("--token-file {}: it does not contain a token", file.display())));
        }
        let options = args.how.token.requests.options(&urls)?;
        let credentials = options.credentials.with_bearer(bearer.clone());
        let client = Arc::new(narval_s3::client(ClientOptions { credentials, ..options }));
        let source = match bearer.token() {
            Some(_) => None,
            None => args.identity.source(&args.audience(to), |name| std::env::var(name).ok()),
        };
        if source.is_some() && !is_safe(to) {
            return Err(Failure::usage(format!(
                "{to}: an identity token is sent over https:// alone; --identity none"
            )));
        }
        let store = args.store.config()?;
        let (near, stop) = (Arc::new(Mutex::new(None)), Stop::default());
        // From now on, whatever becomes valid is found, even if the cache answers later.
        let hook = if args.no_push { None } else { hook::hook(folder, &store)? };
        let watcher = watcher(args, to, folder, &store, &client, (&stop, hook.is_some()))?;
        let keeper = Keeper {
            to: to.clone(),
            given_keys: args.public_key.clone(),
            bearer: bearer.clone(),
            near: Arc::clone(&near),
            stop: stop.clone(),
        };
        let (sender, receiver) = mpsc::channel();
        let asking = quick(args.how.token.requests.options(&urls)?);
        let with_token = quick(args.how.token.requests.options(&urls)?);
        let with_token =
            ClientOptions { credentials: with_token.credentials.with_bearer(bearer.clone()), ..with_token };
        let clients = [asking, with_token].map(|options| Arc::new(narval_s3::client(options)));
        spawn("identity", move || keeper.keep(source, &clients, &sender))?;
        let begun = Instant::now();
        let access = wait(&receiver).map_err(|reason| {
            note!(
                "narval ci: {to} cannot be used yet ({reason}). The job goes on without it; what it builds is pushed if that works before the end"
            );
        });
        let (folder, cache, is_dry, waited) = (folder.to_owned(), to.to_string(), args.filter.dry_run, begun.elapsed());
        let nix_config = hook.map(|hook| format!("post-build-hook = {}\n", hook.display())).unwrap_or_default();
        let mut session = Self {
            folder,
            near,
            stop,
            watcher,
            nix_config,
            is_substituter: false,
            client,
            store,
            cache,
            is_dry,
            waited,
        };
        if let Ok(access) = access {
            access.notes.iter().for_each(|text| note!("narval ci: {text}"));
            session.substitute(&access, to, &bearer)?;
            if !access.may_push {
                session.stop.stop();
                session.watcher = None;
            }
        }
        Ok(session)
    }

    /// Makes the cache a substituter of the job.
    fn substitute(&mut self, access: &Access, to: &Url, bearer: &Bearer) -> Result<(), Failure> {
        if access.keys.is_empty() {
            return Ok(());
        }
        if let Ok(UserTrust::NotTrusted(_)) = user_trust(&self.store, &SubstituterSettings::of_system()) {
            note!(
                "narval ci: the Nix daemon does not trust this user, so that the job's Nix asks the caches of nix.conf alone ('narval use' says how {to} \
                 gets there)"
            );
            return Ok(());
        }
        let token = bearer.token();
        let of = Upstream { url: to.clone(), keys: access.keys.clone(), store_dir: self.store.store_dir.clone() };
        let near = match Near::start(&self.folder, &of, token.as_ref().map(|token| token.as_str())) {
            Ok(near) => near,
            Err(failure) => {
                note!("narval ci: the job's Nix does not ask {to}: {failure}");
                return Ok(());
            }
        };
        let keys = access.keys.join(" ");
        self.nix_config += &format!("extra-substituters = {}\nextra-trusted-public-keys = {keys}\n", near.url());
        self.is_substituter = true;
        *self.near.lock() = Some(near);
        Ok(())
    }

    /// What the job's Nix gets as `NIX_CONFIG`: the settings of the environment, and the cache.
    pub(super) fn nix_config_of_job(&self) -> Option<String> {
        let added = Some(&self.nix_config).filter(|added| !added.is_empty())?;
        let before = std::env::var("NIX_CONFIG").ok().filter(|before| !before.is_empty());
        Some(before.map_or_else(|| added.clone(), |before| format!("{}\n{added}", before.trim_end())))
    }

    /// What a release is recorded with.
    pub(super) fn for_release(&self) -> (Arc<Client>, StoreConfig) {
        (Arc::clone(&self.client), self.store.clone())
    }

    /// What ends it from another thread.
    pub(super) fn ending(&self) -> Ending {
        Ending(self.stop.clone())
    }

    /// How long its end may take: less than the deadline by what the job has waited for the cache before, and half of it at least.
    pub(super) fn left_of(&self, deadline: Duration) -> Duration {
        deadline.saturating_sub(self.waited).max(deadline / 2)
    }

    /// Pushes what is left, for at most this long, and ends: what became of the pushes, what the job had from the cache, and what that had cost to build.
    ///
    /// # Errors
    /// The log of what the job has asked cannot be read.
    pub(super) fn end(mut self, deadline: Duration) -> Result<(Pushes, CacheUse, Saved), Failure> {
        let begun = Instant::now();
        self.stop.finish();
        let pushes = self.watcher.take().map_or(Pushes::None, |watcher| {
            let report = watcher.recv_timeout(deadline).or_else(|error| match error {
                RecvTimeoutError::Timeout => {
                    self.stop.stop();
                    watcher.recv_timeout(LAST_WORD)
                }
                RecvTimeoutError::Disconnected => Err(error),
            });
            match report {
                Ok(Ok(report)) => Pushes::Done(report),
                Ok(Err(error)) => Pushes::Failed(error.to_string()),
                Err(RecvTimeoutError::Timeout) => Pushes::Unknown,
                Err(RecvTimeoutError::Disconnected) => Pushes::Failed("the thread that pushes has died".to_owned()),
            }
        });
        self.stop.stop();
        tracing::debug!(seconds = begun.elapsed().as_secs_f64(), "pushed what was left");
        let (log, mut saved) = (near::access_log(&self.folder), Saved::default());
        if let Some(near) = self.near.lock().take() {
            let patience = deadline.saturating_sub(begun.elapsed()).min(SAVED_WITHIN);
            saved = Saved::of(&CacheUse::read(&log)?, near.url(), &self.store.store_dir, patience);
            near.end();
        }
        Ok((pushes, CacheUse::read(&log)?, saved))
    }
}

/// Waits until it is known what the job may do. Otherwise returns why not.
fn wait(known: &Receiver<Result<Access, String>>) -> Result<Access, String> {
    let (until, mut reason) = (Instant::now() + PATIENCE, "it does not answer".to_owned());
    loop {
        match known.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Ok(access)) => return Ok(access),
            Ok(Err(failed)) => reason = failed,
            Err(_) => return Err(reason),
        }
    }
}

/// Starts the watcher, on a thread.
fn watcher(
    args: &Args,
    to: &Url,
    folder: &Path,
    store: &StoreConfig,
    client: &Arc<Client>,
    (stop, has_hook): (&Stop, bool),
) -> Result<Option<Receiver<Result<WatchReport, Error>>>, Failure> {
    if args.no_push {
        return Ok(None);
    }
    let requests = &args.how.token.requests;
    // What is built from now on: of an earlier build, only the end is known.
    let (logs, since) = (Store::new(store.clone()), SystemTime::now());
    let build_seconds = move |derivation: &StorePath| -> Option<u64> {
        let elapsed = logs.build_log(derivation).ok()??.elapsed(since)?;
        Some((elapsed + Duration::from_millis(500)).as_secs())
    };
    let mut selection = args.filter.selection(std::slice::from_ref(to), requests, &store.store_dir)?;
    selection.filter.only_built = !args.substituted;
    let options = WatchOptions {
        store: store.clone(),
        state: hook::state(folder),
        targets: vec![to.clone()],
        client: Arc::clone(client),
        selection,
        is_dry: args.filter.dry_run,
        push: PushOptions { build_seconds: Some(Box::new(build_seconds)), ..args.how.options()? },
        queue_only: has_hook,
        existing: false,
        once: false,
    };
    let (sender, receiver) = mpsc::channel();
    let (opened, is_open) = mpsc::channel();
    let stop = stop.clone();
    spawn("watcher", move || {
        let report = watch(&options, &stop, || {
            let _ = opened.send(());
        });
        // The session may have ended.
        let _ = sender.send(report);
    })?;
    if is_open.recv().is_ok() {
        if !has_hook {
            note!("narval ci: the database of the store says what is built");
        }
        return Ok(Some(receiver));
    }
    let reason = match receiver.recv() {
        Ok(Err(error)) => error.to_string(),
        _ => "the watcher has ended".to_owned(),
    };
    note!("narval ci: what is built is not pushed: {reason}");
    Ok(None)
}

pub(super) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map(drop).map_err(|error| Failure::runtime(format!("cannot start a thread: {error}")))
}

/// Gets a token of the cache and its keys, and renews the token.
struct Keeper {
    to: Url,
    given_keys: Vec<String>,
    bearer: Bearer,
    near: Arc<Mutex<Option<Near>>>,
    stop: Stop,
}

impl Keeper {
    fn keep(
        self,
        mut source: Option<Source>,
        [asking, with_token]: &[Arc<Client>; 2],
        ready: &Sender<Result<Access, String>>,
    ) {
        let (mut renew_in, mut is_ready, mut refusal) = (None, false, None);
        while !self.stop.is_stopped() {
            if let Some(from) = &mut source
                && (self.bearer.token().is_none() || is_ready)
                && refusal.is_none()
            {
                match self.exchange(from, asking) {
                    Ok(after) => renew_in = from.is_renewed().then_some(after),
                    Err(Denied::Now(reason)) => {
                        // The session may have begun.
                        let _ = ready.send(Err(reason));
                        self.stop.pause(AGAIN);
                        continue;
                    }
                    // The job of a fork, for example: it reads what everybody may.
                    Err(Denied::ForGood(reason)) => refusal = Some(reason),
                }
            }
            if !is_ready {
                match self.look(with_token, source.is_some(), refusal.as_deref()) {
                    Ok(access) => {
                        is_ready = true;
                        let may_push = access.may_push;
                        // The session may have begun without it.
                        let is_late = ready.send(Ok(access)).is_err();
                        if is_late && !may_push {
                            self.stop.stop();
                        }
                    }
                    Err(reason) => {
                        let _ = ready.send(Err(reason));
                        self.stop.pause(AGAIN);
                        continue;
                    }
                }
            }
            let Some(after) = renew_in else { return };
            self.stop.pause(after);
        }
    }

    /// Gets a token. Returns when the next one is needed.
    fn exchange(&self, source: &mut Source, client: &Arc<Client>) -> Result<Duration, Denied> {
        let platform = source.token().map_err(Denied::Now)?;
        let exchanged = Administered::new(self.to.clone(), Arc::clone(client)).exchange(&platform);
        let exchanged = exchanged.map_err(|error| match error {
            Error::Refused { status: 400..=404, .. } => Denied::ForGood(error.to_string()),
            error => Denied::Now(error.to_string()),
        })?;
        if !self.bearer.set(&exchanged.token) {
            return Err(Denied::ForGood("the cache issued a malformed token".to_owned()));
        }
        if let Some(near) = &mut *self.near.lock()
            && let Err(error) = near.renew(&exchanged.token)
        {
            tracing::warn!("{error}");
        }
        Ok(exchanged.lifetime.mul_f64(RENEWED_AFTER).max(RENEWED_AT_SOONEST))
    }

    /// What the cache says of itself, and of the token.
    fn look(&self, client: &Arc<Client>, has_identity: bool, refusal: Option<&str>) -> Result<Access, String> {
        let has_token = self.bearer.token().is_some();
        let mut notes: Vec<String> = Vec::new();
        match refusal {
            Some(reason) => notes.push(format!("this job gets no token, so that it only reads: {reason}")),
            None if !has_token && !has_identity => {
                notes.push("there is neither a token nor an identity token of the platform".to_owned());
            }
            None => {}
        }
        let text = match use_cache::cache_info(client, &self.to).map_err(|failure| failure.to_string())? {
            // Private, and this job may not read it.
            Err(error) if error.is_auth() => {
                notes.push(format!("{}: {error}", self.to));
                return Ok(Access { keys: Vec::new(), may_push: false, notes });
            }
            answer => answer.map_err(|error| error.to_string())?,
        };
        let keys = use_cache::parse_cache_info(&self.to, text)
            .and_then(|info| use_cache::public_keys(&self.given_keys, &info, &self.to, &mut notes))
            .map_err(|failure| failure.to_string())?;
        let may_push = match refusal {
            Some(_) => false,
            None => {
                Administered::new(self.to.clone(), Arc::clone(client)).may_push().map_err(|error| error.to_string())?
            }
        };
        if !may_push {
            notes.push(format!("this job may not push to {}: it only reads", self.to));
        }
        Ok(Access { keys, may_push, notes })
    }
}

/// Why there is no token.
enum Denied {
    /// It may be there later.
    Now(String),
    ForGood(String),
}
