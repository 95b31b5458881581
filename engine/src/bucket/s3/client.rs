//! Client: one request to the store at a time: where keys lie, how long an answer may take, and what
//! is remembered of how the store is doing.
//!
//! **Invariants**
//! - Nothing is sent again unseen: the library's own retries are off, because a conditional write that
//!   was applied and sent again answers that somebody else's object is there.
//! - No more than [`REQUESTS_MAX`] requests are under way.
//!
//! **Not here**: what is sent again (`objects`, `upload`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::path::Path as StorePath;
use object_store::{ClientOptions, RetryConfig};
use tokio::sync::Semaphore;

use super::backoff::Backoff;
use super::profile::{Profile, Surroundings};
use super::reply::{Failure, Kind, Listening, listen};
use crate::bucket::S3Options;
use crate::env::BucketHealth;

/// Requests under way at most.
const REQUESTS_MAX: usize = 16;
/// How long a connection may take to be made.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// How long an answer may take, and how much longer for what it carries.
const ANSWER_WAIT: Duration = Duration::from_secs(15);
const BYTES_PER_S_MIN: u64 = 32 << 10;
/// How long a call goes on trying.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How the store has been doing.
#[derive(Default)]
struct Health {
    /// Since when nothing has gone well, and the last that went wrong.
    tried: bool,
    trouble: Option<(Instant, String)>,
}

/// The store, and our place in it.
pub(super) struct Client {
    store: AmazonS3,
    options: S3Options,
    permits: Semaphore,
    /// The store ignores conditions, and is used all the same.
    unconditional: AtomicBool,
    /// When the next upload may begin, if uploads are bounded.
    upload_at: Mutex<Instant>,
    health: Mutex<Health>,
    retries: AtomicU64,
    pub(super) leftovers: AtomicU64,
}

impl Client {
    /// A client for `options`; nothing is sent yet.
    pub(super) fn new(options: &S3Options) -> Result<Self, Failure> {
        let region = options.region.clone().or_else(|| {
            let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
            variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION"))
        });
        let profile = profile()?;
        let region = region.or(profile.region);
        let region = region.unwrap_or_else(|| "us-east-1".to_owned());
        let mut client = ClientOptions::new()
            .with_connect_timeout(CONNECT_WAIT)
            .with_timeout_disabled()
            .with_pool_max_idle_per_host(REQUESTS_MAX);
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(&options.bucket)
            .with_region(&region);
        if let Some(keys) = profile.keys {
            builder = builder
                .with_access_key_id(keys.id)
                .with_secret_access_key(keys.secret);
            if let Some(token) = keys.token {
                builder = builder.with_token(token);
            }
        }
        if let Some(endpoint) = &options.endpoint {
            // Whoever writes http:// means it.
            client = client.with_allow_http(endpoint.starts_with("http://"));
            builder = builder
                .with_endpoint(endpoint)
                .with_virtual_hosted_style_request(false);
        }
        let store = builder
            .with_client_options(client)
            .with_http_connector(Listening)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_disable_bulk_delete(true)
            .with_retry(RetryConfig {
                max_retries: 0,
                retry_timeout: Duration::ZERO,
                ..RetryConfig::default()
            })
            .build()
            .map_err(|error| Failure::of(Kind::Denied, error.to_string()))?;
        Ok(Self {
            store,
            options: options.clone(),
            unconditional: AtomicBool::new(false),
            permits: Semaphore::new(REQUESTS_MAX),
            upload_at: Mutex::new(Instant::now()),
            health: Mutex::default(),
            retries: AtomicU64::new(0),
            leftovers: AtomicU64::new(0),
        })
    }

    /// The store.
    pub(super) fn store(&self) -> &AmazonS3 {
        &self.store
    }

    /// What the bucket was opened with.
    pub(super) fn options(&self) -> &S3Options {
        &self.options
    }

    /// From now on conditions are looked at by us, before writing: two writers may both win.
    pub(super) fn do_without_conditions(&self) {
        self.unconditional.store(true, Ordering::Relaxed);
    }

    /// Whether the store ignores conditions.
    pub(super) fn is_unconditional(&self) -> bool {
        self.unconditional.load(Ordering::Relaxed)
    }

    /// What a key is called in the store.
    pub(super) fn name(&self, key: &str) -> String {
        match self.options.prefix.as_str() {
            "" => key.to_owned(),
            prefix => format!("{prefix}/{key}"),
        }
    }

    /// The key of an object of the store; `None` if it is not below our prefix.
    pub(super) fn key<'a>(&self, name: &'a str) -> Option<&'a str> {
        match self.options.prefix.as_str() {
            "" => Some(name),
            prefix => name.strip_prefix(prefix)?.strip_prefix('/'),
        }
    }

    /// A key as the library wants it.
    pub(super) fn path(&self, key: &str) -> Result<StorePath, Failure> {
        StorePath::parse(self.name(key)).map_err(|e| Failure::of(Kind::Denied, e.to_string()))
    }

    /// Makes one attempt that carries `bytes` either way.
    pub(super) async fn attempt<T>(
        &self,
        bytes: u64,
        attempt: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, Failure> {
        let limit = ANSWER_WAIT + Duration::from_secs(bytes / BYTES_PER_S_MIN);
        let permit = self.permits.acquire().await;
        let (done, heard) = listen(tokio::time::timeout(limit, attempt)).await;
        drop(permit);
        let done = match done {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(Failure::read(&error, heard)),
            Err(_) => {
                let text = format!("no answer within {} s", limit.as_secs());
                Err(Failure::of(Kind::Transient, text))
            }
        };
        self.remember(done.as_ref().err());
        done
    }

    /// As [`Client::attempt`], again and again until the patience ends.
    pub(super) async fn attempts<T, F>(
        &self,
        patience: Duration,
        bytes: u64,
        attempt: impl Fn() -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let mut backoff = Backoff::new(patience);
        loop {
            match self.attempt(bytes, attempt()).await {
                Ok(value) => return Ok(value),
                Err(failure) => self.again(&mut backoff, failure).await?,
            }
        }
    }

    /// Waits before another try, or gives the failure back.
    pub(super) async fn again(
        &self,
        backoff: &mut Backoff,
        failure: Failure,
    ) -> Result<(), Failure> {
        backoff.wait(failure).await?;
        self.retries.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until an upload of `bytes` may begin.
    pub(super) async fn pace(&self, bytes: usize) {
        let rate = self.options.upload_bytes_per_s;
        if rate == 0 {
            return;
        }
        let takes = Duration::from_secs_f64(bytes as f64 / rate as f64);
        let begin = {
            let mut at = self
                .upload_at
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let begin = (*at).max(Instant::now());
            *at = begin + takes;
            begin
        };
        tokio::time::sleep_until(begin.into()).await;
    }

    fn remember(&self, failure: Option<&Failure>) {
        let bad = failure.filter(|failure| {
            matches!(
                failure.kind,
                Kind::Transient | Kind::Denied | Kind::Full | Kind::Unsupported
            )
        });
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        health.tried = true;
        match bad {
            None => health.trouble = None,
            Some(failure) => {
                let since = health
                    .trouble
                    .as_ref()
                    .map_or_else(Instant::now, |(t, _)| *t);
                health.trouble = Some((since, failure.to_string()));
            }
        }
    }

    /// Whether the last attempt failed.
    pub(super) fn in_trouble(&self) -> bool {
        let health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        health.trouble.is_some()
    }

    /// How the store has been doing.
    pub(super) fn health(&self) -> BucketHealth {
        let health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        let trouble = health.trouble.as_ref();
        BucketHealth {
            tried: health.tried,
            trouble: trouble.map(|(since, text)| (text.clone(), since.elapsed())),
            retries: self.retries.load(Ordering::Relaxed),
            leftovers: self.leftovers.load(Ordering::Relaxed),
            cache_bytes: 0,
        }
    }
}

/// The profile to use: none where the process's own variables name credentials, or where they come from.
fn profile() -> Result<Profile, Failure> {
    let given = ["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"];
    if given.iter().any(|name| std::env::var_os(name).is_some()) {
        return Ok(Profile::default());
    }
    let found = Surroundings::of_process().profile();
    found.map_err(|text| Failure::of(Kind::Denied, text))
}
