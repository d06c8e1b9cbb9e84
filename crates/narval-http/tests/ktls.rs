//! Kernel TLS. On a kernel that has it, the kernel must have made the records (`/proc/net/tls_stat` says so); on one that
//! does not, the connection must continue in user space. `tools/ktls-tests` runs this under kernels of the first kind.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use narval_http::tls::{Identity, KernelTx, TlsAcceptor, TlsConfig, TlsSession, probe};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const SUITES: [rustls::SupportedCipherSuite; 3] = [
    rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
    rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
    rustls::crypto::aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
];

type Client = StreamOwned<ClientConnection, TcpStream>;

/// A connection over loopback: the client's end, and ours before anything was received.
fn connect(suite: rustls::SupportedCipherSuite) -> (Client, TcpStream, TlsSession) {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let identities = vec![Identity { cert, key, ocsp: None }];
    let acceptor = TlsAcceptor::new(TlsConfig { identities, ktls: true, ..TlsConfig::default() }).unwrap();

    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites = vec![suite];
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connection = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap();
    let client = StreamOwned::new(connection, TcpStream::connect(listener.local_addr().unwrap()).unwrap());
    let (socket, _) = listener.accept().unwrap();
    (client, socket, acceptor.accept().unwrap())
}

/// Has the client send `request` and the session receive it.
fn exchange(client: &mut Client, socket: &mut TcpStream, session: &mut TlsSession, request: &[u8]) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            client.write_all(request).unwrap();
            client.flush().unwrap();
        });
        let (mut plaintext, mut output, mut buffer) = (Vec::new(), Vec::new(), [0; 4096]);
        while plaintext.len() < request.len() {
            let n = socket.read(&mut buffer).unwrap();
            session.receive(&buffer[..n], &mut plaintext, &mut output).unwrap();
            socket.write_all(&output).unwrap();
            output.clear();
        }
        assert_eq!(plaintext, request);
    });
}

/// How many sessions' sending halves the kernel has taken so far (Documentation/networking/tls.rst, "Statistics").
fn sessions_of_the_kernel() -> u64 {
    let Ok(stat) = std::fs::read_to_string("/proc/net/tls_stat") else { return 0 };
    let line = stat.lines().find(|line| line.starts_with("TlsTxSw ")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Sends `content` by `sendfile`, changes the key, sends a little more and ends; the client must read all of it.
fn through_the_kernel(mut client: Client, mut socket: TcpStream, mut kernel: KernelTx, content: &[u8]) {
    let mut file: File = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    let expected = content.to_vec();
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; 5 + expected.len()];
        client.read_exact(&mut got).unwrap();
        assert!(got.starts_with(b"hello") && got[5..] == expected);
        let mut rest = Vec::new();
        // Without a close_notify this is an error: a truncation.
        client.read_to_end(&mut rest).map(|_| rest)
    });
    let (mut offset, length) = (0, content.len() as u64);
    while offset < length {
        let rest = length - offset;
        kernel.will_send(&socket, rest).unwrap();
        let sent = rustix::fs::sendfile(&socket, &file, Some(&mut offset), rest as usize).unwrap();
        kernel.has_sent(sent as u64);
    }
    match kernel.update_key(&socket) {
        Ok(()) => {
            socket.write_all(b"more").unwrap();
            kernel.close_notify(&socket).unwrap();
            assert_eq!(reader.join().unwrap().unwrap(), b"more");
        }
        Err(error) => {
            println!("this kernel can't change a key: {error}");
            drop(socket);
            assert!(reader.join().unwrap().is_err());
        }
    }
}

#[test]
fn a_file_is_sent_with_ktls_or_by_the_session() {
    let content: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 / 13) as u8).collect();
    for suite in SUITES {
        let (mut client, mut socket, mut session) = connect(suite);
        exchange(&mut client, &mut socket, &mut session, b"first");
        // Something sent in user space first: the kernel has to go on with the right sequence number.
        let mut output = Vec::new();
        session.send(b"hello", &mut output).unwrap();
        socket.write_all(&output).unwrap();
        let before = sessions_of_the_kernel();
        let mut records = session.take_output().unwrap();
        match (probe(), records.offload(&socket)) {
            (Ok(()), Ok(kernel)) => {
                through_the_kernel(client, socket, kernel, &content);
                assert!(sessions_of_the_kernel() > before, "not by the kernel");
                println!("{:?}: by the kernel", suite.suite());
            }
            (Err(_), Err(_)) => {
                let mut record = [&[0; 5][..], b" in user space", &[0; 17]].concat();
                records.seal(&mut record).unwrap();
                socket.write_all(&record).unwrap();
                let mut got = [0; 19];
                client.read_exact(&mut got).unwrap();
                assert_eq!(&got, b"hello in user space");
                println!("{:?}: in user space", suite.suite());
            }
            (probed, offloaded) => panic!("{probed:?}, but {offloaded:?}"),
        }
    }
}
