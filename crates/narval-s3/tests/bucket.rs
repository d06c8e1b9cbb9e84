//! Buckets of real object stores: objects whole and in parts, what refusals say, and where credentials come from.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

mod ports;
mod s3;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use narval_client::{Buckets, Client, Extra, HttpError, Method, Payload, ResumingBody, Url};
use narval_nix::{Sha256, Sha256Hasher};
use narval_s3::credentials::{Environment, Provider};
use narval_s3::{BucketSigner, SINGLE_PUT_LEN_MAX, put_object};
use s3::proxy::{Fault, Proxy};
use s3::{S3Server, bare, client};

/// A file that is large enough for parts, mostly holes.
fn large_file() -> (File, u64, Sha256) {
    let (file, len) = (tempfile::tempfile().unwrap(), SINGLE_PUT_LEN_MAX + 12345);
    file.set_len(len).unwrap();
    for at in [0, len / 3, len - 5] {
        file.write_all_at(&at.to_le_bytes()[..5], at).unwrap();
    }
    let (mut hasher, mut buffer, mut at) = (Sha256Hasher::new(), vec![0; 1024 * 1024], 0);
    loop {
        match file.read_at(&mut buffer, at).unwrap() {
            0 => return (file, len, hasher.finish()),
            read => hasher.update(&buffer[..read]),
        }
        at += 1024 * 1024;
    }
}

fn read_back(client: &Arc<Client>, url: &Url) -> Option<(u64, Sha256)> {
    let mut body = ResumingBody::open(client, url).unwrap()?;
    let (mut hasher, mut buffer) = (Sha256Hasher::new(), vec![0; 64 * 1024]);
    loop {
        match body.read_some(&mut buffer).unwrap() {
            0 => return Some((body.position(), hasher.finish())),
            read => hasher.update(&buffer[..read]),
        }
    }
}

#[test]
fn objects_are_stored_whole_and_in_parts() {
    for server in S3Server::all() {
        let client = client(&server.environment());
        let base = Url::parse(&server.bucket("objects")).unwrap();
        let sent = AtomicU64::new(0);
        let put = |name: &str, payload: Payload<'_>, hash| {
            let url = base.child(name).unwrap();
            let count = |len| {
                sent.fetch_add(len, Ordering::Relaxed);
            };
            (put_object(&client, &url, "application/x-nix-nar", (payload, hash), &count), url)
        };
        let (stored, url) = put("a%20folder/small+1.nar", Payload::Bytes(b"hello"), Sha256::of(b"hello"));
        stored.unwrap();
        assert_eq!(read_back(&client, &url), Some((5, Sha256::of(b"hello"))), "{}", server.name);

        let (file, len, hash) = large_file();
        sent.store(0, Ordering::Relaxed);
        let (stored, url) = put("nar/large.nar", Payload::File(&file, len), hash);
        stored.unwrap();
        assert_eq!(sent.load(Ordering::Relaxed), len);
        assert_eq!(read_back(&client, &url), Some((len, hash)), "{}", server.name);

        // The store refuses what is not what it should be.
        let (stored, url) = put("wrong.nar", Payload::Bytes(b"hello"), Sha256::of(b"other"));
        let error = stored.unwrap_err().to_string();
        assert!(error.contains("the data was damaged in transit"), "{}: {error}", server.name);
        assert_eq!(read_back(&client, &url), None, "{}", server.name);
    }
}

#[test]
fn an_upload_that_fails_is_aborted() {
    for server in S3Server::all() {
        let client = client(&server.environment());
        let base = Url::parse(&server.bucket("aborted")).unwrap();
        let (file, len, hash) = large_file();
        // The file turns out to be shorter than was said.
        let url = base.child("nar/short.nar").unwrap();
        let stored = put_object(&client, &url, "x/y", (Payload::File(&file, len * 2), hash), &|_| {});
        assert!(stored.unwrap_err().to_string().contains("cannot read the data to send"));
        assert_eq!(read_back(&client, &url), None, "{}", server.name);
        let extra = Extra { query: &[("uploads", "")], ..Extra::default() };
        let request = narval_client::Request { extra, ..narval_client::Request::get(&base) };
        let uploads = String::from_utf8(client.small_answer(&request, 1024 * 1024).unwrap().unwrap()).unwrap();
        assert!(uploads.contains("<ListMultipartUploadsResult"), "{}: {uploads}", server.name);
        assert!(!uploads.contains("short.nar"), "{}: {uploads}", server.name);
    }
}

#[test]
fn objects_are_resumed_and_removed() {
    for server in S3Server::all() {
        let client = client(&server.environment());
        let url = Url::parse(&server.bucket("resumed")).unwrap().child("x").unwrap();
        put_object(&client, &url, "x/y", (Payload::Bytes(b"0123456789"), Sha256::of(b"0123456789")), &|_| {}).unwrap();
        let request = narval_client::Request { from: 7, ..narval_client::Request::get(&url) };
        let answer = client.send(&request).unwrap();
        assert_eq!((answer.head.status, answer.body.read_all(10).unwrap()), (206, b"789".to_vec()), "{}", server.name);
        let removal = narval_client::Request { method: Method::Delete, ..narval_client::Request::get(&url) };
        assert_eq!(client.send(&removal).unwrap().head.status, 204, "{}", server.name);
        assert_eq!(client.retrying(&url, || client.metadata_once(&url, 10)).unwrap(), None, "{}", server.name);
    }
}

#[test]
fn refusals_say_what_to_do() {
    for server in S3Server::all() {
        let base = server.bucket("refused");
        let ask = |url: &str, id: &str, secret: &str| {
            let set = [("AWS_ACCESS_KEY_ID", id), ("AWS_SECRET_ACCESS_KEY", secret)];
            let environment = set.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let url = Url::parse(url).unwrap().child("x").unwrap();
            client(&environment).upload(&bare(Method::Put, &url, Extra::default(), b"x")).unwrap_err()
        };
        let mut wrong = vec![
            (base.clone(), "nobody", s3::SECRET, "check AWS_ACCESS_KEY_ID, or the profile"),
            (base.clone(), s3::KEY, "wrong", "check AWS_SECRET_ACCESS_KEY, or the profile"),
        ];
        if server.name == "versitygw" {
            // SeaweedFS makes a bucket that is missing, and takes every region.
            wrong.push((server.url("absent"), s3::KEY, s3::SECRET, "check its name, region= and endpoint="));
            wrong.push((format!("{base}&region=eu-west-1"), s3::KEY, s3::SECRET, "region"));
        }
        for (url, id, secret, message) in wrong {
            let error = ask(&url, id, secret);
            assert!(error.to_string().contains(message), "{}: {error}", server.name);
            assert!(matches!(error, HttpError::Bucket { is_retryable: false, .. }), "{}: {error:?}", server.name);
        }
    }
}

/// A server that answers each connection with the next of these, and passes on the requests.
fn scripted(answers: Vec<String>) -> (String, Receiver<String>) {
    scripted_with(answers.into_iter().map(|answer| ("200 OK".to_owned(), answer)).collect())
}

/// The same with a status, and perhaps fields, for each.
fn scripted_with(answers: Vec<(String, String)>) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for (status, answer) in answers {
            let mut stream = listener.accept().unwrap().0;
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            sender.send(read_request(&mut stream)).unwrap();
            let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", answer.len());
            stream.write_all((head + &answer).as_bytes()).unwrap();
        }
    });
    (address, requests)
}

/// Passes connections on to a port of this machine, and cuts each after as many bytes as it says; those after them live.
fn cutting(port: u16, limits: Vec<usize>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    let mut limits = limits.into_iter();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(("127.0.0.1", port)).unwrap());
            let left = Arc::new(AtomicUsize::new(limits.next().unwrap_or(usize::MAX)));
            for (mut from, mut to) in [(&client, &server), (&server, &client)]
                .map(|(one, other)| (one.try_clone().unwrap(), other.try_clone().unwrap()))
            {
                let left = Arc::clone(&left);
                std::thread::spawn(move || {
                    let mut buffer = [0; 16 * 1024];
                    while let Ok(read @ 1..) = from.read(&mut buffer) {
                        let enough =
                            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(read));
                        if enough.is_err() || to.write_all(&buffer[..read]).is_err() {
                            break;
                        }
                    }
                    // Errors: the other direction may have ended it.
                    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                });
            }
        }
    });
    own
}

#[test]
fn broken_connections_cost_a_part_or_the_rest_and_no_more() {
    for server in S3Server::all() {
        let client = client(&server.environment());
        server.bucket("broken");
        let through = |limits: Vec<usize>| {
            let port = cutting(server.port, limits);
            Url::parse(&format!("s3://broken?endpoint=127.0.0.1:{port}&scheme=http")).unwrap().child("x").unwrap()
        };
        let ((file, len, hash), sent) = (large_file(), AtomicU64::new(0));
        let count = |len| {
            sent.fetch_add(len, Ordering::Relaxed);
        };
        let to = through(vec![20_000_000, 20_000_000]);
        put_object(&client, &to, "x/y", (Payload::File(&file, len), hash), &count).unwrap();
        let sent = sent.into_inner();
        assert!(sent > len && sent < len + 3 * 16 * 1024 * 1024, "{}: sent {sent} bytes of {len}", server.name);
        assert_eq!(read_back(&client, &through(vec![10_000_000, 30_000_000])), Some((len, hash)), "{}", server.name);
    }
}

/// A store's refusal.
fn refusal(status: &str, code: &str) -> (String, String) {
    (status.to_owned(), format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>why</Message></Error>"))
}

#[test]
fn temporary_refusals_are_retried_and_others_are_not() {
    let ask = |answers: Vec<(String, String)>| {
        let count = answers.len();
        let (server, requests) = scripted_with(answers);
        let set = [("AWS_ACCESS_KEY_ID", "i"), ("AWS_SECRET_ACCESS_KEY", "s")];
        let client = client(&set.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let url = Url::parse(&format!("s3://cache/x?endpoint={server}")).unwrap();
        let answer = client.retrying(&url, || client.metadata_once(&url, 100)).map_err(|error| error.to_string());
        assert_eq!(requests.iter().count(), count, "{answer:?}");
        answer
    };
    let fine = || ("200 OK".to_owned(), "fine".to_owned());
    for (status, code) in [
        ("503 Slow Down", "SlowDown"),
        ("500 Internal Server Error", "InternalError"),
        ("400 Bad Request", "RequestTimeout"),
        ("400 Bad Request", "ExpiredToken"),
    ] {
        assert_eq!(ask(vec![refusal(status, code), fine()]), Ok(Some(b"fine".to_vec())), "{code}");
    }
    assert_eq!(ask(vec![refusal("404 Not Found", "NoSuchKey")]), Ok(None));
    assert_eq!(ask(vec![refusal("403 Forbidden", "AccessDenied")]), Ok(None));
    let moved = "301 Moved Permanently\r\nx-amz-bucket-region: eu-west-3";
    for (status, code, message) in [
        (moved, "PermanentRedirect", "it is in another region; add region=eu-west-3"),
        ("403 Forbidden", "RequestTimeTooSkewed", "the clock of this machine is wrong"),
        ("404 Not Found", "NoSuchBucket", "there is none at http://127.0.0.1"),
        ("400 Bad Request", "SomethingNew", "the bucket 'cache' answered 400 SomethingNew: why"),
    ] {
        let error = ask(vec![refusal(status, code)]).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
    let error = ask(vec![("400 Bad Request".to_owned(), "<html>".to_owned())]).unwrap_err();
    assert!(error.contains("check that it is an S3 endpoint"), "{error}");
}

#[test]
fn requests_are_signed_for_the_host_of_the_bucket() {
    let environment =
        [("AWS_ACCESS_KEY_ID", "i"), ("AWS_SECRET_ACCESS_KEY", "the-secret"), ("AWS_SESSION_TOKEN", "t/t")];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let signer = BucketSigner::new(Environment::of(environment.to_vec()));
    let sign = |url: &str| {
        let signed =
            signer.sign(&client(&environment), Method::Get, &Url::parse(url).unwrap(), Extra::default()).unwrap();
        assert!(!signed.target().contains("the-secret"));
        assert!(signed.target().contains("X-Amz-Security-Token=t%2Ft&"), "{}", signed.target());
        assert_eq!(signed.query_value("X-Amz-Credential").unwrap().split('/').next(), Some("i"));
        signed.to_string()
    };
    assert_eq!(sign("s3://cache/a/b?region=eu-west-3"), "https://cache.s3.eu-west-3.amazonaws.com/a/b");
    assert_eq!(sign("s3://my.cache/b?region=eu-west-3"), "https://s3.eu-west-3.amazonaws.com/my.cache/b");
    assert_eq!(sign("s3://cache/b?endpoint=s3.lan:9000&scheme=http"), "http://s3.lan:9000/cache/b");
    assert_eq!(sign("s3://cache/b?endpoint=s3.lan&addressing-style=virtual"), "https://cache.s3.lan/b");
}

fn read_request(stream: &mut TcpStream) -> String {
    let (mut request, mut byte) = (String::new(), [0]);
    while !request.ends_with("\r\n\r\n") {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{request}");
        request.push(char::from(byte[0]));
    }
    let len = request
        .to_ascii_lowercase()
        .split("content-length: ")
        .nth(1)
        .map_or(0, |rest| rest.lines().next().unwrap().parse().unwrap());
    let mut body = vec![0; len];
    stream.read_exact(&mut body).unwrap();
    request + &String::from_utf8(body).unwrap()
}

fn provider(variables: &[(&str, &str)], profile: Option<&str>) -> Provider {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Provider::new(Arc::new(Environment::of(variables)), profile.map(str::to_owned))
}

/// A document with keys that expire after so many seconds.
fn document(id: &str, seconds: u64) -> String {
    let expires = Timestamp::try_from(SystemTime::now() + Duration::from_secs(seconds)).unwrap();
    format!(r#"{{"Code":"Success","AccessKeyId":"{id}","SecretAccessKey":"s","Token":"t","Expiration":"{expires}"}}"#)
}

#[test]
fn credentials_of_files_and_processes() {
    let folder = tempfile::tempdir().unwrap();
    let (credentials, config) = (folder.path().join("credentials"), folder.path().join("config"));
    std::fs::write(&credentials, "[default]\naws_access_key_id = d\naws_secret_access_key = s\n[static]\naws_access_key_id = x\naws_secret_access_key = s\naws_session_token = t\n").unwrap();
    std::fs::write(&config, format!("[profile process]\ncredential_process = echo '{}'\n[profile broken]\ncredential_process = exit 3\n[profile role]\nrole_arn = r\nsource_profile = default\n[profile empty]\n", document("p", 3600))).unwrap();
    let files = [
        ("AWS_SHARED_CREDENTIALS_FILE", credentials.to_str().unwrap()),
        ("AWS_CONFIG_FILE", config.to_str().unwrap()),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ];
    let client = client(&[]);
    let find = |more: &[(&str, &str)], profile: Option<&str>| {
        let found = provider(&[&files, more].concat(), profile).keys(&client);
        found.map(|keys| keys.map(|keys| keys.id.clone())).map_err(|error| error.to_string())
    };
    let of_environment = [("AWS_ACCESS_KEY_ID", "e"), ("AWS_SECRET_ACCESS_KEY", "s")];
    assert_eq!(find(&of_environment, None), Ok(Some("e".to_owned())));
    assert_eq!(
        find(&of_environment, Some("static")),
        Ok(Some("x".to_owned())),
        "an address that names a profile means it"
    );
    assert_eq!(find(&[], None), Ok(Some("d".to_owned())));
    assert_eq!(find(&[("AWS_PROFILE", "static")], None), Ok(Some("x".to_owned())));
    assert_eq!(find(&[], Some("process")), Ok(Some("p".to_owned())));
    for (more, profile, message) in [
        (&[][..], Some("broken"), "the credential_process of the profile 'broken' failed: exit status: 3"),
        (&[], Some("absent"), "the profile 'absent' does not exist"),
        (&[], Some("empty"), "the profile 'empty' has no access key"),
        (&[], Some("role"), "aws configure export-credentials --profile role"),
        (&[("AWS_PROFILE", "absent")], None, "the profile 'absent' of AWS_PROFILE does not exist"),
    ] {
        let error = find(more, profile).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
    assert!(provider(&[("AWS_EC2_METADATA_DISABLED", "true")], None).keys(&client).unwrap().is_none());
}

#[test]
fn credentials_of_a_container_are_renewed() {
    let (server, requests) = scripted(vec![document("one", 100), document("two", 3600)]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "secret-token\n").unwrap();
    let provider = provider(
        &[
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &format!("{server}/get?x=y")),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file.path().to_str().unwrap()),
        ],
        None,
    );
    let client = client(&[]);
    let id = || provider.keys(&client).unwrap().unwrap().id.clone();
    assert_eq!(id(), "one");
    let request = requests.recv().unwrap();
    assert!(request.starts_with("GET /get?x=y ") && request.contains("authorization: secret-token\r\n"), "{request}");
    assert_eq!(id(), "two", "those that soon expire are renewed");
    assert_eq!(id(), "two", "and those that do not, are kept");
    assert_eq!(requests.iter().count(), 1);
    provider.forget();
    assert!(provider.keys(&client).is_err(), "the server is gone");
}

#[test]
fn credentials_that_cannot_be_renewed_are_used_until_they_expire() {
    let (server, _requests) = scripted(vec![document("one", 100)]);
    let provider = provider(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &server)], None);
    let client = client(&[]);
    for _ in 0..3 {
        assert_eq!(provider.keys(&client).unwrap().unwrap().id, "one");
    }
}

#[test]
fn a_container_endpoint_elsewhere_is_asked_only_over_tls() {
    let provider = provider(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://192.0.2.1/x")], None);
    let error = provider.keys(&client(&[])).unwrap_err().to_string();
    assert!(error.contains("only https://"), "{error}");
}

#[test]
fn credentials_of_an_instance() {
    let (server, requests) = scripted(vec!["session".into(), "the-role\n".into(), document("i", 3600)]);
    let provider = provider(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &server)], None);
    assert_eq!(provider.keys(&client(&[])).unwrap().unwrap().id, "i");
    let requests: Vec<String> = requests.iter().collect();
    assert!(
        requests[0].starts_with("PUT /latest/api/token ")
            && requests[0].contains("x-aws-ec2-metadata-token-ttl-seconds: ")
    );
    assert!(requests[2].starts_with("GET /latest/meta-data/iam/security-credentials/the-role "));
    assert!(requests[2].contains("x-aws-ec2-metadata-token: session\r\n"));
}

#[test]
fn credentials_of_a_web_identity() {
    let answer = "<AssumeRoleWithWebIdentityResponse><Credentials><AccessKeyId>w</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResponse>";
    let (server, requests) = scripted(vec![answer.to_owned()]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "a.b+c\n").unwrap();
    let provider = provider(
        &[
            ("AWS_ENDPOINT_URL_STS", &server),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", file.path().to_str().unwrap()),
            ("AWS_ROLE_ARN", "arn:aws:iam::1:role/x"),
        ],
        None,
    );
    let keys = provider.keys(&client(&[])).unwrap().unwrap();
    assert_eq!((keys.id.as_str(), keys.token.as_ref().unwrap().as_str()), ("w", "t"));
    let request = requests.recv().unwrap();
    assert!(
        request.starts_with("POST / ") && request.contains("RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fx"),
        "{request}"
    );
    assert!(request.contains("WebIdentityToken=a.b%2Bc"), "{request}");
}

/// Backblaze B2 refused the SHA-256 of objects, and Cloudflare R2 refuses that of parts.
#[test]
fn stores_that_take_no_sha256_get_content_md5() {
    const B2: Fault = Fault::NoChecksums(
        "400 Bad Request",
        "<Error><Code>InvalidArgument</Code><Message>Unsupported header 'x-amz-checksum-sha256' received for this API call.</Message></Error>",
    );
    const R2: Fault = Fault::NoChecksums(
        "501 Not Implemented",
        "<Error><Code>NotImplemented</Code><Message>Header 'x-amz-checksum-sha256' with value '…' not implemented</Message></Error>",
    );
    let Some(server) = S3Server::chosen() else { return };
    let client = client(&server.environment());
    let is_of_parts = |target: &str| target.contains("partNumber=") || target.contains("uploads=");
    for (bucket, fault) in [("no-checksums", B2), ("no-checksums-of-parts", R2)] {
        server.bucket(bucket);
        let proxy = Proxy::to(server.port);
        proxy.set(move |_, target| if fault == B2 || is_of_parts(target) { fault } else { Fault::None });
        let base = Url::parse(&server.url_through(bucket, &proxy)).unwrap();
        let (file, len, hash) = large_file();
        for (name, payload, hash) in [
            ("first.nar", Payload::Bytes(b"hello"), Sha256::of(b"hello")),
            ("second.nar", Payload::Bytes(b"hello"), Sha256::of(b"hello")),
            ("large.nar", Payload::File(&file, len), hash),
        ] {
            let url = base.child(name).unwrap();
            proxy.take_requests();
            put_object(&client, &url, "x/y", (payload, hash), &|_| {}).unwrap();
            assert_eq!(read_back(&client, &url).unwrap().1, hash, "{bucket} {name}");
            let puts = proxy.take_requests().iter().filter(|request| request.starts_with("PUT")).count();
            match (name, fault == B2) {
                ("first.nar", true) => assert_eq!(puts, 2, "it was refused once"),
                ("first.nar" | "second.nar", _) => assert_eq!(puts, 1, "that is remembered"),
                _ => assert!(puts > 4, "{puts}"),
            }
        }
        // It is still verified.
        let refused = {
            let field = [("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==")];
            let extra = Extra { fields: &field, ..Extra::default() };
            let url = base.child("wrong.nar").unwrap();
            client.upload(&bare(Method::Put, &url, extra, b"hello"))
        };
        assert!(refused.unwrap_err().to_string().contains("the data was damaged in transit"));
        // As somebody says who knows the store, with all of them: an error that says what to do.
        let url = |checksums: &str, name: &str| {
            let url = server.url_through(bucket, &proxy) + "&checksums=" + checksums;
            Url::parse(&url).unwrap().child(name).unwrap()
        };
        proxy.take_requests();
        put_object(&client, &url("off", "off.nar"), "x/y", (Payload::Bytes(b"x"), Sha256::of(b"x")), &|_| {}).unwrap();
        assert_eq!(proxy.take_requests().len(), 1);
        let refused = put_object(&client, &url("on", "on.nar"), "x/y", (Payload::File(&file, len), hash), &|_| {});
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("it takes no field 'x-amz-checksum-…' here; add checksums=off"), "{refused}");
    }
    // With a store that takes them.
    let base = server.bucket("checksums-of-parts") + "&checksums=on";
    let url = Url::parse(&base).unwrap().child("large.nar").unwrap();
    let (file, len, hash) = large_file();
    put_object(&client, &url, "x/y", (Payload::File(&file, len), hash), &|_| {}).unwrap();
    assert_eq!(read_back(&client, &url), Some((len, hash)));
}
