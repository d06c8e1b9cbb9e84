//! Sizes for people.

/// A human-readable number of bytes.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut units = UNITS.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    for larger in units {
        if value < 999.5 {
            break;
        }
        value /= 1000.0;
        unit = larger;
    }
    if unit == "B" {
        format!("{bytes} B")
    } else if value < 9.95 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::human_bytes;

    #[test]
    fn sizes_are_short() {
        let shown = [0, 999, 1000, 12_345, 999_999, 960_186_144].map(human_bytes);
        assert_eq!(shown, ["0 B", "999 B", "1.0 kB", "12 kB", "1.0 MB", "960 MB"]);
    }
}
