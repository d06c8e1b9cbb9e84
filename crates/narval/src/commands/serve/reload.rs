//! SIGHUP: everything that can change while the server runs is made anew, and then takes the place of what was there, all at once.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use narval_http::tls::TlsAcceptor;
use narval_http::{AccessEntry, AccessLog, Handler, HeadRef, Request, Response, Snapshot};
use narval_serve::Service;

use super::settings::Opened;
use super::{Args, Settings};
use crate::Failure;
use crate::args::access_log::{self, BoxedLog};

/// The service that answers now. Requests that run keep the one that they began with.
#[derive(Clone)]
pub(super) struct CurrentService(Arc<ArcSwap<Service>>);

/// What tells the counters of the engine.
pub(super) type Counters = Arc<dyn Fn() -> Snapshot + Send + Sync>;

impl CurrentService {
    pub(super) fn new(service: Service) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(service)))
    }

    /// Shows the engine's counters at `/metrics` of the present service.
    pub(super) fn show_engine(&self, counters: &Counters) {
        let counters = Arc::clone(counters);
        self.0.load().show_engine(move || counters());
    }
}

impl Handler for CurrentService {
    #[inline]
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        self.0.load().inline(head)
    }

    fn handle(&self, request: Request) -> Response {
        let service = Service::clone(&self.0.load());
        service.handle(request)
    }
}

/// The access log that is written now.
#[derive(Clone)]
pub(super) struct CurrentLog(Arc<Mutex<BoxedLog>>);

impl CurrentLog {
    pub(super) fn new(log: BoxedLog) -> Self {
        Self(Arc::new(Mutex::new(log)))
    }

    /// Ends the old log, with all that was to be written to it.
    fn replace(&self, log: BoxedLog) {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        current.flush();
        *current = log;
    }
}

impl AccessLog for CurrentLog {
    fn write(&mut self, entry: &AccessEntry) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(entry);
    }

    fn flush(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush();
    }
}

/// What runs, and what it was told.
pub(super) struct Running {
    pub(super) args: Args,
    pub(super) settings: Settings,
    /// Opened once: what is being uploaded or fetched goes on while a new service answers.
    pub(super) opened: Opened,
    pub(super) service: CurrentService,
    pub(super) log: Option<CurrentLog>,
    pub(super) tls: Option<Arc<TlsAcceptor>>,
    pub(super) counters: Counters,
}

impl Running {
    /// Reads everything again. If anything is wrong with it, all stays as it is.
    pub(super) fn reload(&mut self) -> Result<String, Failure> {
        self.try_reload().map_err(|failure| {
            let lines = failure.to_string().replace('\n', "; ");
            Failure::runtime(format!("{lines}; nothing has changed: the old configuration stays in force"))
        })
    }

    fn try_reload(&mut self) -> Result<String, Failure> {
        let next = Settings::read(&self.args)?;
        let service = (next.service != self.settings.service).then(|| next.service(&self.opened)).transpose()?;
        let log = match (&self.log, &next.access_log) {
            // Opened even if nothing has changed: the file may have been renamed by a log rotation.
            (Some(log), (form, Some(path))) => Some((log, access_log::open(*form, path)?)),
            _ => None,
        };
        // The last that can fail.
        if let (Some(tls), Some(config)) = (&self.tls, &next.tls) {
            tls.replace(config.clone()).map_err(|error| Failure::usage(format!("HTTPS: {error}")))?;
        }
        if let Some((log, new)) = log {
            log.replace(new);
        }
        if let Some(service) = service {
            self.service.0.store(Arc::new(service));
            self.service.show_engine(&self.counters);
        }
        let restart = next.needs_restart(&self.settings);
        // What runs stays what the next reload is compared with.
        let Settings { listen, limits, data, upstreams, .. } = self.settings.clone();
        self.settings = Settings { listen, limits, data, upstreams, ..next };
        Ok(match restart.as_slice() {
            [] => "configuration, keys and certificates read again".to_owned(),
            keys => format!("configuration read again; restart for these keys to take effect: {}", keys.join(", ")),
        })
    }
}
