//! Flow control (RFC 9113 section 5.2): what may be sent, and what the client may send.

use super::settings::WINDOW_MAX;

/// Bytes that we may send. Negative if the client has reduced it below what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendWindow(i64);

/// A window would exceed its maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overflow;

impl SendWindow {
    pub(crate) fn new(initial: i64) -> Self {
        Self(initial)
    }

    /// Bytes that may be sent now.
    pub(crate) fn open(self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }

    pub(crate) fn sent(&mut self, bytes: usize) {
        self.0 -= bytes as i64;
    }

    /// The client has enlarged it, or changed it in either direction with SETTINGS.
    pub(crate) fn change(&mut self, by: i64) -> Result<(), Overflow> {
        self.0 += by;
        if self.0 > WINDOW_MAX { Err(Overflow) } else { Ok(()) }
    }
}

/// What the client may send. Used bytes are returned to it in steps of half its size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveWindow {
    /// What the client may still send.
    open: u32,
    /// Used bytes that are not returned yet.
    used: u32,
    /// Its size.
    size: u32,
}

impl ReceiveWindow {
    pub(crate) fn new(size: u32) -> Self {
        Self { open: size, used: 0, size }
    }

    /// Counts received bytes; `false` if the client exceeded the window.
    pub(crate) fn received(&mut self, bytes: usize) -> bool {
        match u32::try_from(bytes).ok().and_then(|bytes| self.open.checked_sub(bytes)) {
            Some(left) => {
                self.open = left;
                true
            }
            None => false,
        }
    }

    /// Counts used bytes. Returns the increment to send now, if any.
    pub(crate) fn use_up(&mut self, bytes: usize) -> Option<u32> {
        self.used = self.used.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        let due = self.used >= (self.size / 2).max(1);
        due.then(|| self.give())
    }

    /// Grows the window to `size`, unless it is as large already. Returns the increment to send.
    pub(crate) fn grow(&mut self, size: u32) -> u32 {
        let by = size.saturating_sub(self.size);
        self.size += by;
        self.open += by;
        by
    }

    /// Enlarges it by about `bytes` beyond its size.
    pub(crate) fn grant(&mut self, bytes: usize) -> u32 {
        let most = (WINDOW_MAX as u32) / 2 - self.open.min(WINDOW_MAX as u32 / 2);
        let by = u32::try_from(bytes).unwrap_or(u32::MAX).clamp(1, most.max(1));
        self.open += by;
        by
    }

    /// What the client may still send.
    pub(crate) fn open(&self) -> u32 {
        self.open
    }

    /// Its size, which [`grant`](Self::grant) does not change.
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    fn give(&mut self) -> u32 {
        let given = std::mem::take(&mut self.used);
        self.open += given;
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_for_sending_may_be_reduced_below_nothing() {
        let mut window = SendWindow::new(10);
        window.sent(8);
        assert_eq!(window.change(-5), Ok(()));
        assert_eq!(window.open(), 0);
        assert_eq!(window.change(4), Ok(()));
        assert_eq!(window.open(), 1);
        assert_eq!(window.change(WINDOW_MAX), Err(Overflow));
    }

    #[test]
    fn a_window_for_receiving_is_widened_by_halves() {
        let mut window = ReceiveWindow::new(100);
        assert!(window.received(60) && !window.received(41));
        assert_eq!(window.use_up(49), None);
        assert_eq!(window.use_up(11), Some(60));
        assert!(window.received(100));
        assert_eq!(window.use_up(0), None);
        assert_eq!((window.grow(150), window.grow(150), window.grow(140)), (50, 0, 0));
        assert!(window.received(50) && !window.received(1));
        assert_eq!((window.use_up(74), window.use_up(1)), (None, Some(75)));
    }
}
