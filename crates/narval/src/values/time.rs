//! Times on the command line and in configuration files.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Units of time, the largest first, in milliseconds.
const UNITS: [(&str, u64); 6] =
    [("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Parses a time such as `90d`: a number with `ms`, `s`, `m`, `h`, `d` or `w`, or a number of seconds.
///
/// # Errors
/// If it is none.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || "give a number followed by ms, s, m, h, d or w, such as '90s', or a number of seconds".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = Some(unit.trim_start()).filter(|unit| !unit.is_empty()).unwrap_or("s");
    let (_, factor) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(wrong)?;
    Ok(Duration::from_millis(ms))
}

/// Parses a time in these bounds.
///
/// # Errors
/// If it is none, or out of bounds.
pub(crate) fn parse_time_in(text: &str, range: &RangeInclusive<Duration>) -> Result<Duration, String> {
    let time = parse_time(text)?;
    if range.contains(&time) {
        return Ok(time);
    }
    Err(format!("give a time from {} to {}", written(*range.start()), written(*range.end())))
}

/// Formats a time as it would be written in a file.
pub(crate) fn written(time: Duration) -> String {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mut units = UNITS.into_iter().filter(|(name, _)| *name != "w");
    let (unit, factor) = units.find(|(_, factor)| ms > 0 && ms.is_multiple_of(*factor)).unwrap_or(("s", 1000));
    format!("{}{unit}", ms / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, want) in [
            ("90s", 90_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("7d", 604_800_000),
            ("1w", 604_800_000),
            ("250 ms", 250),
            ("30", 30_000),
            ("0", 0),
        ] {
            assert_eq!(parse_time(text), Ok(Duration::from_millis(want)), "{text}");
        }
        for text in ["", "m", "-5m", "1.5h", "5M", "99999999999999999999d"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
        for text in ["90s", "5m", "1h", "7d", "250ms", "0s"] {
            assert_eq!(written(parse_time(text).unwrap()), text);
        }
        let bounds = Duration::from_secs(1)..=Duration::from_secs(3600);
        assert_eq!(parse_time_in("2h", &bounds), Err("give a time from 1s to 1h".to_owned()));
    }
}
