//! Input: what can be appended as one batch.
//!
//! **Invariants**
//! - `metered_bytes` is what the batch will be metered as: the window is held against it.
//!
//! **Not here**: producer tags and fencing tokens: the session binds them.

use sealog_frame::{Batch, BatchBuilder, FrameError, MatchSequence, Record};

/// Records that are appended together, stored whole or not at all: one [`Record`], many of them, bytes of
/// a payload, or a [`Batch`] that was built before.
pub trait IntoBatch {
    /// Payloads, keys, header names and values, in bytes.
    fn metered_bytes(&self) -> u64;

    /// Adds the records.
    ///
    /// # Errors
    /// Those of [`BatchBuilder::push`].
    fn fill(&self, builder: &mut BatchBuilder) -> Result<(), FrameError>;
}

/// Records under the condition that the feed is where the writer believes it to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matching<T> {
    /// What is appended.
    pub records: T,
    /// The condition.
    pub expected: MatchSequence,
}

impl<T> Matching<T> {
    /// Appends `records` only to a feed that never had a record.
    #[must_use]
    pub fn empty(records: T) -> Self {
        Self {
            records,
            expected: MatchSequence::Empty,
        }
    }

    /// Appends `records` only if the feed's last sequence is `last`.
    #[must_use]
    pub fn at(last: u64, records: T) -> Self {
        Self {
            records,
            expected: MatchSequence::At(last),
        }
    }
}

impl<T: IntoBatch> IntoBatch for Matching<T> {
    fn metered_bytes(&self) -> u64 {
        self.records.metered_bytes()
    }

    fn fill(&self, builder: &mut BatchBuilder) -> Result<(), FrameError> {
        self.records.fill(builder)?;
        builder.match_sequence(self.expected);
        Ok(())
    }
}

impl IntoBatch for Record<'_> {
    fn metered_bytes(&self) -> u64 {
        let headers = self.headers.iter();
        let headers: usize = headers.map(|(name, value)| name.len() + value.len()).sum();
        (self.payload.len() + self.key.map_or(0, <[u8]>::len) + headers) as u64
    }

    fn fill(&self, builder: &mut BatchBuilder) -> Result<(), FrameError> {
        builder.push(self)
    }
}

impl IntoBatch for [u8] {
    fn metered_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn fill(&self, builder: &mut BatchBuilder) -> Result<(), FrameError> {
        builder.push(&Record::of(self))
    }
}

impl IntoBatch for str {
    fn metered_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn fill(&self, builder: &mut BatchBuilder) -> Result<(), FrameError> {
        builder.push(&Record::of(self.as_bytes()))
    }
}

impl IntoBatch for [Record<'_>] {
    fn metered_bytes(&self) -> u64 {
        self.iter().map(IntoBatch::metered_bytes).sum()
    }

    fn fill(&self, builder: &mut BatchBuilder) -> Result<(), FrameError> {
        self.iter().try_for_each(|record| builder.push(record))
    }
}

impl IntoBatch for Vec<Record<'_>> {
    fn metered_bytes(&self) -> u64 {
        self.as_slice().metered_bytes()
    }

    fn fill(&self, builder: &mut BatchBuilder) -> Result<(), FrameError> {
        self.as_slice().fill(builder)
    }
}

impl<const N: usize> IntoBatch for [Record<'_>; N] {
    fn metered_bytes(&self) -> u64 {
        self.as_slice().metered_bytes()
    }

    fn fill(&self, builder: &mut BatchBuilder) -> Result<(), FrameError> {
        self.as_slice().fill(builder)
    }
}

impl<T: IntoBatch + ?Sized> IntoBatch for &T {
    fn metered_bytes(&self) -> u64 {
        (**self).metered_bytes()
    }

    fn fill(&self, builder: &mut BatchBuilder) -> Result<(), FrameError> {
        (**self).fill(builder)
    }
}

/// Records and match sequence are taken over. A batch with a producer tag or a fencing token of its own is
/// refused: these are the session's to bind.
impl IntoBatch for Batch {
    fn metered_bytes(&self) -> u64 {
        self.view().metered_bytes()
    }

    fn fill(&self, builder: &mut BatchBuilder) -> Result<(), FrameError> {
        let view = self.view();
        if let Some(value) = view.fencing_token() {
            let field = "fencing_token";
            return Err(FrameError::Invalid { field, value });
        }
        if let Some(tag) = view.producer() {
            return Err(FrameError::Invalid {
                field: "producer_sequence",
                value: tag.sequence,
            });
        }
        for record in view.records() {
            builder.push(&record.to_record())?;
        }
        if let Some(expected) = view.match_sequence() {
            builder.match_sequence(expected);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sealog_frame::FrameLimits;

    use super::*;

    fn built(input: &impl IntoBatch) -> Batch {
        let mut builder = BatchBuilder::new(FrameLimits::DEFAULT);
        input.fill(&mut builder).unwrap();
        let batch = builder.build().unwrap();
        assert_eq!(batch.view().metered_bytes(), input.metered_bytes());
        batch
    }

    #[test]
    fn input_is_metered_as_the_batch_is() {
        let record = Record {
            headers: vec![(b"name", b"value"), (b"", b"x")],
            ..Record::keyed(b"key", 3, b"payload")
        };
        built(&record);
        built(&"text");
        built(&b"bytes".as_slice());
        let batch = built(&vec![record.clone(), Record::of(b"")]);
        built(&[record.clone(), record.clone()]);
        assert_eq!(built(&batch), batch);
        let matching = built(&Matching::at(7, &record));
        assert_eq!(matching.view().match_sequence(), Some(MatchSequence::At(7)));
        assert_eq!(built(&matching), matching);
        let first = built(&Matching::empty(record));
        assert_eq!(first.view().match_sequence(), Some(MatchSequence::Empty));
    }

    #[test]
    fn input_with_a_token_or_a_producer_is_refused() {
        let mut builder = BatchBuilder::new(FrameLimits::DEFAULT);
        let fenced = built(&"x").with_fencing_token(3);
        assert!(fenced.fill(&mut builder).is_err());
        "x".fill(&mut builder).unwrap();
        builder.producer(b"p", 0, 0).unwrap();
        let tagged = builder.build().unwrap();
        assert!(tagged.fill(&mut builder).is_err());
    }
}
