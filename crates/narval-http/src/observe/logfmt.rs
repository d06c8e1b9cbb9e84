use std::fmt::Write;

/// Appends `key=value` to a line, after a space unless the line is empty. A value that is not a plain word is quoted, and
/// nothing in it can end the line or reach a terminal unescaped.
///
/// ```
/// let mut line = String::new();
/// narval_http::push_logfmt(&mut line, "status", "200");
/// narval_http::push_logfmt(&mut line, "request", "GET /\"\n");
/// assert_eq!(line, r#"status=200 request="GET /\"\n""#);
/// ```
pub fn push_logfmt(line: &mut String, key: &str, value: &str) {
    if !line.is_empty() {
        line.push(' ');
    }
    line.push_str(key);
    line.push('=');
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\=".contains(&byte)) {
        return line.push_str(value);
    }
    line.push('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => line.extend(['\\', c]),
            '\n' => line.push_str("\\n"),
            // Writing to a string cannot fail. Besides control characters, those that reorder text.
            c if c.is_control()
                || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                let _ = write!(line, "\\u{:04x}", u32::from(c));
            }
            c => line.push(c),
        }
    }
    line.push('"');
}
