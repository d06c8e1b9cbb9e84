use std::ffi::OsString;
use std::fmt::Write;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, VARY};
use http::{HeaderValue, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rustix::fs::{AtFlags, Dir, FileType, statat};

use crate::http1::accept::negotiate_media_type;
use crate::http1::date::rfc_3339;
use crate::http1::head_parts::HeadRef;
use crate::http1::path::query_pairs;
use crate::message::body::Body;
use crate::message::response::Response;

/// The most entries that are listed; a note says if there are more.
const ENTRIES_MAX: usize = 10_000;

/// All but the unreserved characters of RFC 3986.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// The first sort key: folders come before files.
    is_file: bool,
    name: OsString,
    size: u64,
    modified: SystemTime,
}

/// The listing of a folder as HTML or, for `Accept: application/json` and `?format=json`, as JSON.
pub(super) fn list(head: &HeadRef<'_>, folder: OwnedFd, path: &str, hidden: bool) -> io::Result<Response> {
    let (entries, cut) = read(folder, hidden)?;
    let asked = head.query().and_then(|query| query_pairs(query).find(|(name, _)| name == "format"));
    let json = match asked {
        Some((_, format)) => format == "json",
        None => negotiate_media_type(head, &["text/html", "application/json"]) == Some(1),
    };
    let (content_type, text) = if json {
        ("application/json", as_json(&entries, cut))
    } else {
        ("text/html; charset=utf-8", as_html(path, &entries, cut))
    };
    Ok(Response::new(StatusCode::OK)
        .header(CONTENT_TYPE, HeaderValue::from_static(content_type))
        .header(VARY, HeaderValue::from_static("accept"))
        .header(CACHE_CONTROL, HeaderValue::from_static("no-cache"))
        .header(CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'"))
        .body(Body::bytes(text)))
}

fn read(folder: OwnedFd, hidden: bool) -> io::Result<(Vec<Entry>, bool)> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let bytes = name.to_bytes();
        if bytes == b"." || bytes == b".." || (!hidden && bytes.starts_with(b".")) {
            continue;
        }
        if entries.len() == ENTRIES_MAX {
            entries.sort_unstable();
            return Ok((entries, true));
        }
        // An entry that is gone by now, or that cannot be examined, is not listed. Links count as files here: whether
        // their target is inside the folder is only known when they are followed.
        let Ok(stat) = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::Directory | FileType::Symlink) {
            continue;
        }
        entries.push(Entry {
            is_file: kind != FileType::Directory,
            name: OsString::from_vec(bytes.to_vec()),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: modified(u64::try_from(stat.st_mtime).unwrap_or(0)),
        });
    }
    entries.sort_unstable();
    Ok((entries, false))
}

fn modified(second: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_secs(second)).unwrap_or(UNIX_EPOCH)
}

fn as_json(entries: &[Entry], cut: bool) -> String {
    let entries: Vec<_> = entries
        .iter()
        .map(|entry| {
            let kind = if entry.is_file { "file" } else { "directory" };
            let name = entry.name.to_string_lossy();
            let modified = format!("{}Z", rfc_3339(entry.modified));
            let mut value = serde_json::json!({ "name": name, "type": kind, "mtime": modified, "href": href(entry) });
            if entry.is_file
                && let Some(object) = value.as_object_mut()
            {
                object.insert("size".into(), entry.size.into());
            }
            value
        })
        .collect();
    serde_json::json!({ "entries": entries, "truncated": cut }).to_string()
}

fn as_html(path: &str, entries: &[Entry], cut: bool) -> String {
    let title = percent_encoding::percent_decode_str(path).decode_utf8_lossy();
    let title = escape(&title);
    let mut page = format!("{HEAD_START}{title}{HEAD_END}<main>\n<h1><bdi>{title}</bdi></h1>\n");
    // Writing to a String cannot fail.
    let _ = writeln!(page, "<p class=soft>{}</p>", counts(entries));
    page.push_str("<table>\n<thead><tr><th scope=col>Name<th scope=col class=n>Size<th scope=col class=d>Modified (UTC)</thead>\n");
    if path != "/" {
        page.push_str("<tr class=up><td><a href=\"../\">../</a> <span class=soft>up</span><td class=n><td class=d>\n");
    }
    for entry in entries {
        let name = escape(&entry.name.to_string_lossy());
        let slash = if entry.is_file { "" } else { "/" };
        let size = if entry.is_file { human_size(entry.size) } else { String::new() };
        let date = rfc_3339(entry.modified);
        let date = date.get(..16).unwrap_or_default().replace('T', " ");
        let kind = if entry.is_file { "" } else { " class=f" };
        let _ = writeln!(
            page,
            "<tr><td><a{kind} href=\"{}\"><bdi>{name}{slash}</bdi></a><td class=n>{size}<td class=d>{date}",
            href(entry)
        );
    }
    page.push_str("</table>\n");
    if entries.is_empty() {
        page.push_str("<p class=soft>This folder is empty.</p>\n");
    }
    if cut {
        let _ = writeln!(page, "<p>Only the first {ENTRIES_MAX} entries are shown.</p>");
    }
    page.push_str("</main>\n");
    page
}

/// How many folders and files there are, and the size of the files.
fn counts(entries: &[Entry]) -> String {
    let files = entries.iter().filter(|entry| entry.is_file);
    let (count, bytes) = files.fold((0, 0_u64), |(count, bytes), file| (count + 1, bytes.saturating_add(file.size)));
    let some = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let folders = entries.len() - count;
    let mut parts = Vec::new();
    if folders > 0 {
        parts.push(some(folders, "folder"));
    }
    if count > 0 || folders == 0 {
        parts.push(format!("{}, {}", some(count, "file"), human_size(bytes)));
    }
    parts.join(", ")
}

const HEAD_START: &str = "<!doctype html>\n<html lang=en><meta charset=utf-8>\
<meta name=viewport content=\"width=device-width, initial-scale=1\"><meta name=color-scheme content=\"light dark\">\n<title>";
/// The look is that of the page of `narval serve`.
const HEAD_END: &str = "</title>\n<style>
:root{color-scheme:light dark;--ground:#fbfbfa;--panel:#fff;--ink:#1c2024;--soft:#565e66;--line:#d9dde1;--accent:#1d5a9e}
@media(prefers-color-scheme:dark){:root{--ground:#15181b;--panel:#1c2024;--ink:#e8eaec;--soft:#a6afb8;--line:#363d44;--accent:#82b6ee}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:64rem;margin:0 auto;padding:.5rem 1rem 4rem}
h1{font-size:1.5rem;line-height:1.25;margin:1.5rem 0 .25rem;overflow-wrap:anywhere}
p{margin:.25rem 0 1rem}
.soft{color:var(--soft)}
a{color:var(--accent);text-decoration:none}
a:hover{text-decoration:underline}
.f{font-weight:600}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
table{width:100%;border-collapse:collapse}
th,td{padding:.45rem .75rem .45rem 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th{color:var(--soft);font-weight:500;font-size:.85rem;white-space:nowrap}
td:first-child{overflow-wrap:anywhere}
tbody tr:hover td{background:var(--panel)}
.n,.d{white-space:nowrap;font-variant-numeric:tabular-nums;width:1%;padding-left:1rem}
.n{text-align:right}
.d{color:var(--soft);padding-right:0}
@media(max-width:40rem){.d{display:none}.n{padding-right:0}td{padding-top:.6rem;padding-bottom:.6rem}}
</style>\n";

/// The relative link to an entry; `./` prevents a name with a colon from being taken for a scheme.
fn href(entry: &Entry) -> String {
    let slash = if entry.is_file { "" } else { "/" };
    format!("./{}{slash}", percent_encode(entry.name.as_bytes(), SEGMENT))
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Control characters, and those that change the direction of text, could make a name look like another.
            c if c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => {
                out.push('\u{fffd}')
            }
            c => out.push(c),
        }
    }
    out
}

fn human_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut size = bytes as f64 / 1000.0;
    let mut units = UNITS.iter();
    let mut unit = units.next().unwrap_or(&"kB");
    while size >= 999.95
        && let Some(next) = units.next()
    {
        size /= 1000.0;
        unit = next;
    }
    format!("{size:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_not_break_out_of_the_page() {
        assert_eq!(escape("<img src=x onerror='a'>&\""), "&lt;img src=x onerror=&#39;a&#39;&gt;&amp;&quot;");
        assert_eq!(escape("a\u{202e}b\nc"), "a\u{fffd}b\u{fffd}c");
        let entry = Entry { is_file: true, name: "javascript:a\"b c".into(), size: 0, modified: UNIX_EPOCH };
        assert_eq!(href(&entry), "./javascript%3Aa%22b%20c");
    }

    #[test]
    fn sizes_and_dates() {
        assert_eq!(human_size(999), "999 B");
        assert_eq!(human_size(1234), "1.2 kB");
        assert_eq!(human_size(999_999), "1.0 MB");
        assert_eq!(rfc_3339(modified(1)), "1970-01-01T00:00:01");
        assert_eq!(rfc_3339(modified(1_795_000_000)), "2026-11-18T11:06:40");
        assert_eq!(rfc_3339(modified(u64::MAX)), "1970-01-01T00:00:00");
    }
}
