//! How numbers, times and names are written.

use maud::{Markup, html};
use narval_client::clock;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// A size: three digits and a unit of 1000.
pub(in crate::page) fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if count < 1000 {
        return format!("{count} B");
    }
    let (mut unit, mut whole, mut thousandths) = (0, count / 1000, count % 1000);
    while whole >= 1000 && unit + 1 < UNITS.len() {
        (unit, whole, thousandths) = (unit + 1, whole / 1000, whole % 1000);
    }
    let unit = UNITS.get(unit).copied().unwrap_or_default();
    match whole {
        100.. => format!("{whole} {unit}"),
        10.. => format!("{whole}.{} {unit}", thousandths / 100),
        _ => format!("{whole}.{:02} {unit}", thousandths / 10),
    }
}

/// A number with its thousands apart.
pub(super) fn number(count: impl TryInto<u64>) -> String {
    let digits = count.try_into().unwrap_or(u64::MAX).to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 path`, `2 paths`.
pub(in crate::page) fn many(count: impl TryInto<u64>, one: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    format!("{} {one}{}", number(count), if count == 1 { "" } else { "s" })
}

/// How long ago a time was, in seconds since 1970; the date is its title.
pub(super) fn ago(time: u64) -> Markup {
    html! { time title=(date(time)) datetime=(date(time)) { (ago_text(time)) } }
}

/// The same without markup.
pub(super) fn ago_text(time: u64) -> String {
    let age = clock::now().saturating_sub(time);
    let units = [(DAY, "day"), (HOUR, "hour"), (MINUTE, "minute")];
    let found = units.into_iter().find(|(length, _)| age >= *length);
    found.map_or_else(|| "just now".to_owned(), |(length, unit)| format!("{} ago", many(age / length, unit)))
}

/// A length of time, as its largest unit: `5 weeks`.
pub(super) fn duration(seconds: u64) -> String {
    const YEAR: u64 = 365 * DAY;
    let units =
        [(YEAR, 2 * YEAR, "year"), (7 * DAY, 14 * DAY, "week"), (DAY, 2 * DAY, "day"), (HOUR, 2 * HOUR, "hour")];
    let units = units.into_iter().chain([(MINUTE, 2 * MINUTE, "minute")]);
    let found = units.into_iter().find(|(_, least, _)| seconds >= *least);
    found.map_or_else(|| many(seconds, "second"), |(length, _, unit)| many(seconds / length, unit))
}

/// Text in which backquotes mark code.
pub(super) fn with_code(text: &str) -> Markup {
    html! {
        @for (at, part) in text.split('`').enumerate() {
            @if at % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

/// A day in UTC: `2026-11-24`.
pub(super) fn date(time: u64) -> String {
    // Days to a date of the Gregorian calendar, whose years begin in March here.
    let days = time / DAY + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + u64::from(month <= 2))
}

/// A name that comes from whoever built it: isolated, so that no mark in it turns what follows around.
pub(super) fn name(text: &str) -> Markup {
    html! { bdi { (plain(text)) } }
}

/// Control characters, and marks that turn the text around even so, are shown as such.
pub(super) fn plain(text: &str) -> String {
    let is_mark = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if is_mark(c) { '\u{fffd}' } else { c }).collect()
}

/// A part of a URL's path or query: everything but letters, digits and a few signs is encoded.
pub(super) fn encoded(text: &[u8]) -> String {
    use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
    const SET: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/').remove(b'+');
    percent_encode(text, SET).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_sizes() {
        let sizes = [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.00 kB"),
            (12_345, "12.3 kB"),
            (999_999, "999 kB"),
            (48_000_000_000, "48.0 GB"),
        ];
        for (count, text) in sizes {
            assert_eq!(bytes(count), text);
        }
        assert_eq!(
            [number(0_u64), number(999_u64), number(1_284_u64), number(1_000_000_u64)],
            ["0", "999", "1,284", "1,000,000"]
        );
        assert_eq!((many(1_u64, "path"), many(0_u64, "path")), ("1 path".to_owned(), "0 paths".to_owned()));
    }

    #[test]
    fn dates_of_the_calendar() {
        for (time, text) in
            [(0, "1970-01-01"), (951_782_400, "2000-02-29"), (951_868_800, "2000-03-01"), (1_767_225_599, "2025-12-31")]
        {
            assert_eq!(date(time), text);
        }
        assert_eq!(ago_text(clock::now() - 3 * HOUR), "3 hours ago");
        let lengths = [5, 90, 130, 7300, 90_000, 20 * DAY, 3 * 365 * DAY].map(duration);
        assert_eq!(lengths, ["5 seconds", "90 seconds", "2 minutes", "2 hours", "25 hours", "2 weeks", "3 years"]);
        assert_eq!(with_code("a `<b>` c").into_string(), "a <code>&lt;b&gt;</code> c");
    }

    #[test]
    fn names_cannot_turn_the_text_around() {
        assert_eq!(name("<b>\u{202e}x\n&").into_string(), "<bdi>&lt;b&gt;\u{fffd}x\u{fffd}&amp;</bdi>");
        assert_eq!(encoded("a b/c%?#\"ä".as_bytes()), "a%20b/c%25%3F%23%22%C3%A4");
    }
}
