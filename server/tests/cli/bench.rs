//! Bench: one scratch data directory and the command run on it.
//!
//! **Invariants**
//! - Directories lie under the target directory, on a real disk, and go when the test ends.
//!
//! **Not here**: what is expected (the tests).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A scratch data directory.
pub struct Bench {
    dir: tempfile::TempDir,
}

/// What a run came to.
#[derive(Debug)]
pub struct Ran {
    pub status: i32,
    pub out: String,
    pub err: String,
    line: String,
}

impl Bench {
    pub fn new() -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        Self {
            dir: dir.expect("a scratch directory"),
        }
    }

    /// The data directory; not made yet.
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// A file beside it.
    pub fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, content).expect("a scratch file");
        path
    }

    /// The command, not run yet, on the data directory and with the small profile.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = sealog();
        command
            .arg("--edge")
            .args(words)
            .current_dir(self.dir.path());
        command.env("SEALOG_DATA_DIR", self.data());
        command
    }

    pub fn run(&self, words: &[&str]) -> Ran {
        self.run_with(words, b"")
    }

    pub fn run_with(&self, words: &[&str], input: &[u8]) -> Ran {
        finish(self.command(words), input)
    }

    /// Runs what must succeed, and gives what it printed.
    pub fn ok(&self, words: &[&str]) -> String {
        self.run(words).ok()
    }

    /// The objects that `--json` prints.
    pub fn json(&self, words: &[&str]) -> Vec<Value> {
        let mut words = words.to_vec();
        words.push("--json");
        objects(&self.ok(&words))
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// The command without a data directory.
pub fn sealog() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sealog"));
    command.env_remove("SEALOG_DATA_DIR");
    command
}

/// Runs it to its end on `input`.
pub fn finish(mut command: Command, input: &[u8]) -> Ran {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let line = format!("{command:?}");
    let mut child = command.spawn().expect("the command starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    // The command may end without reading all of it.
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().expect("the command ends");
    feeder.join().expect("the feeder ends");
    Ran {
        status: status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&stdout).into_owned(),
        err: String::from_utf8_lossy(&stderr).into_owned(),
        line,
    }
}

impl Ran {
    pub fn ok(self) -> String {
        assert_eq!(
            (self.status, &self.err[..]),
            (0, ""),
            "{}: {}",
            self.line,
            self.out
        );
        self.out
    }

    /// Asserts a failure: its status, one line, and words in it.
    pub fn fails(self, status: i32, words: &[&str]) {
        let context = format!("{}\nout: {}\nerr: {}", self.line, self.out, self.err);
        assert_eq!(self.status, status, "{context}");
        assert_eq!(self.err.matches('\n').count(), 1, "one line: {context}");
        assert!(self.err.starts_with("sealog: "), "{context}");
        for word in words {
            assert!(self.err.contains(word), "{word:?} is missing: {context}");
        }
    }
}

/// One object per line, nothing else.
pub fn objects(text: &str) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).expect("a line of JSON");
    let all: Vec<Value> = text.lines().map(parse).collect();
    assert!(all.iter().all(Value::is_object), "{text}");
    all
}

/// Names of an object's fields, sorted.
pub fn fields(object: &Value) -> Vec<&str> {
    let map = object.as_object().expect("an object");
    map.keys().map(String::as_str).collect()
}
