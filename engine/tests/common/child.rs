//! Child: the test binary started once more, to be killed, limited or forbidden things.
//!
//! **Invariants**
//! - A child does nothing unless the environment names its role: run on its own, the test that
//!   carries it passes at once.
//! - Lines of the child that the parent reads begin with `@`.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

const ROLE: &str = "SEALOG_CASE_ROLE";
const ARGUMENT: &str = "SEALOG_CASE_ARGUMENT";

/// Role and argument, in a child.
pub fn role() -> Option<(String, String)> {
    let role = std::env::var(ROLE).ok()?;
    Some((role, std::env::var(ARGUMENT).unwrap_or_default()))
}

/// The command that runs test `child_role` of this binary as `role`.
pub fn command(role: &str, argument: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child_role", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(ARGUMENT, argument)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

/// Runs a child to its end and gives what it said; panics unless it ended well.
pub fn run(role: &str, argument: impl AsRef<std::ffi::OsStr>) -> Vec<String> {
    let output = command(role, argument).output().unwrap();
    assert!(output.status.success(), "{role}: {}", said_all(&output));
    said(&output)
}

/// What a child said to its parent.
pub fn said(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter_map(after_mark);
    lines.collect()
}

fn said_all(output: &Output) -> String {
    let parts =
        [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part).into_owned());
    format!("{}\n{}", output.status, parts.join("\n"))
}

/// What a line says, if it is for the parent. The test harness may have begun the line.
fn after_mark(line: &str) -> Option<String> {
    line.split_once('@').map(|(_, word)| word.to_owned())
}

/// Says something to the parent, at once.
pub fn say(word: impl std::fmt::Display) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "@{word}").unwrap();
    out.flush().unwrap();
}

/// A child that runs, and what it says.
pub struct Running {
    pub child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

pub fn spawn(role: &str, argument: impl AsRef<std::ffi::OsStr>) -> Running {
    let mut child = command(role, argument).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    Running { child, lines }
}

impl Running {
    /// The next thing it says; `None` when it has ended.
    pub fn hear(&mut self) -> Option<String> {
        loop {
            let line = self.lines.next()?.ok()?;
            if let Some(word) = after_mark(&line) {
                return Some(word);
            }
        }
    }

    /// kill -9, then all that it had said before.
    pub fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let mut rest = Vec::new();
        while let Some(word) = self.hear() {
            rest.push(word);
        }
        rest
    }
}

/// Sets a limit of this process, soft and hard.
pub fn set_limit(resource: libc::__rlimit_resource_t, value: u64) {
    let limit = libc::rlimit {
        rlim_cur: value,
        rlim_max: value,
    };
    // SAFETY: `limit` is the structure the call reads.
    let status = unsafe { libc::setrlimit(resource, &limit) };
    assert_eq!(status, 0, "setrlimit: {}", std::io::Error::last_os_error());
}
