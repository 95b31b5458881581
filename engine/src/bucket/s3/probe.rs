//! Probe: whether the store keeps the promises that a bucket rests on, found out before it is used.
//!
//! ```text
//!  create K: made | create K again: refused | read K: the first | swap K, stale tag: refused
//!  swap K, right tag: made | read a range: just that | list: K is there | delete K
//! ```
//!
//! **Invariants**
//! - A store is refused for what it does, never for what it calls itself; the refusal names what is missing.
//! - A store that does not answer has not failed: the probe goes on until one answers.
//! - The probe's objects have random names in our own corner; what a crash left of older ones is deleted.
//!
//! **Not here**: uploads in parts that were left behind (`stale`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::{
    GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    UpdateVersion,
};

use super::backoff::wait_before;
use super::client::Client;
use super::reply::{Failure, Kind};
use crate::bucket::key::TMP_DIR;
use crate::env::random_u64;

/// How long opening waits for the store to prove itself.
const OPEN_WAIT: Duration = Duration::from_secs(10);
/// Probes older than this are a crash's.
const LEFTOVER_AGE: Duration = Duration::from_secs(3600);
/// A well-formed tag that no object has.
const STALE_TAG: &str = "\"00000000000000000000000000000000\"";

/// What is known of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// Nothing yet; why.
    Unknown(String),
    /// It won't have us; why. It may change its mind.
    Denied(String),
    /// It can't be a bucket; why.
    Refused(String),
    /// It is fit for use.
    Passed,
}

/// Lets calls through once the store has proved itself.
pub(super) struct Gate {
    verdict: Mutex<Verdict>,
    news: flume::Sender<Verdict>,
}

impl Gate {
    /// A closed gate, and where its news come out.
    pub(super) fn closed() -> (Self, News) {
        let (news, hear) = flume::unbounded();
        let verdict = Mutex::new(Verdict::Unknown("not asked yet".to_owned()));
        (Self { verdict, news }, News(hear))
    }

    /// A gate for those who only read.
    pub(super) fn open() -> Self {
        let (gate, _) = Self::closed();
        gate.set(Verdict::Passed);
        gate
    }

    /// Whether calls may pass.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let verdict = self.verdict.lock().unwrap_or_else(PoisonError::into_inner);
        match &*verdict {
            Verdict::Passed => Ok(()),
            Verdict::Unknown(text) => Err(Failure::of(Kind::Transient, text)),
            Verdict::Denied(text) | Verdict::Refused(text) => Err(Failure::of(Kind::Denied, text)),
        }
    }

    fn set(&self, verdict: Verdict) {
        *self.verdict.lock().unwrap_or_else(PoisonError::into_inner) = verdict.clone();
        // Nobody listens any more once the bucket is open.
        let _ = self.news.send(verdict);
    }
}

/// What the opener of a bucket hears.
pub(super) struct News(flume::Receiver<Verdict>);

impl News {
    /// Waits for a verdict, for so long as one may wait. A store that does not answer is no error.
    pub(super) fn wait(&self) -> Result<(), String> {
        let until = Instant::now() + OPEN_WAIT;
        loop {
            match self.0.recv_deadline(until) {
                Ok(Verdict::Unknown(_)) => {}
                Ok(Verdict::Passed) | Err(_) => return Ok(()),
                Ok(Verdict::Denied(text) | Verdict::Refused(text)) => return Err(text),
            }
        }
    }
}

/// Probes until there is a verdict that stands.
pub(super) async fn run(client: Arc<Client>, gate: Arc<Gate>) {
    let mut tries = 0;
    loop {
        let failure = match prove(&client).await {
            Ok(()) => {
                gate.set(Verdict::Passed);
                // What can't be cleaned up now is cleaned up by another start.
                let _ = clean(&client).await;
                return;
            }
            Err(failure) => failure,
        };
        let text = failure.to_string();
        match failure.kind {
            Kind::Unsupported => return gate.set(Verdict::Refused(text)),
            Kind::Denied => gate.set(Verdict::Denied(text)),
            _ => gate.set(Verdict::Unknown(text)),
        }
        tokio::time::sleep(wait_before(tries, failure.retry_after, random_u64())).await;
        tries += 1;
    }
}

/// One round of the probe.
async fn prove(client: &Client) -> Result<(), Failure> {
    let key = format!("{TMP_DIR}/probe-{:016x}{:016x}", random_u64(), random_u64());
    let conditions = conditions(client, &key).await;
    if let Err(lack) = conditions {
        let unsafe_use = client.options().ignore_missing_conditions;
        if lack.kind != Kind::Unsupported || !unsafe_use {
            let _ = client
                .attempt(0, client.store().delete(&client.path(&key)?))
                .await;
            return Err(lack);
        }
        client.do_without_conditions();
        put(client, &key, b"first", PutMode::Overwrite).await?;
    }
    let rest = ranges_and_listing(client, &key).await;
    client
        .attempt(0, client.store().delete(&client.path(&key)?))
        .await?;
    rest
}

/// Conditional creates and swaps.
async fn conditions(client: &Client, key: &str) -> Result<(), Failure> {
    match put(client, key, b"first", PutMode::Create).await {
        Ok(_) => {}
        Err(failure) if failure.kind == Kind::Unsupported => return Err(lacks_create(&failure)),
        Err(failure) if is_condition(&failure) => {
            let text = format!("the store says that a new object is there already: {failure}");
            return Err(Failure::of(Kind::Transient, text));
        }
        Err(failure) => return Err(failure),
    }
    match put(client, key, b"second", PutMode::Create).await {
        Ok(_) => return Err(lacks_create(&"it made the same object twice")),
        Err(failure) if is_condition(&failure) => {}
        Err(failure) if failure.kind == Kind::Unsupported => return Err(lacks_create(&failure)),
        Err(failure) => return Err(failure),
    }
    let path = client.path(key)?;
    let (found, tag) = client
        .attempt(0, async {
            let found = client.store().get(&path).await?;
            let tag = found.meta.e_tag.clone();
            Ok((found.bytes().await?, tag))
        })
        .await?;
    if found.as_ref() != b"first" {
        return Err(lacks_create(&"a refused create changed the object"));
    }
    match put(client, key, b"stale", swap(Some(STALE_TAG.to_owned()))).await {
        Ok(_) => return Err(lacks_swap(&"a stale tag was accepted")),
        Err(failure) if is_condition(&failure) || failure.kind == Kind::NotFound => {}
        Err(failure) if failure.kind == Kind::Unsupported => return Err(lacks_swap(&failure)),
        Err(failure) => return Err(failure),
    }
    match put(client, key, b"first", swap(tag)).await {
        Ok(_) => Ok(()),
        Err(failure) if is_condition(&failure) || failure.kind == Kind::Unsupported => {
            Err(lacks_swap(&failure))
        }
        Err(failure) => Err(failure),
    }
}

/// What reading needs.
async fn ranges_and_listing(client: &Client, key: &str) -> Result<(), Failure> {
    let path = client.path(key)?;
    let range = client
        .attempt(0, async {
            let options = GetOptions {
                range: Some(GetRange::Bounded(1..4)),
                ..GetOptions::default()
            };
            client.store().get_opts(&path, options).await?.bytes().await
        })
        .await;
    match range {
        Ok(part) if part.as_ref() == b"irs" => {}
        Ok(_) => {
            return Err(lacks(
                "reads of a range of bytes",
                &"another range came back",
            ));
        }
        Err(failure) if failure.kind == Kind::Unsupported => {
            return Err(lacks("reads of a range of bytes", &failure));
        }
        Err(failure) => return Err(failure),
    }
    let options = PaginatedListOptions::default();
    let listed = client.store().list_paginated(Some(path.as_ref()), options);
    match client.attempt(0, listed).await {
        Ok(page) if page.result.objects.iter().any(|o| o.location == path) => Ok(()),
        Ok(_) => Err(lacks("listing", &"a new object is not listed")),
        Err(failure) if failure.kind == Kind::Unsupported => Err(lacks("listing", &failure)),
        Err(failure) => Err(failure),
    }
}

async fn put(
    client: &Client,
    key: &str,
    data: &'static [u8],
    mode: PutMode,
) -> Result<(), Failure> {
    let path = client.path(key)?;
    let put = client
        .store()
        .put_opts(&path, PutPayload::from_static(data), PutOptions::from(mode));
    client.attempt(0, put).await.map(drop)
}

fn swap(e_tag: Option<String>) -> PutMode {
    PutMode::Update(UpdateVersion {
        e_tag: Some(e_tag.unwrap_or_default()),
        version: None,
    })
}

/// Whether the condition was looked at and does not hold.
fn is_condition(failure: &Failure) -> bool {
    matches!(failure.kind, Kind::Condition | Kind::Conflict)
}

fn lacks_create(why: &dyn std::fmt::Display) -> Failure {
    lacks("conditional creates (If-None-Match)", why)
}

fn lacks_swap(why: &dyn std::fmt::Display) -> Failure {
    lacks("conditional replacement (If-Match)", why)
}

fn lacks(what: &str, why: &dyn std::fmt::Display) -> Failure {
    let text = format!("the store lacks {what}, without which two writers both win: {why}");
    Failure::of(Kind::Unsupported, text)
}

/// Deletes what crashed probes left.
async fn clean(client: &Client) -> Result<(), Failure> {
    let prefix = client.name(&format!("{TMP_DIR}/probe-"));
    let options = PaginatedListOptions::default();
    let listed = client.store().list_paginated(Some(&prefix), options);
    let now = SystemTime::now();
    for object in client.attempt(0, listed).await?.result.objects {
        let age = now.duration_since(SystemTime::from(object.last_modified));
        if age.is_ok_and(|age| age > LEFTOVER_AGE) {
            let delete = client.store().delete(&object.location);
            client.attempt(0, delete).await?;
        }
    }
    Ok(())
}
