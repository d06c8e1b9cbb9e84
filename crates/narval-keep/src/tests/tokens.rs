//! Tokens and the audit log.

use std::time::{Duration, Instant};

use super::*;

fn new_token(scopes: &str) -> NewToken {
    NewToken { label: "ci".into(), caches: CachePatterns::all(), scopes: scopes.parse().unwrap(), expires: None }
}

#[test]
fn a_token_is_a_grant() {
    let fixture = Fixture::new();
    let tokens = fixture.data.tokens();
    let (info, text) = tokens.create(&new_token("pull,push")).unwrap();
    assert!(text.starts_with(&format!("nv1_{}_", info.id)));
    let grant = tokens.verify(text.as_bytes()).unwrap().unwrap();
    assert_eq!((grant.label.as_str(), grant.token.as_str()), ("ci", info.id.as_str()));
    assert!(grant.allows(&CacheName::default(), Scope::Push) && !grant.allows(&CacheName::default(), Scope::Sign));
    // The token itself is nowhere.
    let secret = text.rsplit('_').next().unwrap();
    for file in fixture.files("") {
        let bytes = std::fs::read(fixture.folder.path().join(&file)).unwrap();
        assert!(memchr::memmem::find(&bytes, secret.as_bytes()).is_none(), "{file}");
    }
    drop(tokens);
    let fixture = fixture.reopen();
    let tokens = fixture.data.tokens();
    assert!(tokens.verify(text.as_bytes()).unwrap().is_some());
    assert!(tokens.list().unwrap()[0].last_used.is_some());
}

#[test]
fn invalid_tokens_are_refused() {
    let fixture = Fixture::new();
    let tokens = fixture.data.tokens();
    let (_, text) = tokens.create(&new_token("push")).unwrap();
    let mut other = text.as_bytes().to_vec();
    let last = other.len() - 1;
    other[last] = if other[last] == b'0' { b'1' } else { b'0' };
    let (_, second) = tokens.create(&new_token("push")).unwrap();
    let mixed = format!("{}_{}", &text[..text.rfind('_').unwrap()], second.rsplit('_').next().unwrap());
    for bad in
        [&b""[..], b"nv1_", b"nv1__", &other, mixed.as_bytes(), &text.as_bytes()[1..], b"\xff", &vec![b'0'; 1 << 20]]
    {
        assert!(tokens.verify(bad).unwrap().is_none());
    }
    let expired = NewToken { expires: Some(1), ..new_token("push") };
    assert!(tokens.verify(tokens.create(&expired).unwrap().1.as_bytes()).unwrap().is_none());
    assert!(matches!(tokens.create(&new_token("")), Err(TokenError::NoScope)));
    assert!(matches!(tokens.create(&NewToken { label: "a\nb".into(), ..new_token("push") }), Err(TokenError::Label)));
}

/// Those that CI jobs exchange for their own are made by the thousand.
#[test]
fn expired_tokens_are_deleted() {
    let fixture = Fixture::new();
    let tokens = fixture.data.tokens();
    for expires in [None, Some(1), Some(now() + 1000)] {
        tokens.create(&NewToken { expires, ..new_token("push") }).unwrap();
    }
    fixture.cache.collect(&CollectOptions::default(), &pusher()).unwrap();
    assert_eq!(tokens.list().unwrap().iter().map(|token| token.expires.is_some()).collect::<Vec<_>>().len(), 2);
    assert!(tokens.list().unwrap().iter().all(|token| token.expires != Some(1)));
}

/// attic#34, #248, #285: stateless tokens could not be revoked.
#[test]
fn attic_34_a_revoked_token_is_refused_at_once_by_every_server() {
    let fixture = Fixture::new();
    let (info, text) = fixture.data.tokens().create(&new_token("push")).unwrap();
    let elsewhere =
        Data::open(fixture.folder.place(), DataOptions { must_exist: true, ..fixture.folder.options() }).unwrap();
    assert!(elsewhere.tokens().verify(text.as_bytes()).unwrap().is_some());
    assert!(fixture.data.tokens().revoke(&info.id).unwrap());
    assert!(elsewhere.tokens().verify(text.as_bytes()).unwrap().is_none());
    assert!(fixture.data.tokens().verify(text.as_bytes()).unwrap().is_none());
    assert!(!fixture.data.tokens().revoke("0000000000000000").unwrap());
    assert!(fixture.data.tokens().list().unwrap()[0].revoked.is_some());
}

#[test]
fn the_audit_log_says_who_did_what() {
    let fixture = Fixture::new();
    let path = TestPath::new("a", &[]);
    path.push_as(&fixture.cache, &pusher().from_peer("192.0.2.1")).unwrap();
    TestPath::new("b", &[&TestPath::new("c", &[])]).push(&fixture.cache).unwrap_err();
    // As another server reads it, which shares the database, if there is one.
    let other = fixture.folder.open();
    let read = |since: u64| {
        let mut lines = Vec::new();
        other.read_audit(since, |line| lines.push(line)).unwrap();
        lines
    };
    let until = Instant::now() + Duration::from_secs(60);
    while read(0).len() < 4 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(100));
    }
    let lines = read(0);
    let of =
        |action: &str, result: &str| lines.iter().filter(|line| line.action == action && line.result == result).count();
    assert_eq!((of("nar", "ok"), of("narinfo", "ok"), of("narinfo", "refused")), (2, 1, 1), "{lines:?}");
    let added = lines.iter().find(|line| line.detail == "added").unwrap();
    assert_eq!((added.peer.as_deref(), added.subject.as_str()), (Some("192.0.2.1"), path.info.path.base_name()));
    assert_eq!((added.cache.as_deref(), added.result.as_str()), (Some("default"), "ok"));
    // The file of this machine has the same lines.
    let text = std::fs::read_to_string(fixture.data.audit().path()).unwrap();
    let kept: Vec<AuditLine> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(kept, lines);
    assert_eq!(read(lines[3].time + 1), []);
}

#[test]
fn a_missing_data_folder_is_an_error_where_it_must_exist() {
    let folder = Place::new();
    let path = folder.path().join("data");
    let error = Data::open(&path, DataOptions { must_exist: true, ..folder.options() }).unwrap_err();
    assert!(error.to_string().contains("no index in it"), "{error}");
    assert!(!path.exists());
}
