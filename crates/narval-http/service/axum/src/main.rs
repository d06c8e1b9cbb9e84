//! The service of `../narval`, with axum.

use std::convert::Infallible;
use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::multipart::MultipartError;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use axum::extract::{DefaultBodyLimit, FromRef, Multipart, Path, Query, Request, State, WebSocketUpgrade};
use axum::http::{HeaderName, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Form, Json, Router};
use axum_extra::extract::cookie::{Cookie, Key, SameSite, SignedCookieJar};
use futures_util::{Stream, StreamExt};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio_stream::wrappers::BroadcastStream;
use tokio_util::sync::CancellationToken;

#[derive(Clone, Serialize, Deserialize)]
struct Note {
    by: Option<String>,
    text: String,
}

struct Shared {
    notes: Mutex<Vec<Note>>,
    added: broadcast::Sender<String>,
    chat: broadcast::Sender<Message>,
    key: Key,
    stop: CancellationToken,
}

#[derive(Clone)]
struct App(Arc<Shared>);

impl FromRef<App> for Key {
    fn from_ref(app: &App) -> Self {
        app.0.key.clone()
    }
}

#[derive(Clone, Deserialize)]
struct User {
    name: String,
}

#[derive(Deserialize)]
struct Page {
    limit: Option<usize>,
}

/// A response of the API that is a problem (RFC 9457).
struct Problem(StatusCode, String);

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let problem = json!({ "type": "about:blank", "title": self.0.canonical_reason(), "status": self.0.as_u16(), "detail": self.1 });
        (self.0, [(header::CONTENT_TYPE, "application/problem+json")], Json(problem)).into_response()
    }
}

async fn sign_in(jar: SignedCookieJar, Form(user): Form<User>) -> (StatusCode, SignedCookieJar) {
    let cookie = Cookie::build(("user", user.name)).path("/").http_only(true).secure(true).same_site(SameSite::Lax);
    let cookie = cookie.max_age(Duration::from_secs(3600).try_into().unwrap());
    (StatusCode::NO_CONTENT, jar.add(cookie))
}

async fn members(jar: SignedCookieJar, mut request: Request, next: Next) -> Result<Response, Problem> {
    let cookie = jar.get("user").ok_or(Problem(StatusCode::UNAUTHORIZED, "sign in first".into()))?;
    request.extensions_mut().insert(User { name: cookie.value().to_owned() });
    Ok(next.run(request).await)
}

async fn list(
    State(App(app)): State<App>,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Json<Vec<Note>>, Problem> {
    let Query(page) = page.map_err(|error| Problem(error.status(), error.body_text()))?;
    Ok(Json(app.notes.lock().unwrap().iter().take(page.limit.unwrap_or(100)).cloned().collect()))
}

async fn one(State(App(app)): State<App>, at: Result<Path<usize>, PathRejection>) -> Result<Json<Note>, Problem> {
    let Path(at) = at.map_err(|error| Problem(StatusCode::NOT_FOUND, error.body_text()))?;
    let note = app.notes.lock().unwrap().get(at).cloned();
    note.map(Json).ok_or(Problem(StatusCode::NOT_FOUND, "not found".into()))
}

async fn add(
    State(App(app)): State<App>,
    Extension(user): Extension<User>,
    note: Result<Json<Note>, JsonRejection>,
) -> Result<(StatusCode, [(HeaderName, String); 1], Json<Note>), Problem> {
    let Json(mut note) = note.map_err(|error| Problem(error.status(), error.body_text()))?;
    note.by = Some(user.name);
    let mut notes = app.notes.lock().unwrap();
    notes.push(note.clone());
    // An error only says that nobody listens.
    let _ = app.added.send(note.text.clone());
    Ok((StatusCode::CREATED, [(header::LOCATION, format!("/api/notes/{}", notes.len() - 1))], Json(note)))
}

async fn upload(mut form: Multipart) -> Result<String, MultipartError> {
    let mut answer = String::new();
    while let Some(mut field) = form.next_field().await? {
        let (name, mut bytes) = (field.name().unwrap_or_default().to_owned(), 0);
        while let Some(chunk) = field.chunk().await? {
            bytes += chunk.len();
        }
        answer += &format!("{name}: {bytes} bytes\n");
    }
    Ok(answer)
}

async fn events(State(App(app)): State<App>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let added = BroadcastStream::new(app.added.subscribe());
    // A reader that is too slow misses events.
    let events = added.filter_map(|text| async { text.ok().map(|text| Ok(Event::default().data(text))) });
    Sse::new(events.take_until(app.stop.clone().cancelled_owned())).keep_alive(KeepAlive::default())
}

async fn chat(State(App(app)): State<App>, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(move |socket| talk(app, socket))
}

async fn talk(app: Arc<Shared>, mut socket: WebSocket) {
    let mut others = app.chat.subscribe();
    loop {
        let sent = tokio::select! {
            received = socket.recv() => match received {
                Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => {
                    let _ = app.chat.send(message);
                    Ok(())
                }
                Some(Ok(_)) => Ok(()),
                Some(Err(_)) | None => return,
            },
            message = others.recv() => match message {
                Ok(message) => socket.send(message).await,
                Err(RecvError::Lagged(_)) => Ok(()),
                Err(RecvError::Closed) => return,
            },
            () = app.stop.cancelled() => {
                let frame = CloseFrame { code: close_code::AWAY, reason: "".into() };
                let _ = socket.send(Message::Close(Some(frame))).await;
                return;
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

fn routes(app: App) -> Router {
    let not_found = || async { Problem(StatusCode::NOT_FOUND, "not found".into()) };
    let not_allowed = || async { Problem(StatusCode::METHOD_NOT_ALLOWED, "method not allowed".into()) };
    let notes = Router::new()
        .route("/", get(list).post(add))
        .route("/{at}", get(one))
        .route("/events", get(events))
        .layer(DefaultBodyLimit::max(64 << 10))
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .layer(from_fn_with_state(app.clone(), members));
    Router::new()
        .route("/sign-in", post(sign_in))
        .route("/upload", post(upload).layer(DefaultBodyLimit::disable()))
        .route("/chat", get(chat))
        .nest("/api/notes", notes)
        .with_state(app)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let key = Key::try_from(std::fs::read("cookie.key")?.as_slice())?;
    let (added, chat, stop) = (broadcast::channel(64).0, broadcast::channel(64).0, CancellationToken::new());
    let app = App(Arc::new(Shared { notes: Mutex::default(), added, chat, key, stop: stop.clone() }));
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let listener = TcpListener::bind("127.0.0.1:8080").await?;
    let stopping = stop.clone();
    let signals = async move {
        tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
        stopping.cancel();
    };
    let serving = axum::serve(listener, routes(app)).with_graceful_shutdown(signals).into_future();
    // Without this, a client that reads nothing keeps the process.
    let too_late = async {
        stop.cancelled().await;
        tokio::time::sleep(Duration::from_secs(5)).await;
    };
    tokio::select! {
        served = serving => Ok(served?),
        () = too_late => Ok(()),
    }
}

#[cfg(test)]
mod tests;
