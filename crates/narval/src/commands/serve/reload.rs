//! SIGHUP: everything that can change while the server runs is created again, and then replaces the old state in one
//! step.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use narval_http::tls::TlsAcceptor;
use narval_http::{AccessEntry, AccessLog, Handler, HeadRef, Request, Response};
use narval_keep::Data;
use narval_serve::CacheRouter;
use parking_lot::Mutex;

use super::args::Args;
use super::caches::{Managed, Opened, Services};
use super::settings::Settings;
use crate::config::{BoxedLog, ReadKey, needs_restart};
use crate::ui::failure::Failure;

/// How often the data folder is looked at for caches that were created or changed.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often it is looked whether a key has ended.
const LOOK_AT_KEYS_EVERY: Duration = Duration::from_secs(30);

/// The current services. Running requests keep the ones that they started with.
#[derive(Clone)]
pub(super) struct CurrentService(Arc<ArcSwap<CacheRouter>>);

impl CurrentService {
    pub(super) fn new(caches: CacheRouter) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(caches)))
    }
}

impl Handler for CurrentService {
    #[inline]
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        self.0.load().inline(head)
    }

    fn handle(&self, request: Request) -> Response {
        let caches = self.0.load_full();
        caches.handle(request)
    }

    fn accepts_websockets(&self) -> bool {
        self.0.load().accepts_websockets()
    }
}

/// The current access log.
#[derive(Clone)]
pub(super) struct CurrentLog(Arc<Mutex<BoxedLog>>);

impl CurrentLog {
    pub(super) fn new(log: BoxedLog) -> Self {
        Self(Arc::new(Mutex::new(log)))
    }

    /// Replaces the log; everything queued is written to the old one first.
    fn replace(&self, log: BoxedLog) {
        let mut current = self.0.lock();
        current.flush();
        *current = log;
    }
}

impl AccessLog for CurrentLog {
    fn write(&mut self, entry: &AccessEntry) {
        self.0.lock().write(entry);
    }

    fn flush(&mut self) {
        self.0.lock().flush();
    }
}

/// The running services and their settings.
pub(super) struct Running {
    pub(super) args: Args,
    /// What it was started with.
    pub(super) keys: Vec<ReadKey>,
    /// Opened once: uploads and fetches continue while a new service answers.
    pub(super) opened: Opened,
    pub(super) services: Services,
    /// What they were made of.
    pub(super) settings: Settings,
    pub(super) current: CurrentService,
    pub(super) log: Option<CurrentLog>,
    pub(super) tls: Option<Arc<TlsAcceptor>>,
}

impl Running {
    /// Reloads everything. If there is any error, nothing changes.
    pub(super) fn reload(&mut self) -> Result<String, Failure> {
        self.try_reload().map_err(|failure| {
            let lines = failure.to_string().replace('\n', "; ");
            Failure::runtime(format!("{lines}; nothing has changed: the old configuration stays in effect"))
        })
    }

    /// Serves the caches that the data folder has now, with the settings that were read last.
    fn follow(&mut self) -> Result<(), Failure> {
        let mut services = Services::prepare(&self.settings, &mut self.opened, Some(&self.services))?;
        self.current.0.store(Arc::new(services.take_effect()?));
        for difference in services.differences(&self.services) {
            tracing::info!("{difference}");
        }
        self.services = services;
        Ok(())
    }

    fn try_reload(&mut self) -> Result<String, Failure> {
        let next = Settings::read(&self.args)?;
        let mut services = Services::prepare(&next, &mut self.opened, Some(&self.services))?;
        // Opened even if nothing has changed: the file may have been renamed by a log rotation.
        let log = self.log.as_ref().and_then(|log| Some((log, next.config.access_log.open().transpose()?)));
        let log = log.map(|(log, new)| new.map(|new| (log, new))).transpose()?;
        if let (Some(tls), Some(config)) = (&self.tls, &next.tls) {
            tls.replace(config.clone()).map_err(|error| Failure::usage(format!("HTTPS: {error}")))?;
        }
        // The last step that can fail, only if the data folder is no longer writable.
        let caches = services.take_effect()?;
        self.opened.set_offers(&next)?;
        self.opened.set_decode_memory(next.config.limits.decode_memory);
        if let Some((log, new)) = log {
            log.replace(new);
        }
        self.current.0.store(Arc::new(caches));
        let mut messages = vec!["configuration, keys and certificates reloaded".to_owned()];
        messages.extend(services.differences(&self.services));
        self.services = services;
        self.settings = next;
        // The running settings are those of the start.
        let mut restart = needs_restart(&self.keys, &self.settings.keys);
        let switched = [
            ("tls (on or off)", self.tls.is_some() != self.settings.tls.is_some()),
            ("access-log.file (on or off)", self.log.is_some() != self.settings.config.access_log.file.is_some()),
        ];
        restart.extend(switched.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key.to_owned()));
        if !restart.is_empty() {
            messages.push(format!("restart for these keys to take effect: {}", restart.join(", ")));
        }
        Ok(messages.join("; "))
    }
}

/// Looks whether caches were created or changed by the API for administration, at this server, at another one, or by a command beside it.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn follow_caches(running: &Arc<Mutex<Running>>) -> Result<(), Failure> {
    let (running, mut last) = (Arc::downgrade(running), Managed::default());
    let watch = move || {
        let (mut stamp, mut looked) = (None, Instant::now());
        loop {
            std::thread::sleep(LOOK_EVERY);
            let Some(running) = running.upgrade() else { return };
            let mut running = running.lock();
            let now = running.opened.data.as_ref().map(Data::stamp);
            // A key may end without a change.
            if now == stamp && looked.elapsed() < LOOK_AT_KEYS_EVERY {
                continue;
            }
            (stamp, looked) = (now, Instant::now());
            let followed = running.opened.managed().and_then(|managed| {
                if last == managed {
                    return Ok(());
                }
                running.follow()?;
                last = managed;
                Ok(())
            });
            if let Err(failure) = followed {
                tracing::warn!("caches of the data folder: {failure}");
                stamp = None;
            }
        }
    };
    let started = std::thread::Builder::new().name("caches".into()).spawn(watch);
    started.map(drop).map_err(|error| Failure::runtime(format!("cannot watch the caches: {error}")))
}
