//! `[tracing]`.

use std::str::FromStr;

use narval_client::{Scheme, Url};

use crate::config::field::table;
use crate::config::kinds::parsed;

const MILLION: f64 = 1e6;

table! {
    /// What requests take, for a collector of OpenTelemetry.
    Tracing {
        /// Collector that spans are sent to (OTLP over HTTP with JSON), without `/v1/traces`: `http://localhost:4318`
        ///
        /// Spans of requests, and of what they ask of upstreams, the object store and databases; see docs/operating.md#traces.
        otlp: Option<Collector> = parsed::<Collector>("the address of a collector, http://HOST:4318,").option("otlp", "URL").restart().nix("webUrl"),
        /// Share of the requests whose spans are sent, besides those that are part of a sampled trace: from 0 to 1
        share: Share = parsed::<Share>("a number from 0 to 1").or("0.01").option("otlp-share", "NUMBER").restart(),
    }
}

/// The address of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector(pub Url);

impl FromStr for Collector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), Scheme::Http | Scheme::Https));
        url.map(Self).ok_or_else(|| "give the address of a collector, such as \"http://localhost:4318\"".to_owned())
    }
}

/// A number from 0 to 1, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u32);

impl Share {
    /// As a fraction.
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / MILLION
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
        // Between 0 and a million.
        share
            .map(|share| Self((share * MILLION).round() as u32))
            .ok_or_else(|| "give a number from 0 to 1, such as \"0.01\"".to_owned())
    }
}
