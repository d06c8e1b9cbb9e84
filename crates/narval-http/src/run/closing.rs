//! How connections of every protocol end.

use crate::io::clock::{Millis, millis};
use crate::io::over::Close;
use crate::limits::{LINGER_LOOK, Limits};
use crate::run::intake::incoming_body::IncomingBody;

/// The rest of the body of an answered request. It is received so that the client gets to reading the response.
pub(crate) type Unread = Option<Box<IncomingBody>>;

/// The end of a connection whose output is sent.
pub(crate) struct End {
    pub(crate) close: Close,
    /// All that came was used, and nothing is expected to follow it.
    pub(crate) is_read: bool,
    /// The rest of the body of the last request.
    pub(crate) unread: Unread,
}

impl End {
    /// Whether it is safe to close now, provided the client has sent nothing that is still unreceived: a small response fits into
    /// the kernel's buffer. It is always safe if the client has ended its input.
    pub(crate) fn may_close(&self) -> bool {
        self.is_read && self.close == Close::Clean { large: false }
    }
}

/// A connection whose output has ended. Remaining input is discarded until the client closes, too. Closing now would reset the
/// connection if the client has sent anything more, or lose the send buffer if the client pauses for longer than the kernel
/// keeps an orphaned socket.
pub(crate) struct Closing {
    until: Millis,
    discarded: usize,
    /// It is received so that the client gets to reading the response.
    unread: Unread,
}

impl Closing {
    /// Returns also when to [look](Self::look) at it first.
    pub(crate) fn new(end: End, now: Millis, limits: &Limits) -> (Self, Millis) {
        let large = end.close == (Close::Clean { large: true });
        let until = now + millis(if large { limits.write_stall_timeout } else { limits.linger_timeout });
        // Check earlier for a large response: once the client has everything, there is no need to wait for it to close.
        let look_at = if large { until.min(now + millis(LINGER_LOOK)) } else { until };
        (Self { until, discarded: 0, unread: end.unread }, look_at)
    }

    /// Discards received bytes; returns whether the connection remains.
    pub(crate) fn discard(&mut self, bytes: &[u8], limits: &Limits) -> bool {
        if self.unread.is_some() {
            feed_unread(&mut self.unread, bytes, limits);
            return true;
        }
        self.discarded += bytes.len();
        self.discarded <= limits.linger_bytes_max
    }

    /// When to look at it again; `None` if it is to be closed. `has_in_flight`: whether sent bytes are not yet acknowledged by the
    /// client's kernel.
    pub(crate) fn look(
        &mut self,
        now: Millis,
        limits: &Limits,
        has_in_flight: impl FnOnce() -> bool,
    ) -> Option<Millis> {
        let progress = self.unread.as_mut().and_then(|incoming| incoming.look(now, limits, false, false));
        progress.or_else(|| (now < self.until && has_in_flight()).then(|| self.until.min(now + millis(LINGER_LOOK))))
    }
}

/// Receives more of a body that nobody reads, while the response is sent or the connection ends. Input after it, or
/// malformed input, is discarded too: the connection ends.
fn feed_unread(unread: &mut Unread, bytes: &[u8], limits: &Limits) {
    if let Some(incoming) = unread
        && !incoming.feed(bytes, limits, |_| {}).is_ok_and(|fed| !fed.done)
    {
        *unread = None;
    }
}
