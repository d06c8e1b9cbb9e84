//! `/_narval/v1/traces/<hash part>`: what upstreams were asked for a path the last time, as JSON for `narval why-slow`. Whoever may read the
//! cache gets it.

use std::time::{Duration, SystemTime};

use narval_cache::upstream::{Event, Happened, Trace, TraceEnd, Upstreams};
use narval_http::{Body, HeaderValue, Response, StatusCode, header};
use narval_nix::HashPart;
use serde_json::{Value, json};

/// Answers with the traces of the last requests for a path: its narinfo, and its NAR. None is there if no upstream was asked.
pub(crate) fn answer(upstreams: &Upstreams, hash_part: &HashPart) -> Response {
    let traces: Vec<Value> = upstreams.traces(hash_part).iter().map(trace).collect();
    Response::new(StatusCode::OK)
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
        .body(Body::bytes(json!({ "traces": traces }).to_string()))
}

fn trace(trace: &Trace) -> Value {
    let (end, reason) = match &trace.end {
        TraceEnd::Found => ("found", None),
        TraceEnd::Absent => ("absent", None),
        TraceEnd::Failed(reason) => ("unknown", Some(reason)),
    };
    let at = trace.at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    json!({
        "of": if trace.is_nar { "nar" } else { "narinfo" },
        "at": at,
        "ms": ms(trace.took),
        "end": end,
        "reason": reason,
        "events": trace.events.iter().map(event).collect::<Vec<_>>(),
    })
}

fn event(event: &Event) -> Value {
    let (happened, reason, byte) = match &event.happened {
        Happened::Asked => ("asked", None, None),
        Happened::AskedToo => ("asked-too", None, None),
        Happened::Has => ("has", None, None),
        Happened::Absent => ("absent", None, None),
        Happened::Failed(reason) => ("failed", Some(reason), None),
        Happened::Late => ("late", None, None),
        Happened::NotNeeded => ("not-needed", None, None),
        Happened::Down => ("down", None, None),
        Happened::Filtered => ("filtered", None, None),
        Happened::Left(byte, reason) => ("left", Some(reason), Some(byte)),
    };
    let Event { upstream, what, .. } = event;
    let after = ms(event.after);
    json!({"ms": after, "upstream": upstream, "what": what, "happened": happened, "reason": reason, "byte": byte})
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}
