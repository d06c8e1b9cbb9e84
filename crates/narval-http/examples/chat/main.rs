//! Chat rooms: a page, and a WebSocket per visitor.
//!
//! `cargo run --release -p narval-http --example chat -- --port 8080 [--driver auto|epoll|uring]`, then open the address that is
//! printed, twice.

#[path = "../arguments/mod.rs"]
mod arguments;

use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use narval_http::ws::{
    CloseCode, CloseReason, Message, Options, SendStatus, SharedMessage, Upgrade, UpgradeError, WebSocket,
    WsCompression, WsHandler, WsLimits,
};
use narval_http::{Body, Request, Response, Router, StatusCode};
use serde_json::json;

const ROOMS_MAX: usize = 1000;
const MEMBERS_MAX: usize = 1000;
const NAME_CHARS_MAX: usize = 32;
const TEXT_BYTES_MAX: usize = 8000;
/// Messages that new members are sent.
const HISTORY_MAX: usize = 50;

fn main() -> Result<(), Box<dyn Error>> {
    let rooms = Arc::new(Rooms::default());
    let list = rooms.clone();
    let app = Router::new()
        .get("/", || page("text/html; charset=utf-8", include_str!("page.html")))
        .get("/chat.css", || page("text/css", include_str!("chat.css")))
        .get("/chat.js", || page("text/javascript", include_str!("chat.js")))
        .get("/rooms", move || list.names())
        .get("/rooms/@room", move |request: Request| enter(&rooms, &request))
        .build()?;
    arguments::serve(app)
}

/// One of the files of the page. It loads nothing from other sites.
fn page(kind: &'static str, text: &'static str) -> Response {
    Response::new(StatusCode::OK)
        .header("content-type", kind)
        .header("cache-control", "no-cache")
        .header("content-security-policy", "default-src 'self'; img-src data:")
        .header("x-content-type-options", "nosniff")
        .body(Body::bytes(text))
}

/// Answers the handshake. Refusals are sent as a Close frame: a page cannot see why a handshake failed.
fn enter(rooms: &Arc<Rooms>, request: &Request) -> Result<Response, UpgradeError> {
    let upgrade = Upgrade::new(request)?.same_origin()?.compress(WsCompression::default())?;
    let options = Options { limits: WsLimits { message_bytes_max: TEXT_BYTES_MAX }, ..Options::default() };
    let member = Member {
        rooms: rooms.clone(),
        room: request.params().get("room").unwrap_or_default().trim().to_owned(),
        name: request.query_value("name").unwrap_or_default().trim().to_owned(),
    };
    Ok(upgrade.options(options).accept(member))
}

/// Somebody in a room.
struct Member {
    rooms: Arc<Rooms>,
    room: String,
    name: String,
}

impl WsHandler for Member {
    fn open(&self, socket: &WebSocket) {
        if let Err(refused) = self.rooms.enter(self, socket) {
            socket.close(CloseCode::POLICY_VIOLATION, refused);
        }
    }

    fn message(&self, _: &WebSocket, message: Message) {
        if let Some(text) = message.as_text().filter(|text| !text.trim().is_empty()) {
            let at =
                SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
            let event = json!({ "from": self.name, "text": text, "at": at });
            self.rooms.say(&self.room, SharedMessage::new(event.to_string()));
        }
    }

    fn close(&self, socket: &WebSocket, _: CloseReason) {
        self.rooms.leave(self, socket);
    }
}

#[derive(Default)]
struct Rooms {
    rooms: Mutex<HashMap<String, Room>>,
}

#[derive(Default)]
struct Room {
    members: HashMap<WebSocket, String>,
    history: VecDeque<SharedMessage>,
}

impl Rooms {
    fn enter(&self, member: &Member, socket: &WebSocket) -> Result<(), &'static str> {
        let is_name = |name: &str| !name.is_empty() && name.chars().count() <= NAME_CHARS_MAX;
        if !is_name(&member.room) || !is_name(&member.name) {
            return Err("Names have 1 to 32 characters.");
        }
        let mut rooms = self.lock();
        if rooms.len() >= ROOMS_MAX && !rooms.contains_key(&member.room) {
            return Err("There are too many rooms.");
        }
        let room = rooms.entry(member.room.clone()).or_default();
        if room.members.values().any(|name| *name == member.name) {
            return Err("Somebody in this room has that name.");
        }
        if room.members.len() >= MEMBERS_MAX {
            return Err("This room is full.");
        }
        for message in &room.history {
            // A new socket has room for the whole history.
            let _ = socket.send_shared(message);
        }
        room.members.insert(socket.clone(), member.name.clone());
        room.tell(&SharedMessage::new(room.note(&member.name, "came in")));
        Ok(())
    }

    fn say(&self, room: &str, message: SharedMessage) {
        // Sending never blocks, so it may happen under the lock; it gives everybody the same order.
        if let Some(room) = self.lock().get_mut(room) {
            room.tell(&message);
            room.history.push_back(message);
            if room.history.len() > HISTORY_MAX {
                room.history.pop_front();
            }
        }
    }

    fn leave(&self, member: &Member, socket: &WebSocket) {
        let mut rooms = self.lock();
        let Some(room) = rooms.get_mut(&member.room) else { return };
        if room.members.remove(socket).is_none() {
            return;
        }
        if room.members.is_empty() {
            rooms.remove(&member.room);
        } else {
            room.tell(&SharedMessage::new(room.note(&member.name, "left")));
        }
    }

    fn names(&self) -> Response {
        let names: Vec<String> = self.lock().keys().cloned().collect();
        Response::json(StatusCode::OK, &names)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Room>> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room {
    fn note(&self, name: &str, what: &str) -> String {
        json!({ "note": format!("{name} {what}"), "members": self.members.len() }).to_string()
    }

    /// Sends to all members. A client that does not keep up is disconnected: it would miss messages.
    fn tell(&self, message: &SharedMessage) {
        for member in self.members.keys() {
            if member.send_shared(message) == SendStatus::Dropped {
                member.close(CloseCode::TRY_AGAIN_LATER, "too slow");
            }
        }
    }
}
