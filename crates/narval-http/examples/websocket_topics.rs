//! Publish and subscribe: a message sent to `/topics/NAME` goes to all clients connected there.
//!
//! `cargo run --release -p narval-http --example websocket_topics -- --port 9002 [--driver auto|epoll|uring]
//! [--connections N] [--ping-seconds N]`

#[path = "arguments/mod.rs"]
mod arguments;

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use narval_http::ws::{
    CloseCode, CloseReason, Message, Options, SendStatus, SharedMessage, Upgrade, UpgradeError, WebSocket, WsHandler,
};
use narval_http::{Limits, Request, Response, Router};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = arguments::Arguments::read(&["--connections", "--ping-seconds"])?;
    let (mut limits, mut options) = (Limits::default(), Options::default());
    if let Some(connections) = arguments.get("--connections") {
        limits.connections_max = connections.parse()?;
        // All from one machine.
        limits.connections_per_ip_max = Some(limits.connections_max);
    }
    if let Some(seconds) = arguments.get("--ping-seconds") {
        options.ping_interval = Some(Duration::from_secs(seconds.parse()?));
    }
    let topics = Arc::new(Topics::default());
    let subscribe = move |request: Request| topics.subscribe(&request, options);
    arguments.serve(Router::new().get("/topics/@name", subscribe).build()?, |builder| builder.limits(limits))
}

/// The topics that have subscribers.
#[derive(Default)]
struct Topics {
    topics: Mutex<HashMap<String, Arc<Topic>>>,
}

impl Topics {
    fn subscribe(&self, request: &Request, options: Options) -> Result<Response, UpgradeError> {
        let name = request.params().get("name").unwrap_or_default();
        let topic = {
            let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
            topics.retain(|_, topic| Arc::strong_count(topic) > 1);
            topics.entry(name.to_owned()).or_default().clone()
        };
        Ok(Upgrade::new(request)?.options(options).accept(Subscriber(topic)))
    }
}

/// A topic: its subscribers.
#[derive(Default)]
struct Topic {
    subscribers: Mutex<HashSet<WebSocket>>,
}

impl Topic {
    fn lock(&self) -> MutexGuard<'_, HashSet<WebSocket>> {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A subscriber of a topic.
struct Subscriber(Arc<Topic>);

impl WsHandler for Subscriber {
    fn open(&self, socket: &WebSocket) {
        self.0.lock().insert(socket.clone());
    }

    fn message(&self, _: &WebSocket, message: Message) {
        // Encoded once; all subscribers are sent the same bytes.
        let message = SharedMessage::new(message);
        for subscriber in self.0.lock().iter() {
            if subscriber.send_shared(&message) == SendStatus::Dropped {
                subscriber.close(CloseCode::TRY_AGAIN_LATER, "too slow");
            }
        }
    }

    fn close(&self, socket: &WebSocket, _: CloseReason) {
        self.0.lock().remove(socket);
    }
}
