use bytes::Bytes;

use super::*;

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
fn the_route_added_first_answers() {
    let table = Router::new()
        .get("/a", |_: Request| "first")
        .get("/*", |_: Request| "second")
        .post("/b", |_: Request| "post")
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
fn own_answers_for_what_is_not_found_or_not_allowed() {
    let table = Router::new()
        .get("/a", ok)
        .not_found(|_: Request| Response::text(StatusCode::NOT_FOUND, "lost"))
        .method_not_allowed(|_: Request| Response::text(StatusCode::METHOD_NOT_ALLOWED, "no"))
        .build()
        .expect("valid");
    assert_eq!(table.handle(request("GET", "/x")).body_bytes(), "lost");
    let response = table.handle(request("POST", "/a"));
    assert_eq!(response.header_value(&ALLOW).expect("added"), "GET, HEAD, OPTIONS");
    assert_eq!(response.body_bytes(), "no");
}

#[test]
fn errors_and_panics_reach_the_error_handler() {
    let routes = || {
        Router::new()
            .get("/fails", |_: Request| Err::<Response, _>(std::io::Error::other("disk on fire")))
            .get("/panics", |_: Request| -> Response { panic!("at the disco") })
    };
    let table = routes()
        .on_error(|head, error| {
            Response::text(StatusCode::IM_A_TEAPOT, format!("{} {}: {error}", head.method(), head.path()))
        })
        .build()
        .expect("valid");
    assert_eq!(table.handle(request("GET", "/fails")).body_bytes(), "GET /fails: disk on fire");
    assert_eq!(table.handle(request("GET", "/panics")).body_bytes(), "GET /panics: a handler panicked: at the disco");
    let table = routes().build().expect("valid");
    assert_eq!(get(&table, "/fails"), 500);
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
    assert_eq!(body("GET", "/api/deep"), "outer(not found\n)");
    assert_eq!(body("POST", "/api"), "outer(inner(method not allowed\n))");
    assert_eq!(body("OPTIONS", "/api"), "outer(inner())");
}

#[test]
fn what_can_not_be_nested() {
    let error = |prefix: &str, inner| Router::new().nest(prefix, inner).build().expect_err("refused");
    assert!(matches!(error("/api/", Router::new()), RouteError::PrefixSlash { .. }));
    assert!(matches!(error("/api", Router::new().not_found(ok)), RouteError::NestedFallback { .. }));
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
    assert!(inline(&table, "/plain").is_none(), "the route added first answers");
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
fn a_route_that_is_never_reached_is_an_error() {
    let build = |first: &str, second: &str| {
        Router::new()
            .get(first, || "first")
            .get(second, || "second")
            .build()
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    for (first, second) in [
        ("/dup", "/dup"),
        ("/people/@name", "/people/@other"),
        ("/notes/@id", "/notes/events"),
        ("/*", "/@id"),
        ("/a*", "/ab*"),
        ("/*z", "/yz"),
        ("/*b*", "/abc*"),
        ("/**", "/a/b/**"),
        ("/a/**", "/a/b/@c"),
        ("/**/z", "/a/b/z"),
    ] {
        let error = build(first, second).unwrap_err();
        assert!(error.contains(&format!("'GET {second}'")) && error.contains(&format!("'GET {first}'")), "{error}");
    }
    for (first, second) in [
        ("/notes/events", "/notes/@id"),
        ("/a", "/a/"),
        ("/ab*", "/a*"),
        ("/a*", "/*a"),
        ("/a*", "/*a*"),
        ("/a/@b", "/a/**"),
        ("/a/b/**", "/**"),
        ("/**/z", "/**"),
        ("/@a/x", "/x/@a"),
    ] {
        assert_eq!(build(first, second), Ok(()), "{first} {second}");
    }
    // Another method is another route, and so is one with a different prefix.
    assert!(Router::new().get("/dup", || "a").post("/dup", || "b").head("/dup", || "").build().is_ok());
    let inner = || Router::new().get("/", || "x");
    assert!(Router::new().nest("/a", inner()).nest("/b", inner()).build().is_ok());
    assert!(Router::new().nest("/a", inner()).nest("/a", inner()).build().is_err());
}
