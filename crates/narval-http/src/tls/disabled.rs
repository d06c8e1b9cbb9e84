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

/// Methods of a type without values.
macro_rules! never {
    ($(fn $name:ident($($of:ty),*) $(-> $result:ty)?;)*) => {
        $(pub(crate) fn $name(&self $(, _: $of)*) $(-> $result)? {
            match *self {}
        })*
    };
}

impl TlsChannel {
    never! {
        fn is_handshaking() -> bool;
        fn speaks_http2() -> bool;
        fn peer_certificates() -> Vec<Bytes>;
        fn rest_is_cheap() -> bool;
        fn open(&[u8], &mut Vec<u8>) -> io::Result<Opened>;
        fn seal(&Socket, &mut OutBuf) -> io::Result<()>;
        fn seals_in_place(u64) -> bool;
        fn seal_in_place(&Socket, &mut Vec<u8>) -> io::Result<()>;
        fn is_kernels() -> bool;
        fn will_send(&Socket, u64) -> io::Result<()>;
        fn has_sent(u64);
        fn offload(&Socket, u64) -> bool;
        fn end_output(&Socket);
    }
}
