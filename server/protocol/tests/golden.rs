//! Golden messages: the bytes of version 1, pinned both ways. Spec: server/spec/native-protocol.md.
//!
//! **Invariants**
//! - For every case decode(file) = value and encode(value) = file; every kind has a case.
//! - Files are written once, by the ignored test, which never overwrites; no file is without a case.
//!
//! **Not here**: bytes that must be refused (`roundtrip`).
#![allow(clippy::unwrap_used, reason = "tests report by panicking")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use sealog_protocol::{
    Answer, BucketUsage, CONNECTION, CommitInfo, Effects, ErrorCode, Features, FeedInfo,
    HEADER_BYTES, Hello, LogInfo, LogUsage, MORE, MessageHeader, ProducerInfo, ReadFrom, ReadScope,
    Records, Refusal, Request, Rest, Settling, ShardAddress, StreamInfo, StreamPhase, Trouble,
    Welcome,
};

/// The smallest frame there is: golden file `frame/v1/plain-smallest.bin`.
const FRAME: &[u8] = include_bytes!("../../../tests/golden/frame/v1/plain-smallest.bin");
const REQUEST: u64 = 0x0102_0304_0506_0708;

enum Message {
    Request(Request<'static>),
    Answer(Answer<'static>, u8),
}

/// One golden message, as a value.
struct Case {
    name: &'static str,
    about: &'static str,
    request: u64,
    message: Message,
}

fn asked(name: &'static str, about: &'static str, request: Request<'static>) -> Case {
    Case {
        name,
        about,
        request: REQUEST,
        message: Message::Request(request),
    }
}

fn answered(name: &'static str, about: &'static str, answer: Answer<'static>) -> Case {
    Case {
        name,
        about,
        request: REQUEST,
        message: Message::Answer(answer, 0),
    }
}

fn of_connection(name: &'static str, about: &'static str, answer: Answer<'static>) -> Case {
    Case {
        request: CONNECTION,
        ..answered(name, about, answer)
    }
}

fn scope(from: ReadFrom) -> ReadScope<'static> {
    ReadScope {
        feed: "orders",
        feed_id: Some(11),
        stream: Some(3),
        from,
        end: u64::MAX,
        bytes_max: 1 << 20,
        fingerprints: true,
    }
}

fn feed() -> FeedInfo {
    FeedInfo {
        name: "orders".to_owned(),
        id: 11,
        keys: true,
        exclusive: false,
        created_ms: 1_700_000_000_000,
        epoch: 4,
        next_sequence: 100,
        commits: 2,
        open_stream: Some(3),
        unpublished: 1,
        producers: 5,
    }
}

fn stream() -> StreamInfo {
    StreamInfo {
        id: 3,
        phase: StreamPhase::Sealed,
        first: 40,
        end: 100,
        records: 60,
        payload_bytes: 6_000,
        packed_end: 80,
        commit: Some(2),
    }
}

fn commit() -> CommitInfo {
    CommitInfo {
        number: 2,
        discarded: false,
        feed: 11,
        stream: 3,
        epoch: 4,
        parent: [0xab; 32],
        first: 40,
        end: 100,
        records: 60,
        payload_bytes: 6_000,
        message: "hourly poll".to_owned(),
        time_ms: 1_700_000_000_100,
        manifest: [0xcd; 32],
    }
}

fn producer() -> ProducerInfo {
    ProducerInfo {
        id: b"sealog.session".to_vec(),
        epoch: 4,
        last_sequence: 59,
        first: 99,
        last: 99,
        last_arrival_ms: 1_700_000_000_050,
    }
}

fn welcome() -> Welcome {
    Welcome {
        version: 1,
        features: Features(0),
        server: 0x1122_3344_5566_7788,
        agent: "sealog/0.1.0".to_owned(),
        message_bytes_max: 24 << 20,
        credit_bytes: 8 << 20,
        producer_batches_max: 256,
        batch_bytes_max: 16 << 20,
        record_bytes_max: 16 << 20,
        records_max: 65_536,
        logs: 4,
        shard: 1,
        shards: vec![ShardAddress { port: 4440 }, ShardAddress { port: 4441 }],
    }
}

fn connection_cases() -> Vec<Case> {
    let hello = Hello {
        magic: Hello::MAGIC,
        version_min: 1,
        version_max: 1,
        features: Features(0),
        heartbeat_ms: 5_000,
        token: Some(b"secret"),
        agent: "sealog-client/0.1.0",
    };
    let refusal = Refusal {
        code: ErrorCode::SequenceMismatch,
        effects: Effects::None,
        retryable: false,
        retry_after_ms: 0,
        value: Some(5),
        limit: None,
        subject: "",
        text: "match sequence 5, feed is at empty",
    };
    vec![
        asked("request-hello", "with a token", Request::Hello { hello }),
        asked("request-ping", "a header alone", Request::Ping {}),
        asked(
            "request-goodbye",
            "nothing more will be asked",
            Request::Goodbye {},
        ),
        asked(
            "request-credit",
            "for a follow",
            Request::Credit { bytes: 65_536 },
        ),
        asked("request-cancel", "of a follow", Request::Cancel {}),
        answered(
            "answer-welcome",
            "two shards, four logs",
            Answer::Welcome { welcome: welcome() },
        ),
        answered("answer-pong", "to a ping", Answer::Pong {}),
        of_connection(
            "answer-goodbye",
            "of the connection",
            Answer::Goodbye { reason: "draining" },
        ),
        of_connection("answer-alive", "of the connection", Answer::Alive {}),
        of_connection("answer-busy", "of the connection", Answer::Busy {}),
        answered(
            "answer-refused",
            "with one number",
            Answer::Refused { refusal },
        ),
        answered("answer-done", "nothing more to tell", Answer::Done {}),
    ]
}

fn feed_cases() -> Vec<Case> {
    vec![
        asked(
            "request-create-feed",
            "with keys",
            Request::CreateFeed {
                feed: "orders",
                keys: true,
                exclusive: false,
            },
        ),
        asked(
            "request-delete-feed",
            "by name",
            Request::DeleteFeed { feed: "orders" },
        ),
        asked(
            "request-describe-feed",
            "by name",
            Request::DescribeFeed { feed: "orders" },
        ),
        asked(
            "request-list-feeds",
            "a page",
            Request::ListFeeds {
                prefix: "or",
                after: "orange",
                limit: 100,
            },
        ),
        answered(
            "answer-created",
            "the feed's id",
            Answer::Created { feed: 11 },
        ),
        answered("answer-feed", "every field", Answer::Feed { feed: feed() }),
        answered(
            "answer-feeds",
            "a page of one",
            Answer::Feeds {
                feeds: vec![feed()],
            },
        ),
        asked(
            "request-list-streams",
            "a page",
            Request::ListStreams {
                feed: "orders",
                after: 2,
                limit: 100,
            },
        ),
        asked(
            "request-list-commits",
            "a page",
            Request::ListCommits {
                feed: "orders",
                from: 1,
                limit: 100,
            },
        ),
        asked(
            "request-list-producers",
            "a page",
            Request::ListProducers {
                feed: "orders",
                after: Some(b"a"),
                limit: 100,
            },
        ),
        asked(
            "request-describe-producer",
            "by id",
            Request::DescribeProducer {
                feed: "orders",
                id: b"sealog.session",
            },
        ),
        answered(
            "answer-streams",
            "a page of one",
            Answer::Streams {
                streams: vec![stream()],
            },
        ),
        answered(
            "answer-commits",
            "a page of one",
            Answer::Commits {
                commits: vec![commit()],
            },
        ),
        answered(
            "answer-producers",
            "a page of one",
            Answer::Producers {
                producers: vec![producer()],
            },
        ),
        answered(
            "answer-producer",
            "it is known",
            Answer::Producer {
                producer: Some(producer()),
            },
        ),
    ]
}

fn write_cases() -> Vec<Case> {
    vec![
        asked("request-bind", "by name", Request::Bind { feed: "orders" }),
        asked("request-open", "by name", Request::Open { feed: "orders" }),
        asked(
            "request-resume",
            "by name",
            Request::Resume { feed: "orders" },
        ),
        asked(
            "request-append",
            "the smallest frame",
            Request::Append {
                binding: 0,
                frame: Rest(FRAME),
            },
        ),
        asked(
            "request-seal",
            "under a lease",
            Request::Seal {
                feed: "orders",
                token: Some(4),
                message: "hourly poll",
            },
        ),
        asked(
            "request-settle",
            "the oldest, as a gap",
            Request::Settle {
                feed: "orders",
                stream: None,
                settling: Settling::Discard,
                message: "",
            },
        ),
        asked(
            "request-repair",
            "by name",
            Request::Repair { feed: "orders" },
        ),
        asked(
            "request-foresee",
            "a seal would follow",
            Request::Foresee {
                feed: "orders",
                message: Some("hourly poll"),
                frame: Rest(FRAME),
            },
        ),
        answered(
            "answer-bound",
            "the first on its connection",
            Answer::Bound {
                binding: 0,
                feed: 11,
                next_sequence: 100,
            },
        ),
        answered(
            "answer-leased",
            "a stream is open",
            Answer::Leased {
                binding: 0,
                feed: 11,
                epoch: 4,
                stream: 3,
                next_sequence: 40,
            },
        ),
        answered(
            "answer-appended",
            "with a producer",
            Answer::Appended {
                first: 99,
                last: 99,
                records: 1,
                duplicate: false,
                producer_sequence: Some(59),
            },
        ),
        answered(
            "answer-committed",
            "every field",
            Answer::Committed { commit: commit() },
        ),
        answered(
            "answer-repaired",
            "one commit",
            Answer::Repaired { commits: 1 },
        ),
        answered(
            "answer-foreseen",
            "a duplicate",
            Answer::Foreseen { duplicate: true },
        ),
    ]
}

fn read_cases() -> Vec<Case> {
    let records = Records {
        first: 0,
        next: 1,
        tail: 100,
        ended: false,
        fingerprints: vec![[0xef; 32]],
        frames: Rest(FRAME),
    };
    let logs = vec![
        LogInfo {
            groups: 7,
            group_bytes: 28_672,
            poisoned: None,
        },
        LogInfo {
            groups: 0,
            group_bytes: 0,
            poisoned: Some("sync failed".to_owned()),
        },
    ];
    vec![
        asked(
            "request-read",
            "from a time on",
            Request::Read {
                scope: scope(ReadFrom::Timestamp(1_700_000_000_000)),
                wait_ms: 250,
            },
        ),
        asked(
            "request-follow",
            "from a sequence on",
            Request::Follow {
                scope: scope(ReadFrom::Sequence(40)),
                credit_bytes: 4 << 20,
            },
        ),
        Case {
            message: Message::Answer(Answer::Records { records }, MORE),
            ..answered(
                "answer-records",
                "of a follow: more will come",
                Answer::Done {},
            )
        },
        asked("request-stats", "of every log", Request::Stats {}),
        answered(
            "answer-stats",
            "one log is poisoned",
            Answer::Stats { logs },
        ),
        asked("request-usage", "of every log", Request::Usage {}),
        answered(
            "answer-usage",
            "commits wait for a bucket that is away",
            usage(),
        ),
    ]
}

fn usage() -> Answer<'static> {
    let trouble = Trouble {
        text: "no answer".to_owned(),
        seconds: 61,
    };
    let log = LogUsage {
        log: 3,
        disk_bytes: 134_217_728,
        disk_bytes_max: 1_073_741_824,
        unpacked_bytes: 70_000,
        unpublished_commits: 2,
        tried: true,
        trouble: Some(trouble.clone()),
    };
    let bucket = BucketUsage {
        tried: true,
        trouble: Some(trouble),
        retries: 5,
        leftover_uploads: 1,
        cache_bytes: 4096,
    };
    Answer::Usage {
        logs: vec![log],
        bucket,
    }
}

fn cases() -> Vec<Case> {
    let mut cases = connection_cases();
    cases.extend(feed_cases());
    cases.extend(write_cases());
    cases.extend(read_cases());
    cases
}

impl Case {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match &self.message {
            Message::Request(request) => request.encode(self.request, 0, &mut bytes),
            Message::Answer(answer, flags) => answer.encode(self.request, *flags, &mut bytes),
        }
        bytes
    }

    fn kind(&self) -> u8 {
        match &self.message {
            Message::Request(request) => request.kind(),
            Message::Answer(answer, _) => answer.kind(),
        }
    }

    fn file(&self) -> String {
        format!("{}.bin", self.name)
    }
}

fn folder() -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/protocol/v1"
    ))
}

/// Every header field with its bytes in hex, in file order.
fn header_fields(bytes: &[u8]) -> String {
    const FIELDS: [(&str, usize); 5] = [
        ("message_bytes", 4),
        ("kind", 1),
        ("flags", 1),
        ("reserved", 2),
        ("request", 8),
    ];
    let mut at = 0;
    let mut lines = Vec::new();
    for (field, size) in FIELDS {
        let mut hex = String::new();
        for byte in &bytes[at..at + size] {
            write!(hex, "{byte:02x}").unwrap();
        }
        lines.push(format!("        \"{at:02} {field}\": \"{hex}\""));
        at += size;
    }
    assert_eq!(at, HEADER_BYTES, "the fields above are the header");
    lines.join(",\n")
}

fn manifest() -> String {
    let describe = |case: &Case| {
        let bytes = case.encode();
        format!(
            "    {{\n      \"file\": \"{}\",\n      \"about\": \"{}\",\n      \"bytes\": {},\n      \
             \"crc32c\": \"{:08x}\",\n      \"header\": {{\n{}\n      }}\n    }}",
            case.file(),
            case.about,
            bytes.len(),
            crc32c::crc32c(&bytes),
            header_fields(&bytes)
        )
    };
    let files: Vec<_> = cases().iter().map(describe).collect();
    format!(
        "{{\n  \"format\": \"protocol\",\n  \"format_version\": 1,\n  \"files\": [\n{}\n  ]\n}}\n",
        files.join(",\n")
    )
}

#[test]
fn protocol_v1_encodes_to_golden() {
    for case in cases() {
        let golden = fs::read(folder().join(case.file())).unwrap();
        assert_eq!(case.encode(), golden, "{}", case.name);
    }
}

#[test]
fn protocol_v1_golden_decodes() {
    for case in cases() {
        let golden = fs::read(folder().join(case.file())).unwrap();
        let header = MessageHeader::peek(&golden, golden.len()).unwrap().unwrap();
        assert_eq!(header.message_bytes, golden.len());
        assert_eq!((header.kind, header.request), (case.kind(), case.request));
        let body = &golden[HEADER_BYTES..];
        match case.message {
            Message::Request(request) => {
                assert_eq!(header.flags, 0);
                assert_eq!(Request::decode(header.kind, body), Ok(request));
            }
            Message::Answer(answer, flags) => {
                assert_eq!(header.flags, flags);
                assert_eq!(Answer::decode(header.kind, body), Ok(answer));
            }
        }
    }
}

#[test]
fn protocol_v1_has_a_case_of_every_kind() {
    let cased: BTreeSet<u8> = cases().iter().map(Case::kind).collect();
    let known = Request::KINDS.iter().chain(Answer::KINDS);
    let known: BTreeSet<u8> = known.map(|(kind, _)| *kind).collect();
    assert_eq!(cased, known);
}

#[test]
fn protocol_v1_manifest_describes_the_files() {
    let found = fs::read_to_string(folder().join("manifest.json")).unwrap();
    assert_eq!(found, manifest());
    let files: BTreeSet<_> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut expected: BTreeSet<_> = cases().iter().map(Case::file).collect();
    expected.insert("manifest.json".to_owned());
    assert_eq!(files, expected, "no file without a case");
}

/// The tables of the spec name every kind and every code by its number.
#[test]
fn spec_lists_every_kind_and_code() {
    let spec = concat!(env!("CARGO_MANIFEST_DIR"), "/../spec/native-protocol.md");
    let spec = fs::read_to_string(spec).unwrap();
    let has = |row: String| assert!(spec.contains(&row), "the spec has no row {row:?}");
    for (kind, name) in Request::KINDS.iter().chain(Answer::KINDS) {
        has(format!("| {kind:#04x} | {name} |"));
    }
    for code in ErrorCode::ALL {
        has(format!("| {} | {code:?} |", code.code()));
    }
    for effects in Effects::ALL {
        has(format!(
            "{} {}",
            effects.code(),
            format!("{effects:?}").to_lowercase()
        ));
    }
}

#[test]
#[ignore = "writes the golden files, once: cargo test -p sealog-protocol --test golden -- --ignored"]
fn write_golden_files_once() {
    let write = |name: &str, bytes: &[u8]| {
        let path = folder().join(name);
        let file = fs::File::create_new(&path);
        let mut file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        std::io::Write::write_all(&mut file, bytes).unwrap();
    };
    fs::create_dir_all(folder()).unwrap();
    for case in cases() {
        write(&case.file(), &case.encode());
    }
    write("manifest.json", manifest().as_bytes());
}
