use std::path::Path;

use http::HeaderValue;
use mime_guess::mime;

/// The `Content-Type` of a file by its name. Text has the charset UTF-8, which is almost always right.
pub fn content_type(path: &Path) -> HeaderValue {
    let guess = match path.extension().and_then(|extension| extension.to_str()) {
        // Not in the table yet.
        Some("mjs") => return HeaderValue::from_static("text/javascript; charset=utf-8"),
        Some("narinfo") => return HeaderValue::from_static("text/x-nix-narinfo"),
        Some("nar") => return HeaderValue::from_static("application/x-nix-nar"),
        Some("zst") => return HeaderValue::from_static("application/zstd"),
        _ => mime_guess::from_path(path).first_or_octet_stream(),
    };
    let text =
        guess.type_() == mime::TEXT || matches!(guess.essence_str(), "application/javascript" | "application/json");
    let value = if text { format!("{}; charset=utf-8", guess.essence_str()) } else { guess.essence_str().to_owned() };
    HeaderValue::try_from(value).unwrap_or(HeaderValue::from_static("application/octet-stream"))
}

/// Whether content of this type is compressible: text, and formats that are text inside or not compressed themselves.
/// Event streams are not: compression would delay them.
pub fn is_compressible(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_text = essence.starts_with("text/") && essence != "text/event-stream";
    is_text
        || essence.ends_with("+xml")
        || essence.ends_with("+json")
        || matches!(
            essence.as_str(),
            "application/javascript"
                | "application/json"
                | "application/vnd.ms-fontobject"
                | "application/wasm"
                | "application/x-javascript"
                | "application/x-ndjson"
                | "application/x-nix-nar"
                | "application/x-sh"
                | "application/xml"
                | "font/otf"
                | "font/ttf"
                | "image/bmp"
                | "image/vnd.microsoft.icon"
                | "image/x-icon"
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types() {
        for (name, expected) in [
            ("a.html", "text/html; charset=utf-8"),
            ("a.css", "text/css; charset=utf-8"),
            ("a.js", "text/javascript; charset=utf-8"),
            ("a.json", "application/json; charset=utf-8"),
            ("a.svg", "image/svg+xml"),
            ("a.wasm", "application/wasm"),
            ("a.woff2", "font/woff2"),
            ("a.webp", "image/webp"),
            ("a.narinfo", "text/x-nix-narinfo"),
            ("a", "application/octet-stream"),
            ("a.PNG", "image/png"),
        ] {
            assert_eq!(content_type(Path::new(name)), expected, "{name}");
        }
        assert!(is_compressible("text/html; charset=utf-8") && is_compressible("image/svg+xml"));
        assert!(is_compressible("Application/JSON") && is_compressible("application/x-nix-nar"));
        assert!(!is_compressible("text/event-stream") && !is_compressible("image/jpeg"));
        assert!(!is_compressible("image/png") && !is_compressible("application/zstd"));
    }
}
