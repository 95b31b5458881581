//! Sweep: streams that have ended by themselves are deleted also when nobody asks for them.
//!
//! **Invariants**
//! - One shard sweeps for all; what it deletes was over when it looked.
//!
//! **Not here**: when a stream is over (`traits`).

use std::time::Duration;

use sealog_engine::Error;

use super::Traits;
use crate::http::HttpService;

/// Between two sweeps.
const PAUSE: Duration = Duration::from_secs(10);
/// Feeds looked at in one go.
const PAGE: usize = 256;

/// Sweeps again and again; ends never.
pub(in crate::http) async fn sweep(service: &HttpService) {
    loop {
        service.side.sleep(PAUSE).await;
        // What goes wrong now may go well the next time; whoever asks meanwhile is told it is gone.
        let _ = sweep_once(service).await;
    }
}

async fn sweep_once(service: &HttpService) -> Result<(), Error> {
    let handle = service.side.handle();
    let mut after = String::new();
    loop {
        let page = handle.list_feeds("", &after, PAGE).await?;
        for info in &page {
            if info.options.attributes.is_empty() {
                continue;
            }
            let traits = Traits::of(info);
            if service.options.lifetimes.is_over(info, &traits) {
                match handle.delete_this_feed(&info.name, info.id).await {
                    Ok(()) | Err(Error::FeedNotFound { .. } | Error::FeedGone { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        match page.last() {
            Some(last) if page.len() == PAGE => after.clone_from(&last.name),
            _ => return Ok(()),
        }
        service.side.yield_if_needed().await;
    }
}
