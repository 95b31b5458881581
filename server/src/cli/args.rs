//! Args: the command line of `sealog`.
//!
//! **Invariants**
//! - Global options stand before or after the verb.
//! - An option's value may begin with a dash: what follows the option is its value.
//! - A usage error is one line that ends with where to look.
//!
//! **Not here**: what the verbs do; the record options of append (`input`).

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{
    ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
};

use sealog_engine::PRODUCER_ID_BYTES_MAX;

use super::exit::{CliError, Exit, one_line};
use super::input::RecordArgs;
use super::origins::GivenOptions;
use super::time;

const EXIT_HELP: &str = "\
Exit status: 0 done, 1 failure, 2 usage, 3 refused, 4 not found, 5 corrupt, 6 storage full,
7 unusable (locked, io_uring forbidden, newer format), 8 done but not printed, 9 a served log
stopped, 130 and 143 interrupted, 141 the reader of the output left.";

/// Heading of the global options: they stand below the verb's own.
const EVERY_VERB: &str = "Options of every verb";

/// Durable streams of records: append, seal into commits, read back.
#[derive(Debug, Parser)]
#[command(name = "sealog", version, after_help = EXIT_HELP, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Options that every verb takes.
    #[command(flatten)]
    pub(crate) globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Options that every verb takes.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Globals {
    /// Data directory [default: ./sealog-data]
    #[arg(long, global = true, help_heading = EVERY_VERB, env = "SEALOG_DATA_DIR", value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Folder for packs and commits [default: bucket/ in the data directory]
    #[arg(long, global = true, help_heading = EVERY_VERB, value_name = "DIR")]
    pub(crate) bucket_dir: Option<PathBuf>,
    /// Keep packs and commits in an S3-compatible store: s3://NAME or s3://NAME/PREFIX
    #[arg(long, global = true, help_heading = EVERY_VERB, value_name = "URL", conflicts_with = "bucket_dir")]
    pub(crate) bucket: Option<String>,
    /// Region of the store [default: AWS_REGION, else us-east-1]
    #[arg(long, global = true, help_heading = EVERY_VERB, value_name = "NAME")]
    pub(crate) region: Option<String>,
    /// Where the store listens, https:// or http:// [default: AWS_ENDPOINT_URL, else Amazon's own]
    #[arg(long, global = true, help_heading = EVERY_VERB, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// Use a store that ignores conditions, although two writers would both win
    #[arg(long, global = true, help_heading = EVERY_VERB)]
    pub(crate) unsafe_no_conditions: bool,
    /// Make the bucket this data directory's although it says that it is another one's
    #[arg(long, global = true, help_heading = EVERY_VERB)]
    pub(crate) take_bucket: bool,
    /// Configuration file, TOML; an unknown key is an error
    #[arg(long, global = true, help_heading = EVERY_VERB, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Profile for small machines: 64 MiB of memory, batches up to 1 MiB
    #[arg(long, global = true, help_heading = EVERY_VERB)]
    pub(crate) edge: bool,
    /// Ask this server instead of opening a data directory
    #[arg(long, global = true, help_heading = EVERY_VERB, env = "SEALOG_SERVER", value_name = "HOST:PORT")]
    pub(crate) server: Option<String>,
    /// File with the bearer token: what `serve` asks for, and other verbs show
    #[arg(long, global = true, help_heading = EVERY_VERB, env = "SEALOG_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Ask the server over TLS, and trust the certificates in this PEM file
    #[arg(long, global = true, help_heading = EVERY_VERB, env = "SEALOG_TLS_CA", value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// One JSON object per line on standard output, and on standard error for a failure
    #[arg(long, global = true, help_heading = EVERY_VERB)]
    pub(crate) json: bool,
    /// Which options were given, and how.
    #[arg(skip)]
    pub(crate) given: GivenOptions,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Serve the data directory on the network until SIGTERM or SIGINT
    Serve(ServeArgs),
    /// Show the configuration
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Create, list, show or delete feeds
    #[command(subcommand)]
    Feed(FeedVerb),
    /// Append records and seal them into a commit
    #[command(override_usage = "sealog append <FEED> [OPTIONS]")]
    Append(Box<AppendArgs>),
    /// Read records
    #[command(override_usage = "sealog read <FEED> [OPTIONS]")]
    Read(ReadArgs),
    /// List the streams of a feed
    #[command(override_usage = "sealog streams <FEED> [OPTIONS]")]
    Streams(ListArgs),
    /// List the commits of a feed
    #[command(override_usage = "sealog commits <FEED> [OPTIONS]")]
    Commits(ListArgs),
    /// List the idempotent producers of a feed
    #[command(override_usage = "sealog producers <FEED> [OPTIONS]")]
    Producers(ProducersArgs),
    /// Seal the open stream of a feed into a commit
    #[command(override_usage = "sealog seal <FEED> [OPTIONS]")]
    Seal(SealArgs),
    /// Show what the logs hold, what waits for the bucket, and how the bucket is
    Usage,
    /// Read everything kept and prove that it is what was written; changes nothing
    Verify,
    /// Show what is in a file of ours: segment, checkpoint, pack, manifest, commit, key index, frame
    Inspect(InspectArgs),
    /// Settle abandoned streams, finish publication, mend a data directory
    #[command(subcommand)]
    Admin(AdminVerb),
}

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

/// `serve`. What is left out is the file's, else the default (`serve_settings`).
#[derive(Debug, Default, Args)]
pub(crate) struct ServeArgs {
    /// Address of the native protocol [default: 127.0.0.1:4436]
    #[arg(long, env = "SEALOG_LISTEN", value_name = "IP:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// Port of shard 0; further shards take those after it; 0: the system chooses [default: 4440]
    #[arg(long, env = "SEALOG_SHARD_PORT", value_name = "PORT")]
    pub(crate) shard_port: Option<u16>,
    /// Address of health, readiness and metrics over HTTP; port 0: the system chooses; none: no such
    /// [default: 127.0.0.1:4438]
    #[arg(
        long,
        env = "SEALOG_ADMIN_LISTEN",
        value_name = "IP:PORT|none",
        value_parser = admin_listen
    )]
    pub(crate) admin_listen: Option<AdminListen>,
    /// File with the certificate chain, PEM: connections are under TLS
    #[arg(long, env = "SEALOG_TLS_CERT", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// File with the certificate's private key, PEM
    #[arg(long, env = "SEALOG_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Connections per shard, at most [default: 10000]
    #[arg(long, env = "SEALOG_CONNECTIONS_MAX", value_name = "N")]
    pub(crate) connections_max: Option<usize>,
    /// Serve beyond this machine without token and TLS
    #[arg(long, env = "SEALOG_INSECURE")]
    pub(crate) insecure: bool,
    /// What is logged: a level (off, error, warn, info, debug, trace), or TARGET=LEVEL,...
    /// [default: info]
    #[arg(long, env = "SEALOG_LOG", value_name = "LEVEL")]
    pub(crate) log: Option<String>,
    /// How: lines of text, or of JSON [default: text]
    #[arg(long, env = "SEALOG_LOG_FORMAT", value_enum)]
    pub(crate) log_format: Option<LogFormat>,
}

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// Show every key, its value, and where that came from; takes the options of `serve`, too
    Show(ServeArgs),
}

/// Where health, readiness and metrics are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdminListen {
    /// Nowhere.
    Off,
    /// Here.
    At(SocketAddr),
}

impl std::fmt::Display for AdminListen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Off => write!(f, "none"),
            Self::At(address) => write!(f, "{address}"),
        }
    }
}

pub(super) fn admin_listen(text: &str) -> Result<AdminListen, String> {
    match text {
        "none" => Ok(AdminListen::Off),
        _ => text
            .parse()
            .map(AdminListen::At)
            .map_err(|_| "neither IP:PORT nor \"none\"".to_owned()),
    }
}

/// How the log of `serve` looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// A line for people
    Text,
    /// A JSON object per line
    Json,
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

/// What an operator can do.
#[derive(Debug, Subcommand)]
pub(crate) enum AdminVerb {
    /// Seal an unsealed stream as it stands; a writer that comes back is fenced
    Resume(SettleArgs),
    /// Discard an unsealed stream: its range becomes a recorded gap
    Discard(SettleArgs),
    /// Finish publication that was interrupted
    Repair {
        /// Name of the feed
        feed: String,
    },
    /// Change the number of logs of a cleanly closed data directory
    Reshard {
        /// Number of logs to have: 1 to 65535
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
        logs: u16,
    },
    /// Make a damaged data directory open again, without what the damage took
    AcceptLoss,
}

/// `inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The file; it may be in use. Or an object of a store: s3://NAME/KEY
    pub(crate) file: PathBuf,
    /// Of everything that repeats, show so many
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) items: usize,
    /// Bytes shown of a payload, key or message
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) preview_bytes: usize,
}

/// `admin resume` and `admin discard`.
#[derive(Debug, Args)]
pub(crate) struct SettleArgs {
    /// Name of the feed
    pub(crate) feed: String,
    /// Which stream [default: the oldest unsealed one]
    #[arg(long, value_name = "ID")]
    pub(crate) stream: Option<u64>,
    /// Message of the commit
    #[arg(
        long,
        short,
        value_name = "TEXT",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub(crate) message: String,
}

/// A command line that ends the command before it began: help, version, or a usage error.
#[derive(Debug)]
pub(crate) enum Early {
    /// Text that was asked for.
    Shown(clap::Error),
    /// A usage error.
    Wrong(CliError, bool),
}

impl Early {
    /// Prints it, and gives the status.
    pub(crate) fn finish(self) -> ExitCode {
        match self {
            Self::Shown(text) => match text.print() {
                Ok(()) => Exit::Ok.into(),
                Err(error) => CliError::stdout(&error).report(false),
            },
            Self::Wrong(error, json) => error.report(json),
        }
    }
}

/// Takes a command line apart.
pub(crate) fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Cli, Early> {
    let line: Vec<OsString> = line.into_iter().collect();
    let json = line.iter().any(|word| word == "--json");
    let early = |error: clap::Error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Early::Shown(error),
        _ => Early::Wrong(CliError::usage(usage_line(&error)), json),
    };
    let command = take_numbers(Cli::command());
    let matches = command.try_get_matches_from(&line).map_err(early)?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(early)?;
    cli.globals.given = GivenOptions::of_matches(&matches);
    if let Verb::Append(args) = &mut cli.verb {
        let matches = matches.subcommand_matches("append");
        args.records
            .note_order(matches.unwrap_or(&ArgMatches::default()));
    }
    Ok(cli)
}

/// Lets "-1" be the value of an option, so that the option's own rule says what is wrong with it.
fn take_numbers(command: Command) -> Command {
    let command = command.mut_args(|arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    });
    command.mut_subcommands(take_numbers)
}

/// What clap says, without its usage block, in one line.
fn usage_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        || error.kind() == ErrorKind::MissingSubcommand
    {
        return "a verb is missing; see `sealog --help`".to_owned();
    }
    let text = error.render().to_string();
    let text = text.split("\n\nUsage:").next().unwrap_or(&text);
    let text = text
        .split("\n\nFor more information")
        .next()
        .unwrap_or(text);
    let text = one_line(text.trim_start_matches("error: "));
    format!("{text}; see `sealog --help`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    fn parsed(line: &str) -> Result<Cli, Early> {
        parse(line.split(' ').map(OsString::from))
    }

    #[test]
    fn globals_before_and_after_the_verb_are_the_same() {
        for line in [
            "sealog --data-dir d --json --edge commits orders",
            "sealog commits orders --data-dir d --json --edge",
            "sealog --json commits --edge orders --data-dir=d",
        ] {
            let globals = parsed(line).unwrap().globals;
            assert_eq!(globals.data_dir.as_deref(), Some("d".as_ref()), "{line}");
            assert!(globals.json && globals.edge, "{line}");
        }
    }

    #[test]
    fn help_shows_the_verbs_own_options_first() {
        let help = |verb: &str| {
            let mut command = take_numbers(Cli::command());
            command.build();
            let verb = command.find_subcommand_mut(verb).unwrap();
            verb.render_help().to_string()
        };
        let place = |help: &str, word: &str| {
            help.find(word)
                .unwrap_or_else(|| panic!("{word} in {help}"))
        };
        for (verb, own) in [
            (
                "append",
                &[
                    "--record",
                    "--lines",
                    "--message",
                    "--fencing-token",
                    "--fingerprint",
                ][..],
            ),
            ("read", &["--from", "--limit", "--follow"]),
            ("seal", &["--message"]),
        ] {
            let help = help(verb);
            let mut places = vec![place(&help, "<FEED> [OPTIONS]")];
            places.extend(own.iter().map(|word| place(&help, word)));
            places.push(place(&help, EVERY_VERB));
            places.push(place(&help, "--data-dir"));
            assert!(places.is_sorted(), "{help}");
        }
    }

    #[test]
    fn negative_numbers_meet_the_rule_of_their_option() {
        parsed("sealog append f --value x --version -5").unwrap();
        for (line, rule) in [
            ("sealog read f --from -1", "'-1' for '--from <SEQ>'"),
            ("sealog seal f --fencing-token -1", "--fencing-token"),
            (
                "sealog append f --value x --match-seq -1",
                "neither a sequence (0 to ",
            ),
            ("sealog append f --value x --timestamp -7", "'-7'"),
            ("sealog admin reshard --logs -1", "-1 is not in 1..=65535"),
            ("sealog admin reshard --logs 0", "0 is not in 1..=65535"),
            (
                "sealog admin reshard --logs 70000",
                "70000 is not in 1..=65535",
            ),
        ] {
            let Early::Wrong(error, _) = parsed(line).unwrap_err() else {
                panic!("{line} shows text");
            };
            assert!(error.message.contains(rule), "{line}: {}", error.message);
            assert!(!error.message.contains("tip"), "{line}: {}", error.message);
        }
    }

    #[test]
    fn usage_errors_are_one_line() {
        for line in [
            "sealog",
            "sealog append",
            "sealog feed",
            "sealog frobnicate",
            "sealog read f --from 1 --tail 2",
            "sealog read f --since soon",
            "sealog append f --value x --producer p",
            "sealog append f --value x --match-seq last",
            "sealog append f --message m --no-seal --value x",
            "sealog feed create f --keys --no-keys",
        ] {
            let Early::Wrong(error, _) = parsed(line).unwrap_err() else {
                panic!("{line} shows text");
            };
            assert_eq!(error.exit, Exit::Usage, "{line}");
            assert!(!error.message.contains('\n'), "{line}: {}", error.message);
            assert!(error.message.contains("see `sealog --help`"), "{line}");
        }
    }
}
