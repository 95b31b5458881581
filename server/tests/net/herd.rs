//! Herd: a thousand clients whose server was away (R13).
//!
//! **Invariants**
//! - Tries are spread over the whole back-off, also once every client is at its cap.
//! - Everyone is answered soon after the server is back.
//!
//! **Not here**: the arithmetic of the back-off (the client's own tests).

use std::sync::atomic::Ordering;
use std::time::Duration;

use sealog_client::{AppendSession, Client, ClientOptions, FeedOptions};
use tokio::task::JoinSet;

use crate::client::{start_one_shard, within};
use crate::proxy::Proxy;

const CLIENTS: usize = 1_000;
/// How long the server is away: every client is at the cap of 5 s for most of it.
const AWAY: Duration = Duration::from_secs(20);
/// When all are at the cap.
const AT_CAP: Duration = Duration::from_secs(8);
/// Tries are counted in pieces of this.
const PIECE: Duration = Duration::from_millis(500);
/// Everyone is answered so soon after the server is back.
const BACK: Duration = Duration::from_secs(60);

async fn join(address: String, number: usize) -> AppendSession {
    let options = ClientOptions {
        request_timeout: Duration::from_secs(120),
        ..ClientOptions::default()
    };
    let client = Client::connect_with(&address, options).await.unwrap();
    let feed = format!("herd-{number}");
    client
        .create_feed(&feed, FeedOptions::default())
        .await
        .unwrap();
    let session = client.open(&feed).await.unwrap();
    session.submit(b"before".as_slice()).await.unwrap();
    session
}

#[test]
fn case_r13_a_thousand_clients_come_back_spread_and_are_all_answered() {
    let dir = tempfile::tempdir().unwrap();
    within(240, async {
        let server = start_one_shard(dir.path()).await;
        let proxy = Proxy::start(server.address, []).await;
        let address = proxy.address.to_string();
        let mut joining = JoinSet::new();
        for number in 0..CLIENTS {
            joining.spawn(join(address.clone(), number));
            if number % 50 == 49 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        let sessions = joining.join_all().await;

        drop(server);
        let mut waiting = JoinSet::new();
        for session in sessions {
            waiting.spawn(async move {
                let ack = session.submit(b"after".as_slice()).await.unwrap();
                assert_eq!(ack.first, 1, "once, behind the first");
                session
            });
        }
        tokio::time::sleep(AT_CAP).await;
        let mut tries = Vec::new();
        let mut seen = proxy.connections.load(Ordering::SeqCst);
        for _ in 0..(AWAY - AT_CAP).as_millis() / PIECE.as_millis() {
            tokio::time::sleep(PIECE).await;
            let now = proxy.connections.load(Ordering::SeqCst);
            tries.push(now - seen);
            seen = now;
        }
        let all: usize = tries.iter().sum();
        assert!(all >= CLIENTS, "every client goes on trying: {tries:?}");
        let most = tries.iter().max().unwrap();
        assert!(most * 4 <= all, "a quarter of all tries at once: {tries:?}");

        let server = start_one_shard(dir.path()).await;
        proxy.aim(server.address);
        let answered = tokio::time::timeout(BACK, waiting.join_all()).await;
        assert_eq!(answered.expect("all are answered").len(), CLIENTS);
    });
}
