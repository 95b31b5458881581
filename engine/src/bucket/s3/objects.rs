//! Objects: whole objects of the store: create, swap, read, list, delete.
//!
//! **Invariants**
//! - A lost reply is resolved here and nowhere else: after a try that may have taken effect, "it exists"
//!   and "it changed" are answered by reading back; bytes that are ours are our own write.
//! - An object is absent only if the store says so of a bucket that it has.
//!
//! **Not here**: big objects (`upload`).

use std::ops::Range;

use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path as StorePath;
use object_store::{
    GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    UpdateVersion,
};

use super::backoff::Backoff;
use super::client::{Client, PATIENCE};
use super::reply::{Failure, Kind};
use crate::bucket::key::TMP_DIR;
use crate::env::{ETag, ObjectMeta, PutOutcome, SwapOutcome};

/// Rows of one page at most: what every store gives.
const PAGE_MAX: usize = 1000;

impl Client {
    /// See [`crate::env::Bucket::put_if_absent`].
    pub(super) async fn put_if_absent(
        &self,
        key: &str,
        data: PutPayload,
    ) -> Result<PutOutcome, Failure> {
        if self.is_unconditional() {
            return self.put_if_not_seen(key, data).await;
        }
        let path = self.path(key)?;
        let bytes = data.content_length();
        let mut backoff = Backoff::new(PATIENCE);
        let mut unsure = false;
        loop {
            self.pace(bytes).await;
            let options = PutOptions::from(PutMode::Create);
            let put = self.store().put_opts(&path, data.clone(), options);
            let failure = match self.attempt(bytes as u64, put).await {
                Ok(_) => return Ok(PutOutcome::Created),
                Err(failure) => failure,
            };
            match failure.kind {
                Kind::Condition if !unsure => return Ok(PutOutcome::Exists),
                Kind::Condition | Kind::Conflict => {
                    match self.get(key).await {
                        Ok((found, _)) if unsure && is_same(&found, &data) => {
                            return Ok(PutOutcome::Created);
                        }
                        Ok(_) => return Ok(PutOutcome::Exists),
                        // The other write isn't done, or failed; or the object was deleted since.
                        Err(gone) if gone.kind == Kind::NotFound => {}
                        Err(failure) => return Err(failure),
                    }
                    self.again(&mut backoff, failure.undecided()).await?;
                }
                _ => {
                    unsure |= failure.kind == Kind::Transient;
                    self.again(&mut backoff, failure).await?;
                }
            }
        }
    }

    /// See [`crate::env::Bucket::put_if_match`].
    pub(super) async fn put_if_match(
        &self,
        key: &str,
        tag: &ETag,
        data: PutPayload,
    ) -> Result<SwapOutcome, Failure> {
        let path = self.path(key)?;
        let bytes = data.content_length();
        let mut backoff = Backoff::new(PATIENCE);
        let mut unsure = false;
        loop {
            self.pace(bytes).await;
            let version = UpdateVersion {
                e_tag: Some(tag.0.clone()),
                version: None,
            };
            let options = PutOptions::from(PutMode::Update(version));
            let put = self.store().put_opts(&path, data.clone(), options);
            let failure = match self.attempt(bytes as u64, put).await {
                Ok(put) => return Ok(SwapOutcome::Swapped(ETag(put.e_tag.unwrap_or_default()))),
                Err(failure) => failure,
            };
            match failure.kind {
                // Stores differ in what they answer when there is nothing to replace.
                Kind::NotFound => return Ok(SwapOutcome::Mismatch),
                Kind::Condition if !unsure => return Ok(SwapOutcome::Mismatch),
                Kind::Condition | Kind::Conflict => {
                    match self.get(key).await {
                        Ok((_, now)) if now == *tag => {}
                        Ok((found, now)) if unsure && is_same(&found, &data) => {
                            return Ok(SwapOutcome::Swapped(now));
                        }
                        Ok(_) => return Ok(SwapOutcome::Mismatch),
                        Err(gone) if gone.kind == Kind::NotFound => {
                            return Ok(SwapOutcome::Mismatch);
                        }
                        Err(failure) => return Err(failure),
                    }
                    self.again(&mut backoff, failure.undecided()).await?;
                }
                _ => {
                    unsure |= failure.kind == Kind::Transient;
                    self.again(&mut backoff, failure).await?;
                }
            }
        }
    }

    /// A create with a store that knows no conditions.
    async fn put_if_not_seen(&self, key: &str, data: PutPayload) -> Result<PutOutcome, Failure> {
        match self.get(key).await {
            Ok(_) => return Ok(PutOutcome::Exists),
            Err(gone) if gone.kind == Kind::NotFound => {}
            Err(failure) => return Err(failure),
        }
        let path = self.path(key)?;
        let bytes = data.content_length();
        self.pace(bytes).await;
        let put = || {
            let options = PutOptions::from(PutMode::Overwrite);
            self.store().put_opts(&path, data.clone(), options)
        };
        self.attempts(PATIENCE, bytes as u64, put).await?;
        Ok(PutOutcome::Created)
    }

    /// See [`crate::env::Bucket::get`].
    pub(super) async fn get(&self, key: &str) -> Result<(Vec<u8>, ETag), Failure> {
        let path = self.path(key)?;
        self.read(&path, None).await
    }

    /// Reads until it is all here. How long the body may take, its length says, which comes before it.
    async fn read(
        &self,
        path: &StorePath,
        range: Option<Range<u64>>,
    ) -> Result<(Vec<u8>, ETag), Failure> {
        let mut backoff = Backoff::new(PATIENCE);
        loop {
            let options = GetOptions {
                range: range.clone().map(GetRange::Bounded),
                ..GetOptions::default()
            };
            let read = async {
                let found = self.attempt(0, self.store().get_opts(path, options));
                let found = found.await?;
                let tag = ETag(found.meta.e_tag.clone().unwrap_or_default());
                let len = found.range.end.saturating_sub(found.range.start);
                let body = self.attempt(len, found.bytes()).await?;
                Ok((Vec::from(body), tag))
            };
            match read.await {
                Ok(read) => return Ok(read),
                Err(failure) => self.again(&mut backoff, failure).await?,
            }
        }
    }

    /// See [`crate::env::Bucket::get_range`].
    pub(super) async fn get_range(
        &self,
        key: &str,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, Failure> {
        if len == 0 {
            return match self.head(key).await? {
                Some(_) => Ok(Vec::new()),
                None => Err(Failure::of(Kind::NotFound, "not found")),
            };
        }
        let path = self.path(key)?;
        let end = offset.saturating_add(len as u64);
        match self.read(&path, Some(offset..end)).await {
            Ok((bytes, _)) => Ok(bytes),
            Err(failure) if failure.kind == Kind::Range => Ok(Vec::new()),
            Err(failure) => Err(failure),
        }
    }

    /// See [`crate::env::Bucket::head`].
    pub(super) async fn head(&self, key: &str) -> Result<Option<u64>, Failure> {
        let path = self.path(key)?;
        match self
            .attempts(PATIENCE, 0, || self.store().head(&path))
            .await
        {
            Ok(meta) => Ok(Some(meta.size)),
            Err(failure) if failure.kind == Kind::NotFound => {
                // An answer to HEAD has no body that could say that the bucket is not there.
                self.list(key, "", 1).await?;
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Whether the store answers.
    pub(super) async fn knock(&self) -> Result<(), Failure> {
        let path = self.path(&format!("{TMP_DIR}/knock"))?;
        match self.attempt(0, self.store().head(&path)).await {
            Err(failure) if failure.kind != Kind::NotFound => Err(failure),
            _ => Ok(()),
        }
    }

    /// See [`crate::env::Bucket::list`].
    pub(super) async fn list(
        &self,
        prefix: &str,
        start_after: &str,
        limit: usize,
    ) -> Result<Vec<ObjectMeta>, Failure> {
        let mut rows = Vec::new();
        let full = self.name(prefix);
        let mut token = None;
        while rows.len() < limit {
            let page = || {
                let options = PaginatedListOptions {
                    offset: (!start_after.is_empty()).then(|| self.name(start_after)),
                    max_keys: Some((limit - rows.len()).min(PAGE_MAX)),
                    page_token: token.clone(),
                    ..PaginatedListOptions::default()
                };
                let prefix = (!full.is_empty()).then_some(full.as_str());
                self.store().list_paginated(prefix, options)
            };
            let page = self.attempts(PATIENCE, PAGE_MAX as u64, page).await?;
            for object in page.result.objects {
                let key = self.key(object.location.as_ref());
                let ours = key.filter(|key| !is_reserved(key));
                if let Some(key) = ours.filter(|_| rows.len() < limit) {
                    rows.push(ObjectMeta {
                        key: key.to_owned(),
                        len: object.size,
                    });
                }
            }
            token = page.page_token;
            if token.is_none() {
                break;
            }
        }
        Ok(rows)
    }

    /// See [`crate::env::Bucket::delete`].
    pub(super) async fn delete(&self, key: &str) -> Result<(), Failure> {
        let path = self.path(key)?;
        match self
            .attempts(PATIENCE, 0, || self.store().delete(&path))
            .await
        {
            Err(failure) if failure.kind == Kind::NotFound => Ok(()),
            done => done,
        }
    }
}

/// Our own corner: no key begins with it.
fn is_reserved(key: &str) -> bool {
    key.strip_prefix(TMP_DIR)
        .is_some_and(|rest| rest.starts_with('/'))
}

fn is_same(found: &[u8], data: &PutPayload) -> bool {
    let mut rest = found;
    for part in data {
        let Some(after) = rest.strip_prefix(part.as_ref()) else {
            return false;
        };
        rest = after;
    }
    rest.is_empty()
}
