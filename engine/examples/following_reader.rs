//! Following reader: reads what is there, then waits for more at the durable tail.
//!
//! Run with `cargo run -p sealog-engine --example following_reader [DIRECTORY]`.

use std::time::Duration;

use futures_lite::future::block_on;
use sealog_engine::{Engine, EngineConfig, FeedOptions, ReadFrom, ReadRequest};
use sealog_frame::{BatchBuilder, FrameView, Record};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "./sealog-data".to_owned());
    let engine = Engine::open(EngineConfig::new(directory))?;
    let handle = engine.handle().clone();
    block_on(handle.create_feed("ticks", FeedOptions::default()))?;
    let tail = block_on(handle.feed("ticks"))?.next_sequence;
    let writer = handle.clone();
    let writing = std::thread::spawn(move || -> Result<(), String> {
        for tick in 0..5 {
            let mut builder = BatchBuilder::default();
            let text = format!("tick {tick}");
            builder
                .push(&Record::of(text.as_bytes()))
                .map_err(|e| e.to_string())?;
            let batch = builder.build().map_err(|e| e.to_string())?;
            block_on(writer.append("ticks", batch)).map_err(|e| e.to_string())?;
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    });
    let mut request = ReadRequest::new("ticks");
    request.from = ReadFrom::Sequence(tail);
    request.wait = Duration::from_secs(20);
    let mut seen = 0;
    while seen < 5 {
        let chunk = block_on(handle.read(request.clone()))?;
        let mut rest = &chunk.frames[..];
        while !rest.is_empty() {
            let (frame, after) = FrameView::split_trusted(rest)?;
            for record in frame.records().filter(|r| r.sequence >= chunk.first) {
                println!(
                    "{} {}",
                    record.sequence,
                    String::from_utf8_lossy(record.payload)
                );
                seen += 1;
            }
            rest = after;
        }
        request.from = ReadFrom::Sequence(chunk.next);
    }
    writing.join().map_err(|_| "writer panicked")??;
    block_on(engine.close())?;
    Ok(())
}
