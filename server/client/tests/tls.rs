//! TLS: the client over rustls, to whom it trusts and to nobody else.
//!
//! **Invariants**
//! - Every test ends within its deadline. The key in `tls/` is of no use elsewhere.
//!
//! **Not here**: plain connections (all other tests).
#![allow(clippy::unwrap_used, reason = "tests report by panicking")]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;

use common::fake::Fake;
use common::{quick, within};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sealog_client::{Client, ClientOptions, Effects, ErrorKind, FeedOptions, Tls};
use tokio::net::{TcpListener, TcpStream};

const CERTIFICATE: &[u8] = include_bytes!("tls/cert.pem");
const KEY: &[u8] = include_bytes!("tls/key.pem");

/// Takes TLS off in front of `target`.
async fn terminate(target: SocketAddr) -> SocketAddr {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificate = CertificateDer::from_pem_slice(CERTIFICATE).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate],
            PrivateKeyDer::from_pem_slice(KEY).unwrap(),
        )
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut inside) = acceptor.accept(socket).await else {
                    return;
                };
                let mut plain = TcpStream::connect(target).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut inside, &mut plain).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn session_over_tls_appends_large_and_small_batches() {
    within(20, async {
        let fake = Fake::start().await;
        let address = terminate(fake.address).await;
        let options = ClientOptions {
            tls: Some(Tls::trusting(CERTIFICATE).unwrap()),
            ..quick()
        };
        let client = Client::connect_with(&address.to_string(), options)
            .await
            .unwrap();
        client
            .create_feed("f", FeedOptions::default())
            .await
            .unwrap();
        let session = client.open("f").await.unwrap();
        let (small, large) = (vec![1; 100], vec![2; 300_000]);
        let mut tickets = Vec::new();
        for _ in 0..20 {
            tickets.push(session.submit(small.as_slice()));
            tickets.push(session.submit(large.as_slice()));
        }
        for (number, ticket) in (0..).zip(tickets) {
            assert_eq!(ticket.await.unwrap().first, number);
        }
        let stored = fake.payloads("f");
        assert!(
            stored
                .chunks(2)
                .all(|pair| pair[0] == small && pair[1] == large)
        );
        let read = client
            .read("f", &sealog_client::ReadOptions::default())
            .await
            .unwrap();
        assert!(read.records().count() > 1);
    })
    .await;
}

#[tokio::test]
async fn server_that_is_not_trusted_or_has_another_name_is_not_spoken_to() {
    within(20, async {
        let fake = Fake::start().await;
        let address = terminate(fake.address).await;
        let trusting = Tls::trusting(CERTIFICATE).unwrap();
        let mut options = ClientOptions {
            tls: Some(trusting.clone().server_name("elsewhere.example").unwrap()),
            ..quick()
        };
        let began = std::time::Instant::now();
        let error = Client::connect_with(&address.to_string(), options.clone()).await;
        let error = error.err().unwrap();
        assert!(matches!(error.kind(), ErrorKind::Connect { .. }), "{error}");
        assert!(!error.is_retryable() && error.effects() == Effects::None);
        assert!(
            began.elapsed() < options.request_timeout / 2,
            "told at once"
        );
        options.tls = Some(trusting.server_name("localhost").unwrap());
        Client::connect_with(&address.to_string(), options.clone())
            .await
            .unwrap();
        // Plain text to a port that expects TLS, and the other way round.
        options.tls = None;
        let error = Client::connect_with(&address.to_string(), options.clone()).await;
        assert_eq!(error.err().unwrap().effects(), Effects::None);
        options.tls = Some(Tls::trusting(CERTIFICATE).unwrap());
        assert!(
            Client::connect_with(&fake.address.to_string(), options)
                .await
                .is_err()
        );
    })
    .await;
}
