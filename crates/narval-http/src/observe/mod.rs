//! Observability: counters, histograms, access logs, OpenMetrics.

pub(crate) mod access_log;
pub(crate) mod busy;
pub(crate) mod complaints;
pub(crate) mod counter;
pub(crate) mod counters;
pub(crate) mod histogram;
pub(crate) mod log_format;
pub(crate) mod logfmt;
pub(crate) mod openmetrics;
pub(crate) mod request_id;
