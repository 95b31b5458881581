//! Op: what four bytes of a script say.
//!
//! ```text
//!  byte 0            byte 1                              byte 2     byte 3
//!  kind | no wait    feed | producer | token | match     numbers that the kind gives meaning to
//!  0..5   5          0..2   2..4       4..6    6..8
//! ```
//!
//! **Invariants**
//! - Any bytes are a script; the same bytes are the same script.
//! - One byte changed changes one operation: a fuzzer's small steps stay small.
//!
//! **Not here**: doing it (`work`, `mod`).

use crate::sim::{Fault, Strike};

/// Bytes of one operation.
pub const OP_BYTES: usize = 4;
/// Bytes before the first one: seed (u16), setup.
pub const HEAD_BYTES: usize = 3;
/// Operations that are done; what comes after them is not looked at.
pub const OPS_MAX: usize = 48;
/// Longest script of which every byte counts.
pub const SCRIPT_BYTES_MAX: usize = HEAD_BYTES + OPS_MAX * OP_BYTES;

/// The world of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// Seed of the simulator.
    pub seed: u64,
    /// Logs of the data directory.
    pub logs: u16,
    /// Bucket and clock misbehave from the start.
    pub rough: bool,
    /// The drive writes blocks whole: a write tears between them only.
    pub whole_blocks: bool,
    /// A write in flight when the process is killed lands while the next one runs.
    pub late_writes: bool,
    /// The script's end is a kill, not a power loss.
    pub ends_in_kill: bool,
}

/// Under which token a batch is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// Under none.
    None,
    /// The newest that was handed out.
    Newest,
    /// The oldest that was handed out.
    Oldest,
    /// One that nobody was given.
    Bogus,
}

/// What a batch says about the end of its feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// Nothing.
    None,
    /// That it is empty.
    Empty,
    /// That the newest acknowledged batch is its last.
    Newest,
    /// Something wrong.
    Bogus,
}

/// What a producer does that it should not, or need not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    /// Sends an acknowledged batch again.
    Duplicate,
    /// Sends other records under the numbers of an acknowledged batch.
    Imposter,
    /// Leaves producer sequences out.
    Gap,
    /// Uses a producer epoch that it has left.
    StaleEpoch,
    /// Begins a producer epoch in the middle.
    EpochStart,
}

/// Where one answer's worth of reading begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// At a sequence.
    Sequence(u64),
    /// So many records before the tail.
    Tail(u64),
    /// At a commit.
    Commit(u64),
}

/// What one operation does with a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Appends `times` batches at once.
    Append {
        /// How many.
        times: u32,
        /// Records of each.
        records: u32,
        /// Filler bytes of each record.
        filler: u32,
        /// Under which token.
        token: Token,
        /// What they say about the feed's end.
        matching: Match,
    },
    /// The producer sends the batch that it owes, or its next one.
    Produce {
        /// Which producer.
        producer: usize,
        /// Records of a next one.
        records: u32,
        /// Filler bytes of each record.
        filler: u32,
        /// A next one begins a new producer epoch.
        raises: bool,
    },
    /// The producer misbehaves.
    Misbehave {
        /// Which producer.
        producer: usize,
        /// How.
        wrong: Wrong,
        /// Chooses among what there is.
        pick: usize,
    },
    /// Opens a stream.
    Open,
    /// Takes the newest unsealed one up again.
    Resume,
    /// Seals.
    Seal,
    /// Discards the oldest unsealed stream.
    Discard,
    /// Deletes the feed; what comes next to its name makes another.
    Delete,
    /// Reads all of it.
    ReadAll,
    /// Reads one answer's worth.
    ReadPart {
        /// Where it begins.
        from: From,
        /// Bytes after which it ends.
        bytes: usize,
        /// Most sequences it asks for, if it asks for few.
        most: Option<u64>,
        /// Milliseconds it waits at the tail.
        wait_ms: u64,
    },
}

impl Action {
    /// Its name in traces.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Action::Append { .. } => "append",
            Action::Produce { .. } => "produce",
            Action::Misbehave { .. } => "misbehave",
            Action::Open => "open",
            Action::Resume => "resume",
            Action::Seal => "seal",
            Action::Discard => "discard",
            Action::Delete => "delete",
            Action::ReadAll => "read all",
            Action::ReadPart { .. } => "read part",
        }
    }
}

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// It closes first, or is in the middle of that.
    pub closes: bool,
    /// Power loss, not a kill.
    pub crash: bool,
    /// Polls that it is still given; `None` for as many as closing takes.
    pub polls: Option<u64>,
    /// What it left is verified while nothing runs.
    pub verifies: bool,
    /// The next process publishes everything, and is judged whole.
    pub judged: bool,
    /// Polls after which the next process is killed on its way up, and another started.
    pub cut_start: Option<u64>,
}

/// One operation of a script.
#[derive(Debug, Clone, Copy)]
pub enum Op {
    /// Something with a feed.
    Act {
        /// Which feed.
        feed: usize,
        /// What.
        action: Action,
        /// Go on when it is answered, or at once.
        waits: bool,
        /// Polls after which the caller drops its call.
        patience: Option<u64>,
    },
    /// Nothing for a while, in milliseconds.
    Rest(u64),
    /// A device error at a chosen operation.
    Strike(Strike),
    /// A fault by chance from here on.
    Rate(Fault, u32),
    /// Bytes that the disk can hold.
    DiskRoom(u64),
    /// Bytes that the bucket can hold.
    BucketRoom(u64),
    /// All faults stop, and there is room.
    Heal,
    /// The process ends and the next one starts.
    End(Ending),
}

/// Rates that a script can choose, in parts per million.
const RATES_PPM: [u32; 4] = [2_000, 30_000, 300_000, 1_000_000];

/// Faults that lose nothing which was promised.
const RATES: [Fault; 16] = [
    Fault::NoSpace,
    Fault::ReadEio,
    Fault::WriteEio,
    Fault::SyncEio,
    Fault::ShortRead,
    Fault::DiskStall,
    Fault::BucketErrorBefore,
    Fault::BucketErrorAfter,
    Fault::BucketSlow,
    Fault::StaleList,
    Fault::LostResponse,
    Fault::ResetMidBody,
    Fault::ClockSkew,
    Fault::ClockJump,
    Fault::ClockFreeze,
    Fault::Clock1970,
];

const STRIKES: [Fault; 4] = [
    Fault::SyncEio,
    Fault::WriteEio,
    Fault::NoSpace,
    Fault::ReadEio,
];

/// Ends of the paths that a strike is limited to; the last is every path.
const PATHS: [&str; 4] = [".seg", "/checkpoint/0", "/wal/0", ""];

/// What byte 0 chooses from: what matters most stands most often.
const KINDS: [Kind; 32] = {
    use Kind::{
        Append, Delete, Discard, End, Heal, Misbehave, Open, Produce, Rate, ReadAll, ReadPart,
        Rest, Resume, Room, Seal, Strike,
    };
    [
        Append, Append, Append, Append, Append, Append, Produce, Produce, Produce, Produce,
        Misbehave, Misbehave, Open, Open, Resume, Seal, Seal, Discard, Delete, ReadAll, ReadPart,
        ReadPart, Rest, Rest, Strike, Rate, Room, Heal, End, End, End, End,
    ]
};

#[derive(Clone, Copy)]
enum Kind {
    Append,
    Produce,
    Misbehave,
    Open,
    Resume,
    Seal,
    Discard,
    Delete,
    ReadAll,
    ReadPart,
    Rest,
    Strike,
    Rate,
    Room,
    Heal,
    End,
}

/// Bits `from..from + count` of a byte.
fn bits(byte: u8, from: u32, count: u32) -> u8 {
    (byte >> from) & ((1 << count) - 1)
}

/// Squares a byte: small numbers are likely, large ones possible.
fn spread(byte: u8) -> u64 {
    u64::from(byte) * u64::from(byte)
}

/// Takes a script apart.
#[must_use]
pub fn decode(script: &[u8]) -> (Setup, Vec<Op>) {
    let head = |at: usize| script.get(at).copied().unwrap_or(0);
    let setup = head(2);
    let setup = Setup {
        seed: u64::from(u16::from_le_bytes([head(0), head(1)])),
        logs: 1 + u16::from(bits(setup, 0, 1)),
        rough: bits(setup, 1, 2) == 3,
        whole_blocks: bits(setup, 3, 2) == 3,
        late_writes: bits(setup, 5, 1) == 1,
        ends_in_kill: bits(setup, 6, 1) == 1,
    };
    let ops = script.get(HEAD_BYTES..).unwrap_or_default();
    let (ops, _) = ops.as_chunks::<OP_BYTES>();
    (setup, ops.iter().take(OPS_MAX).map(op).collect())
}

fn op(bytes: &[u8; OP_BYTES]) -> Op {
    let [first, who, a, b] = *bytes;
    match KINDS[usize::from(bits(first, 0, 5))] {
        Kind::Rest => Op::Rest(spread(a)),
        Kind::Strike => Op::Strike(Strike {
            fault: STRIKES[usize::from(bits(who, 0, 2))],
            path: PATHS[usize::from(bits(who, 2, 2))],
            after: u64::from(a),
            times: if b < 200 { 1 } else { u64::from(b - 198) },
        }),
        Kind::Rate => {
            let ppm = RATES_PPM[usize::from(bits(a, 0, 2))];
            Op::Rate(RATES[usize::from(bits(who, 0, 4))], ppm)
        }
        Kind::Room if bits(who, 0, 1) == 0 => Op::DiskRoom((u64::from(a) + 30) << 12),
        Kind::Room => Op::BucketRoom(spread(a) << 4),
        Kind::Heal => Op::Heal,
        Kind::End => Op::End(Ending {
            closes: bits(who, 0, 2) == 0,
            crash: bits(who, 2, 1) == 1,
            polls: (bits(who, 3, 2) > 0).then(|| spread(a) / 16),
            verifies: bits(who, 5, 1) == 1,
            judged: bits(who, 6, 1) == 1,
            cut_start: (bits(who, 7, 1) == 1).then(|| spread(b) / 64),
        }),
        kind => Op::Act {
            feed: usize::from(bits(who, 0, 2)) % FEEDS,
            action: action(kind, who, a, b),
            waits: bits(first, 5, 1) == 0,
            patience: (bits(first, 6, 2) == 3).then(|| u64::from(bits(b, 0, 3))),
        },
    }
}

/// Feeds that a script knows.
pub const FEEDS: usize = 3;
/// Producers that it knows.
pub const PRODUCERS: usize = 2;

fn action(kind: Kind, who: u8, a: u8, b: u8) -> Action {
    let producer = usize::from(bits(who, 2, 2)) % PRODUCERS;
    let records = 1 + u32::from(bits(a, 0, 3));
    let filler = u32::from(b) * u32::from(b) / 32;
    match kind {
        Kind::Append => Action::Append {
            times: 1 + u32::from(bits(a, 3, 3)),
            records,
            filler,
            token: [Token::None, Token::Newest, Token::Oldest, Token::Bogus]
                [usize::from(bits(who, 4, 2))],
            matching: [Match::None, Match::Newest, Match::Empty, Match::Bogus]
                [usize::from(bits(who, 6, 2))],
        },
        Kind::Produce => Action::Produce {
            producer,
            records,
            filler,
            raises: bits(a, 3, 3) == 7,
        },
        Kind::Misbehave => Action::Misbehave {
            producer,
            wrong: [
                Wrong::Duplicate,
                Wrong::Imposter,
                Wrong::Gap,
                Wrong::StaleEpoch,
                Wrong::EpochStart,
            ][usize::from(a) % 5],
            pick: usize::from(b),
        },
        Kind::Open => Action::Open,
        Kind::Resume => Action::Resume,
        Kind::Seal => Action::Seal,
        Kind::Discard => Action::Discard,
        Kind::Delete => Action::Delete,
        Kind::ReadPart => Action::ReadPart {
            from: match bits(who, 4, 2) {
                0 | 1 => From::Sequence(u64::from(a)),
                2 => From::Tail(u64::from(a)),
                _ => From::Commit(u64::from(bits(a, 0, 2))),
            },
            bytes: 1 + (usize::from(b) << 5),
            most: (bits(who, 6, 1) == 1).then_some(u64::from(b)),
            wait_ms: u64::from(bits(who, 7, 1)) * 500,
        },
        _ => Action::ReadAll,
    }
}
