//! Frontier: how far the log has got, each stage its own type, none ever ahead of the one before.
//!
//! ```text
//!   accepted  >=  written  >=  durable  >=  packed  >=  published
//!   in a group    handed to    synced       staged in   commit
//!                 the disk                  the log     exists
//! ```
//!
//! **Invariants**
//! - FRONT-1: every move is forwards, and asserted.
//! - FRONT-2: written never passes accepted, durable never passes written.
//!
//! **Not here**: packed and published, which are per stream: `Stream::packed_end` and `Head::end`,
//! asserted by the fold.

macro_rules! stage {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) struct $name(pub(crate) u64);
    };
}

stage!(/// Log offset up to which entries were taken into closed groups.
    Accepted);
stage!(/// Log offset up to which groups were handed to the disk.
    Written);
stage!(/// Log offset up to which groups are on disk, synced.
    Durable);

/// The three frontiers of a log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frontiers {
    accepted: Accepted,
    written: Written,
    durable: Durable,
}

impl Frontiers {
    /// All three at `end`, where recovery made everything durable.
    pub(crate) fn at(end: u64) -> Self {
        Self {
            accepted: Accepted(end),
            written: Written(end),
            durable: Durable(end),
        }
    }

    pub(crate) fn accepted(&self) -> Accepted {
        self.accepted
    }

    pub(crate) fn durable(&self) -> Durable {
        self.durable
    }

    /// A group that ends at `end` takes no more entries.
    pub(crate) fn accept(&mut self, end: u64) {
        assert!(
            end > self.accepted.0,
            "FRONT-1: accepted {end} after {:?}",
            self.accepted
        );
        self.accepted = Accepted(end);
    }

    /// A group that ends at `end` goes to the disk.
    pub(crate) fn write(&mut self, end: u64) {
        assert!(
            end > self.written.0,
            "FRONT-1: written {end} after {:?}",
            self.written
        );
        assert!(
            end <= self.accepted.0,
            "FRONT-2: written {end}, {:?}",
            self.accepted
        );
        self.written = Written(end);
    }

    /// A group that ends at `end` is synced, and all before it.
    pub(crate) fn sync(&mut self, end: u64) {
        assert!(
            end > self.durable.0,
            "FRONT-1: durable {end} after {:?}",
            self.durable
        );
        assert!(
            end <= self.written.0,
            "FRONT-2: durable {end}, {:?}",
            self.written
        );
        self.durable = Durable(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frontiers_move_in_order() {
        let mut frontiers = Frontiers::at(10);
        frontiers.accept(20);
        frontiers.write(20);
        frontiers.sync(20);
        assert_eq!(frontiers.durable(), Durable(20));
    }

    #[test]
    #[should_panic(expected = "FRONT-2")]
    fn frontiers_durable_before_written_is_a_bug() {
        let mut frontiers = Frontiers::at(10);
        frontiers.accept(20);
        frontiers.sync(20);
    }
}
