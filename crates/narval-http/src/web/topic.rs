//! One message to many clients.

use std::fmt;
use std::sync::Arc;

use super::events::{Event, EventStream};
use crate::io::sync::Mutex;
use crate::ws::{SendStatus, SharedMessage, WebSocket};

/// The members of a chat, or the readers of a stream of events: [`WebSocket`]s or [`EventStream`]s. Whoever has gone leaves by
/// itself. Clones are handles of the same topic.
///
/// ```
/// use std::sync::Arc;
///
/// use narval_http::ws::{SharedMessage, Upgrade, UpgradeError, WebSocket, WsEvent};
/// use narval_http::{Event, EventOptions, EventStream, Request, Response, Router, Topic};
///
/// #[derive(Default)]
/// struct App {
///     news: Topic<EventStream>,
///     chat: Topic<WebSocket>,
/// }
///
/// fn news(app: &App, _: Request) -> Response {
///     let (response, events) = Response::events(EventOptions::default());
///     app.news.join(events);
///     response
/// }
///
/// fn publish(app: &App, mut request: Request) -> std::io::Result<String> {
///     let readers = app.news.send(&Event::new(request.body().text(1000)?));
///     Ok(format!("{readers} readers\n"))
/// }
///
/// fn chat(app: &App, request: Request) -> Result<Response, UpgradeError> {
///     let chat = app.chat.clone();
///     Ok(Upgrade::new(&request)?.accept(move |socket: &WebSocket, event: WsEvent| match event {
///         WsEvent::Open => chat.join(socket.clone()),
///         WsEvent::Message(message) => {
///             chat.send(&SharedMessage::new(message));
///         }
///         _ => {}
///     }))
/// }
///
/// let app = Router::new().with(Arc::new(App::default())).get("/news", news).post("/news", publish).get("/chat", chat).build()?;
/// # Ok::<(), narval_http::RouteError>(())
/// ```
pub struct Topic<T> {
    members: Arc<Mutex<Members<T>>>,
}

struct Members<T> {
    list: Vec<T>,
    /// When there are so many, those that have gone are dropped.
    tidy_at: usize,
}

/// With fewer members, nobody looks who has gone when somebody joins.
const TIDY_MIN: usize = 16;

/// What can join a [`Topic`].
pub trait Member: PartialEq {
    /// What is sent to it: encoded once for all members.
    type Message: ?Sized;

    /// Sends a message, or queues it. Never blocks.
    fn deliver(&self, message: &Self::Message) -> SendStatus;

    /// Whether its client is there.
    fn is_there(&self) -> bool;
}

impl Member for EventStream {
    type Message = Event;

    fn deliver(&self, message: &Event) -> SendStatus {
        self.send(message)
    }

    fn is_there(&self) -> bool {
        self.is_open()
    }
}

impl Member for WebSocket {
    type Message = SharedMessage;

    fn deliver(&self, message: &SharedMessage) -> SendStatus {
        self.send_shared(message)
    }

    fn is_there(&self) -> bool {
        self.is_open()
    }
}

impl<T: Member> Topic<T> {
    /// A topic without members.
    pub fn new() -> Self {
        Self { members: Arc::new(Mutex::new(Members { list: Vec::new(), tidy_at: TIDY_MIN })) }
    }

    /// Adds a member.
    pub fn join(&self, member: T) {
        let mut members = self.members.lock();
        if members.list.len() >= members.tidy_at {
            members.tidy();
        }
        members.list.push(member);
    }

    /// Removes a member that is still there.
    pub fn leave(&self, member: &T) {
        self.members.lock().list.retain(|other| other != member);
    }

    /// Sends a message to all members, and returns how many get it. One whose client reads too slowly misses it, and stays.
    /// All members get messages in the same order.
    pub fn send(&self, message: &T::Message) -> usize {
        let mut sent = 0;
        self.members.lock().list.retain(|member| {
            let status = member.deliver(message);
            sent += usize::from(status.is_accepted());
            status != SendStatus::Closed
        });
        sent
    }

    /// How many members are there.
    pub fn len(&self) -> usize {
        let mut members = self.members.lock();
        members.tidy();
        members.list.len()
    }

    /// Whether nobody is there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Member> Members<T> {
    fn tidy(&mut self) {
        self.list.retain(T::is_there);
        self.tidy_at = (2 * self.list.len()).max(TIDY_MIN);
    }
}

impl<T: Member> Default for Topic<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Clone for Topic<T> {
    fn clone(&self) -> Self {
        Self { members: self.members.clone() }
    }
}

impl<T> fmt::Debug for Topic<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topic").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::request::Request;
    use crate::message::response::Response;
    use crate::web::events::EventOptions;
    use crate::web::router::Router;
    use crate::web::test;
    use crate::ws::{Upgrade, UpgradeError, WsEvent};

    #[test]
    fn readers_get_events_and_leave_by_themselves() {
        let topic = Arc::new(Topic::new());
        let join = |topic: &Topic<EventStream>, _: Request| {
            let (response, events) = Response::events(EventOptions::default());
            topic.join(events);
            response
        };
        let app = test::client(Router::new().with(topic.clone()).get("/", join).build().expect("valid"));
        let (mut one, two) = (app.get("/").send(), app.get("/").send());
        assert_eq!(topic.send(&Event::new("a\nb").name("news").id("7")), 2);
        let event = one.event().expect("sent");
        assert_eq!(
            (event.data.as_str(), event.name.as_deref(), event.id.as_deref()),
            ("a\nb", Some("news"), Some("7"))
        );
        drop(two);
        assert_eq!(topic.len(), 1);
        for _ in 0..100 {
            drop(app.get("/").send());
        }
        assert!(topic.members.lock().list.len() < 40, "those that have gone are not kept");
        drop(one);
        assert_eq!((topic.send(&Event::new("x")), topic.is_empty()), (0, true));
    }

    #[test]
    fn members_of_a_chat_hear_each_other() {
        fn chat(topic: &Topic<WebSocket>, request: Request) -> Result<Response, UpgradeError> {
            let chat = topic.clone();
            Ok(Upgrade::new(&request)?.accept(move |socket: &WebSocket, event: WsEvent| match event {
                WsEvent::Open => chat.join(socket.clone()),
                WsEvent::Message(message) => assert_eq!(chat.send(&SharedMessage::new(message)), chat.len()),
                _ => {}
            }))
        }
        let routes = Router::new().with(Arc::new(Topic::new())).get("/", chat);
        let app = test::client(routes.build().expect("valid"));
        let (mut ada, mut bob) = (app.get("/").socket().expect("opened"), app.get("/").socket().expect("opened"));
        ada.send("hello");
        assert_eq!(bob.receive().expect("sent").as_text(), Some("hello"));
        assert_eq!(ada.receive().expect("sent").as_text(), Some("hello"));
        drop(ada);
        bob.send(vec![1, 2]);
        assert_eq!(bob.receive().expect("sent").as_bytes(), [1, 2]);
        bob.close(crate::ws::CloseCode::NORMAL, "bye");
        let frame = bob.closed().expect("closed").expect("with a code");
        assert_eq!(frame.code, crate::ws::CloseCode::NORMAL);
    }
}
