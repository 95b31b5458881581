//! Tidy: the style that can be counted, as tests.
//!
//! **Invariants**
//! - Every breach is listed with its place; the ratchet file excuses known ones and may only shrink.
//!
//! **Not here**: what clippy and rustfmt see.

use sealog_tests::tidy::{Source, files};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const CRATES: [&str; 5] = ["engine", "server", "bench", "fuzz", "tests"];
const FILE_LINES_MAX: usize = 1_000;
const FILE_LINES_P95: usize = 600;
const FILE_LINES_MEDIAN: usize = 200;
const FUNCTION_LINES_MAX: usize = 70;
const TEST_MODULE_LINES_MAX: usize = 300;

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("tests/ is in the repository").into()
}

fn sources() -> Vec<Source> {
    let root = root();
    let paths = CRATES.iter().flat_map(|dir| files(&root.join(dir), ".rs"));
    let all: Vec<Source> = paths.map(|path| Source::read(&root, &path)).collect();
    assert!(all.len() > 15, "found only {} sources", all.len());
    all
}

/// One breach of a rule. `value` is what the ratchet limits: a count, or 1.
struct Breach {
    place: String,
    value: usize,
}

fn breach(place: impl Into<String>, value: usize) -> Breach {
    let place = place.into();
    Breach { place, value }
}

/// Fails for breaches that the ratchet doesn't excuse, and for excuses no longer needed.
fn judge(rule: &str, breaches: Vec<Breach>) {
    let path = root().join("tests/tidy-ratchet.txt");
    let text = std::fs::read_to_string(path).expect("the ratchet file");
    let mut problems = Vec::new();
    let mut used = BTreeSet::new();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let rows: Vec<Vec<&str>> = lines.map(|l| l.split_whitespace().collect()).collect();
    for Breach { place, value } in breaches {
        let row = rows.iter().find(|r| r[..2] == [rule, place.as_str()]);
        let allowed: usize = row.map_or(0, |row| row[2].parse().expect("a number"));
        used.insert(place.clone());
        if value > allowed {
            problems.push(format!("{place}: {value}"));
        }
    }
    for row in rows.iter().filter(|row| row[0] == rule) {
        if !used.contains(row[1]) {
            problems.push(format!("{}: take it off the ratchet", row[1]));
        }
    }
    assert!(problems.is_empty(), "{rule}:\n{}", problems.join("\n"));
}

#[test]
fn tidy_files_are_short() {
    let sources = sources();
    let production = sources.iter().filter(|s| !s.is_test_file());
    let mut sizes: Vec<usize> = production.map(Source::production_lines).collect();
    sizes.sort_unstable();
    let median = sizes[sizes.len() / 2];
    let p95 = sizes[sizes.len() * 95 / 100];
    assert!(median <= FILE_LINES_MEDIAN, "median {median} lines");
    assert!(p95 <= FILE_LINES_P95, "95th percentile {p95} lines");
    let long = sources.iter().map(|s| (s, s.production_lines()));
    let long = long.filter(|(_, lines)| *lines > FILE_LINES_MAX);
    judge(
        "file-lines",
        long.map(|(s, n)| breach(&s.path, n)).collect(),
    );
}

#[test]
fn tidy_test_modules_are_short_or_siblings() {
    let long = sources()
        .into_iter()
        .map(|s| (s.test_module_lines(), s.path));
    let long = long.filter(|(lines, _)| *lines > TEST_MODULE_LINES_MAX);
    judge(
        "test-lines",
        long.map(|(n, path)| breach(path, n)).collect(),
    );
}

#[test]
fn tidy_functions_are_short() {
    let mut long = Vec::new();
    for source in sources().iter().filter(|source| !source.is_test_file()) {
        for function in source.functions() {
            let lines = function.last - function.first + 1;
            if lines > FUNCTION_LINES_MAX {
                long.push(breach(format!("{}:{}", source.path, function.name), lines));
            }
        }
    }
    judge("function-lines", long);
}

#[test]
fn tidy_files_begin_with_what_they_own() {
    let bare = sources()
        .into_iter()
        .filter(|source| !source.text.starts_with("//! "));
    judge("header", bare.map(|s| breach(s.path, 1)).collect());
}

#[test]
fn tidy_cited_specs_exist() {
    let root = root();
    let mut broken = Vec::new();
    for source in sources() {
        for (spec, section) in citations(&source.text) {
            let homes = ["engine", "server", "engine/frame", "server/protocol", "."];
            let file = homes.iter().map(|home| root.join(home).join(&spec));
            let Some(file) = file.into_iter().find(|file| file.is_file()) else {
                broken.push(breach(format!("{}:{spec}", source.path), 1));
                continue;
            };
            let text = std::fs::read_to_string(file).expect("a readable spec");
            let headed = |section: &String| text.lines().any(|line| heads(line, section));
            if section.as_ref().is_some_and(|section| !headed(section)) {
                let section = section.unwrap_or_default();
                broken.push(breach(format!("{}:{spec}§{section}", source.path), 1));
            }
        }
    }
    judge("spec", broken);
}

/// Spec files, with the section that follows it, wherever a comment names one.
fn citations(text: &str) -> Vec<(String, Option<String>)> {
    let comments = text.lines().filter_map(|line| line.split_once("//"));
    let mut found = Vec::new();
    for (_, comment) in comments {
        for (at, _) in comment.match_indices("spec/") {
            let rest = &comment[at..];
            let Some(end) = rest.find(".md").map(|dot| dot + 3) else {
                continue;
            };
            let (path, tail) = rest.split_at(end);
            if path.contains(char::is_whitespace) {
                continue;
            }
            let section = tail.trim_start_matches(['`', ' ']).strip_prefix('§');
            let section = section.map(|s| s.chars().take_while(char::is_ascii_digit).collect());
            found.push((path.to_owned(), section));
        }
    }
    found
}

fn heads(line: &str, section: &str) -> bool {
    let title = line.trim_start_matches('#').trim_start_matches([' ', '§']);
    let number: String = title.chars().take_while(char::is_ascii_digit).collect();
    line.starts_with('#') && number == section
}

#[test]
fn tidy_glommio_is_in_one_engine_file() {
    let engine = sources()
        .into_iter()
        .filter(|s| s.path.starts_with("engine/"));
    let users = engine.filter(|s| s.code.contains("glommio::"));
    let users: Vec<String> = users.map(|s| s.path).collect();
    assert_eq!(users.len(), 1, "{users:?}");
}

#[test]
fn tidy_no_matches_is_thrown_away() {
    let mut found = Vec::new();
    for source in sources() {
        for line in source.discarded_matches() {
            found.push(breach(format!("{}:{line}", source.path), 1));
        }
    }
    judge("matches", found);
}

#[test]
fn tidy_engine_meets_the_world_only_through_env() {
    let banned = [
        "SystemTime::now",
        "Instant::now",
        "std::fs",
        "std::thread",
        "rand::",
    ];
    let mut found = Vec::new();
    for source in sources() {
        let seam = ["engine/src/env/", "engine/src/bucket/"];
        let inside = source.path.starts_with("engine/src/") && !source.is_test_file();
        if !inside || seam.iter().any(|dir| source.path.starts_with(dir)) {
            continue;
        }
        for word in banned {
            for line in source.production_hits(word) {
                found.push(breach(format!("{}:{line}:{word}", source.path), 1));
            }
        }
    }
    judge("seam", found);
}

#[test]
fn tidy_dependencies_say_why() {
    let root = root();
    let mut silent = Vec::new();
    for path in files(&root, "Cargo.toml") {
        let text = std::fs::read_to_string(&path).expect("a readable manifest");
        let place = path.strip_prefix(&root).unwrap_or(&path).display();
        let mut inside = false;
        for line in text.lines() {
            if line.starts_with('[') {
                inside = line.ends_with("dependencies]") && line != "[workspace.dependencies]";
                continue;
            }
            let reason = line.split_once('#').map_or("", |(_, reason)| reason.trim());
            let name = line.split_once('=').map(|(name, _)| name.trim());
            if let (true, true, Some(name)) = (inside, reason.is_empty(), name) {
                silent.push(breach(format!("{place}:{name}"), 1));
            }
        }
    }
    judge("dependency", silent);
}

#[test]
fn tidy_public_async_says_what_a_drop_does() {
    let mut silent = Vec::new();
    for source in sources().into_iter().filter(|s| !s.is_test_file()) {
        for line in source.public_async_without("# Cancel safety") {
            silent.push(breach(format!("{}:{line}", source.path), 1));
        }
    }
    judge("cancel", silent);
}
