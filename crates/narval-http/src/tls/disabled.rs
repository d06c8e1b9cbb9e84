//! Stubs for builds without the feature `tls`.

use std::io;

use bytes::Bytes;

use super::Opened;
use crate::io::out_buf::OutBuf;
use crate::io::socket::Socket;

/// Accepts nothing.
#[derive(Clone, Debug)]
pub(crate) enum Acceptor {}

impl Acceptor {
    pub(crate) fn accept(&self, _: bool) -> Option<TlsChannel> {
        match *self {}
    }
}

/// The TLS side of a connection. No value of this type exists.
#[derive(Debug)]
pub(crate) enum TlsChannel {}

impl TlsChannel {
    pub(crate) fn is_handshaking(&self) -> bool {
        match *self {}
    }

    pub(crate) fn speaks_http2(&self) -> bool {
        match *self {}
    }

    pub(crate) fn peer_certificates(&self) -> Vec<Bytes> {
        match *self {}
    }

    pub(crate) fn rest_is_cheap(&self) -> bool {
        match *self {}
    }

    pub(crate) fn open(&self, _: &[u8], _: &mut Vec<u8>) -> io::Result<Opened> {
        match *self {}
    }

    pub(crate) fn seal(&self, _: &Socket, _: &mut OutBuf) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn seals_in_place(&self, _: u64) -> bool {
        match *self {}
    }

    pub(crate) fn seal_in_place(&self, _: &Socket, _: &mut Vec<u8>) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn is_kernels(&self) -> bool {
        match *self {}
    }

    pub(crate) fn will_send(&self, _: &Socket, _: u64) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn has_sent(&self, _: u64) {
        match *self {}
    }

    pub(crate) fn offload(&self, _: &Socket, _: u64) -> bool {
        match *self {}
    }

    pub(crate) fn end_output(&self, _: &Socket) {
        match *self {}
    }
}
