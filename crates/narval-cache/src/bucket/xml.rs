//! Extracts the few required elements of responses: only text between two tags.

/// The text of the first element with this name.
pub(super) fn element(document: &str, name: &str) -> Option<String> {
    let (_, rest) = document.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    let unescaped = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&apos;", "'");
    let unescaped = unescaped.replace("&#34;", "\"").replace("&#39;", "'");
    Some(unescaped.replace("&amp;", "&"))
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
