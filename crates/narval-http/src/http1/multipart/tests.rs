use proptest::prelude::*;

use super::*;

type Owned = Vec<(PartHead, Vec<u8>)>;

/// The parts of a form that arrives `piece` bytes at a time.
fn in_pieces(form: &[u8], piece: usize) -> Result<Owned, ProtoError> {
    in_pieces_within(MultipartLimits::default(), form, piece)
}

fn in_pieces_within(limits: MultipartLimits, form: &[u8], piece: usize) -> Result<Owned, ProtoError> {
    let mut decoder = MultipartDecoder::new(b"B", limits);
    let (mut found, mut start, mut end): (Owned, _, _) = (Vec::new(), 0, 0);
    loop {
        let step = decoder.decode(&form[start..end], end == form.len())?;
        match step.event {
            MultipartEvent::NeedMore => {
                assert!(end - start - step.consumed <= decoder.input_max());
                end = (end + piece).min(form.len());
            }
            MultipartEvent::Part(head) => found.push((head, Vec::new())),
            MultipartEvent::Data(data) => found.last_mut().expect("in a part").1.extend_from_slice(data),
            MultipartEvent::PartEnd => {}
            MultipartEvent::End => return Ok(found),
        }
        start += step.consumed;
    }
}

fn whole(form: &[u8]) -> Result<Owned, ProtoError> {
    in_pieces(form, form.len())
}

fn part(fields: &str, data: &str) -> String {
    format!("--B\r\n{fields}\r\n\r\n{data}\r\n")
}

#[track_caller]
fn decoded(form: &str) -> Owned {
    let found = whole(form.as_bytes()).expect("well-formed");
    for piece in 1..form.len() + 1 {
        assert_eq!(in_pieces(form.as_bytes(), piece).as_ref(), Ok(&found), "{piece}");
    }
    found
}

#[track_caller]
fn refused(form: &str) {
    assert!(whole(form.as_bytes()).is_err(), "{form:?}");
    assert!(in_pieces(form.as_bytes(), 1).is_err(), "{form:?}");
}

#[test]
fn parts_of_a_form() {
    let form = part("Content-Disposition: form-data; name=\"a\"", "one")
        + &part(
            "Content-Disposition: form-data; name=file; filename=\"x y.txt\"\r\nContent-Type: text/plain",
            "\r\n--\r\n--b",
        )
        + &part("content-disposition: Form-Data ; name=\"\"", "")
        + "--B--\r\n";
    let found = decoded(&form);
    let shown: Vec<_> = found
        .iter()
        .map(|(head, data)| (head.name.as_str(), head.filename.as_deref(), std::str::from_utf8(data).expect("text")))
        .collect();
    assert_eq!(shown, [("a", None, "one"), ("file", Some("x y.txt"), "\r\n--\r\n--b"), ("", None, "")]);
    assert_eq!(found[1].0.content_type().expect("told"), "text/plain");
}

#[test]
fn the_end_with_and_without_a_line_end() {
    assert_eq!(decoded("--B--"), []);
    assert_eq!(decoded("--B--\r\n"), []);
    refused("--B--\r");
    refused("--B--\n");
    refused("--B--\r\nx");
    refused("--B--x");
}

#[test]
fn data_is_not_copied() {
    let form = part("Content-Disposition: form-data; name=a", "data") + "--B--";
    let (mut decoder, mut rest) = (MultipartDecoder::new(b"B", MultipartLimits::default()), form.as_bytes());
    let data = loop {
        let step = decoder.decode(rest, true).expect("well-formed");
        match step.event {
            MultipartEvent::Data(data) => break data,
            _ => rest = &rest[step.consumed..],
        }
    };
    assert!(form.as_bytes().as_ptr_range().contains(&data.as_ptr()));
}

#[test]
fn every_cut_form_ends_early() {
    let form = part("Content-Disposition: form-data; name=a", "data") + "--B--";
    for end in 0..form.len() {
        refused(&form[..end]);
    }
}

#[test]
fn malformed_forms() {
    let fine = "Content-Disposition: form-data; name=a";
    refused("");
    refused("preamble\r\n--B--");
    refused("--C--");
    refused(&format!("--B \r\n{fine}\r\n\r\nx\r\n--B--"));
    refused(&format!("--B\n{fine}\r\n\r\nx\r\n--B--"));
    refused(&format!("--B\r\n{fine}\n\r\n\r\nx\r\n--B--"));
    refused(&format!("--B\r\n{fine}\r\n\r\nx\r\n--BB\r\n--B--"));
    refused(&(part("Content-Type: text/plain", "x") + "--B--"));
    refused(&(part("Content-Disposition: form-data", "x") + "--B--"));
    refused(&(part("Content-Disposition: form-data; filename=x", "x") + "--B--"));
    refused(&(part("Content-Disposition: attachment; name=x", "x") + "--B--"));
    refused(&(part("Content-Disposition: form-data; name=\"x", "x") + "--B--"));
    refused(&(part(&format!("{fine}\r\nX : y"), "x") + "--B--"));
    refused(&(part(&format!("{fine}\r\nX: y\0"), "x") + "--B--"));
}

#[test]
fn forms_are_bounded() {
    let fine = "Content-Disposition: form-data; name=a";
    let long =
        part(&format!("{fine}\r\nX: {}", "x".repeat(MultipartLimits::default().part_head_bytes_max)), "x") + "--B--";
    refused(&long);
    refused(&(part(&format!("{fine}{}", "\r\nX: y".repeat(PART_FIELDS_MAX)), "x") + "--B--"));
    let many = part(fine, "").repeat(3) + "--B--";
    let limits = |parts_max| MultipartLimits { parts_max, ..MultipartLimits::default() };
    assert_eq!(in_pieces_within(limits(3), many.as_bytes(), 100).map(|parts| parts.len()), Ok(3));
    assert!(in_pieces_within(limits(2), many.as_bytes(), 100).is_err());
}

#[test]
fn boundaries() {
    let of =
        |value: &'static str| boundary(value.as_bytes()).ok().map(|bytes| std::str::from_utf8(bytes).expect("ASCII"));
    assert_eq!(of("multipart/form-data; boundary=abc"), Some("abc"));
    assert_eq!(of("Multipart/Form-Data;charset=utf-8; Boundary=\"a b\""), Some("a b"));
    assert_eq!(of("multipart/form-data, boundary=vTd41rxm1e7O"), Some("vTd41rxm1e7O"));
    assert_eq!(of("multipart/form-data; x=\"boundary=no\"; boundary=yes"), Some("yes"));
    for bad in [
        "",
        "multipart/form-data",
        "multipart/form-data;",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=\"\"",
        "multipart/form-data; boundary=\"a",
        "multipart/form-data; boundary=\"a \"",
        "multipart/form-data; boundary=a@b",
        "multipart/form-datax; boundary=a",
        "text/plain; boundary=a",
    ] {
        assert_eq!(of(bad), None, "{bad}");
    }
    assert_eq!(boundary(b"text/plain").expect_err("refused").status.as_u16(), 415);
    let longest = format!("multipart/form-data; boundary={}", "b".repeat(BOUNDARY_LENGTH_MAX));
    assert!(boundary(longest.as_bytes()).is_ok());
    assert!(boundary(format!("{longest}b").as_bytes()).is_err());
}

#[test]
fn names_as_clients_send_them() {
    let name = |value: &str| {
        let form = part(&format!("Content-Disposition: form-data; filename={value}; name=a"), "") + "--B--";
        whole(form.as_bytes()).expect("well-formed")[0].0.filename.clone().expect("told")
    };
    assert_eq!(name("\"a\\\"b\\\\c\""), "a\"b\\c", "curl escapes with backslashes");
    assert_eq!(name("\"C:\\dir\\x.txt\""), "C:\\dir\\x.txt");
    assert_eq!(name("\"a%22b\""), "a%22b", "browsers percent-encode, and nobody decodes");
    assert_eq!(name("\"é; name=b\""), "é; name=b");
    assert_eq!(name("plain"), "plain");
}

proptest! {
    #[test]
    fn pieces_and_whole_agree(
        data in prop::collection::vec("(\r|\n|-|B|x|\r\n--){0,12}", 0..4),
        cut in any::<prop::sample::Index>(),
        piece in 1_usize..9,
    ) {
        let form: String = data.iter().map(|data| part("Content-Disposition: form-data; name=a", data)).collect();
        let form = form + "--B--";
        let form = &form.as_bytes()[..=cut.index(form.len())];
        match (whole(form), in_pieces(form, piece)) {
            (Ok(whole), Ok(pieces)) => prop_assert_eq!(whole, pieces),
            (whole, pieces) => prop_assert_eq!(whole.is_err(), pieces.is_err()),
        }
    }
}
