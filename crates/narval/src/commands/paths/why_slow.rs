//! `narval why-slow`: what the upstreams of a server were asked for a path, and what it waited for.

use narval_client::{Client, RetryPolicy, Url};
use narval_nix::{HashPart, StoreDir};
use serde_json::{Value, json};

use crate::args::administered::text;
use crate::args::client::{RequestArgs, SourceCacheArgs};
use crate::args::data::ago;
use crate::args::paths::Named;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::out;

/// The longest answer: two traces of 64 events.
const ANSWER_LEN_MAX: u64 = 1024 * 1024;

/// Show why a path was slow at a server with upstreams
///
/// Prints which upstreams the server asked for the path's narinfo and NAR, when, what each of them answered, and what was waited for. The server
/// remembers its last requests in memory: 1,024 that were slow, and as many others. What it has itself is answered without asking anybody.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  narval why-slow --from http://localhost:5000 /nix/store/…-hello-2.12")]
pub struct Args {
    /// Store path: in full, HASH-NAME, only the hash part, or a symlink to one
    #[arg(value_name = "PATH")]
    path: String,
    /// Server: an http:// or https:// URL. Repeatable [default: the caches of nix.conf]
    #[arg(long, value_name = "URL", help_heading = "Caches")]
    from: Vec<String>,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    requests: RequestArgs,
}

/// Runs `narval why-slow`.
///
/// # Errors
/// No server can be asked, or none of them remembers a request for the path.
pub fn run(args: Args) -> Result<(), Failure> {
    let hash_part = Named::parse(&args.path, &StoreDir::default())?.wanted.hash_part();
    let named = !args.from.is_empty();
    let mut caches = SourceCacheArgs::of_environment(args.requests);
    if named {
        caches.from = args.from;
    }
    caches.requests.attempts = 1;
    let (urls, mut options) = (caches.urls()?, caches.requests.options(&caches.urls()?)?);
    options.retry = RetryPolicy { attempts: 1, ..options.retry };
    let client = narval_s3::client(options);
    let (mut count, mut troubles) = (0, Vec::new());
    for url in &urls {
        match fetch_trace(&client, url, &hash_part) {
            Ok(mut answer) => {
                for trace in answer["traces"].as_array_mut().into_iter().flatten() {
                    count += 1;
                    if !args.json {
                        show(url, &args.path, trace);
                    } else if let Some(fields) = trace.as_object_mut() {
                        fields.insert("server".to_owned(), json!(url.to_string()));
                        json::event("trace", trace.take());
                    }
                }
            }
            Err(trouble) => troubles.push(trouble),
        }
    }
    if count == 0 {
        let servers = urls.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let absent = || {
            format!(
                "{servers} remembers no request for {} for which an upstream was asked: what it has itself needs none, and a restart forgets them",
                args.path
            )
        };
        return Err(Failure::Coded(3, if troubles.is_empty() { absent() } else { troubles.join("; ") }));
    }
    if args.json {
        json::summary(json!({"path": hash_part.to_string(), "traces": count}));
    }
    Ok(())
}

fn fetch_trace(client: &Client, server: &Url, hash_part: &HashPart) -> Result<Value, String> {
    let url = server.child(&format!("_narval/v1/traces/{hash_part}")).map_err(|error| error.to_string())?;
    match client.metadata_once(&url, ANSWER_LEN_MAX) {
        Err(error) => Err(error.to_string()),
        Ok(None) => Err(format!(
            "{server}: is no Narval server with upstreams, or not for everybody: is the token in the netrc file?"
        )),
        Ok(Some(text)) => {
            serde_json::from_slice(&text).map_err(|error| format!("{server}: this is no answer about traces: {error}"))
        }
    }
}

fn ms(of: &Value) -> f64 {
    of["ms"].as_f64().unwrap_or_default()
}

/// `: <reason>`, if there is one.
fn reason(of: &Value) -> String {
    Some(text(of, "reason")).filter(|why| !why.is_empty()).map(|why| format!(": {why}")).unwrap_or_default()
}

fn show(server: &Url, path: &str, trace: &Value) {
    let of = if trace["of"] == "nar" { "NAR" } else { "narinfo" };
    let (at, end) = (ago(trace["at"].as_u64().unwrap_or_default()), text(trace, "end"));
    out!("{server}: the {of} of {path}, {at}: {end} after {:.0} ms{}", ms(trace), reason(trace));
    let events = trace["events"].as_array().map(Vec::as_slice).unwrap_or_default();
    for event in events {
        let happened = match event["happened"].as_str().unwrap_or_default() {
            "asked-too" => "asked, too: another one is waited for".to_owned(),
            "has" => "has it".to_owned(),
            "absent" => "does not have it".to_owned(),
            "late" => "has not answered in time".to_owned(),
            "not-needed" => "is not waited for any more".to_owned(),
            "down" => "is not asked: it does not answer".to_owned(),
            "filtered" => "is not asked: its presence filter does not have it".to_owned(),
            "left" => format!("is left at byte {}", event["byte"].as_u64().unwrap_or_default()),
            _ => text(event, "happened"),
        };
        let (upstream, what) = (text(event, "upstream"), text(event, "what"));
        out!("{:>9.0} ms  {upstream}  {what}: {happened}{}", ms(event), reason(event));
    }
    if let Some((event, time)) = waited_for(events) {
        out!("  longest wait: {time:.0} ms for {} ({})", text(event, "upstream"), text(event, "what"));
    }
}

/// The question that took longest, and for how long.
fn waited_for(events: &[Value]) -> Option<(&Value, f64)> {
    let questions = events.iter().enumerate().filter(|(_, event)| text(event, "happened").starts_with("asked"));
    let waits = questions.filter_map(|(at, asked)| {
        let is_same = |event: &&Value| event["upstream"] == asked["upstream"] && event["what"] == asked["what"];
        let answer = events.iter().skip(at + 1).find(is_same)?;
        Some((asked, ms(answer) - ms(asked)))
    });
    waits.max_by(|a, b| a.1.total_cmp(&b.1))
}
