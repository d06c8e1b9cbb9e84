//! Messages to a shard from other threads.

use std::io;
use std::sync::Arc;

use crate::http1::conn::Close;
use crate::io::driver::Token;
use crate::io::socket::Socket;
use crate::io::wake_queue::WakeQueue;
use crate::message::body_source::Wakes;
use crate::peer::Remote;
use crate::run::http2::StreamEvent;
use crate::run::transmit::Outgoing;
use crate::ws;

/// The messages to a shard.
///
/// Bounded by the work in flight: a connection has at most one job, so at most one message, besides `BodyWanted` (sent
/// once per window), `BodyReady` (once per wait) and `WebSocket` (not sent again until it is handled). The same applies
/// to each HTTP/2 stream. Another shard sends `MakeRoom` when it closes connections to make room, and once besides.
pub(crate) type Mailbox = WakeQueue<Message>;

impl Wakes for Mailbox {
    fn body_is_ready(&self, token: Token) {
        self.post(Message::BodyReady { token });
    }
}

/// A message to a shard.
#[derive(Debug)]
pub(crate) enum Message {
    /// A connection that another shard accepted.
    Accepted { socket: Socket, remote: Remote },
    /// A job is done; returns the lease.
    Finished { token: Token, close: Option<Close> },
    /// A job could not send everything; returns the lease.
    Outgoing { token: Token, outgoing: Box<Outgoing> },
    /// A job has processed part of a TLS handshake: the data after it, if it is complete. Returns the lease.
    Handshaken { token: Token, plaintext: io::Result<Vec<u8>> },
    /// The buffer of a streamed request body has room again.
    BodyWanted { token: Token },
    /// The source of a waiting response body has data again.
    BodyReady { token: Token },
    /// A job has answered 101: the connection is a WebSocket. Returns the lease.
    Upgraded { token: Token, socket: Arc<ws::Shared> },
    /// The state of a WebSocket has changed: look at it.
    WebSocket { token: Token },
    /// An event on a stream of an HTTP/2 connection.
    Stream { token: Token, stream: u32, event: StreamEvent },
    /// Connections hold too much for their clients, and those that hold most may be of this shard.
    MakeRoom,
    /// Stop accepting, and finish what is running.
    Stop,
    /// Stop now.
    Halt,
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_socket_for_a_shard_that_has_ended_is_closed() {
        let mailbox = Mailbox::new().unwrap();
        let mut clients: Vec<_> = [false, true]
            .into_iter()
            .map(|has_ended| {
                let (client, socket) = UnixStream::pair().unwrap();
                if has_ended {
                    mailbox.close();
                }
                mailbox.post(Message::Accepted { socket: Socket::Os(socket.into()), remote: crate::Peer::Unix.into() });
                client
            })
            .collect();
        assert!(mailbox.take().is_none(), "both are closed");
        for client in &mut clients {
            client.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
        }
    }
}
