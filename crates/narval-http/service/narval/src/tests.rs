use narval_http::test::{self, Client};

use super::*;

fn client() -> Client {
    let cookies = SignedCookies::new(&[7; 32]);
    let app = App { notes: Mutex::default(), added: Topic::new(), chat: Topic::new(), cookies };
    test::client(routes(Arc::new(app)).unwrap())
}

fn sign_in(client: &Client, name: &str) -> String {
    let answer = client.post("/sign-in").form(&[("name", name)]).send();
    answer.header("set-cookie").unwrap().split(';').next().unwrap().to_owned()
}

#[test]
fn notes_are_for_members() {
    let client = client();
    let refused = client.get("/api/notes").send();
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    let ada = sign_in(&client, "ada");
    let add = |text: &str| {
        let note = Note { by: None, text: text.to_owned() };
        client.post("/api/notes").header("cookie", &ada).json(&note).send()
    };
    let added = add("one");
    assert_eq!((added.status(), added.header("location")), (StatusCode::CREATED, Some("/api/notes/0")));
    add("two");
    let get = |target: &str| client.get(target).header("cookie", &ada).send();
    assert_eq!(get("/api/notes/1").json::<Note>().unwrap().by.as_deref(), Some("ada"));
    assert_eq!(get("/api/notes?limit=1").json::<Vec<Note>>().unwrap().len(), 1);
    assert_eq!(get("/api/notes/2").status(), StatusCode::NOT_FOUND);
    assert_eq!(get("/api/notes/x").status(), StatusCode::NOT_FOUND);
    assert_eq!(get("/api/notes?limit=x").status(), StatusCode::BAD_REQUEST);
    let text = client.post("/api/notes").header("cookie", &ada).header("content-type", "text/plain").body("{}").send();
    assert_eq!(text.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
}

#[test]
fn readers_see_what_is_added() {
    let client = client();
    let ada = sign_in(&client, "ada");
    let mut events = client.get("/api/notes/events").header("cookie", &ada).send();
    client.post("/api/notes").header("cookie", &ada).json(&Note { by: None, text: "new".into() }).send();
    assert_eq!(events.event().unwrap().data, "new");
}

#[test]
fn members_of_the_chat_hear_each_other() {
    let client = client();
    let (mut ada, mut bob) = (client.get("/chat").socket().unwrap(), client.get("/chat").socket().unwrap());
    ada.send("hello");
    assert_eq!(bob.receive().unwrap().as_text(), Some("hello"));
}

#[test]
fn files_are_counted() {
    let form = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n12345\r\n--x--\r\n";
    let answer = client().post("/upload").header("content-type", "multipart/form-data; boundary=x").body(form).send();
    assert_eq!(answer.text(), "file: 5 bytes\n");
}
