//! Sizes in bytes, as people write them.

/// Parses `500M`, `10G`, `1T` (powers of 1024; `10GiB` and `10GB` are the same) or a number of bytes.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || "give a number of bytes, or one followed by K, M, G or T, such as 10G".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim_start().to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        _ => return Err(wrong()),
    };
    number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, want) in
            [("0", 0), ("512", 512), ("1K", 1024), ("10G", 10 << 30), ("2GiB", 2 << 30), ("3 mb", 3 << 20)]
        {
            assert_eq!(parse_size(text), Ok(want), "{text}");
        }
        for text in ["", "G", "1.5G", "-1", "10X", "99999999999T"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
