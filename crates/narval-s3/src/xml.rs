//! Extracts the few required elements of responses: only text between two tags.

/// The text of the first element with this name.
pub(super) fn element(document: &str, name: &str) -> Option<String> {
    let (_, rest) = document.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    let unescaped = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&apos;", "'");
    let unescaped = unescaped.replace("&#34;", "\"").replace("&#39;", "'");
    Some(unescaped.replace("&amp;", "&"))
}

/// The contents of all elements with this name, which do not contain each other.
pub(super) fn elements<'a>(document: &'a str, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = document;
    std::iter::from_fn(move || {
        let (_, from) = rest.split_once(&begin)?;
        let (text, after) = from.split_once(&end)?;
        rest = after;
        Some(text)
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn elements_are_found_and_unescaped() {
        let document = "<?xml?><Error><Code>NoSuchKey</Code><Message>a &lt;&amp;lt; b</Message></Error>";
        assert_eq!(super::element(document, "Code").as_deref(), Some("NoSuchKey"));
        assert_eq!(super::element(document, "Message").as_deref(), Some("a <&lt; b"));
        assert_eq!(super::element(document, "Region"), None);
        assert_eq!(super::element("<Code>x", "Code"), None);
    }
}
