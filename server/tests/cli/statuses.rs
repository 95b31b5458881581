//! Tests of the exit statuses that `docs/cli.md` lists: what ends how, of places and files above all.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

use super::bench::{Bench, Ran, finish};

/// Runs it as somebody whom the modes of files bind, which they don't bind root.
fn bound(bench: &Bench, words: &[&str]) -> Ran {
    let mut command = bench.command(words);
    let lose_override = || {
        for capability in [1, 2] {
            // CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH; whoever may not drop them has none.
            // SAFETY: a plain call, no memory involved.
            unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        }
        Ok(())
    };
    // SAFETY: a system call only, between fork and exec; no allocation, no locks.
    unsafe { command.pre_exec(lose_override) };
    finish(command, b"")
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn files_that_cannot_be_read_have_their_status() {
    let bench = Bench::new();
    let secret = bench.file("secret", b"x\n");
    mode(&secret, 0o000);
    std::fs::create_dir(bench.path().join("folder")).unwrap();
    for (path, status, reason) in [
        ("absent", 4, "absent does not exist"),
        ("folder", 2, "folder is a directory, not a file"),
        ("secret", 7, "secret: Permission denied"),
        ("secret/x", 7, "secret/x: Not a directory"),
    ] {
        for words in [
            &["append", "f", "--lines", "--input", path][..],
            &["feed", "list", "--config", path],
            &["inspect", path],
        ] {
            bound(&bench, words).fails(status, &[reason]);
        }
    }
    bench.file("binary.toml", b"\xff\xfe");
    bench
        .run(&["feed", "list", "--config", "binary.toml"])
        .fails(2, &["binary.toml", "UTF-8"]);
    assert!(!bench.data().exists());
}

#[test]
fn places_that_cannot_be_used_are_status_7() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--record", "k=v"]);
    let data = bench.data();
    for part in [
        "",
        "LOCK",
        "format",
        "wal/0",
        "wal/0/00000000.seg",
        "checkpoint",
        "bucket",
        "settings.toml",
    ] {
        let path = data.join(part);
        let before = std::fs::metadata(&path).unwrap().permissions().mode();
        mode(&path, 0o000);
        for words in [
            &["read", "f"][..],
            &["append", "f", "--value", "x"],
            &["verify"],
        ] {
            let ran = bound(&bench, words);
            // Verify does not open spare files; all else must.
            ran.fails(7, &["ermission denied"]);
        }
        mode(&path, before);
    }
    // Objects one by one: read wherever they are needed.
    let mut objects = vec![data.join("bucket/feeds")];
    while let Some(path) = objects.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).unwrap();
            objects.extend(entries.map(|entry| entry.unwrap().path()));
            continue;
        }
        mode(&path, 0o000);
        let name = path.file_name().unwrap().to_str().unwrap();
        bound(&bench, &["verify"]).fails(7, &["ermission denied", "the bucket refuses", name]);
        if name.ends_with(".commit") {
            bound(&bench, &["commits", "f"]).fails(7, &["ermission denied", name]);
        }
        mode(&path, 0o640);
    }
    bench.file("plain", b"");
    std::fs::create_dir(bench.path().join("bare")).unwrap();
    mode(&bench.path().join("bare"), 0o555);
    for (words, reason) in [
        (&["--data-dir", "plain/x"][..], "Not a directory"),
        (&["--data-dir", "plain"], "not a directory"),
        (&["--data-dir", "bare/x"], "ermission denied"),
        (&["--data-dir", "bare"], "ermission denied"),
        (
            &["--data-dir", "n1", "--bucket-dir", "plain"],
            "not a directory",
        ),
        (
            &["--data-dir", "n2", "--bucket-dir", "bare/b"],
            "ermission denied",
        ),
    ] {
        let words = [&["append", "g", "--value", "x"], words].concat();
        bound(&bench, &words).fails(7, &[reason]);
    }
    assert_eq!(bench.ok(&["read", "f", "--format", "payload"]), "v\n");
}

/// A typing mistake must not turn somebody's folder into a data directory.
#[test]
fn foreign_folder_is_left_as_it_is() {
    let bench = Bench::new();
    std::fs::create_dir(bench.data()).unwrap();
    let names = || {
        let entries = std::fs::read_dir(bench.data()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    for words in [&["read", "f"][..], &["verify"], &["admin", "accept-loss"]] {
        bench.run(words).fails(7, &["data is not a data directory"]);
        assert!(names().is_empty(), "{words:?}: {:?}", names());
    }
    std::fs::write(bench.data().join("thesis.tex"), b"x").unwrap();
    for words in [
        &["append", "f", "--value", "x"][..],
        &["feed", "create", "f"],
        &["read", "f"],
    ] {
        bench.run(words).fails(7, &["is not a data directory"]);
        assert_eq!(names(), ["thesis.tex"], "{words:?}");
    }
    bench
        .run(&["append", "f", "--value", "x"])
        .fails(7, &["holds \"thesis.tex\""]);
    std::fs::remove_file(bench.data().join("thesis.tex")).unwrap();
    std::fs::create_dir(bench.data().join("lost+found")).unwrap();
    bench.ok(&["append", "f", "--value", "x"]);
}

#[test]
fn inspect_shows_small_files_and_refuses_foreign_ones() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--record", "k=v"]);
    let data = bench.data();
    for (path, shown) in [
        ("LOCK", "format: directory lock"),
        ("bucket/.tmp/OPEN", "format: bucket lock"),
        ("bucket/.tmp/CAS", "format: bucket lock"),
        ("checkpoint/0/reserve", "format: reserve: space kept"),
        ("bucket/feeds/f/0/feed.json", "name: f"),
    ] {
        let path = data.join(path);
        let printed = bench.ok(&["inspect", path.to_str().unwrap()]);
        assert!(printed.contains(shown), "{printed}");
    }
    for (name, content) in [
        ("empty", &b""[..]),
        ("feed.json", b"{}"),
        ("LOCK", b"mine"),
        ("CAS", b""),
    ] {
        bench.file(name, content);
        let reason = format!("{name} is not a Sealog file: it ");
        bench.run(&["inspect", name]).fails(2, &[&reason]);
    }
}

/// The standard library opens /dev/null in its place.
#[test]
fn closed_standard_output_takes_no_answer() {
    let bench = Bench::new();
    let closed = |words: &[&str]| {
        let mut command = bench.command(words);
        let close = || {
            // SAFETY: a plain call, no memory involved.
            unsafe { libc::close(libc::STDOUT_FILENO) };
            Ok(())
        };
        // SAFETY: a system call only, between fork and exec; no allocation, no locks.
        unsafe { command.pre_exec(close) };
        finish(command, b"")
    };
    let told = "done, but not printed: commit 0: 1 record";
    closed(&["append", "f", "--value", "x"]).fails(8, &[told, "Bad file descriptor"]);
    closed(&["read", "f"]).fails(1, &["writing to standard output: Bad file descriptor"]);
    assert_eq!(bench.ok(&["read", "f", "--format", "payload"]), "x\n");
}

#[test]
fn bucket_that_is_not_mounted_is_no_damage() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--value", "x"]);
    let bucket = bench.data().join("bucket");
    let away = bench.path().join("away");
    std::fs::rename(&bucket, &away).unwrap();
    std::fs::create_dir(&bucket).unwrap();
    for words in [&["verify"][..], &["read", "f"], &["usage"]] {
        bench.run(words).fails(7, &["commit 0", "not mounted"]);
    }
    std::fs::remove_dir_all(&bucket).unwrap();
    bench.run(&["verify"]).fails(7, &["bucket", "is not there"]);
    std::fs::rename(&away, &bucket).unwrap();
    bench.ok(&["verify"]);
    // One object of it that is gone is damage.
    let feed = std::fs::read_dir(bucket.join("feeds/f")).unwrap().next();
    let commits = feed.unwrap().unwrap().path().join("commits");
    std::fs::remove_dir_all(commits).unwrap();
    bench.run(&["verify"]).fails(5, &["object is gone"]);
}
