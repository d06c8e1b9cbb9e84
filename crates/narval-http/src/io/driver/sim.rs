//! The simulated back-end: the network's seed decides when, in which order, and how far operations complete.

use std::io;
use std::sync::Arc;

use super::table::Table;
use super::{Completion, Driver, Op, Token};
use crate::io::clock::Millis;
use crate::io::out_buf::OutBuf;
use crate::io::sim::Network;
use crate::io::socket::{HasSocket, Socket};
use crate::limits::RECEIVE_BUFFER;

/// The sim driver. It never waits: its owner decides what is ready and how far time advances.
pub(crate) struct SimDriver<C> {
    network: Network,
    connections: Table<Arc<C>>,
    listening: Option<usize>,
    pending: Vec<Pending>,
    ready: Vec<Pending>,
    receive_max: usize,
}

enum Pending {
    Receive(Token),
    Send(Token, OutBuf),
    Writable(Token),
}

impl<C: HasSocket> SimDriver<C> {
    pub(crate) fn new(network: Network) -> Self {
        Self {
            network,
            connections: Table::new(),
            listening: None,
            pending: Vec::new(),
            ready: Vec::new(),
            receive_max: RECEIVE_BUFFER,
        }
    }

    fn is_ready(&self, pending: &Pending) -> bool {
        let (token, reads) = match pending {
            Pending::Receive(token) => (token, true),
            // What does not fit is returned.
            Pending::Send(..) => return true,
            Pending::Writable(token) => (token, false),
        };
        match self.connections.get(*token).map(|connection| connection.socket()) {
            Some(Socket::Sim(socket)) if reads => socket.is_readable(),
            Some(Socket::Sim(socket)) => socket.is_writable(),
            // Detached: the operation is dropped when its turn comes.
            _ => true,
        }
    }

    fn run(&mut self, pending: Pending) -> Option<Completion<Vec<u8>>> {
        match pending {
            Pending::Receive(token) => {
                let connection = self.connections.get(token)?;
                let mut buffer = vec![0; self.receive_max];
                let result = connection.socket().receive(&mut buffer).map(|n| {
                    buffer.truncate(n);
                    buffer
                });
                Some(Completion::Received { token, result })
            }
            Pending::Send(token, mut buf) => {
                let connection = self.connections.get(token)?;
                let result = connection.socket().send_buf(&mut buf).map(drop);
                Some(Completion::Sent { token, result, buf })
            }
            Pending::Writable(token) => self.connections.get(token).map(|_| Completion::Writable { token }),
        }
    }
}

impl<C: HasSocket> Driver<C> for SimDriver<C> {
    type Buffer = Vec<u8>;

    fn listen(&mut self, listener: usize, _: Arc<Socket>) -> io::Result<()> {
        self.listening = Some(listener);
        Ok(())
    }

    fn unlisten(&mut self, _: usize) {
        self.listening = None;
    }

    fn attach(&mut self, token: Token, connection: Arc<C>) -> io::Result<()> {
        if self.network.lock().random.one_in(200) {
            connection.socket().abort();
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.connections.insert(token, connection);
        Ok(())
    }

    fn detach(&mut self, token: Token) {
        self.connections.remove(token);
    }

    fn receive_at_most(&mut self, bytes: usize) {
        self.receive_max = bytes;
    }

    fn submit(&mut self, op: Op) -> Option<Completion<Vec<u8>>> {
        let pending = match op {
            Op::Receive(token) => Pending::Receive(token),
            Op::Send(token, buf) => Pending::Send(token, buf),
            Op::AwaitWritable(token) => Pending::Writable(token),
        };
        // A send may complete at once, as with epoll, or later, as with io_uring.
        if matches!(pending, Pending::Send(..)) && self.network.lock().random.one_in(2) {
            return self.run(pending);
        }
        self.pending.push(pending);
        None
    }

    fn wait(&mut self, _: Millis, _: Option<Millis>) -> io::Result<()> {
        let (ready, pending): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.pending).into_iter().partition(|pending| self.is_ready(pending));
        self.pending = pending;
        let mut state = self.network.lock();
        for pending in ready {
            if state.random.one_in(4) {
                self.pending.push(pending);
            } else {
                let at = state.random.below(self.ready.len() + 1);
                self.ready.insert(at, pending);
            }
        }
        Ok(())
    }

    fn has_more(&self) -> bool {
        self.pending.iter().any(|pending| self.is_ready(pending))
    }

    fn next(&mut self) -> Option<Completion<Vec<u8>>> {
        if let Some(listener) = self.listening {
            if self.network.lock().random.one_in(50) {
                return Some(Completion::Accepted { listener, result: Err(io::ErrorKind::ConnectionAborted.into()) });
            }
            if let Some((socket, peer)) = self.network.accept() {
                return Some(Completion::Accepted { listener, result: Ok((Socket::Sim(socket), peer)) });
            }
        }
        loop {
            let pending = self.ready.pop()?;
            if let Some(completion) = self.run(pending) {
                return Some(completion);
            }
        }
    }

    fn recycle(&mut self, _: Vec<u8>) {}
}
