//! 600 bytes from memory, with actix-web: `/` by an async handler, `/blocking/` by a function that may block.

use actix_web::web::{Bytes, block, get};
use actix_web::{App, HttpServer};

#[actix_web::main]
async fn main() -> std::io::Result<()> {
    let port: u16 = std::env::args().nth(1).and_then(|port| port.parse().ok()).expect("a port");
    let answer = Bytes::from_static(Box::leak("x".repeat(600).into_boxed_str()).as_bytes());
    let app = move || {
        let (answer, same) = (answer.clone(), answer.clone());
        let quick = move || std::future::ready(answer.clone());
        let blocking = move || {
            let answer = same.clone();
            async move { block(move || answer).await.expect("no panic") }
        };
        App::new().route("/", get().to(quick)).route("/blocking/", get().to(blocking))
    };
    HttpServer::new(app).bind(("127.0.0.1", port))?.run().await
}
