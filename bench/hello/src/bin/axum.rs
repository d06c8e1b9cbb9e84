//! 600 bytes from memory, with axum: `/` by an async handler, `/blocking/` by a function that may block.

use axum::Router;
use axum::body::Bytes;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let port: u16 = std::env::args().nth(1).and_then(|port| port.parse().ok()).expect("a port");
    let answer = Bytes::from_static(Box::leak("x".repeat(600).into_boxed_str()).as_bytes());
    let same = answer.clone();
    let app = Router::new()
        .route("/", get(move || async move { answer }))
        .route("/blocking/", get(move || async move { spawn_blocking(move || same).await.expect("no panic") }));
    axum::serve(TcpListener::bind(("127.0.0.1", port)).await?, app).await
}
