use std::sync::{Arc, Mutex};

use narval_http::{
    Compression, Cors, Handler, HeadRef, HeaderName, HeaderValue, Next, Request, Responder, Response, Router,
    StatusCode, wrap,
};

use crate::harness::{TestServer, eventually, on_each_driver, unhurried};

#[test]
fn late_answers_hold_no_worker() {
    on_each_driver(|driver| {
        let waiting: Arc<Mutex<Vec<(String, Responder)>>> = Arc::default();
        let shelf = waiting.clone();
        let server = TestServer::with(
            driver,
            move |request: Request| {
                let (response, responder) = Response::later();
                match request.path() {
                    "/now" => responder.respond(Response::text(StatusCode::OK, "/now")),
                    "/never" => drop(responder),
                    path => shelf.lock().unwrap().push((path.to_owned(), responder)),
                }
                response
            },
            unhurried(),
            |builder| builder.workers(1),
        );
        let mut clients: Vec<_> = (0..10).map(|_| server.connect()).collect();
        for (at, client) in clients.iter_mut().enumerate() {
            client.send(format!("GET /{at} HTTP/1.1\r\nHost: t\r\n\r\nGET /now HTTP/1.1\r\nHost: t\r\n\r\n"));
        }
        eventually("all ten wait", || waiting.lock().unwrap().len() == 10);
        assert_eq!(server.get("/now").text(), "/now");
        assert_eq!(server.get("/never").status, 500);
        for (path, responder) in waiting.lock().unwrap().drain(..).rev() {
            std::thread::spawn(move || responder.respond(Response::text(StatusCode::OK, path)));
        }
        for (at, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.answer().text(), format!("/{at}"));
            assert_eq!(client.answer().text(), "/now", "and what was pipelined behind it");
        }
    });
}

const CHECKED: HeaderName = HeaderName::from_static("x-checked");
const STATUS: HeaderName = HeaderName::from_static("x-status");

/// Sets a field, and looks at the answer.
fn check(request: Request, next: Next<'_>) -> Response {
    let response = next.run(request).header(CHECKED, HeaderValue::from_static("yes"));
    response.map(|response| {
        let status = HeaderValue::from(response.status().as_u16());
        response.header(STATUS, status)
    })
}

/// Middlewares and error handlers change late answers as they change others.
#[test]
fn late_answers_go_through_the_middlewares() {
    on_each_driver(|driver| {
        let text = "a text that is worth compressing, for it says the same again and again; ".repeat(100);
        let answer = text.clone();
        let later = move |request: Request| {
            let (response, responder) = Response::later();
            let (text, path) = (answer.clone(), request.path().to_owned());
            let respond = move || match path.as_str() {
                "/fails/now" | "/fails/then" => responder.respond(Response::failure("out of order")),
                "/drops/now" | "/drops/then" => drop(responder),
                _ => responder.respond(Response::text(StatusCode::OK, text)),
            };
            if request.path().ends_with("/now") {
                respond();
            } else {
                std::thread::spawn(|| {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                    respond();
                });
            }
            response
        };
        let router = Router::new()
            .layer(check)
            .layer(Cors::any_origin())
            .layer(Compression::default())
            .errors(|failure| Response::text(StatusCode::BAD_GATEWAY, failure.error().to_string()))
            .get("/@what/@when", later)
            .build()
            .unwrap();
        let server = TestServer::start(driver, router);
        for when in ["now", "then"] {
            let mut client = server.connect();
            for (what, status) in [("text", 200), ("fails", 502), ("drops", 500)] {
                client.send(format!(
                    "GET /{what}/{when} HTTP/1.1\r\nHost: t\r\nOrigin: https://a.example\r\nAccept-Encoding: gzip\r\n\r\n"
                ));
                let answer = client.answer();
                assert_eq!(answer.status, status, "{what} {when}");
                assert_eq!(answer.header("x-checked"), Some("yes"), "{what} {when}: {answer:?}");
                assert_eq!(answer.header("x-status"), Some(status.to_string().as_str()), "{what} {when}");
                assert_eq!(answer.header("access-control-allow-origin"), Some("*"), "{what} {when}");
                if what == "text" {
                    assert_eq!(answer.header("content-encoding"), Some("gzip"), "{when}: {answer:?}");
                    assert!(answer.body.len() < text.len() / 10);
                }
            }
        }
    });
}

/// Answers inline requests later.
struct LateInline(Arc<Mutex<Vec<Responder>>>);

impl Handler for LateInline {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        let path = head.path().to_owned();
        if path == "/at-once" {
            return Some(Response::text(StatusCode::OK, path));
        }
        let (response, responder) = Response::later();
        match path.as_str() {
            "/now" => responder.respond(Response::text(StatusCode::OK, path)),
            "/never" => drop(responder),
            _ => self.0.lock().unwrap().push(responder),
        }
        Some(response.header(CHECKED, HeaderValue::from_static("yes")))
    }

    fn handle(&self, request: Request) -> Response {
        Response::text(StatusCode::OK, request.path())
    }
}

#[test]
fn a_late_answer_may_come_from_inline() {
    on_each_driver(|driver| {
        let shelf: Arc<Mutex<Vec<Responder>>> = Arc::default();
        let server = TestServer::start(driver, wrap(Through, LateInline(shelf.clone())));
        let mut client = server.connect();
        let ask = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n");
        // Pipelined, with answers before and behind.
        client.send(["/at-once", "/wait", "/at-once", "/now", "/never", "/now", "/at-once"].map(ask).concat());
        assert_eq!(client.answer().text(), "/at-once", "what comes before does not wait");
        eventually("the responder is there", || shelf.lock().unwrap().len() == 1);
        shelf.lock().unwrap().pop().unwrap().respond(Response::text(StatusCode::CREATED, "at last"));
        let answer = client.answer();
        assert_eq!((answer.status, answer.text().as_str()), (201, "at last"));
        assert_eq!(answer.header("x-checked"), Some("yes"));
        for (status, text) in [(200, "/at-once"), (200, "/now"), (500, ""), (200, "/now"), (200, "/at-once")] {
            let answer = client.answer();
            assert_eq!((answer.status, answer.text().as_str()), (status, text));
        }
        // The client ends its side first, and a connection that is to be closed.
        for fields in ["", "Connection: close\r\n"] {
            let mut client = server.connect();
            client.send(format!("GET /wait HTTP/1.1\r\nHost: t\r\n{fields}\r\n"));
            client.stream.shutdown(std::net::Shutdown::Write).unwrap();
            eventually("the responder is there", || shelf.lock().unwrap().len() == 1);
            shelf.lock().unwrap().pop().unwrap().respond(Response::text(StatusCode::OK, "at last"));
            assert_eq!(client.answer().text(), "at last");
            assert!(client.rest().is_empty());
        }
        assert!(server.handle.shutdown(crate::harness::PATIENCE));
    });
}

/// Passes inline calls on.
struct Through;

impl narval_http::Middleware for Through {
    fn handle(&self, request: Request, next: Next<'_>) -> Response {
        next.run(request)
    }

    fn inline(&self, head: &HeadRef<'_>, next: Next<'_>) -> Option<Response> {
        next.inline(head)
    }
}
