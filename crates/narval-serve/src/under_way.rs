//! How many of something are under way now.

use prometheus_client::metrics::gauge::Gauge;

/// A gauge of what has begun and has not ended. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnderWay(Gauge);

/// One that is under way until this is dropped.
#[derive(Debug)]
pub(crate) struct Begun(Gauge);

impl UnderWay {
    /// Counts one more.
    pub(crate) fn begin(&self) -> Begun {
        self.0.inc();
        Begun(self.0.clone())
    }

    /// How many there are now.
    pub(crate) fn count(&self) -> u64 {
        u64::try_from(self.0.get()).unwrap_or(0)
    }

    /// For a registry.
    pub(crate) fn gauge(&self) -> Gauge {
        self.0.clone()
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.dec();
    }
}
