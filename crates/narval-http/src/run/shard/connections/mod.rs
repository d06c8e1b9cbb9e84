//! What a shard does with its connections, by what they speak.

mod handshake;
mod http1;
mod http2;
mod websocket;

use crate::io::driver::Driver;
use crate::run::connection::Connection;
use crate::run::event::Event;
use crate::run::shard::Shard;
use crate::run::shard::slots::{Protocol, Slot};

impl<D: Driver<Connection>> Shard<D> {
    /// Tells a connection what has happened, and performs what follows. Not inlined: that would make the path of a request longer
    /// wherever a deadline or an end is told. What HTTP/1 connections receive goes [straight](Self::on_http1) there.
    #[inline(never)]
    pub(in crate::run::shard) fn on(&mut self, slot: &mut Slot, event: Event<'_>) {
        match &slot.protocol {
            Protocol::Http1(_) => self.on_http1(slot, event),
            Protocol::Http2(_) => self.on_http2(slot, event),
            Protocol::WebSocket(_) => self.on_websocket(slot, &event),
            Protocol::Closing(_) => self.on_closing(slot, &event),
            Protocol::ProxyHeader | Protocol::Handshake => self.on_begun(slot, event),
        }
    }
}
