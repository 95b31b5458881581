//! Feeds: the command line of the verbs that work on one feed, or list feeds.
//!
//! **Invariants**
//! - A value that no such verb could take is refused here, with its rule.
//!
//! **Not here**: the record options of append (`input`), operators' verbs (`admin`).

use std::ffi::OsString;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use sealog_engine::PRODUCER_ID_BYTES_MAX;

use crate::cli::input::RecordArgs;
use crate::cli::time;

/// What to do with feeds.
#[derive(Debug, Subcommand)]
pub(crate) enum FeedVerb {
    /// Create a feed; creating it again with the same options is success
    Create {
        /// Name: 1 to 1,024 bytes of UTF-8
        feed: String,
        /// Records may carry keys (the default)
        #[arg(long, conflicts_with = "no_keys")]
        keys: bool,
        /// Records may not carry keys
        #[arg(long)]
        no_keys: bool,
        /// Only writers that opened or resumed it may append: every batch needs their fencing token
        #[arg(long)]
        exclusive: bool,
    },
    /// List feeds in name order
    List {
        /// Only names that begin with this
        #[arg(default_value = "")]
        prefix: String,
        /// Only names after this one
        #[arg(long, default_value = "", value_name = "NAME")]
        after: String,
        /// At most this many
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
    },
    /// Show one feed
    Show {
        /// Name of the feed
        feed: String,
    },
    /// Delete a feed and everything in it
    Delete {
        /// Name of the feed
        feed: String,
    },
}

/// `append`.
#[derive(Debug, Args)]
pub(crate) struct AppendArgs {
    /// Name of the feed; it is created, keys allowed, if it is not there
    pub(crate) feed: String,
    /// What to append.
    #[command(flatten)]
    pub(crate) records: RecordArgs,
    /// Message of the commit
    #[arg(long, short, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) message: Option<String>,
    /// Leave the stream unsealed
    #[arg(long, conflicts_with = "message")]
    pub(crate) no_seal: bool,
    /// Append under this writer epoch to the open stream: neither opens nor resumes, and seals
    /// only if --message is given
    #[arg(long, value_name = "EPOCH")]
    pub(crate) fencing_token: Option<u64>,
    /// Append only if this is the feed's last sequence ("empty": if it has none)
    #[arg(long, value_name = "N|empty", value_parser = match_sequence)]
    pub(crate) match_seq: Option<MatchSeq>,
    /// Idempotent producer: its id
    #[arg(
        long,
        value_name = "ID",
        value_parser = producer_id(),
        requires = "producer_epoch",
        requires = "producer_seq"
    )]
    pub(crate) producer: Option<OsString>,
    /// Idempotent producer: its epoch
    #[arg(long, value_name = "N", requires = "producer")]
    pub(crate) producer_epoch: Option<u64>,
    /// Idempotent producer: number of the first batch of this input
    #[arg(long, value_name = "N", requires = "producer")]
    pub(crate) producer_seq: Option<u64>,
    /// Fail if the feed does not exist
    #[arg(long)]
    pub(crate) no_create: bool,
}

/// Condition on a feed's last sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MatchSeq {
    /// It has none.
    Empty,
    /// It is this.
    At(u64),
}

/// A producer's id: any bytes, 1 to 256 of them.
fn producer_id() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|id| match id.len() {
        1..=PRODUCER_ID_BYTES_MAX => Ok(id),
        bytes => Err(format!(
            "a producer id of {bytes} bytes, 1 to {PRODUCER_ID_BYTES_MAX} are allowed"
        )),
    })
}

fn match_sequence(text: &str) -> Result<MatchSeq, String> {
    match text {
        "empty" => Ok(MatchSeq::Empty),
        _ => text
            .parse()
            .map(MatchSeq::At)
            .map_err(|_| "neither a sequence (0 to 18446744073709551615) nor \"empty\"".to_owned()),
    }
}

/// How records are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Sequence, time, key and payload, separated by tabs, control bytes escaped
    Text,
    /// One JSON object per record; `append --ndjson` takes it back
    Json,
    /// The payload and a newline, nothing else
    Payload,
}

/// `read`.
#[derive(Debug, Args)]
pub(crate) struct ReadArgs {
    /// Name of the feed
    pub(crate) feed: String,
    /// Where to begin.
    #[command(flatten)]
    pub(crate) start: StartArgs,
    /// Only this stream: sealed, open or abandoned
    #[arg(long, value_name = "ID")]
    pub(crate) stream: Option<u64>,
    /// At most this many records
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// How to print records [default: text; json with --json]
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// Print fingerprints too: as supplied, else SHA-256 of the payload
    #[arg(long)]
    pub(crate) fingerprints: bool,
    /// Wait for more at the durable tail, until interrupted or the limit is reached
    #[arg(long, short)]
    pub(crate) follow: bool,
}

/// Where a read begins; at the start of the feed or stream by default.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct StartArgs {
    /// Begin at this sequence
    #[arg(long, value_name = "SEQ")]
    pub(crate) from: Option<u64>,
    /// Begin at this time: RFC 3339, milliseconds since 1970, or how long ago (5m, 2h, 1d)
    #[arg(long, value_name = "TIME", value_parser = time::parse)]
    pub(crate) since: Option<u64>,
    /// Begin at the first record of this commit
    #[arg(long, value_name = "N")]
    pub(crate) commit: Option<u64>,
    /// Begin this many records before the end
    #[arg(long, value_name = "N")]
    pub(crate) tail: Option<u64>,
}

/// `streams` and `commits`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Name of the feed
    pub(crate) feed: String,
    /// Begin at this number
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) from: u64,
    /// At most this many
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

/// `producers`.
#[derive(Debug, Args)]
pub(crate) struct ProducersArgs {
    /// Name of the feed
    pub(crate) feed: String,
    /// Only this producer
    #[arg(long, value_name = "ID", value_parser = producer_id())]
    pub(crate) producer: Option<OsString>,
    /// At most this many
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

/// `seal`.
#[derive(Debug, Args)]
pub(crate) struct SealArgs {
    /// Name of the feed
    pub(crate) feed: String,
    /// Message of the commit
    #[arg(
        long,
        short,
        value_name = "TEXT",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub(crate) message: String,
    /// Seal only if this is the writer epoch
    #[arg(long, value_name = "EPOCH")]
    pub(crate) fencing_token: Option<u64>,
}
