//! Stores: `serve` and the command in front of a store that asks to slow down, or ignores conditions, through a
//! proxy of this file; real stores are behind it where `tests/s3/run.sh` started them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sealog_protocol::{Answer, Request};

use crate::ops::Observed;
use crate::server::Connection;

/// Seconds that the store is away: `SEALOG_AWAY_SECONDS`, else this.
const AWAY_SECONDS: u64 = 8;

/// What the proxy does with requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Answers 503, SlowDown.
    SlowDown,
    /// Hands them on.
    Pass,
    /// Hands them on without their conditions.
    Unconditional,
}

/// Stands before a store. Its thread ends with the process.
struct Proxy {
    address: SocketAddr,
    mode: Arc<Mutex<Mode>>,
    /// When it said that it is to be asked less.
    slowed: Arc<Mutex<Vec<Instant>>>,
}

impl Proxy {
    fn start(mode: Mode, store: Option<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            mode: Arc::new(Mutex::new(mode)),
            slowed: Arc::default(),
        };
        let (mode, slowed) = (proxy.mode.clone(), proxy.slowed.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (mode, slowed, store) = (mode.clone(), slowed.clone(), store.clone());
                std::thread::spawn(move || {
                    let mode = *mode.lock().unwrap();
                    if mode == Mode::SlowDown {
                        slowed.lock().unwrap().push(Instant::now());
                    }
                    let _ = one(client, mode, store.as_deref());
                });
            }
        });
        proxy
    }

    fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// One request, then the connection ends.
fn one(client: TcpStream, mode: Mode, store: Option<&str>) -> std::io::Result<()> {
    client.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut reader = BufReader::new(client.try_clone()?);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let lower = line.to_ascii_lowercase();
        if let Some(bytes) = lower.strip_prefix("content-length:") {
            length = bytes.trim().parse().unwrap_or(0);
        }
        if line == "\r\n" {
            break;
        }
        let condition = lower.starts_with("if-match:") || lower.starts_with("if-none-match:");
        let connection = lower.starts_with("connection:");
        if !(connection || condition && mode == Mode::Unconditional) {
            head += &line;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (mut client, store) = (client, store.filter(|_| mode != Mode::SlowDown));
    let Some(store) = store else {
        let text = "<Error><Code>SlowDown</Code><Message>less, please</Message></Error>";
        let length = text.len();
        let answer =
            "HTTP/1.1 503 Slow Down\r\ncontent-type: application/xml\r\nconnection: close\r\n";
        return write!(client, "{answer}content-length: {length}\r\n\r\n{text}");
    };
    let mut upstream = TcpStream::connect(store)?;
    write!(upstream, "{head}connection: close\r\n\r\n")?;
    upstream.write_all(&body)?;
    std::io::copy(&mut upstream, &mut client).map(drop)
}

/// The stores that there are: name and address.
fn stores() -> Vec<(String, String)> {
    let endpoints = std::env::var("SEALOG_S3_ENDPOINTS").unwrap_or_default();
    let pairs = endpoints.split_whitespace();
    let pairs = pairs.filter_map(|pair| pair.split_once("=http://"));
    pairs
        .map(|(name, address)| (name.to_owned(), address.trim_end_matches('/').to_owned()))
        .collect()
}

fn with_keys(command: &mut Command) -> &mut Command {
    let given = std::env::var_os("AWS_ACCESS_KEY_ID").is_some();
    if !given {
        command.env("AWS_ACCESS_KEY_ID", "k");
        command.env("AWS_SECRET_ACCESS_KEY", "s");
    }
    command.env("AWS_REGION", "us-east-1")
}

fn bucket(test: &str) -> String {
    format!("s3://sealog/{test}-{}", std::process::id())
}

#[test]
fn case_r07_store_that_asks_to_slow_down_at_the_start_is_waited_for() {
    let told = std::env::var("SEALOG_AWAY_SECONDS").ok();
    let away = Duration::from_secs(told.map_or(AWAY_SECONDS, |told| told.parse().unwrap()));
    let store = stores().into_iter().next().map(|(_, address)| address);
    let proxy = Proxy::start(Mode::SlowDown, store.clone());
    let began = Instant::now();
    let (bucket, endpoint) = (bucket("r07"), proxy.endpoint());
    // It is not up before it has waited for the store, ten seconds at most; then it takes appends.
    let server = Observed::start_with(&["--bucket", &bucket, "--endpoint", &endpoint], with_keys);
    assert!(began.elapsed() > Duration::from_secs(8), "it did not wait");
    let mut client = Connection::open(server.address);
    let binding = client.feed("orders");
    client.append(binding, &[b"kept meanwhile"]);
    std::thread::sleep(away.saturating_sub(began.elapsed()));
    assert!(server.metric("sealog_bucket_troubled_seconds", "") > 0);
    let asked = proxy.slowed.lock().unwrap().clone();
    let pauses: Vec<Duration> = asked.windows(2).map(|two| two[1] - two[0]).collect();
    // Pauses grow to five seconds and are drawn at random: neither a hammer nor a clock.
    let seconds = began.elapsed().as_secs();
    let most = usize::try_from(20 + seconds * 2).unwrap();
    assert!(asked.len() > 3 && asked.len() < most, "{pauses:?}");
    let longest = pauses.iter().max().unwrap();
    let shortest = pauses.iter().min().unwrap();
    assert!(*longest > *shortest * 2, "no jitter: {pauses:?}");
    assert_eq!(server.metric("sealog_server_ready", ""), 1);
    if store.is_none() {
        println!("skipped: that it goes on: no stores; tests/s3/run.sh starts some");
        return;
    }
    *proxy.mode.lock().unwrap() = Mode::Pass;
    let seal = Request::Seal {
        feed: "orders",
        token: None,
        message: "after it",
    };
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match client.call(&seal) {
            Answer::Committed { .. } => break,
            Answer::Refused { .. } => assert!(Instant::now() < until, "not published"),
            other => panic!("{other:?}"),
        }
        match client.call(&Request::Repair { feed: "orders" }) {
            Answer::Repaired { commits: 1 } => break,
            _ => std::thread::sleep(Duration::from_millis(200)),
        }
    }
    assert_eq!(server.metric("sealog_commits_unpublished", "log=\"0\""), 0);
}

fn append(dir: &std::path::Path, bucket: &str, endpoint: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sealog"));
    with_keys(&mut command)
        .args(["append", "f", "--value", "x", "--data-dir"])
        .arg(dir)
        .args(["--bucket", bucket, "--endpoint", endpoint])
        .args(more)
        .output()
        .unwrap()
}

#[test]
fn case_d16_store_that_ignores_conditions_is_refused_by_the_command() {
    // A store that checks signatures would find the conditions missing; the other takes any.
    let Some((_, store)) = stores().into_iter().find(|(name, _)| name == "ministack") else {
        println!("skipped: no stores; tests/s3/run.sh starts some");
        return;
    };
    let proxy = Proxy::start(Mode::Unconditional, Some(store));
    let (bucket, endpoint) = (bucket("d16"), proxy.endpoint());
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let began = Instant::now();
    let ran = append(&data, &bucket, &endpoint, &[]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(7), "{said}");
    assert!(began.elapsed() < Duration::from_secs(10), "{said}");
    assert!(
        said.contains("condition") && said.contains(&bucket),
        "{said}"
    );
    assert!(!data.join("format").exists(), "a directory was made");
    let ran = append(&data, &bucket, &endpoint, &["--unsafe-no-conditions"]);
    assert!(ran.status.success(), "{ran:?}");
    // With its conditions the same store will do.
    *proxy.mode.lock().unwrap() = Mode::Pass;
    let ran = append(&data, &bucket, &endpoint, &[]);
    assert!(ran.status.success(), "{ran:?}");
}

#[test]
fn prefix_of_another_data_directory_is_refused_by_the_command() {
    for (name, store) in stores() {
        let (bucket, endpoint) = (bucket("owner"), format!("http://{store}"));
        let dir = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
        assert!(
            append(&one, &bucket, &endpoint, &[]).status.success(),
            "{name}"
        );
        let ran = append(&two, &bucket, &endpoint, &[]);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(7), "{name}: {said}");
        for word in [
            one.to_str().unwrap(),
            two.to_str().unwrap(),
            "--take-bucket",
        ] {
            assert!(said.contains(word), "{name}: {said}");
        }
        std::fs::remove_dir_all(&two).unwrap();
        assert!(
            append(&one, &bucket, &endpoint, &[]).status.success(),
            "{name}"
        );
        // Restored from a copy that does not know that it owns the bucket.
        let copied = Command::new("cp").arg("-r").args([&one, &two]).status();
        assert!(copied.unwrap().success());
        std::fs::remove_file(two.join("owner")).unwrap();
        let refused = append(&two, &bucket, &endpoint, &[]).status.code();
        assert_eq!(refused, Some(7), "{name}");
        let ran = append(&two, &bucket, &endpoint, &["--take-bucket"]);
        assert!(ran.status.success(), "{name}: {ran:?}");
        assert_eq!(append(&one, &bucket, &endpoint, &[]).status.code(), Some(7));
    }
}
