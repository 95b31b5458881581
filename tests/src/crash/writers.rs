//! Writers: what the process that will be killed does: appends, seals, resumes, all at once.
//!
//! **Invariants**
//! - Each writer is one idempotent producer and goes on where the engine says it stands.
//! - Payloads say whose they are: writer, producer sequence, index in the batch, size of the batch.
//!
//! **Not here**: killing (`rounds`), checking (`check`).

use std::io::Write;

use futures_lite::future::block_on;
use sealog_engine::commit::CommitKind;
use sealog_engine::{Engine, Error, FeedOptions, Handle, ProductionEnv, SessionOptions};
use sealog_frame::{Batch, BatchBuilder, Record};

use super::note::Note;
use super::{FEEDS, Place, WRITERS, feed_name};
use crate::sim::rng::Rng;

/// Opens the directory and writes until killed. With `only_open`, opens, notes it, and waits.
///
/// # Panics
/// When the engine does not open, or answers what it must not: the parent sees the exit status.
pub fn run(place: &Place, seed: u64, only_open: bool) {
    say(Note::Opening);
    let engine = Engine::open(place.config()).expect("opens without a manual step");
    say(Note::Opened);
    if only_open {
        std::thread::sleep(std::time::Duration::from_secs(60));
        return;
    }
    let handle = engine.handle().clone();
    for feed in 0..FEEDS {
        let options = FeedOptions {
            keys: feed % 2 == 0,
            exclusive: false,
            ..FeedOptions::default()
        };
        block_on(handle.create_feed(&feed_name(feed), options)).expect("created");
    }
    let threads: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let handle = handle.clone();
            std::thread::spawn(move || write(&handle, writer, seed))
        })
        .collect();
    for thread in threads {
        thread.join().expect("writer runs until killed");
    }
}

fn say(note: Note) {
    let line = format!("{note}\n");
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).expect("parent reads");
    out.flush().expect("parent reads");
}

fn write(handle: &Handle<ProductionEnv>, writer: usize, seed: u64) {
    let mut random = Rng::derive(seed.wrapping_add(writer as u64), "crash writer");
    let feed = writer % FEEDS;
    let name = feed_name(feed);
    let id = producer_id(writer);
    let known = block_on(handle.producer(&name, &id)).expect("feed is there");
    let mut sequence = known.map_or(0, |state| state.last_sequence + 1);
    loop {
        match random.below(20) {
            0 => seal(handle, writer, feed),
            1 => takeover(handle, writer, feed, &mut random),
            _ => {
                let records = 1 + random.below(20);
                let bytes = 8 + random.below(2000);
                let batch = batch(writer, sequence, records, bytes);
                say(Note::Sending {
                    writer,
                    feed,
                    sequence,
                    records,
                });
                match block_on(handle.append(&name, batch)) {
                    Ok(result) => {
                        say(Note::Acked {
                            writer,
                            sequence,
                            first: result.first,
                        });
                        sequence += 1;
                    }
                    Err(Error::StorageFull { .. }) => say(Note::Refused { writer, sequence }),
                    Err(error) => panic!("writer {writer}: {error}"),
                }
            }
        }
    }
}

fn seal(handle: &Handle<ProductionEnv>, writer: usize, feed: usize) {
    say(Note::Sealing { writer });
    let sealed = block_on(handle.seal(&feed_name(feed), None, "round"));
    let sealed = match sealed {
        Err(Error::AbandonedStream { .. }) => {
            let kind = CommitKind::Sealed;
            block_on(handle.settle_stream(&feed_name(feed), None, kind, "settled"))
        }
        other => other,
    };
    match sealed {
        Ok(commit) => say(Note::Sealed {
            writer,
            feed,
            commit: Some(commit.number.0),
        }),
        Err(Error::NoOpenStream { .. } | Error::AbandonedStream { .. }) => {
            say(Note::Sealed {
                writer,
                feed,
                commit: None,
            });
        }
        Err(error) => panic!("writer {writer} sealing: {error}"),
    }
}

/// Takes the lease by resume or open, appends nothing, and seals under its own epoch.
fn takeover(handle: &Handle<ProductionEnv>, writer: usize, feed: usize, random: &mut Rng) {
    let name = feed_name(feed);
    let options = SessionOptions::default();
    let session = if random.below(2) == 0 {
        block_on(handle.open_session(&name, options))
    } else {
        block_on(handle.resume_session(&name, options))
    };
    let session = match session {
        Ok(session) => session,
        Err(Error::NoOpenStream { .. }) => return,
        Err(error) => panic!("writer {writer} taking over: {error}"),
    };
    say(Note::Sealing { writer });
    match block_on(session.seal("takeover")) {
        Ok(commit) => say(Note::Sealed {
            writer,
            feed,
            commit: Some(commit.number.0),
        }),
        Err(Error::Fenced { .. } | Error::NoOpenStream { .. } | Error::AbandonedStream { .. }) => {
            say(Note::Sealed {
                writer,
                feed,
                commit: None,
            });
        }
        Err(error) => panic!("writer {writer} sealing: {error}"),
    }
}

/// The producer id of a writer.
#[must_use]
pub fn producer_id(writer: usize) -> Vec<u8> {
    format!("writer-{writer}").into_bytes()
}

fn batch(writer: usize, sequence: u64, records: u64, bytes: u64) -> Batch {
    let mut builder = BatchBuilder::default();
    for index in 0..records {
        let mut payload = format!("{writer} {sequence} {index} {records} ").into_bytes();
        payload.resize(payload.len() + usize::try_from(bytes).unwrap_or(8), b'.');
        builder.push(&Record::of(&payload)).expect("within limits");
    }
    builder
        .producer(&producer_id(writer), 0, sequence)
        .expect("within limits");
    builder.build().expect("not empty")
}
