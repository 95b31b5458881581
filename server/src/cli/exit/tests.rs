//! Tests of exit: every engine error has a status.

use std::process::ExitCode;

use sealog_engine::Error;
use sealog_engine::ids::{CommitNumber, Epoch, StreamId};

use super::*;

/// One of each variant, and what it must come to.
fn table() -> Vec<(Error, Exit)> {
    let feed = || "f".to_owned();
    vec![
        (Error::FeedNotFound { feed: feed() }, Exit::NotFound),
        (Error::FeedClosed { feed: feed() }, Exit::Refused),
        (Error::FeedGone { feed: feed() }, Exit::Refused),
        (
            Error::Pinned {
                feed: feed(),
                stream: StreamId(1),
            },
            Exit::Refused,
        ),
        (Error::FeedExists { feed: feed() }, Exit::Refused),
        (
            Error::OutOfOrder {
                given: "a".to_owned(),
                last: "b".to_owned(),
            },
            Exit::Refused,
        ),
        (
            Error::Subscription(sealog_engine::subscription::Refusal::NothingPending),
            Exit::Refused,
        ),
        (
            Error::FeedName {
                bytes: 0,
                rule: "at least 1 byte",
            },
            Exit::Usage,
        ),
        (Error::FeedsFull { limit: 1 }, Exit::Refused),
        (
            Error::Fenced {
                token: Epoch(1),
                current: Epoch(2),
            },
            Exit::Refused,
        ),
        (Error::TokenRequired { feed: feed() }, Exit::Refused),
        (
            Error::SequenceMismatch {
                expected: None,
                actual: Some(1),
            },
            Exit::Refused,
        ),
        (
            Error::ProducerFenced {
                epoch: 1,
                current: 2,
            },
            Exit::Refused,
        ),
        (
            Error::ProducerEpochStart {
                epoch: 1,
                sequence: 2,
            },
            Exit::Refused,
        ),
        (
            Error::ProducerGap {
                expected: 1,
                received: 2,
            },
            Exit::Refused,
        ),
        (Error::ProducersFull { limit: 1 }, Exit::Refused),
        (Error::KeysNotAllowed { feed: feed() }, Exit::Refused),
        (Error::NoOpenStream { feed: feed() }, Exit::Refused),
        (
            Error::StreamNotFound {
                feed: feed(),
                stream: StreamId(1),
            },
            Exit::NotFound,
        ),
        (
            Error::StreamSettled {
                feed: feed(),
                stream: StreamId(1),
            },
            Exit::Refused,
        ),
        (
            Error::AbandonedStream {
                feed: feed(),
                stream: StreamId(1),
            },
            Exit::Refused,
        ),
        (
            Error::CommitNotFound {
                feed: feed(),
                commit: CommitNumber(1),
            },
            Exit::NotFound,
        ),
        (
            Error::OverLimit {
                what: "record",
                value: 2,
                limit: 1,
            },
            Exit::Refused,
        ),
        (Error::Batch(feed()), Exit::Refused),
        (Error::Invalid(feed()), Exit::Usage),
        (Error::Config(feed()), Exit::Usage),
        (Error::StorageFull { detail: feed() }, Exit::StorageFull),
        (
            Error::Poisoned {
                log: 0,
                reason: feed(),
            },
            Exit::Failure,
        ),
        (Error::Closed, Exit::Failure),
        (
            Error::Corrupt {
                file: feed(),
                offset: 0,
                detail: feed(),
            },
            Exit::Corrupt,
        ),
        (
            Error::NewerFormat {
                file: feed(),
                detail: feed(),
            },
            Exit::Unusable,
        ),
        (Error::Bucket(feed()), Exit::Failure),
        (unpublished(true), Exit::StorageFull),
        (unpublished(false), Exit::Failure),
        (
            Error::Io {
                op: "read",
                path: feed(),
                detail: feed(),
            },
            Exit::Failure,
        ),
        (Error::Unusable(feed()), Exit::Unusable),
    ]
}

fn unpublished(full: bool) -> Error {
    Error::Unpublished {
        commit: sealog_engine::ids::CommitNumber(0),
        full,
        trouble: "why".to_owned(),
    }
}

/// Names of the variants in the engine's source: the enum is non-exhaustive, so the compiler can't help.
fn variants_in_source() -> Vec<String> {
    let source = include_str!("../../../../engine/src/error.rs");
    let body = source.split("pub enum Error {").nth(1).unwrap();
    let body = body.split("\n}").next().unwrap();
    let names = body.lines().filter_map(|line| {
        let name: String = line
            .strip_prefix("    ")?
            .chars()
            .take_while(|c| c.is_alphanumeric())
            .collect();
        name.starts_with(char::is_uppercase).then_some(name)
    });
    names.collect()
}

#[test]
fn exhaustive_every_variant_has_its_status_and_name() {
    let table = table();
    let mut named: Vec<String> = Vec::new();
    for (error, exit) in &table {
        let (mapped, name) = classify(error);
        assert_eq!(mapped, *exit, "{error:?}");
        if let Error::Unpublished { full, .. } = error {
            // Called by what keeps it, as a server calls it.
            assert_eq!(name, if *full { "StorageFull" } else { "Bucket" });
            continue;
        }
        assert!(
            format!("{error:?}").starts_with(name),
            "{error:?} is called {name}"
        );
        named.push(name.to_owned());
    }
    let mut source = variants_in_source();
    assert!(source.len() > 20, "{source:?}");
    source.retain(|name| name != "Unpublished");
    source.sort();
    named.sort();
    assert_eq!(
        named, source,
        "left: this table; right: engine/src/error.rs"
    );
}

#[test]
fn statuses_are_the_documented_numbers() {
    let doc = include_str!("../../../docs/cli.md");
    for (exit, number) in [
        (Exit::Ok, 0),
        (Exit::Failure, 1),
        (Exit::Usage, 2),
        (Exit::Refused, 3),
        (Exit::NotFound, 4),
        (Exit::Corrupt, 5),
        (Exit::StorageFull, 6),
        (Exit::Unusable, 7),
        (Exit::Unprinted, 8),
        (Exit::Stopped, 9),
        (Exit::HungUp, 129),
        (Exit::Interrupted, 130),
        (Exit::BrokenPipe, 141),
        (Exit::Terminated, 143),
    ] {
        assert_eq!(exit as u8, number);
        assert_eq!(ExitCode::from(exit), ExitCode::from(number));
        assert!(
            doc.contains(&format!("| {number} |"))
                || doc.contains(&format!("| {number}, "))
                || doc.contains(&format!(", {number} |")),
            "{number} is not in docs/cli.md"
        );
    }
}

#[test]
fn messages_become_one_line() {
    assert_eq!(one_line("a\n  b\t c\n"), "a b c");
}

/// The table of names in `docs/cli.md`: status and name of each.
fn documented_names() -> Vec<(u8, String)> {
    let doc = include_str!("../../../docs/cli.md");
    let table = doc.split("| status | `\"error\"` |").nth(1).unwrap();
    let rows = table
        .lines()
        .skip(2)
        .map_while(|row| row.strip_prefix("| "));
    let mut all = Vec::new();
    for row in rows {
        let (status, names) = row.split_once(" | ").unwrap();
        let status: u8 = status.parse().unwrap();
        let quoted = names.split('`').skip(1).step_by(2);
        all.extend(quoted.map(|name| (status, name.to_owned())));
    }
    all.sort();
    all
}

#[test]
fn names_of_errors_are_the_documented_ones() {
    let engine = table().into_iter().map(|(error, _)| classify(&error));
    let told = OWN_NAMES
        .into_iter()
        .chain(engine)
        .chain(crate::cli::remote_errors::CONNECTION)
        .filter(|(exit, _)| *exit != Exit::BrokenPipe);
    let mut known: Vec<_> = told
        .map(|(exit, name)| (exit as u8, name.to_owned()))
        .collect();
    known.sort();
    known.dedup();
    assert_eq!(
        documented_names(),
        known,
        "left: docs/cli.md; right: the code"
    );
}
