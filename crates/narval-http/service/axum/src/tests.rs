use axum::body::Body;
use http_body_util::BodyExt;
use tower::ServiceExt;

use super::*;

fn service() -> Router {
    let (added, chat, stop) = (broadcast::channel(64).0, broadcast::channel(64).0, CancellationToken::new());
    routes(App(Arc::new(Shared { notes: Mutex::default(), added, chat, key: Key::from(&[7; 64]), stop })))
}

async fn send(service: &Router, request: axum::http::request::Builder, body: &str) -> Response {
    service.clone().oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap()
}

async fn sign_in(service: &Router, name: &str) -> String {
    let request = Request::post("/sign-in").header("content-type", "application/x-www-form-urlencoded");
    let response = send(service, request, &format!("name={name}")).await;
    response.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn notes_are_for_members() {
    let service = service();
    let refused = send(&service, Request::get("/api/notes"), "").await;
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    let ada = sign_in(&service, "ada").await;
    let post = || Request::post("/api/notes").header("cookie", &ada).header("content-type", "application/json");
    let added = send(&service, post(), r#"{"text": "one"}"#).await;
    assert_eq!((added.status(), &added.headers()["location"]), (StatusCode::CREATED, &"/api/notes/0".parse().unwrap()));
    send(&service, post(), r#"{"text": "two"}"#).await;
    let get = |target: &str| Request::get(target).header("cookie", &ada);
    let body = send(&service, get("/api/notes/1"), "").await.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(serde_json::from_slice::<Note>(&body).unwrap().by.as_deref(), Some("ada"));
    for (target, status) in [("/api/notes/2", 404), ("/api/notes/x", 404), ("/api/notes?limit=x", 400)] {
        assert_eq!(send(&service, get(target), "").await.status().as_u16(), status, "{target}");
    }
}

#[tokio::test]
async fn files_are_counted() {
    let form = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n12345\r\n--x--\r\n";
    let request = Request::post("/upload").header("content-type", "multipart/form-data; boundary=x");
    let body = send(&service(), request, form).await.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "file: 5 bytes\n");
}
