//! Guide: the programs that the client's documentation shows, run against a real server.
//!
//! **Invariants**
//! - What the guide claims, its programs assert.
//!
//! **Not here**: the programs (`server/client/examples`).

use std::time::Duration;

use crate::server::Server;

#[path = "../../client/examples/failures.rs"]
mod failures;
#[path = "../../client/examples/following.rs"]
mod following;
#[path = "../../client/examples/quick_start.rs"]
mod quick_start;
#[path = "../../client/examples/sessions.rs"]
mod sessions;
#[path = "../../client/examples/tuning.rs"]
mod tuning;

#[test]
fn guide_runs() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let address = server.address.to_string();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let all = async {
            quick_start::run(&address).await.expect("quick start");
            sessions::run(&address).await.expect("sessions");
            failures::run(&address).await.expect("failures");
            following::run(&address).await.expect("following");
            tuning::run(&address).await.expect("tuning");
        };
        let done = tokio::time::timeout(Duration::from_secs(60), all).await;
        done.expect("the guide ends");
    });
}
