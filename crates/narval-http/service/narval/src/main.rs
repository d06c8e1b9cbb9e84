//! Notes as JSON, a session in a signed cookie, uploads, events, and a chat.

use std::io::{self, copy, sink};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use narval_http::ws::{SharedMessage, Upgrade, UpgradeError, WebSocket, WsEvent};
use narval_http::{
    Event, EventOptions, EventStream, Json, Listen, Next, Problems, Reject, Request, Response, RouteError, Router,
    RoutingTable, Server, SignedCookies, StatusCode, StopSignals, Topic,
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
struct Note {
    by: Option<String>,
    text: String,
}

struct App {
    notes: Mutex<Vec<Note>>,
    added: Topic<EventStream>,
    chat: Topic<WebSocket>,
    cookies: SignedCookies,
}

#[derive(Clone, Deserialize)]
struct User {
    name: String,
}

#[derive(Deserialize)]
struct Page {
    limit: Option<usize>,
}

fn sign_in(app: &App, mut request: Request) -> io::Result<Response> {
    let User { name } = request.body().form(1000)?;
    Ok(Response::new(StatusCode::NO_CONTENT).cookie(app.cookies.sign("user", name).max_age(Duration::from_secs(3600))))
}

fn members(app: Arc<App>) -> impl Fn(Request, Next<'_>) -> Result<Response, Reject> {
    move |mut request, next| {
        let name = app.cookies.verify(&request.head(), "user").map(str::to_owned);
        let name = name.ok_or(Reject::new(StatusCode::UNAUTHORIZED, "sign in first"))?;
        request.extensions_mut().insert(User { name });
        Ok(next.run(request))
    }
}

fn list(app: &App, request: Request) -> Result<Json<Vec<Note>>, Reject> {
    let page: Page = request.query_as()?;
    Ok(Json(app.notes.lock().unwrap().iter().take(page.limit.unwrap_or(100)).cloned().collect()))
}

fn one(app: &App, request: Request) -> Result<Option<Json<Note>>, Reject> {
    let at: usize = request.params().parse("at")?;
    Ok(app.notes.lock().unwrap().get(at).cloned().map(Json))
}

fn add(app: &App, mut request: Request) -> io::Result<Response> {
    let mut note: Note = request.body().json(64 << 10)?;
    note.by = request.extension::<User>().map(|user| user.name.clone());
    let mut notes = app.notes.lock().unwrap();
    notes.push(note.clone());
    app.added.send(&Event::new(&note.text));
    Ok(Response::json(StatusCode::CREATED, &note).header("location", format!("/api/notes/{}", notes.len() - 1)))
}

fn upload(mut request: Request) -> io::Result<String> {
    let (mut form, mut answer) = (request.multipart()?, String::new());
    while let Some(mut part) = form.next_part()? {
        answer += &format!("{}: {} bytes\n", part.head().name.clone(), copy(&mut part, &mut sink())?);
    }
    Ok(answer)
}

fn events(app: &App, _: Request) -> Response {
    let (response, events) = Response::events(EventOptions::default());
    app.added.join(events);
    response
}

fn chat(app: &App, request: Request) -> Result<Response, UpgradeError> {
    let chat = app.chat.clone();
    Ok(Upgrade::new(&request)?.accept(move |socket: &WebSocket, event: WsEvent| match event {
        WsEvent::Open => chat.join(socket.clone()),
        WsEvent::Message(message) => _ = chat.send(&SharedMessage::new(message)),
        _ => {}
    }))
}

fn routes(app: Arc<App>) -> Result<RoutingTable, RouteError> {
    let notes = Router::new().with(app.clone()).layer(members(app.clone())).errors(Problems::json());
    let notes = notes.get("/", list).post("/", add).get("/@at", one).get("/events", events);
    let all = Router::new().with(app).nest("/api/notes", notes);
    all.post("/sign-in", sign_in).post("/upload", upload).get("/chat", chat).build()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cookies = SignedCookies::new(std::fs::read("cookie.key")?.as_slice().try_into()?);
    let app = Arc::new(App { notes: Mutex::default(), added: Topic::new(), chat: Topic::new(), cookies });
    let signals = StopSignals::catch()?;
    let server = Server::builder(routes(app)?).listen(Listen::Tcp("127.0.0.1:8080".parse()?)).build()?.spawn()?;
    server.stop_on(signals, Duration::from_secs(5))?;
    Ok(server.wait()?)
}

#[cfg(test)]
mod tests;
