//! Note: one line of what a writer is doing, as it goes through the pipe.
//!
//! **Invariants**
//! - A line is written in one call and is shorter than a pipe's atomic write: lines never mix.
//!
//! **Not here**: who reads them (`check`).

use std::fmt;
use std::str::FromStr;

/// What a writer notes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// The engine is about to be opened.
    Opening,
    /// It is open.
    Opened,
    /// Writer `writer` sends batch `sequence` of `records` records to feed `feed`.
    Sending {
        /// Which writer.
        writer: usize,
        /// Which feed.
        feed: usize,
        /// Its producer sequence.
        sequence: u64,
        /// Records in the batch.
        records: u64,
    },
    /// That batch was acknowledged with its first record at `first`.
    Acked {
        /// Which writer.
        writer: usize,
        /// Its producer sequence.
        sequence: u64,
        /// Sequence of its first record.
        first: u64,
    },
    /// That batch was refused: it must not be there.
    Refused {
        /// Which writer.
        writer: usize,
        /// Its producer sequence.
        sequence: u64,
    },
    /// Writer `writer` is about to seal.
    Sealing {
        /// Which writer.
        writer: usize,
    },
    /// Its seal was answered: the commit's number, `None` when it was refused.
    Sealed {
        /// Which writer.
        writer: usize,
        /// Which feed.
        feed: usize,
        /// Number of the commit.
        commit: Option<u64>,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opening => write!(f, "opening"),
            Self::Opened => write!(f, "opened"),
            Self::Sending {
                writer,
                feed,
                sequence,
                records,
            } => {
                write!(f, "sending {writer} {feed} {sequence} {records}")
            }
            Self::Acked {
                writer,
                sequence,
                first,
            } => write!(f, "acked {writer} {sequence} {first}"),
            Self::Refused { writer, sequence } => write!(f, "refused {writer} {sequence}"),
            Self::Sealing { writer } => write!(f, "sealing {writer}"),
            Self::Sealed {
                writer,
                feed,
                commit,
            } => match commit {
                Some(number) => write!(f, "sealed {writer} {feed} {number}"),
                None => write!(f, "unsealed {writer} {feed}"),
            },
        }
    }
}

impl FromStr for Note {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = line.split(' ');
        let kind = words.next().unwrap_or_default();
        let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        let small = |at: usize| usize::try_from(numbers.get(at).copied().unwrap_or(0)).unwrap_or(0);
        let note = match (kind, numbers.len()) {
            ("opening", 0) => Self::Opening,
            ("opened", 0) => Self::Opened,
            ("sending", 4) => Self::Sending {
                writer: small(0),
                feed: small(1),
                sequence: numbers[2],
                records: numbers[3],
            },
            ("acked", 3) => Self::Acked {
                writer: small(0),
                sequence: numbers[1],
                first: numbers[2],
            },
            ("refused", 2) => Self::Refused {
                writer: small(0),
                sequence: numbers[1],
            },
            ("sealing", 1) => Self::Sealing { writer: small(0) },
            ("sealed", 3) => Self::Sealed {
                writer: small(0),
                feed: small(1),
                commit: Some(numbers[2]),
            },
            ("unsealed", 2) => Self::Sealed {
                writer: small(0),
                feed: small(1),
                commit: None,
            },
            _ => return Err(format!("not a note: {line:?}")),
        };
        Ok(note)
    }
}
