//! Ops: what `sealog serve` says of itself, and how it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Instant;

use sealog_protocol::{Answer, ReadFrom, Request, Rest};
use tempfile::TempDir;

use crate::server::{Connection, DEADLINE, Server, frame, hello, scope};

/// A server of which everything it says is kept.
pub struct Observed {
    pub child: Child,
    pub address: SocketAddr,
    admin: SocketAddr,
    stderr: BufReader<ChildStderr>,
    lines: Vec<String>,
    pub dir: TempDir,
}

impl Observed {
    pub fn start(args: &[&str]) -> Self {
        Self::start_with(args, |command| command)
    }

    pub fn start_with(args: &[&str], adjust: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), args, adjust)
    }

    fn start_in(
        dir: TempDir,
        args: &[&str],
        adjust: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sealog"));
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--shard-port", "0"])
            .args([
                "--http-listen",
                "127.0.0.1:0",
                "--admin-listen",
                "127.0.0.1:0",
                "--data-dir",
            ])
            .arg(dir.path().join("data"))
            .args(args)
            .stderr(Stdio::piped());
        let mut child = adjust(&mut command).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut lines = Vec::new();
        let mut until = |words: &str| loop {
            let mut line = String::new();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "{lines:?}");
            lines.push(line.trim_end().to_owned());
            if let Some((_, rest)) = line.split_once(words) {
                let end = rest.find(['"', '\n']).unwrap_or(rest.len());
                return rest[..end].parse().unwrap();
            }
        };
        let admin = until("metrics at http://");
        let address = until("listening on ");
        Self {
            child,
            address,
            admin,
            stderr,
            lines,
            dir,
        }
    }

    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).unwrap();
        // SAFETY: a plain call; the process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Waits for its end: status, and all it said.
    pub fn end(mut self) -> (Option<i32>, Vec<String>) {
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        let mut lines = std::mem::take(&mut self.lines);
        lines.extend(rest.lines().map(str::to_owned));
        (self.child.wait().unwrap().code(), lines)
    }

    /// What the admin address answers: status, and body.
    fn get(&self, path: &str) -> (u16, String) {
        self.ask("GET", path)
    }

    fn ask(&self, method: &str, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect(&answer);
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.expect(head), body.to_owned())
    }

    /// A metric's value; `label` is what stands in braces.
    pub fn metric(&self, name: &str, label: &str) -> u64 {
        let (status, text) = self.get("/metrics");
        assert_eq!(status, 200, "{text}");
        let series = match label {
            "" => format!("{name} "),
            _ => format!("{name}{{{label}}} "),
        };
        let value = text.lines().find_map(|line| line.strip_prefix(&series));
        value.and_then(|value| value.parse().ok()).expect(&text)
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a server that is started with `args`, given a client without hello and ended by SIGTERM says.
fn said(args: &[&str]) -> Vec<String> {
    let server = Observed::start(args);
    let mut client = Connection::raw(server.address);
    client.send(&Request::Ping {});
    let refused = client.receive();
    assert!(refused.is_some());
    server.signal(libc::SIGTERM);
    let (status, lines) = server.end();
    assert_eq!(status, Some(0), "{lines:?}");
    lines
}

/// That every one of `words` is in a line, in this order.
#[track_caller]
pub fn assert_in_order(lines: &[String], words: &[&str]) {
    let mut rest = lines.iter();
    for word in words {
        assert!(
            rest.any(|line| line.contains(word)),
            "{word} in {}",
            lines.join("\n")
        );
    }
}

const STORY: [&str; 7] = [
    "starting",
    "created",
    "listening on",
    "connection refused: the first message is no hello",
    "draining",
    "drained",
    "closed",
];

#[test]
fn log_text_tells_start_refusals_and_drain() {
    let lines = said(&[]);
    assert_in_order(&lines, &STORY);
    assert!(
        lines.iter().all(|line| !line.contains("recovered")),
        "{lines:?}"
    );
}

#[test]
fn log_json_is_an_object_per_line() {
    let lines = said(&["--log-format", "json"]);
    assert_in_order(&lines, &STORY);
    for line in &lines {
        let object: serde_json::Value = serde_json::from_str(line).expect(line);
        for field in ["timestamp", "level", "target", "message"] {
            assert!(object[field].is_string(), "{field} of {line}");
        }
    }
}

#[test]
fn log_level_hides_what_is_below_it_and_a_wrong_one_is_usage() {
    let dir = tempfile::tempdir().unwrap();
    let run = |level: &str| {
        Command::new(env!("CARGO_BIN_EXE_sealog"))
            .args(["serve", "--listen", "192.0.2.1:0", "--insecure"])
            .env("SEALOG_ADMIN_LISTEN", "127.0.0.1:0")
            .args(["--log", level, "--data-dir"])
            .arg(dir.path().join("data"))
            .output()
            .unwrap()
    };
    let wrong = run("loud");
    let text = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert_eq!(wrong.status.code(), Some(2), "{text}");
    assert!(text.contains("--log loud: "), "{text}");
    let quiet = run("error");
    let text = String::from_utf8_lossy(&quiet.stderr).into_owned();
    assert_eq!(quiet.status.code(), Some(7), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn log_never_holds_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "open-sesame").unwrap();
    let lines = said(&["--token-file", file.to_str().unwrap(), "--log", "trace"]);
    assert!(lines.iter().all(|line| !line.contains("open-sesame")));
    assert_in_order(&lines, &["token=true"]);
}

fn read(wait_ms: u32) -> Request<'static> {
    Request::Read {
        scope: scope("orders", ReadFrom::Sequence(0)),
        wait_ms,
    }
}

#[test]
fn admin_is_ready_until_the_drain_and_a_second_signal_ends_at_once() {
    let server = Observed::start(&[]);
    assert_eq!(server.get("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(server.get("/readyz"), (200, "ready\n".to_owned()));
    assert_eq!(server.metric("sealog_server_ready", ""), 1);
    // A client that asks for more than sockets hold, and takes nothing, keeps the drain from ending.
    let mut client = Connection::open(server.address);
    let binding = client.feed("orders");
    client.append(binding, &[&[7; 1 << 20]]);
    for _ in 0..64 {
        client.send(&read(0));
    }
    let begun = Instant::now();
    server.signal(libc::SIGTERM);
    let (mut status, mut reason) = (200, String::new());
    while status == 200 {
        assert!(begun.elapsed() < DEADLINE, "ready although it drains");
        (status, reason) = server.get("/readyz");
    }
    assert_eq!(status, 503);
    assert!(reason.starts_with("draining"), "{reason}");
    assert_eq!(server.get("/healthz").0, 200);
    assert_eq!(server.metric("sealog_server_ready", ""), 0);
    server.signal(libc::SIGTERM);
    let (status, lines) = server.end();
    assert_eq!(status, Some(128 + libc::SIGTERM), "{lines:?}");
    assert_in_order(&lines, &["draining", "ending at once"]);
}

#[test]
fn drain_answers_a_read_that_waits_at_once() {
    let server = Observed::start(&[]);
    let mut client = Connection::open(server.address);
    client.feed("orders");
    client.send(&read(60_000));
    // It is under way once something behind it was answered.
    client.send(&Request::Ping {});
    assert!(client.receive().is_some());
    let begun = Instant::now();
    server.signal(libc::SIGTERM);
    let (_, answer) = client.receive().unwrap();
    assert!(matches!(answer, Answer::Records { .. }), "{answer:?}");
    let (status, lines) = server.end();
    assert_eq!(status, Some(0), "{lines:?}");
    assert!(begun.elapsed().as_secs() < 5, "{lines:?}");
    assert_in_order(&lines, &["draining", "drained"]);
}

#[test]
fn admin_answers_what_it_has_and_nothing_else() {
    let server = Observed::start(&[]);
    assert_eq!(server.get("/").0, 404);
    assert_eq!(server.ask("POST", "/metrics").0, 405);
    let (status, body) = server.ask("HEAD", "/healthz");
    assert_eq!((status, body.as_str()), (200, ""));
    let taken = server.admin.to_string();
    let dir = tempfile::tempdir().unwrap();
    let second = Command::new(env!("CARGO_BIN_EXE_sealog"))
        .args(["serve", "--listen", "127.0.0.1:0", "--shard-port", "0"])
        .args([
            "--http-listen",
            "none",
            "--admin-listen",
            &taken,
            "--data-dir",
        ])
        .arg(dir.path().join("data"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(7), "{text}");
    assert!(text.contains(&format!("admin address {taken}: ")), "{text}");
    assert!(text.contains("; --admin-listen names another"), "{text}");
}

#[test]
fn metrics_parse_and_count_what_was_done() {
    let server = Observed::start(&[]);
    let mut client = Connection::open(server.address);
    let binding = client.feed("orders");
    client.append(binding, &[b"a", b"b"]);
    client.append(binding, &[b"c"]);
    let unbound = frame(&[b"d"]);
    let refused = client.call(&Request::Append {
        binding: 99,
        frame: Rest(&unbound),
    });
    assert!(matches!(refused, Answer::Refused { .. }), "{refused:?}");
    let answer = client.call(&read(0));
    let Answer::Records { records } = answer else {
        panic!("{answer:?}");
    };
    let sent = records.frames.0.len() as u64;
    assert!(sent > 0);
    for (name, label, value) in [
        ("sealog_connections_open", "shard=\"0\"", 1),
        ("sealog_appends_acknowledged_total", "shard=\"0\"", 2),
        ("sealog_records_stored_total", "shard=\"0\"", 3),
        ("sealog_requests_refused_total", "code=\"NotBound\"", 1),
        // Hello, create, bind, three appends, a read.
        ("sealog_requests_received_total", "shard=\"0\"", 7),
        ("sealog_records_sent_bytes_total", "shard=\"0\"", sent),
        ("sealog_commits_unpublished", "log=\"0\"", 0),
        ("sealog_bucket_troubled_seconds", "", 0),
    ] {
        assert_eq!(server.metric(name, label), value, "{name}");
    }
    assert!(server.metric("sealog_groups_committed_total", "log=\"0\"") >= 2);
    for name in ["groups_commit_seconds_count", "groups_size_bytes_count"] {
        assert!(
            server.metric(&format!("sealog_{name}"), "log=\"0\"") >= 2,
            "{name}"
        );
    }
    assert!(server.metric("sealog_log_unpacked_bytes", "log=\"0\"") > 0);
    assert!(server.metric("sealog_process_resident_bytes", "") > 1 << 20);
    let (_, text) = server.get("/metrics");
    assert!(text.ends_with("# EOF\n"), "{text}");
    let mut described = Vec::new();
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            described.push((name, kind));
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').expect(line);
            value.parse::<f64>().expect(line);
            let (name, kind) = described.last().expect(line);
            let (plain, labels) = series.split_once('{').unwrap_or((series, "}"));
            let suffixes: &[&str] = match *kind {
                "counter" => &["_total"],
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            let suffix = plain.strip_prefix(name).expect(line);
            assert!(suffixes.contains(&suffix), "{line}");
            assert!(labels.ends_with('}'), "{line}");
        }
    }
    assert!(described.len() > 20, "{text}");
}

/// The system's word that a file may not grow any more is an error of the write then, not the end of the
/// process.
pub fn without_file_size_signal(command: &mut Command) -> &mut Command {
    // SAFETY: one async-signal-safe call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            Ok(())
        })
    }
}

/// From here on every write to a file fails.
pub fn limit_files(server: &Observed) {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let pid = i32::try_from(server.child.id()).unwrap();
    // SAFETY: `none` is a valid rlimit for the call, the old limits are not asked for.
    let limited = unsafe {
        libc::prlimit(
            pid,
            libc::RLIMIT_FSIZE,
            &raw const none,
            std::ptr::null_mut(),
        )
    };
    assert_eq!(limited, 0);
}

#[test]
fn serve_ends_with_a_status_of_its_own_when_a_log_stops() {
    let server = Observed::start_with(&[], without_file_size_signal);
    let mut client = Connection::open(server.address);
    let binding = client.feed("orders");
    client.append(binding, &[b"a"]);
    limit_files(&server);
    let frame = frame(&[b"b"]);
    client.send(&Request::Append {
        binding,
        frame: Rest(&frame),
    });
    let (status, lines) = server.end();
    assert_eq!(status, Some(9), "{lines:?}");
    assert_in_order(&lines, &["a log stopped", "draining", "sealog: "]);
}

/// `config show` with these arguments and variables: lines, or the failure.
fn shown(args: &[&str], variables: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_sealog"))
        .args(["config", "show"])
        .args(args)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(text.lines().map(str::to_owned).collect()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[track_caller]
fn assert_shown(lines: &[String], expected: &[&str]) {
    for line in expected {
        assert!(
            lines.iter().any(|l| l == line),
            "{line} in\n{}",
            lines.join("\n")
        );
    }
}

#[test]
fn config_show_tells_where_each_value_came_from() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sealog.toml");
    let text = "feeds_max = 7\n[wal]\nfull_wait_ms = 5\n\n[serve]\nlisten = \"127.0.0.1:1\"\n\
                shard_port = 2\nlog = \"warn\"\nlog_format = \"json\"\n";
    std::fs::write(&file, text).unwrap();
    let path = file.to_str().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let args = ["--config", path, "--data-dir", data, "--log", "debug"];
    let variables = [("SEALOG_SHARD_PORT", "3"), ("SEALOG_LOG", "error")];
    let lines = shown(&args, &variables).unwrap();
    assert_shown(
        &lines,
        &[
            "profile = \"standard\"  # default",
            &format!("data_dir = \"{data}\"  # flag --data-dir"),
            &format!("feeds_max = 7  # file {path}:1"),
            &format!("wal.full_wait_ms = 5  # file {path}:3"),
            "wal.segment_bytes = 67108864  # default",
            "# bucket is not set",
            &format!("serve.listen = \"127.0.0.1:1\"  # file {path}:6"),
            // A variable before the file, an option before a variable.
            "serve.shard_port = 3  # env SEALOG_SHARD_PORT",
            "serve.log = \"debug\"  # flag --log",
            &format!("serve.log_format = \"json\"  # file {path}:9"),
            "serve.admin_listen = \"127.0.0.1:4438\"  # default",
        ],
    );
    assert!(!std::path::Path::new(data).exists(), "it only shows");
    let objects = shown(&[&args[..], &["--json"]].concat(), &variables).unwrap();
    assert_eq!(objects.len(), lines.len());
    let object: serde_json::Value = serde_json::from_str(&objects[1]).unwrap();
    let expected =
        serde_json::json!({"key": "data_dir", "value": data, "origin": "flag --data-dir"});
    assert_eq!(object, expected);
}

#[test]
fn config_show_tells_profile_and_directory() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let edge = shown(&["--edge", "--data-dir", data], &[]).unwrap();
    assert_shown(
        &edge,
        &[
            "profile = \"edge\"  # flag --edge",
            "batch.bytes_max = 1048576  # profile edge",
        ],
    );
    let file = dir.path().join("sealog.toml");
    std::fs::write(&file, "logs = 3\nwal.segment_bytes = \"16 MiB\"\n").unwrap();
    let file = file.to_str().unwrap();
    let made = Command::new(env!("CARGO_BIN_EXE_sealog"))
        .args(["feed", "create", "f", "--edge", "--data-dir", data])
        .args(["--config", file])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let later = shown(&[], &[("SEALOG_DATA_DIR", data)]).unwrap();
    assert_shown(
        &later,
        &[
            &format!("profile = \"edge\"  # directory {data}/settings.toml"),
            &format!("data_dir = \"{data}\"  # env SEALOG_DATA_DIR"),
            &format!("logs = 3  # directory {data}/format"),
            &format!("wal.segment_bytes = 16777216  # directory {data}/format"),
        ],
    );
    // What a file says now does not change them.
    std::fs::write(file, "logs = 2\n").unwrap();
    let other = shown(&["--data-dir", data, "--config", file], &[]).unwrap();
    assert_shown(&other, &[&format!("logs = 3  # directory {data}/format")]);
}

#[test]
fn config_show_names_the_token_file_and_never_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "open-sesame").unwrap();
    let token = token.to_str().unwrap();
    let lines = shown(&["--token-file", token], &[]).unwrap();
    assert_shown(
        &lines,
        &[&format!(
            "serve.token_file = \"{token}\"  # flag --token-file"
        )],
    );
    assert!(lines.iter().all(|line| !line.contains("open-sesame")));
    let half = shown(&["--tls-cert", "c.pem"], &[]).unwrap_err();
    assert!(half.contains("--tls-cert with --tls-key"), "{half}");
}

#[test]
fn serve_takes_its_settings_from_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sealog.toml");
    std::fs::write(
        &file,
        "[serve]\nlog_format = \"json\"\nconnections_max = 1\n",
    )
    .unwrap();
    let server = Observed::start(&["--config", file.to_str().unwrap()]);
    let first = Connection::open(server.address);
    let mut second = Connection::raw(server.address);
    second.send(&hello());
    let (_, answer) = second.receive().unwrap();
    assert!(matches!(answer, Answer::Refused { .. }), "{answer:?}");
    drop(first);
    server.signal(libc::SIGTERM);
    let (status, lines) = server.end();
    assert_eq!(status, Some(0), "{lines:?}");
    assert!(lines.iter().all(|line| line.starts_with('{')), "{lines:?}");
}

#[test]
fn descriptors_are_raised_to_what_the_hard_limit_allows() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let words: Vec<&str> = line.unwrap().split_whitespace().collect();
    assert_eq!(words[3], words[4], "soft and hard: {words:?}");
}

#[test]
fn port_that_is_taken_is_named_with_its_option() {
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port().to_string();
    let taken = format!("127.0.0.1:{port}");
    let dir = tempfile::tempdir().unwrap();
    for (listen, shard_port, option) in [
        (&taken[..], "0", "; --listen names another address"),
        (
            "127.0.0.1:0",
            &port,
            "--shard-port names the first of others",
        ),
    ] {
        let ran = Command::new(env!("CARGO_BIN_EXE_sealog"))
            .args(["serve", "--listen", listen, "--shard-port", shard_port])
            .args([
                "--http-listen",
                "none",
                "--admin-listen",
                "none",
                "--data-dir",
            ])
            .arg(dir.path().join("data"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(7), "{text}");
        let told = format!("sealog: listening on {taken}: Address already in use");
        assert!(text.contains(&told) && text.contains(option), "{text}");
    }
}

#[test]
fn log_tells_a_log_that_was_made_from_one_that_was_recovered() {
    let mut server = Observed::start(&[]);
    assert_in_order(&server.lines, &["created log=0", "listening on"]);
    server.signal(libc::SIGTERM);
    assert!(server.child.wait().unwrap().success());
    let dir = std::mem::replace(&mut server.dir, tempfile::tempdir().unwrap());
    let again = Observed::start_in(dir, &[], |command| command);
    assert_in_order(
        &again.lines,
        &["recovered log=0 clean=true groups_replayed=1 "],
    );
}
