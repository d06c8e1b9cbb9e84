//! When a machine may be changed: weekdays and times, in UTC.

use std::str::FromStr;

use narval_transfer::Error;

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const DAY_MINUTES: u64 = 24 * 60;

/// A time window of each week: `Mon-Fri 02:00-05:00`, `Sat,Sun`, or `22:00-04:00`, which ends on the next day.
///
/// ```
/// use narval_install::follow::Window;
/// let window: Window = "Mon-Fri 22:00-04:00".parse().unwrap();
/// let friday = 1_764_288_000; // 2025-11-28 00:00
/// assert!(window.has(friday + 23 * 3600) && window.has(friday + 27 * 3600));
/// assert!(!window.has(friday + 12 * 3600) && !window.has(friday + 51 * 3600));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Monday first.
    days: [bool; 7],
    /// Minutes of a day: the first, and the one after the last, which may be of the next day.
    minutes: (u64, u64),
}

impl Window {
    /// Whether a time, in seconds since 1970, is in the window.
    pub fn has(&self, time: u64) -> bool {
        // 1970 began on a Thursday.
        let (day, minute) = (time / 86_400 + 3, time / 60 % DAY_MINUTES);
        let on = |day: u64| self.days.get(usize::try_from(day % 7).unwrap_or(0)).copied().unwrap_or(false);
        let (from, to) = self.minutes;
        (on(day) && (from..to).contains(&minute)) || (on(day + 6) && (from..to).contains(&(minute + DAY_MINUTES)))
    }
}

impl FromStr for Window {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::Usage(format!(
                "'{text}' is not a time window: give days, times of UTC, or both, such as 'Mon-Fri 02:00-05:00', 'Sat,Sun' or '22:00-04:00'"
            ))
        };
        let mut window = Self { days: [true; 7], minutes: (0, DAY_MINUTES) };
        let words: Vec<&str> = text.split_whitespace().collect();
        let (days, times) = match words.as_slice() {
            [only] if only.contains(':') => (None, Some(*only)),
            [only] => (Some(*only), None),
            [days, times] => (Some(*days), Some(*times)),
            _ => return Err(wrong()),
        };
        if let Some(days) = days {
            window.days = parse_days(days).ok_or_else(wrong)?;
        }
        if let Some(times) = times {
            let (from, to) = times.split_once('-').ok_or_else(wrong)?;
            let (from, to) = (parse_time(from).ok_or_else(wrong)?, parse_time(to).ok_or_else(wrong)?);
            if from == to || from == DAY_MINUTES {
                return Err(wrong());
            }
            window.minutes = (from, if to < from { to + DAY_MINUTES } else { to });
        }
        Ok(window)
    }
}

fn parse_days(text: &str) -> Option<[bool; 7]> {
    let number = |name: &str| DAYS.iter().position(|day| day.eq_ignore_ascii_case(name));
    let mut days = [false; 7];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut day, last) = (number(first)?, number(last)?);
        loop {
            *days.get_mut(day)? = true;
            if day == last {
                break;
            }
            day = (day + 1) % 7;
        }
    }
    Some(days)
}

/// `02:30`, as a minute of the day; `24:00` is its end.
fn parse_time(text: &str) -> Option<u64> {
    let (hours, minutes) = text.split_once(':')?;
    let digits = |text: &str| {
        (text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| text.parse::<u8>().ok())
            .flatten()
            .map(u64::from)
    };
    let time = digits(hours)? * 60 + digits(minutes).filter(|minutes| *minutes < 60)?;
    (time <= DAY_MINUTES).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows() {
        let monday = 1_764_547_200; // 2025-12-01 00:00
        let at = |text: &str, day: u64, minute: u64| {
            text.parse::<Window>().unwrap().has(monday + day * 86_400 + minute * 60)
        };
        assert!(at("Mon", 0, 0) && at("mon", 0, 1439) && !at("Mon", 1, 0));
        assert!(at("Fri-Mon", 6, 0) && at("Fri-Mon", 0, 0) && !at("Fri-Mon", 3, 0));
        assert!(
            at("Tue,Sun 02:00-05:00", 6, 120)
                && !at("Tue,Sun 02:00-05:00", 6, 300)
                && !at("Tue,Sun 02:00-05:00", 5, 180)
        );
        assert!(at("22:00-04:00", 2, 1330) && at("22:00-04:00", 2, 239) && !at("22:00-04:00", 2, 240));
        // The night after Sunday is on Monday.
        assert!(at("Sun 22:00-04:00", 0, 60) && !at("Sun 22:00-04:00", 1, 60));
        assert!(at("20:00-24:00", 0, 1439) && !at("20:00-24:00", 0, 0));
        for text in [
            "",
            "Moo",
            "Mon-",
            "02:00",
            "02:00-02:00",
            "2:00-03:00",
            "24:00-02:00",
            "25:00-26:00",
            "02:60-03:00",
            "Mon 02:00-03:00 x",
            "+1:00-02:00",
        ] {
            assert!(text.parse::<Window>().is_err(), "{text}");
        }
    }
}
