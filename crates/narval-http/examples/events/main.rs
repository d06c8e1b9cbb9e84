//! Server-sent events: everybody who has the page open sees what anybody posts.
//!
//! `cargo run --release -p narval-http --example events -- --port 8080`, then open the address that is printed, or
//! `curl -N http://localhost:8080/events`

#[path = "../arguments/mod.rs"]
mod arguments;

use std::collections::{HashSet, VecDeque};
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use narval_http::ws::SendStatus;
use narval_http::{Body, Event, EventOptions, EventStream, Request, Response, Router, StatusCode};

const TEXT_BYTES_MAX: usize = 1000;
/// Events kept for clients that were disconnected briefly.
const KEPT_MAX: usize = 100;
const LISTENERS_MAX: usize = 100_000;

#[derive(Default)]
struct Board {
    listeners: HashSet<EventStream>,
    kept: VecDeque<(u64, Event)>,
    last: u64,
}

impl Board {
    /// Subscribes a client, and sends it the events that it has missed: a browser sends the last id that it received.
    fn listen(&mut self, request: &Request) -> Response {
        self.listeners.retain(EventStream::is_open);
        if self.listeners.len() >= LISTENERS_MAX {
            return Response::text(StatusCode::SERVICE_UNAVAILABLE, "too many subscribers\n");
        }
        let (response, events) = Response::events(EventOptions::default());
        let last_seen = request.header("last-event-id").and_then(|id| id.parse::<u64>().ok());
        for (_, event) in self.kept.iter().filter(|(id, _)| *id > last_seen.unwrap_or(0)) {
            // A client that does not keep up reconnects, and then gets what it missed.
            let _ = events.send(event);
        }
        self.listeners.insert(events);
        self.tell_count();
        response
    }

    fn post(&mut self, text: &str) {
        self.last += 1;
        // Encoded once for all subscribers.
        let event = Event::new(text).id(self.last.to_string());
        self.kept.push_back((self.last, event.clone()));
        if self.kept.len() > KEPT_MAX {
            self.kept.pop_front();
        }
        self.tell(&event);
    }

    fn tell_count(&mut self) {
        let count = Event::new(self.listeners.len().to_string()).name("listeners");
        self.tell(&count);
    }

    /// Sends an event to all subscribers. Those that are gone are removed, and those that do not keep up are
    /// disconnected: a browser reconnects, and gets what it missed.
    fn tell(&mut self, event: &Event) {
        self.listeners.retain(|events| match events.send(event) {
            SendStatus::Queued | SendStatus::Backpressure => true,
            SendStatus::Dropped | SendStatus::Closed => false,
        });
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let board = Arc::new(Mutex::new(Board::default()));
    let posting = board.clone();
    let lock = |board: &Arc<Mutex<Board>>, f: &mut dyn FnMut(&mut Board)| {
        f(&mut board.lock().unwrap_or_else(PoisonError::into_inner));
    };
    let listen = move |request: Request| {
        let mut response = Response::new(StatusCode::INTERNAL_SERVER_ERROR);
        lock(&board, &mut |board| response = board.listen(&request));
        response
    };
    let post = move |mut request: Request| {
        let text = request.body().text(TEXT_BYTES_MAX).unwrap_or_default();
        if text.trim().is_empty() {
            return Response::text(StatusCode::BAD_REQUEST, "the text must have 1 to 1000 bytes\n");
        }
        lock(&posting, &mut |board| board.post(text.trim()));
        Response::new(StatusCode::NO_CONTENT)
    };
    let page = || {
        Response::new(StatusCode::OK)
            .header("content-type", "text/html; charset=utf-8")
            .body(Body::bytes(include_str!("page.html")))
    };
    arguments::serve(Router::new().get("/", page).get("/events", listen).post("/events", post).build()?)
}
