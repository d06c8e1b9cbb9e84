use std::time::Instant;

use crate::message::request::Request;
use crate::message::response::Response;
use crate::web::middleware::{Middleware, Next};

/// A middleware for `tracing`: what handlers log is within a span `request` with method, path and id, and each answer is an event
/// with status and time. A log of all requests, also those that no handler sees, is [`AccessLog`](crate::AccessLog).
///
/// ```
/// use narval_http::{Router, Trace};
///
/// let app = Router::new().layer(Trace).get("/", || "hello").build()?;
/// # Ok::<(), narval_http::RouteError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Trace;

impl Middleware for Trace {
    fn handle(&self, request: Request, next: Next<'_>) -> Response {
        let started = Instant::now();
        let span =
            tracing::info_span!("request", method = %request.method(), path = request.path(), id = %request.id());
        let response = span.in_scope(|| next.run(request));
        response.map(move |response| {
            span.in_scope(
                || tracing::info!(status = response.status().as_u16(), elapsed = ?started.elapsed(), "answered"),
            );
            response
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::web::router::Router;
    use crate::web::test;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_of_handlers_have_their_request() {
        let log = Log::default();
        let lines = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || lines.clone()).finish();
        let hello = || {
            tracing::info!("at work");
            "hello"
        };
        let app = test::client(Router::new().layer(Trace).get("/x", hello).build().expect("valid"));
        tracing::subscriber::with_default(subscriber, || app.get("/x").send());
        let log = String::from_utf8(log.0.lock().expect("no panic").clone()).expect("text");
        let lines: Vec<&str> = log.lines().collect();
        assert!(lines.iter().all(|line| line.contains("request{method=GET path=\"/x\"")), "{log}");
        assert!(
            matches!(lines[..], [work, answered] if work.contains("at work") && answered.contains("status=200")),
            "{log}"
        );
    }
}
