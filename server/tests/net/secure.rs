//! Secure: tokens and TLS, and what is refused without them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use sealog_protocol::{
    Answer, ErrorCode, Features, HEADER_BYTES, Hello, MESSAGE_BYTES_MAX, MessageHeader, Request,
};

use crate::server::{Connection, DEADLINE, Server};

fn hello(token: Option<&[u8]>) -> Vec<u8> {
    let hello = Hello {
        magic: Hello::MAGIC,
        version_min: 1,
        version_max: 9,
        features: Features(0),
        heartbeat_ms: 0,
        token,
        agent: "test",
    };
    let mut bytes = Vec::new();
    Request::Hello { hello }.encode(1, 0, &mut bytes);
    bytes
}

/// Says hello over `stream`; the code of the refusal, or nothing.
fn greet(stream: &mut (impl Read + Write), token: Option<&[u8]>) -> Option<ErrorCode> {
    stream.write_all(&hello(token)).unwrap();
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).unwrap();
    let header = MessageHeader::peek(&head, MESSAGE_BYTES_MAX)
        .unwrap()
        .unwrap();
    let mut body = vec![0; header.message_bytes - HEADER_BYTES];
    stream.read_exact(&mut body).unwrap();
    match Answer::decode(header.kind, &body).unwrap() {
        Answer::Welcome { .. } => None,
        Answer::Refused { refusal } => Some(refusal.code),
        other => panic!("{other:?}"),
    }
}

#[test]
fn token_is_asked_for_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "  open sesame\n").unwrap();
    let data = dir.path().join("data");
    let server = Server::start(&data, &["--token-file", file.to_str().unwrap()]);
    for (token, refusal) in [
        (Some(&b"open sesame"[..]), None),
        (Some(b"open sesam"), Some(ErrorCode::Unauthorized)),
        (Some(b"open sesamf"), Some(ErrorCode::Unauthorized)),
        (Some(b""), Some(ErrorCode::Unauthorized)),
        (None, Some(ErrorCode::Unauthorized)),
    ] {
        let mut connection = Connection::raw(server.address);
        assert_eq!(greet(&mut connection.stream, token), refusal, "{token:?}");
    }
}

/// A server under TLS, and what its clients trust.
fn secured(dir: &Path, more: &[&str]) -> (Server, ClientConfig) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let files = [certificate.to_str().unwrap(), key.to_str().unwrap()];
    let args = [&["--tls-cert", files[0], "--tls-key", files[1]], more].concat();
    let server = Server::start(&dir.join("data"), &args);
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(&certificate).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (server, config)
}

fn dial(address: SocketAddr, config: ClientConfig) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    StreamOwned::new(session, socket)
}

#[test]
fn tls_carries_the_protocol_and_nothing_else_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let (server, config) = secured(dir.path(), &[]);
    let mut stream = dial(server.address, config);
    assert_eq!(greet(&mut stream, None), None);

    // A client without TLS is no client: it gets an alert at most, and the end.
    let mut plain = Connection::raw(server.address);
    plain.stream.write_all(&hello(None)).unwrap();
    let mut answer = Vec::new();
    let _ = plain.stream.read_to_end(&mut answer);
    assert!(answer.len() < HEADER_BYTES, "{answer:?}");
}

#[test]
fn tls_of_http_agrees_on_the_newest_version_that_both_speak() {
    let dir = tempfile::tempdir().unwrap();
    let (server, config) = secured(dir.path(), &["--http-listen", "127.0.0.1:0"]);
    let url = server.http.as_ref().unwrap();
    let host = url.strip_prefix("https://").unwrap().split('/').next();
    let address: SocketAddr = host.unwrap().parse().unwrap();
    // What HTTP/2 begins with, empty settings behind it; what a server begins with is its settings.
    let begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let ask = b"GET /v1/stream/none HTTP/1.1\r\nHost: x\r\n\r\n";
    let cases: [(&[&[u8]], &[u8]); 2] = [(&[b"h2", b"http/1.1"], begin), (&[b"http/1.1"], ask)];
    for (offered, bytes) in cases {
        let mut config = config.clone();
        config.alpn_protocols = offered.iter().map(|name| name.to_vec()).collect();
        let mut stream = dial(address, config);
        stream.write_all(bytes).unwrap();
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(stream.conn.alpn_protocol(), Some(offered[0]));
        match offered.len() {
            1 => assert_eq!(&head, b"HTTP/1.1 "),
            _ => assert_eq!(head[3], 4, "{head:?}"),
        }
    }
}

#[test]
fn beyond_loopback_token_and_tls_are_required() {
    let dir = tempfile::tempdir().unwrap();
    let run = |more: &[&str]| {
        let command = Command::new(env!("CARGO_BIN_EXE_sealog"))
            .args(["serve", "--listen", "192.0.2.1:0", "--data-dir"])
            .env("SEALOG_ADMIN_LISTEN", "none")
            .arg(dir.path().join("data"))
            .args(more)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&command.stderr).into_owned();
        (command.status.code(), text)
    };
    let (status, text) = run(&[]);
    assert_eq!(status, Some(2), "{text}");
    assert!(text.contains("192.0.2.1:0 is not loopback"), "{text}");
    // With the word it goes on, to an address that this machine does not have.
    let (status, text) = run(&["--insecure"]);
    assert_eq!(status, Some(7), "{text}");
    assert!(text.contains("listening on 192.0.2.1:0"), "{text}");
    assert!(!dir.path().join("data").exists());
}

#[test]
fn tls_files_that_are_not_there_or_hold_nothing_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let missing = dir.path().join("missing.pem");
    for (certificate, status, text) in [
        (&missing, 4, "missing.pem does not exist"),
        (&empty, 2, "empty.pem: no certificate in it"),
    ] {
        let ran = Command::new(env!("CARGO_BIN_EXE_sealog"))
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--http-listen",
                "none",
                "--admin-listen",
                "none",
            ])
            .arg("--data-dir")
            .arg(dir.path().join("data"))
            .args([
                Path::new("--tls-cert"),
                certificate,
                Path::new("--tls-key"),
                &empty,
            ])
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(status), "{told}");
        assert!(told.contains(text), "{told}");
    }
    assert!(!dir.path().join("data").exists());
}
