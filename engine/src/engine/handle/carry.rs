//! Carry: brings the news of feeds to the subscriptions that are linked to them.
//!
//! ```text
//!  log A: group durable -> watch -> news ---.
//!                                            registry: who cares? -> log B: note tails -> wake
//!  log B: subscription made -> news --------'  (then all its feeds are looked at once)
//! ```
//!
//! **Invariants**
//! - A subscription is in the registry, and all logs watch their feeds, before its feeds are looked at: what is
//!   appended later is news.
//! - Nothing is kept here that a restart would miss: every subscription's feeds are looked at when it is heard
//!   of first.
//! - While there is no subscription, no log watches feeds.
//!
//! **Not here**: decisions (`shard`), what a wake leads to (front ends).

use std::rc::Rc;

use super::Handle;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::shard::{LogService, News};
use crate::subscription::Registry;

impl<E: Env> Handle<E> {
    /// Carries what `log` has to tell, as long as it does. One call per log is to run, all with one registry;
    /// without them nobody is woken.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Closed`]: the log's end. Storage that is full is waited out by the
    /// subscription's own log.
    ///
    /// # Cancel safety
    /// Dropped, what it had taken is lost until the next start, or the next record of the feed.
    pub async fn carry_news(&self, log: usize, registry: &Registry) -> Result<()> {
        for name in self.subscription_names(log).await? {
            self.learn(&name, registry).await?;
        }
        loop {
            let news = self.ask(log, |s| async move { s.news().await }).await?;
            for name in &news.subscriptions {
                self.learn(name, registry).await?;
            }
            self.spread(news, registry).await?;
        }
    }

    /// Takes note of a subscription, and looks at all its feeds.
    async fn learn(&self, name: &str, registry: &Registry) -> Result<()> {
        let selector = self.selector(name).await?;
        registry.set(name, selector.clone());
        self.watch_feeds(name, selector.is_some()).await?;
        let Some(selector) = selector else {
            return Ok(());
        };
        lasting(self.look(name, &selector).await)
    }

    /// Has every log watch its feeds for a subscription's sake, or no more.
    async fn watch_feeds(&self, name: &str, wanted: bool) -> Result<()> {
        for log in 0..self.logs() {
            let name = name.to_owned();
            let job = move |s: Rc<LogService<E>>| async move {
                s.watch_feeds(name, wanted);
                Ok(())
            };
            self.ask(log, job).await?;
        }
        Ok(())
    }

    async fn spread(&self, news: News, registry: &Registry) -> Result<()> {
        let changed = news.tails.iter().map(|tail| tail.name.as_str());
        let gone = news.gone.iter().map(|(name, _)| name.as_str());
        let names: Vec<&str> = changed.chain(gone).collect();
        for (subscription, hits) in registry.interested(&names) {
            let (mut tails, mut gone) = (Vec::new(), Vec::new());
            for at in hits {
                match news.tails.get(at) {
                    Some(tail) => tails.push(tail.clone()),
                    None => gone.push(news.gone[at - news.tails.len()].clone()),
                }
            }
            lasting(self.note_tails(&subscription, tails, gone).await)?;
        }
        Ok(())
    }
}

/// Only a log's end ends the carrying.
fn lasting(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(error @ (Error::Poisoned { .. } | Error::Closed)) => Err(error),
        _ => Ok(()),
    }
}
