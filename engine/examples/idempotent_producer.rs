//! Idempotent producer: every batch carries (id, epoch, sequence), so a retry is stored once.
//!
//! Run with `cargo run -p sealog-engine --example idempotent_producer [DIRECTORY]`.

use futures_lite::future::block_on;
use sealog_engine::{Engine, EngineConfig, Error, FeedOptions};
use sealog_frame::{Batch, BatchBuilder, FrameError, Record};

fn reading(sequence: u64) -> Result<Batch, FrameError> {
    let mut builder = BatchBuilder::default();
    builder.push(&Record::of(format!("reading {sequence}").as_bytes()))?;
    builder.producer(b"sensor-7", 0, sequence)?;
    builder.build()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "./sealog-data".to_owned());
    let engine = Engine::open(EngineConfig::new(directory))?;
    let handle = engine.handle().clone();
    block_on(async {
        handle
            .create_feed("readings", FeedOptions::default())
            .await?;
        // Where did we stop? A producer that was never seen starts at 0.
        let known = handle.producer("readings", b"sensor-7").await?;
        let next = known.map_or(0, |state| state.last_sequence + 1);
        let first = handle.append("readings", reading(next)?).await?;
        println!("sent {next}: record {}", first.first);
        // The same batch again, as after a lost answer: acknowledged, not stored twice.
        let again = handle.append("readings", reading(next)?).await?;
        println!(
            "sent {next} again: record {}, duplicate: {}",
            again.first, again.duplicate
        );
        assert!(again.duplicate && again.first == first.first);
        // Skipping one is refused, and says what must come next.
        match handle.append("readings", reading(next + 2)?).await {
            Err(Error::ProducerGap { expected, received }) => {
                println!("sent {received}: refused, {expected} is next");
            }
            other => println!("unexpected: {other:?}"),
        }
        Ok::<_, Box<dyn std::error::Error>>(())
    })?;
    block_on(engine.close())?;
    Ok(())
}
