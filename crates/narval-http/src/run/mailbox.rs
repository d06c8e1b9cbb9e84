//! Messages to a shard from other threads.

use std::io;
use std::sync::Arc;

use crate::io::driver::Token;
use crate::io::output_memory::Share;
use crate::io::over::Close;
use crate::io::socket::Socket;
use crate::io::wake_queue::WakeQueue;
use crate::message::body::produced::Made;
use crate::message::carrier::{Home, Nudge};
use crate::peer::Remote;
use crate::run::http2::Answer;
use crate::run::transmit::Outgoing;
use crate::ws;

/// The messages to a shard.
///
/// Bounded by the work in flight: a connection has at most one job, so at most one message, besides [nudges](Nudge):
/// `BodyRead` is sent once per window, `Source` once per wait, and `WebSocket` not again until it is handled. The same applies
/// to each HTTP/2 stream. Another shard sends `MakeRoom` when it closes connections to make room, and once besides.
pub(crate) type Mailbox = WakeQueue<Message>;

impl Home for Mailbox {
    fn nudge(&self, token: Token, stream: u32, nudge: Nudge) {
        self.post(Message::Note { token, stream, note: Note::Nudge(nudge) });
    }
}

/// A message to a shard.
pub(crate) enum Message {
    /// A connection that another shard accepted.
    Accepted { socket: Socket, remote: Remote },
    /// For a connection, or (unless `stream` is 0) one of its streams.
    Note { token: Token, stream: u32, note: Note },
    /// Connections hold too much for their clients, and those that hold most may be of this shard.
    MakeRoom,
    /// Stop accepting, and finish what is running.
    Stop,
    /// Stop now.
    Halt,
}

/// What a connection or a stream is told. The notes of an HTTP/1 connection's job return its lease.
pub(crate) enum Note {
    /// Something has changed that the shard cannot see.
    Nudge(Nudge),
    /// A job is done, and there will be no response, or no more of its body.
    Lost,
    /// A job has sent its response.
    Finished(Option<Close>),
    /// A job could not send everything.
    Handed(Box<Outgoing>),
    /// A job has answered 101: the connection is a WebSocket.
    Upgraded(Arc<ws::Shared>),
    /// A job has processed part of a TLS handshake: the data after it, if it is complete.
    Handshaken(io::Result<Vec<u8>>),
    /// The response to a stream's request, and what it holds until the connection counts it.
    Answer(Box<Answer>, Share),
    /// The header block of an informational response on a stream.
    Inform(Vec<u8>),
    /// The next piece of a stream's response body, and what it holds until the connection counts it.
    Made(Box<(io::Result<Made>, Share)>),
}

const _: () = assert!(size_of::<Note>() <= 32, "it is moved several times");

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
