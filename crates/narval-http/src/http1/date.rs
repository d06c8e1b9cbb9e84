//! The `Date` field's value (RFC 9110 section 5.6.7), formatted once per second and thread.

use std::cell::Cell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Length of an IMF-fixdate, for example `Sun, 06 Nov 1994 08:49:37 GMT`.
pub const LENGTH: usize = 29;

/// Length of a whole `Date` field line, including its end.
const LINE_LENGTH: usize = LENGTH + b"date: \r\n".len();

thread_local! {
    static CACHED: Cell<(u64, [u8; LINE_LENGTH])> = const { Cell::new((u64::MAX, [b' '; LINE_LENGTH])) };
    /// Whether this thread calls [`set`].
    static IS_SET: Cell<bool> = const { Cell::new(false) };
    #[cfg(any(test, feature = "sim"))]
    static STOPPED: Cell<bool> = const { Cell::new(false) };
}

/// The current time as an IMF-fixdate.
pub fn now() -> [u8; LENGTH] {
    let line = line();
    let value = line.get(b"date: ".len()..).and_then(|rest| rest.first_chunk());
    value.copied().unwrap_or([b' '; LENGTH])
}

/// The current time as a field line.
pub(crate) fn line() -> [u8; LINE_LENGTH] {
    if IS_SET.get() { CACHED.get().1 } else { line_at(since_1970().as_secs()) }
}

/// Formats the current time for all lines of this thread from now on. Returns after how many milliseconds to call it
/// again.
pub(crate) fn set() -> u64 {
    let now = since_1970();
    line_at(now.as_secs());
    IS_SET.set(true);
    u64::from(1000 - now.subsec_millis())
}

/// From now on it is always the same second on this thread. HPACK compresses dates, so that a simulation would not send the same number
/// of bytes each time.
#[cfg(any(test, feature = "sim"))]
pub(crate) fn stop() {
    STOPPED.set(true);
}

fn since_1970() -> Duration {
    #[cfg(any(test, feature = "sim"))]
    if STOPPED.get() {
        return Duration::from_secs(784_111_777);
    }
    // Uses std because rustix panics if the kernel's vDSO has no getcpu, as in User-Mode Linux.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn line_at(second: u64) -> [u8; LINE_LENGTH] {
    let (cached_second, line) = CACHED.get();
    if cached_second == second {
        return line;
    }
    let mut line = [b' '; LINE_LENGTH];
    let value = format(UNIX_EPOCH + Duration::from_secs(second));
    let bytes = b"date: ".iter().chain(&value).chain(b"\r\n");
    line.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
    CACHED.set((second, line));
    line
}

/// `time` as an IMF-fixdate, truncated to seconds. Times before 1970 and after 9999 become the nearest representable
/// date.
pub fn format(time: SystemTime) -> [u8; LENGTH] {
    /// 9999-12-31 23:59:59 GMT, the last date with a four-digit year.
    const LAST: Duration = Duration::from_secs(253_402_300_799);
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default().min(LAST);
    let mut text = [b' '; LENGTH];
    let shown = httpdate::HttpDate::from(UNIX_EPOCH + since).to_string();
    if let Ok(exact) = shown.as_bytes().try_into() {
        text = exact;
    }
    text
}

/// `time` in the format of RFC 3339, as `1994-11-06T08:49:37`, without the zone, which is UTC.
pub(crate) fn rfc_3339(time: SystemTime) -> String {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let date = format(time);
    let part = |range: std::ops::Range<usize>| {
        date.get(range).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    };
    let month = MONTHS.find(part(8..11)).map_or(0, |at| at / 3 + 1);
    format!("{}-{month:02}-{}T{}", part(12..16), part(5..7), part(17..25))
}

/// Parses an HTTP date in any of the three formats of RFC 9110 section 5.6.7.
pub fn parse(value: &[u8]) -> Option<SystemTime> {
    httpdate::parse_http_date(std::str::from_utf8(value).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_the_date_of_rfc_9110() {
        assert_eq!(&format(UNIX_EPOCH + Duration::from_secs(784_111_777)), b"Sun, 06 Nov 1994 08:49:37 GMT");
    }

    #[test]
    fn reads_the_three_forms_of_rfc_9110() {
        let time = UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(parse(b"Sun, 06 Nov 1994 08:49:37 GMT"), Some(time));
        assert_eq!(parse(b"Sunday, 06-Nov-94 08:49:37 GMT"), Some(time));
        assert_eq!(parse(b"Sun Nov  6 08:49:37 1994"), Some(time));
        assert_eq!(parse(b"yesterday"), None);
    }

    #[test]
    fn times_out_of_range_do_not_panic() {
        assert_eq!(&format(UNIX_EPOCH - Duration::from_secs(5)), b"Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(&format(UNIX_EPOCH + Duration::from_secs(1 << 40)), b"Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[test]
    fn now_is_the_time_of_the_clock() {
        let before = SystemTime::now();
        let read = parse(&now()).expect("own output is readable");
        assert!(read <= SystemTime::now(), "never in the future");
        let age = before.duration_since(read).unwrap_or_default();
        assert!(age < Duration::from_secs(3), "{age:?}");
        assert_eq!(now().len(), LENGTH);
    }
}
