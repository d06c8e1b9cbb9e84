//! Says hello: `cargo run -p narval-http --example hello`, then `curl http://localhost:8080/`

use narval_http::{Listen, Router, Server};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let app = Router::new().get("/", || "Hello, world!\n").build()?;
    let server = Server::builder(app).listen(Listen::Tcp("127.0.0.1:8080".parse()?)).build()?;
    server.run()?;
    Ok(())
}
