//! A writable cache with a few paths, and tokens for it.

use std::process::{Command, Output};

use crate::support::{Answer, NARVAL, Server, Store, hash_part, stdout};

pub struct Lab {
    pub store: Store,
    pub server: Server,
}

impl Lab {
    /// A server of a data folder alone.
    pub fn new(args: &[&str]) -> Self {
        let store = Store::new();
        let server = Self::serve(&store, args);
        Self { store, server }
    }

    /// The same with the key `own-1`.
    pub fn signing(args: &[&str]) -> Self {
        let store = Store::new();
        let (key, _) = store.key("own-1");
        let server = Self::serve(&store, &[&["--sign-key", key.to_str().unwrap()], args].concat());
        Self { store, server }
    }

    pub fn serve(store: &Store, args: &[&str]) -> Server {
        let mut command = Command::new(NARVAL);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(store.path("data")).args(args);
        Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())])
    }

    pub fn run(&self, args: &[&str]) -> Output {
        Command::new(NARVAL).args(args).arg("--data").arg(self.store.path("data")).output().unwrap()
    }

    /// A new token with options such as `--pull`.
    pub fn token(&self, args: &[&str]) -> String {
        stdout(self.run(&[&["token", "create"], args, &["page"]].concat())).trim().to_owned()
    }

    /// Pushes a path of the store.
    pub fn push(&self, path: &str) {
        self.push_with(path, &[]);
    }

    /// The same with a token that has these scopes.
    pub fn push_as(&self, path: &str, scopes: &[&str]) {
        self.push_by(path, scopes, &[]);
    }

    pub fn push_with(&self, path: &str, args: &[&str]) {
        self.push_by(path, &["--push"], args);
    }

    fn push_by(&self, path: &str, scopes: &[&str], args: &[&str]) {
        let netrc = self.store.path("netrc");
        let token = self.token(scopes);
        std::fs::write(&netrc, format!("machine 127.0.0.1 password {token}\n")).unwrap();
        let mut command = Command::new(NARVAL);
        command.args(["push", "--quiet", "--store", &self.store.uri(), "--to", &self.server.url(), "--netrc-file"]);
        let pushed = command.arg(&netrc).args(args).arg(path).output().unwrap();
        assert!(pushed.status.success(), "{}", String::from_utf8_lossy(&pushed.stderr));
    }

    pub fn has(&self, path: &str) -> bool {
        self.server.get(&format!("/{}.narinfo", hash_part(path))).status == 200
    }

    /// Signs in as the page does.
    pub fn sign_in(&self, token: &str) -> Session {
        let (origin, host) = (self.origin(), self.host());
        let answer = self.ask("POST", "session", &[&origin, &host, &format!("Authorization: Bearer {token}")], "");
        assert_eq!(answer.status, 204, "{}", answer.text());
        let cookie = answer.field("set-cookie").unwrap().to_owned();
        let pair = cookie.split(';').next().unwrap();
        let cookie_field = format!("Cookie: {pair}");
        let info = self.ask("GET", "session", &[&host, &cookie_field], "");
        let info: serde_json::Value = serde_json::from_slice(&info.body).unwrap();
        let proof = format!("X-Narval-CSRF: {}", info["proof"].as_str().unwrap());
        Session { set_cookie: cookie, cookie: cookie_field, proof, info, origin, host }
    }

    /// Sends a form of Manage, with exactly these fields of the head.
    pub fn form(&self, part: &str, fields: &[&str], form: &str) -> Answer {
        let fields = [fields, &["Content-Type: application/x-www-form-urlencoded"]].concat();
        self.send("POST", &format!("/_narval/manage/{part}"), &fields, form)
    }

    pub fn origin(&self) -> String {
        format!("Origin: http://{}", self.server.address)
    }

    pub fn host(&self) -> String {
        format!("Host: {}", self.server.address)
    }

    /// A request of the page, with exactly these fields.
    pub fn ask(&self, method: &str, path: &str, fields: &[&str], body: &str) -> Answer {
        self.send(method, &format!("/_narval/page/{path}"), fields, body)
    }

    pub fn send(&self, method: &str, path: &str, fields: &[&str], body: &str) -> Answer {
        let mut request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !fields.iter().any(|field| field.starts_with("Host:")) {
            request.push_str(&format!("Host: {}\r\n", self.server.address));
        }
        fields.iter().for_each(|field| request.push_str(&format!("{field}\r\n")));
        request.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        let raw = self.server.send(request.as_bytes());
        Answer::parse(&raw).unwrap_or_else(|| panic!("{method} {path}: {:?}", String::from_utf8_lossy(&raw)))
    }
}

/// What a browser that has signed in sends.
pub struct Session {
    pub set_cookie: String,
    pub cookie: String,
    pub proof: String,
    pub info: serde_json::Value,
    pub origin: String,
    pub host: String,
}

impl Session {
    /// A form with the session's proof.
    pub fn form(&self, form: &str) -> String {
        format!("proof={}&{form}", self.info["proof"].as_str().unwrap())
    }

    pub fn fields(&self) -> [&str; 4] {
        [&self.cookie, &self.proof, &self.origin, &self.host]
    }
}
