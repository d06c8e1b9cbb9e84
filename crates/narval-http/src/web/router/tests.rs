use bytes::Bytes;
use http::StatusCode;
use http::header::{ALLOW, LOCATION};

use super::*;
use crate::http1::head_parts::HeadRef;
use crate::message::reject::Reject;
use crate::message::request::Request;
use crate::message::request::path_params::PathParams;
use crate::web::middleware::Next;

fn request(method: &str, target: &str) -> Request {
    let head = format!("{method} {target} HTTP/1.1\r\nHost: h\r\n\r\n");
    Request::parse(head, Bytes::new()).expect("well-formed")
}

fn get(table: &RoutingTable, target: &str) -> u16 {
    table.handle(request("GET", target)).status().as_u16()
}

fn ok(_: Request) -> StatusCode {
    StatusCode::OK
}

/// A table with these patterns for GET.
fn table(patterns: &[&str]) -> RoutingTable {
    patterns.iter().fold(Router::new(), |router, pattern| router.get(pattern, ok)).build().expect("valid")
}

#[track_caller]
fn check(patterns: &[&str], found: &[&str], not_found: &[&str]) {
    let table = table(patterns);
    for target in found {
        assert_eq!(get(&table, target), 200, "{target}");
    }
    for target in not_found {
        assert_eq!(get(&table, target), 404, "{target}");
    }
}

fn error(pattern: &str) -> PatternError {
    match Router::new().get(pattern, ok).build().expect_err("refused") {
        RouteError::Pattern { error, .. } => error,
        other => panic!("{other}"),
    }
}

#[test]
fn literals_and_wildcards_in_a_segment() {
    check(
        &["/", "/page.html", "/*.js", "/*/index.html", "/styles/*.css", "/partial/*", "/literal*", "/*double*"],
        &[
            "/",
            "/page.html",
            "/script.js",
            "/.js",
            "/a/index.html",
            "/styles/index.css",
            "/partial/something",
            "/partial/",
            "/literal*",
            "/literal*asdf&asdf",
            "/literalasdf",
            "/literal",
            "/adoubleb",
            "/longerdoubleevenmore?a=b",
            "/doubleb",
            "/adouble",
            "/double",
        ],
        &[
            "/a",
            "/script.j",
            "/script.html",
            "/script",
            "/index.html",
            "/a/b/index.html",
            "/styles/2/index.css",
            "/styles/script.js",
            "/partial",
            "/partial/more/here?asdf=true",
            "/doubl",
            "/page.html/",
        ],
    );
    check(&["/*a"], &["/a", "/aa", "/somethinga"], &["/a/", "/something"]);
    check(&["/*some*"], &["/some", "/asome", "/someb", "/asomeb"], &["/some/", "/some/else"]);
}

#[test]
fn asterisks_inside_a_segment_are_literal() {
    check(&["/a*b"], &["/a*b"], &["/a", "/ab", "/asomethingb"]);
    check(&["/**z", "/a**b"], &["/a**b", "/x*z"], &["/a", "/ab", "/asomethingb", "/xz"]);
    check(&["/@"], &["/@"], &["/a"]);
}

#[test]
fn many_segments() {
    check(&["/**"], &["/", "/index.html", "/path/to/thing.html", "/a/b/c/d/e/f/g/h.txt"], &[]);
    check(
        &["/**/TEST/**"],
        &["/a/TEST/b.html", "/a/TEST/"],
        &["/", "/TEST/page.html", "/TEST/a/b/c/d.html", "/a/TEST"],
    );
    check(
        &["/**/TEST/**/TEST2/**"],
        &["/a/b/TEST/d/f/g/TEST2/page.html", "/a/TEST/b/TEST2/page.html"],
        &[
            "/",
            "/path",
            "/a/b/c/d/e/f/g/h.txt",
            "/a/b/TEST/d/f/g.html",
            "/a/TEST/page.html",
            "/TEST/TEST2/",
            "/TEST/TEST2/page.html",
            "/a/TEST/TEST2/",
            "/a/TEST/TEST2/page.html",
        ],
    );
    check(
        &["/*page/**/*.html"],
        &["/page/thing/do.html", "/2page/thing/do.html", "/page/a/b.html/c.html"],
        &["/", "/wowpage/do.html", "/wowpage/a/do.htm"],
    );
    // What follows ** may occur several times.
    check(&["/**/x/y"], &["/a/x/y", "/a/x/b/x/y", "/x/x/x/y"], &["/a/x/y/z", "/x/y", "/a/x/b/y"]);
}

#[test]
fn many_segments_are_found_in_few_steps() {
    let pattern = Pattern::parse(&format!("/**{}/end", "/a/**/b".repeat(20))).expect("valid");
    let path = vec!["a"; 4000];
    assert!(!pattern.matches(&path, &mut Vec::new()));
}

#[test]
fn refused_when_built() {
    assert_eq!(error(""), PatternError::Empty);
    assert_eq!(error("abc"), PatternError::NoLeadingSlash);
    for pattern in ["/**/*", "/**/**", "/**/bad/**/**", "/**/@id", "/x/**/*/y"] {
        assert_eq!(error(pattern), PatternError::WildcardAfterMany, "{pattern}");
    }
    for pattern in ["/**/*.html", "/**/@", "/*/**", "/@id/**", "/**/a/*"] {
        assert!(Pattern::parse(pattern).is_ok(), "{pattern}");
    }
    let message = Router::new().get("/**/*", ok).build().expect_err("refused").to_string();
    assert_eq!(message, "route '/**/*': ** cannot be followed by *, ** or @name");
}

#[test]
fn patterns_show_as_written() {
    for text in ["/", "/a/b/", "/*.js/**/x*", "/*x*/@id/*", "/a*b"] {
        assert_eq!(Pattern::parse(text).expect("valid").to_string(), text);
    }
}

#[test]
fn parameters_are_taken_from_the_path() {
    let show =
        |request: Request| request.params().iter().map(|(name, value)| format!("{name}={value};")).collect::<String>();
    let table =
        Router::new().get("/1/@id", show).get("/2/@name/@id", show).get("/3/**/x/@y", show).build().expect("valid");
    let body = |target| String::from_utf8(table.handle(request("GET", target)).body_bytes().to_vec()).expect("UTF-8");
    assert_eq!(body("/1/123"), "id=123;");
    assert_eq!(body("/1/a%2Fb%20%C3%A9"), "id=a/b é;");
    assert_eq!(body("/2/abc/123"), "name=abc;id=123;");
    assert_eq!(body("/3/x/x/a/x/b"), "y=b;", "a retry drops what it had taken");
    assert_eq!(get(&table, "/1"), 404);
    assert_eq!(get(&table, "/1/%ff"), 400);
    assert_eq!(get(&table, "/1/%zz"), 400);
    let params = PathParams::default();
    assert_eq!(params.get("none"), None);
}

#[test]
fn paths_are_utf_8() {
    check(&["/grüße/@x"], &["/gr%C3%BC%C3%9Fe/a"], &["/grusse/a"]);
}

#[test]
fn the_most_precise_route_answers() {
    let table = Router::new()
        .get("/*", |_: Request| "second")
        .post("/b", |_: Request| "post")
        .get("/a", |_: Request| "first")
        .build()
        .expect("valid");
    let body = |method, target| table.handle(request(method, target)).body_bytes();
    assert_eq!(body("GET", "/a"), "first");
    assert_eq!(body("GET", "/b"), "second");
    assert_eq!(body("POST", "/b"), "post");
}

#[test]
fn head_is_answered_by_get() {
    let table = Router::new()
        .get("/a", |_: Request| "get")
        .head("/b", |_: Request| "head")
        .get("/b", |_: Request| "get")
        .build()
        .expect("valid");
    assert_eq!(table.handle(request("HEAD", "/a")).body_bytes(), "get");
    assert_eq!(table.handle(request("HEAD", "/b")).body_bytes(), "head");
}

#[test]
fn other_methods_get_405_with_allow() {
    let table = Router::new().get("/a", ok).put("/a", ok).get("/*", ok).post("/c", ok).build().expect("valid");
    let response = table.handle(request("DELETE", "/a"));
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(response.header_value(&ALLOW).expect("has one"), "GET, HEAD, PUT, OPTIONS");
    assert_eq!(table.handle(request("DELETE", "/x/y")).status(), StatusCode::NOT_FOUND);
}

#[test]
fn options_is_answered_by_itself() {
    let table = Router::new().post("/a", ok).options("/b", |_: Request| "own").build().expect("valid");
    let response = table.handle(request("OPTIONS", "/a"));
    assert_eq!(response.status(), StatusCode::NO_CONTENT);
    assert_eq!(response.header_value(&ALLOW).expect("has one"), "POST, OPTIONS");
    assert_eq!(table.handle(request("OPTIONS", "/b")).body_bytes(), "own");
    assert_eq!(table.handle(request("OPTIONS", "/x")).status(), StatusCode::NOT_FOUND);
}

#[test]
fn own_answers_for_what_is_not_found() {
    let lost = |text: &'static str| move || Response::text(StatusCode::NOT_FOUND, text);
    let inner = Router::new().get("/a", ok).not_found(lost("inner"));
    let table = Router::new().get("/a", ok).nest("/in", inner).not_found(lost("outer")).build().expect("valid");
    for (target, text) in
        [("/x", "outer"), ("/in/x", "inner"), ("/in", "inner"), ("/in/a/", "inner"), ("/inn", "outer")]
    {
        assert_eq!(table.handle(request("GET", target)).body_bytes(), text, "{target}");
    }
}

#[test]
fn whatever_goes_wrong_is_answered_by_the_innermost_router_that_wants_to() {
    let routes = || {
        Router::new()
            .get("/fails", |_: Request| Err::<Response, _>(std::io::Error::other("disk on fire")))
            .get("/panics", |_: Request| -> Response { panic!("at the disco") })
            .get("/rejects", |_: Request| Reject::new(StatusCode::CONFLICT, "twice"))
            .get("/late", |_: Request| {
                let (response, responder) = Response::later();
                responder.respond(Response::failure("out of order"));
                response
            })
    };
    let told = |name: &'static str| {
        move |failure: &Failure<'_>| {
            let path = failure.head().map_or_else(|| "?".to_owned(), |head| head.path().to_owned());
            Response::text(failure.status(), format!("{name} {path}: {} ({})", failure.reason(), failure.error()))
        }
    };
    fn limited(_: Request, _: Next<'_>) -> Response {
        let wait = (http::header::RETRY_AFTER, http::HeaderValue::from_static("7"));
        Response::failure(Reject::new(StatusCode::TOO_MANY_REQUESTS, "slowly").header(wait.0, wait.1))
    }
    let api = routes().nest("/limited", Router::new().layer(limited).get("/", ok)).errors(told("api"));
    let own = Router::new().layer(limited).get("/", ok).errors(told("own"));
    let table = routes().nest("/api", api).nest("/plain", routes()).nest("/own", own).errors(told("all"));
    let table = table.build().expect("valid");
    let internal = "internal server error";
    for (target, status, text) in [
        ("/rejects", 409, "all /rejects: twice (twice)"),
        ("/plain/rejects", 409, "all /plain/rejects: twice (twice)"),
        ("/api/rejects", 409, "api /api/rejects: twice (twice)"),
        ("/x", 404, "all /x: not found (not found)"),
        ("/api/x", 404, "api /api/x: not found (not found)"),
        ("/api/fails", 500, &format!("api /api/fails: {internal} (disk on fire)")),
        ("/api/panics", 500, &format!("api /api/panics: {internal} (a handler panicked: at the disco)")),
        ("/api/limited", 429, "api /api/limited: slowly (slowly)"),
        ("/own", 429, "own /own: slowly (slowly)"),
        ("/api/late", 500, &format!("api /api/late: {internal} (out of order)")),
    ] {
        let response = table.handle(request("GET", target)).when_answered();
        assert_eq!(response.status().as_u16(), status, "{target}");
        assert_eq!(response.header_value(&http::header::RETRY_AFTER).is_some(), status == 429, "{target}");
        assert_eq!(response.body_bytes(), text, "{target}");
    }
    let response = table.handle(request("POST", "/api/fails"));
    assert_eq!(response.header_value(&ALLOW).expect("kept"), "GET, HEAD, OPTIONS");
    assert_eq!(response.body_bytes(), "api /api/fails: method not allowed (method not allowed)");
    let malformed = table.rejected(Reject::new(StatusCode::BAD_REQUEST, "malformed"));
    assert_eq!(malformed.body_bytes(), "all ?: malformed (malformed)");
    assert_eq!(get(&routes().build().expect("valid"), "/fails"), 500);
}

#[test]
fn a_value_that_handlers_share() {
    fn add(sum: &std::sync::Mutex<u32>, request: Request) -> Result<String, Reject> {
        let mut sum = sum.lock().expect("no panic");
        *sum += request.params().parse::<u32>("n")?;
        Ok(sum.to_string())
    }
    let sum = Arc::new(std::sync::Mutex::new(1));
    let inner = Router::new().with(sum.clone()).post("/@n", add).get("/", || "sum");
    let table = Router::new().get("/", || "all").with(sum).post("/@n", add).nest("/in", inner).build().expect("valid");
    let body = |method, target| table.handle(request(method, target)).body_bytes();
    assert_eq!((body("POST", "/2"), body("POST", "/in/3")), ("3".into(), "6".into()));
    assert_eq!((body("GET", "/"), body("GET", "/in")), ("all".into(), "sum".into()));
}

#[test]
fn a_slash_too_much_or_too_little_is_redirected_if_wanted() {
    let routes = || Router::new().get("/a", ok).post("/b/", ok).get("/c/@id", ok);
    let table = routes().redirect_slashes().build().expect("valid");
    let leads = |method, target| {
        let response = table.handle(request(method, target));
        (response.status().as_u16(), response.header_value(&LOCATION).map(|to| to.to_str().expect("ASCII").to_owned()))
    };
    assert_eq!(leads("GET", "/a/?x=y"), (308, Some("/a?x=y".to_owned())));
    assert_eq!(leads("POST", "/b"), (308, Some("/b/".to_owned())));
    assert_eq!(leads("GET", "/b"), (404, None));
    assert_eq!(leads("GET", "/c/"), (404, None));
    assert_eq!(leads("GET", "//a/"), (404, None));
    assert_eq!(get(&routes().build().expect("valid"), "/a/"), 404);
}

fn mark(name: &'static str) -> impl Middleware {
    move |request: Request, next: Next<'_>| {
        let response = next.run(request);
        let inside = response.body_bytes();
        response.body(crate::Body::bytes(format!("{name}({})", String::from_utf8_lossy(&inside))))
    }
}

#[test]
fn nested_routes_and_layers() {
    let inner = Router::new().layer(mark("inner")).get("/", |_: Request| "root").nest(
        "/deep",
        Router::new()
            .layer(mark("deep"))
            .layer(mark("deeper"))
            .get("/@x", |request: Request| request.params().get("x").unwrap_or_default().to_owned()),
    );
    let table =
        Router::new().layer(mark("outer")).get("/a", |_: Request| "a").nest("/api", inner).build().expect("valid");
    let body =
        |method, target| String::from_utf8_lossy(&table.handle(request(method, target)).body_bytes()).into_owned();
    assert_eq!(body("GET", "/a"), "outer(a)");
    assert_eq!(body("GET", "/api"), "outer(inner(root))");
    assert_eq!(body("GET", "/api/deep/v"), "outer(inner(deep(deeper(v))))");
    assert_eq!(body("GET", "/api/deep"), "outer(inner(deep(deeper(not found\n))))");
    assert_eq!(body("POST", "/api"), "outer(inner(method not allowed\n))");
    assert_eq!(body("OPTIONS", "/api"), "outer(inner())");
}

#[test]
fn what_can_not_be_nested() {
    let error = |prefix: &str, inner| Router::new().nest(prefix, inner).build().expect_err("refused");
    assert!(matches!(error("/api/", Router::new()), RouteError::PrefixSlash { .. }));
    assert!(matches!(error("/**", Router::new().get("/@id", ok)), RouteError::Pattern { .. }));
    assert!(matches!(error("/api", Router::new().get("x", ok)), RouteError::Pattern { .. }));
}

struct Inline;

impl Handler for Inline {
    fn inline(&self, _: &HeadRef<'_>) -> Option<Response> {
        Some(Response::text(StatusCode::OK, "inline"))
    }

    fn handle(&self, _: Request) -> Response {
        Response::text(StatusCode::OK, "worker")
    }
}

#[test]
fn inline_answers_only_where_no_middleware_is_passed_by() {
    let routes = || {
        Router::new().get("/plain", ok).add_inline(Method::GET, "/fast", Inline).add_inline(Method::GET, "/*", Inline)
    };
    let inline = |table: &RoutingTable, target| {
        table.inline(&request("GET", target).head()).map(|response| response.body_bytes())
    };
    let table = routes().build().expect("valid");
    assert_eq!(inline(&table, "/fast").expect("inline"), "inline");
    assert!(inline(&table, "/plain").is_none(), "it is more precise");
    assert!(inline(&table, "/none/such").is_none());
    assert!(inline(&routes().layer(mark("m")).build().expect("valid"), "/fast").is_none());
    let nested = Router::new().nest("/in", routes().layer(mark("m"))).build().expect("valid");
    assert!(inline(&nested, "/in/fast").is_none());
    assert_eq!(nested.handle(request("GET", "/in/fast")).body_bytes(), "m(worker)");
}

#[test]
fn asterisk_form() {
    let limits = crate::http1::head::HeadLimits { asterisk_allowed: true, ..Default::default() };
    let head = Bytes::from_static(b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n");
    let parsed = crate::http1::head::parse_head(&head, &limits).expect("allowed").expect("complete");
    let request = Request::new(head, parsed.parts, crate::Peer::Unix, Bytes::new().into());
    let response = table(&["/a"]).handle(request);
    assert_eq!(response.header_value(&ALLOW).expect("has one"), "GET, HEAD, OPTIONS");
}

#[test]
fn routes_that_match_the_same_are_an_error_and_others_go_by_precision() {
    let build = |first: &str, second: &str| Router::new().get(first, || "first").get(second, || "second").build();
    for (first, second) in
        [("/dup", "/dup"), ("/people/@name", "/people/@other"), ("/a/*", "/a/*"), ("/a/**", "/a/@rest..")]
    {
        let error = build(first, second).expect_err("refused").to_string();
        assert_eq!(error, format!("the routes 'GET {first}' and 'GET {second}' match the same paths"));
    }
    for (precise, other, target) in [
        ("/notes/events", "/notes/@id", "/notes/events"),
        ("/@id", "/*", "/x"),
        ("/ab*", "/a*", "/abc"),
        ("/*yz", "/*z", "/xyz"),
        ("/a*", "/*a*", "/ab"),
        ("/a/@b", "/a/**", "/a/b"),
        ("/a/b/**", "/**", "/a/b/c"),
        ("/**/z", "/**", "/a/z"),
        ("/a/@x", "/@y/b", "/a/b"),
        ("/a/@rest..", "/@rest..", "/a/b"),
    ] {
        for (first, second) in [(precise, other), (other, precise)] {
            let table = build(first, second).expect("both are reached");
            let expected = if first == precise { "first" } else { "second" };
            assert_eq!(table.handle(request("GET", target)).body_bytes(), expected, "{first} {second}");
        }
    }
    // Another method is another route, and so is one with a different prefix.
    assert!(Router::new().get("/dup", || "a").post("/dup", || "b").head("/dup", || "").build().is_ok());
    let inner = || Router::new().get("/", || "x");
    assert!(Router::new().nest("/a", inner()).nest("/b", inner()).build().is_ok());
    assert!(Router::new().nest("/a", inner()).nest("/a", inner()).build().is_err());
}

#[test]
fn parameters_are_not_empty_and_one_may_take_the_rest() {
    let show =
        |request: Request| request.params().iter().map(|(name, value)| format!("{name}={value};")).collect::<String>();
    let table = Router::new().get("/notes/@id", show).get("/files/@path..", show).get("/x/**/y/@rest..", show);
    let table = table.build().expect("valid");
    let body = |target| table.handle(request("GET", target)).body_bytes();
    assert_eq!(get(&table, "/notes/"), 404);
    assert_eq!(body("/files/a"), "path=a;");
    assert_eq!(body("/files/a/b%20c//d/"), "path=a/b c//d/;");
    assert_eq!(body("/x/1/2/y/3/4"), "rest=3/4;");
    for target in ["/files", "/files/", "/files//a", "/x/y/a", "/x/1/y/"] {
        assert_eq!(get(&table, target), 404, "{target}");
    }
    assert_eq!(error("/@a/@a"), PatternError::NameTwice);
    assert_eq!(error("/@a/x/@a.."), PatternError::NameTwice);
    assert_eq!(error("/@a../x"), PatternError::RestNotLast);
    assert_eq!(error("/@a../"), PatternError::RestNotLast);
    assert_eq!(error("/**/@a.."), PatternError::WildcardAfterMany);
    assert_eq!(Pattern::parse("/@a/@ab/@rest..").expect("valid").to_string(), "/@a/@ab/@rest..");
}
