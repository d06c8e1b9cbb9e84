//! The entry of one host in a netrc file.
//!
//! Format: the manual page of curl, `--netrc`. curl uses the first entry with the host's name, and ignores ports.

use std::ops::Range;

/// Login and password for a host.
#[derive(Clone, PartialEq, Eq)]
pub struct NetrcEntry {
    /// The host, without port.
    pub host: String,
    /// The user name.
    pub login: String,
    /// The password or token.
    pub password: String,
}

impl NetrcEntry {
    /// Returns the text with this entry: the first entry of the host gets this login and password, or a line is added
    /// before a `default` entry, otherwise at the end. `None` if a value has a blank, a quote or a control character.
    pub fn put_into(&self, text: &str) -> Option<String> {
        let is_plain = |value: &String| {
            !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\#".contains(&byte))
        };
        if ![&self.host, &self.login, &self.password].into_iter().all(is_plain) {
            return None;
        }
        let entry = format!("machine {} login {} password {}", self.host, self.login, self.password);
        let entries = entries(text);
        let mut changed = text.to_owned();
        if let Some(found) = entries.iter().find(|entry| entry.is_of(&self.host)) {
            if found.login != self.login || found.password != self.password {
                changed.replace_range(found.bytes.clone(), &entry);
            }
        } else if let Some(default) = entries.iter().find(|entry| entry.host.is_none()) {
            // Nothing after a `default` entry is read.
            changed.insert_str(default.bytes.start, &format!("{entry}\n"));
        } else {
            if !changed.is_empty() && !changed.ends_with('\n') {
                changed.push('\n');
            }
            changed.push_str(&format!("{entry}\n"));
        }
        Some(changed)
    }

    /// Returns the text without the first entry of a host, if that has this login.
    pub fn take_from(text: &str, host: &str, login: &str) -> String {
        let mut changed = text.to_owned();
        if let Some(found) = entries(text).iter().find(|entry| entry.is_of(host)).filter(|found| found.login == login) {
            let Range { start, mut end } = found.bytes.clone();
            let is_whole_line = start == 0 || text.as_bytes().get(start - 1) == Some(&b'\n');
            if is_whole_line && text.as_bytes().get(end) == Some(&b'\n') {
                end += 1;
            }
            changed.replace_range(start..end, "");
        }
        changed
    }

    /// A netrc with its passwords masked.
    pub fn masked(text: &str) -> String {
        let mut masked = String::with_capacity(text.len());
        let mut is_password = false;
        for part in text.split_inclusive(char::is_whitespace) {
            let word = part.trim_end();
            if word.is_empty() {
                masked.push_str(part);
                continue;
            }
            masked.push_str(if is_password { "…" } else { word });
            masked.push_str(part.get(word.len()..).unwrap_or_default());
            is_password = word == "password" && !is_password;
        }
        masked
    }
}

struct Entry<'a> {
    /// `None` for the `default` entry.
    host: Option<&'a str>,
    login: &'a str,
    password: &'a str,
    /// From `machine` to its last word.
    bytes: Range<usize>,
}

impl Entry<'_> {
    fn is_of(&self, host: &str) -> bool {
        self.host.is_some_and(|own| own.eq_ignore_ascii_case(host))
    }
}

/// The entries of a netrc, without comments and macros.
fn entries(text: &str) -> Vec<Entry<'_>> {
    let mut entries: Vec<Entry<'_>> = Vec::new();
    let mut words = words(text).into_iter();
    while let Some((word, bytes)) = words.next() {
        let mut value = || words.next().map(|(value, bytes)| (value, bytes.end));
        match word {
            "machine" => {
                let Some((host, end)) = value() else { break };
                entries.push(Entry { host: Some(host), login: "", password: "", bytes: bytes.start..end });
            }
            "default" => entries.push(Entry { host: None, login: "", password: "", bytes }),
            "login" | "password" | "account" => {
                let (Some((value, end)), Some(entry)) = (value(), entries.last_mut()) else { continue };
                entry.bytes.end = end;
                match word {
                    "login" => entry.login = value,
                    "password" => entry.password = value,
                    _ => {}
                }
            }
            _ => {}
        }
    }
    entries
}

/// The words of a netrc with their positions.
fn words(text: &str) -> Vec<(&str, Range<usize>)> {
    let mut words: Vec<(&str, Range<usize>)> = Vec::new();
    let (mut at, mut in_macro) = (0, false);
    for line in text.split_inclusive('\n') {
        in_macro &= !line.trim().is_empty();
        let mut start = at;
        at += line.len();
        if in_macro {
            continue;
        }
        for part in line.split_inclusive(char::is_whitespace) {
            let word = part.trim_end();
            let bytes = start..start + word.len();
            start += part.len();
            if word.is_empty() {
                continue;
            }
            if word.starts_with('#') && words.last().is_none_or(|(last, _)| *last != "password") {
                break;
            }
            if word == "macdef" {
                in_macro = true;
                break;
            }
            words.push((word, bytes));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(host: &str, password: &str) -> NetrcEntry {
        NetrcEntry { host: host.into(), login: "narval".into(), password: password.into() }
    }

    const OWN: &str = "# mine: machine c login x\nmachine a login me password p#w\nmachine B\n  login you\n  password q\n\
                       macdef init\nmachine c login evil\n\n";

    #[test]
    fn other_entries_stay() {
        let with = entry("c", "t").put_into(OWN).unwrap();
        assert_eq!(with, format!("{OWN}machine c login narval password t\n"));
        assert_eq!(entry("c", "t").put_into(&with).unwrap(), with);
        assert_eq!(entry("c", "u").put_into(&with).unwrap(), with.replace("password t", "password u"));
        assert_eq!(NetrcEntry::take_from(&with, "c", "narval"), OWN);
        assert_eq!(NetrcEntry::take_from(&with, "a", "narval"), with, "somebody else's");
    }

    #[test]
    fn the_entry_that_counts_is_replaced() {
        let changed = entry("b", "t").put_into(OWN).unwrap();
        let expected = OWN.replace("machine B\n  login you\n  password q", "machine b login narval password t");
        assert_eq!(changed, expected);
        let default = "machine a login b password c\ndefault login d password e\n";
        let expected = "machine a login b password c\nmachine c login narval password t\ndefault login d password e\n";
        assert_eq!(entry("c", "t").put_into(default).unwrap(), expected);
    }

    #[test]
    fn what_the_file_cannot_hold_is_refused() {
        for bad in ["", "a b", "a\nmachine evil", "a\"b", "#a", "é"] {
            assert!(entry("c", bad).put_into("").is_none(), "{bad}");
        }
        assert!(entry("c", "nv1_x_y").put_into("machine a").is_some_and(|text| text.starts_with("machine a\n")));
    }

    #[test]
    fn what_is_written_is_what_the_client_reads() {
        let text = entry("c", "t").put_into(OWN).unwrap();
        assert_eq!(narval_client::Netrc::parse(&text).login("c"), Some(("narval", "t")));
    }

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(NetrcEntry::masked("machine a login b password  secret\n"), "machine a login b password  …\n");
        assert_eq!(NetrcEntry::masked("  password password x"), "  password … x");
        assert_eq!(NetrcEntry::masked("password\n\nsecret\nmachine b"), "password\n\n…\nmachine b");
    }
}
