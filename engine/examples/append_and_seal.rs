//! Append and seal: open a feed, append two batches, publish them as a commit, read them back.
//!
//! Run with `cargo run -p sealog-engine --example append_and_seal [DIRECTORY]`.

use futures_lite::future::block_on;
use sealog_engine::{Engine, EngineConfig, FeedOptions, ReadRequest, SessionOptions};
use sealog_frame::{BatchBuilder, FrameView, Record};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "./sealog-data".to_owned());
    let engine = Engine::open(EngineConfig::new(directory))?;
    let handle = engine.handle().clone();
    block_on(async {
        let keyed = FeedOptions {
            keys: true,
            ..FeedOptions::default()
        };
        handle.create_feed("orders", keyed).await?;
        let session = handle
            .open_session("orders", SessionOptions::default())
            .await?;
        let mut builder = BatchBuilder::new(handle.frame_limits());
        builder.push(&Record::of(b"hello"))?;
        builder.push(&Record::keyed(b"k2", 0, b"world"))?;
        let done = session.append(builder.build()?).await?;
        println!("durable: {}..={}", done.first, done.last);
        let commit = session.seal("hourly poll").await?;
        println!(
            "commit {} of {} records: {}",
            commit.number, commit.records, commit.message
        );
        let chunk = handle.read(ReadRequest::new("orders")).await?;
        let mut rest = &chunk.frames[..];
        while !rest.is_empty() {
            let (frame, after) = FrameView::split_trusted(rest)?;
            for record in frame.records() {
                println!(
                    "{} {}",
                    record.sequence,
                    String::from_utf8_lossy(record.payload)
                );
            }
            rest = after;
        }
        Ok::<_, Box<dyn std::error::Error>>(())
    })?;
    block_on(engine.close())?;
    Ok(())
}
