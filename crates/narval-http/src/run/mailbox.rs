//! Messages to a shard from other threads.

use std::io;
use std::sync::Arc;

use crate::Peer;
use crate::http1::conn::Close;
use crate::io::driver::Token;
use crate::io::socket::Socket;
use crate::io::wake_queue::WakeQueue;
use crate::message::body_source::Wakes;
use crate::run::http2::StreamEvent;
use crate::run::transmit::Outgoing;
use crate::ws;

/// The messages to a shard.
///
/// Bounded by what is in flight: a connection has at most one job, so at most one message about it but for `BodyWanted`,
/// which is sent once per window, `BodyReady`, once per wait, and `WebSocket`, which is not sent again before it was handled. Of
/// HTTP/2 the same holds for each stream.
pub(crate) type Mailbox = WakeQueue<Message>;

impl Wakes for Mailbox {
    fn body_is_ready(&self, token: Token) {
        self.post(Message::BodyReady { token });
    }
}

/// What a shard is told.
#[derive(Debug)]
pub(crate) enum Message {
    /// A connection that another shard accepted.
    Accepted { socket: Socket, peer: Peer },
    /// A job is done; with it the lease comes back.
    Finished { token: Token, close: Option<Close> },
    /// A job could not send everything; with it the lease comes back.
    Outgoing { token: Token, outgoing: Box<Outgoing> },
    /// A job has worked on a TLS handshake: what the client said behind it, if it is over. With it the lease comes back.
    Handshaken { token: Token, plaintext: io::Result<Vec<u8>> },
    /// The reader of a streamed request body has room again.
    BodyWanted { token: Token },
    /// The source of a response body that had no more for a while has more.
    BodyReady { token: Token },
    /// A job has answered 101; with it the lease comes back, and the connection is a WebSocket.
    Upgraded { token: Token, socket: Arc<ws::Shared> },
    /// There is something to look at in what a WebSocket sends or has handled.
    WebSocket { token: Token },
    /// Something about a stream of an HTTP/2 connection.
    Stream { token: Token, stream: u32, event: StreamEvent },
    /// Accept no more, finish what runs.
    Stop,
    /// End now.
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
                mailbox.post(Message::Accepted { socket: Socket::Os(socket.into()), peer: Peer::Unix });
                client
            })
            .collect();
        assert!(mailbox.take().is_none(), "both are closed");
        for client in &mut clients {
            client.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
        }
    }
}
