//! Publish and subscribe: whoever is connected to `/topics/NAME` gets every message that anybody sends there.
//!
//! `cargo run --release -p narval-http --example websocket_topics -- --port 9002 [--driver auto|epoll|uring]
//! [--connections N] [--ping-seconds N]`

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use narval_http::ws::{
    CloseCode, CloseReason, Message, Options, SendStatus, SharedMessage, Upgrade, UpgradeError, WebSocket, WsHandler,
};
use narval_http::{Limits, Listen, Request, Response, Router, Server};

fn main() -> Result<(), Box<dyn Error>> {
    let (mut port, mut driver, mut limits, mut options) = (0, "auto".to_owned(), Limits::default(), Options::default());
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--port" => port = value.parse()?,
            "--driver" => driver = value,
            "--connections" => limits.connections_max = value.parse()?,
            "--ping-seconds" => options.ping_interval = Some(Duration::from_secs(value.parse()?)),
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    let topics = Arc::new(Topics::default());
    let site =
        Router::new().get("/topics/@name", move |request: Request| topics.subscribe(&request, options)).build()?;
    let server = Server::builder(site)
        .listen(Listen::Tcp((Ipv4Addr::LOCALHOST, port).into()))
        .driver(driver.parse()?)
        .limits(limits)
        .build()?;
    for address in server.addresses() {
        println!("listening on {address}");
    }
    server.run()?;
    Ok(())
}

/// All topics that anybody is subscribed to.
#[derive(Default)]
struct Topics {
    topics: Mutex<HashMap<String, Arc<Topic>>>,
}

impl Topics {
    /// All sockets of a topic share one handler, which is the topic.
    fn subscribe(&self, request: &Request, options: Options) -> Result<Response, UpgradeError> {
        let name = request.params().get("name").unwrap_or_default();
        let topic = {
            let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
            topics.retain(|_, topic| Arc::strong_count(topic) > 1);
            topics.entry(name.to_owned()).or_default().clone()
        };
        Ok(Upgrade::new(request)?.options(options).accept(topic).0)
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

impl WsHandler for Topic {
    fn open(&self, socket: &WebSocket) {
        self.lock().insert(socket.clone());
    }

    fn message(&self, _: &WebSocket, message: Message) {
        // Encoded once; every subscriber's connection is given the same bytes.
        let message = SharedMessage::new(message);
        for subscriber in self.lock().iter() {
            if subscriber.send_shared(&message) == SendStatus::Dropped {
                subscriber.close(CloseCode::TRY_AGAIN_LATER, "too slow");
            }
        }
    }

    fn close(&self, socket: &WebSocket, _: CloseReason) {
        self.lock().remove(socket);
    }
}
