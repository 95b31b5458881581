//! Tidy: a small scanner of Rust sources, for the rules of `tests/tidy.rs`.
//!
//! **Invariants**
//! - The code view of a file has the same lines as the file; comments and literals are blank in it.
//! - Lines of `#[cfg(test)]` modules and of test files are not production lines.
//!
//! **Not here**: the rules, and a real parser: braces and words are enough for them.

use std::path::{Path, PathBuf};

/// One source file and what the scanner made of it.
#[derive(Debug)]
pub struct Source {
    /// Path below the repository's root, with `/`.
    pub path: String,
    /// The file as it is.
    pub text: String,
    /// The same lines, comments and literals blanked.
    pub code: String,
    test_lines: Vec<(usize, usize)>,
}

/// A function: name, first and last line (from 1).
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Line of `fn`.
    pub first: usize,
    /// Line of the closing brace.
    pub last: usize,
}

/// Files below `root` whose name ends with `suffix`, sorted; build products and dot folders left out.
#[must_use]
pub fn files(root: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = entry.path();
            if path.is_dir() && !name.starts_with('.') && !name.starts_with("target") {
                open.push(path);
            } else if name.ends_with(suffix) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

impl Source {
    /// Scans a file below `root`.
    #[must_use]
    pub fn read(root: &Path, path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("a readable source file");
        let below = path.strip_prefix(root).unwrap_or(path);
        Self::scan(&below.to_string_lossy(), text)
    }

    /// Scans `text`.
    #[must_use]
    pub fn scan(path: &str, text: String) -> Self {
        let code = blank(&text);
        let test_lines = test_modules(&code);
        Self {
            path: path.to_owned(),
            text,
            code,
            test_lines,
        }
    }

    /// Test code as a whole, by its place.
    #[must_use]
    pub fn is_test_file(&self) -> bool {
        self.path.ends_with("tests.rs")
            || self.path.contains("/tests/")
            || self.path.starts_with("tests/")
    }

    /// Whether line `number` (from 1) is inside a `#[cfg(test)]` module.
    #[must_use]
    pub fn is_test_line(&self, number: usize) -> bool {
        let inside = |&(first, last): &(usize, usize)| (first..=last).contains(&number);
        self.test_lines.iter().any(inside)
    }

    /// Lines of code (neither blank nor comment alone) outside test modules.
    #[must_use]
    pub fn production_lines(&self) -> usize {
        let lines = self.code.lines().enumerate();
        lines
            .filter(|(at, line)| !line.trim().is_empty() && !self.is_test_line(at + 1))
            .count()
    }

    /// Lines of the longest `#[cfg(test)]` module.
    #[must_use]
    pub fn test_module_lines(&self) -> usize {
        let lens = self.test_lines.iter().map(|(first, last)| last - first + 1);
        lens.max().unwrap_or(0)
    }

    /// Production lines of the code view that contain `word`, with their numbers.
    #[must_use]
    pub fn production_hits(&self, word: &str) -> Vec<usize> {
        let lines = self.code.lines().enumerate();
        lines
            .filter(|(at, line)| line.contains(word) && !self.is_test_line(at + 1))
            .map(|(at, _)| at + 1)
            .collect()
    }

    /// Every function with a body.
    #[must_use]
    pub fn functions(&self) -> Vec<Function> {
        let mut found = Vec::new();
        for (at, _) in self.code.match_indices("fn ") {
            let before = self.code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
                continue;
            }
            let rest = &self.code[at + 3..];
            let name: String = rest
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            let Some(body) = body_start(rest).map(|body| at + 3 + body) else {
                continue;
            };
            if let (false, Some(end)) = (name.is_empty(), closing(&self.code, body)) {
                found.push(Function {
                    name,
                    first: line_of(&self.code, at),
                    last: line_of(&self.code, end),
                });
            }
        }
        found
    }

    /// Lines on which `matches!` stands as a statement, its answer thrown away.
    #[must_use]
    pub fn discarded_matches(&self) -> Vec<usize> {
        let mut found = Vec::new();
        for (at, word) in self.code.match_indices("matches!(") {
            let before = self.code[..at].trim_end().chars().next_back();
            let open = at + word.len() - 1;
            let after = closing(&self.code, open).map(|end| &self.code[end + 1..]);
            let ends = after.is_some_and(|rest| rest.trim_start().starts_with(';'));
            if ends && before.is_none_or(|c| "{};".contains(c)) {
                found.push(line_of(&self.code, at));
            }
        }
        found
    }

    /// `pub async fn`s outside tests whose doc has no `section`.
    #[must_use]
    pub fn public_async_without(&self, section: &str) -> Vec<usize> {
        let lines: Vec<&str> = self.text.lines().collect();
        let hits = self.production_hits("pub async fn ");
        let documented = |&number: &usize| {
            let above = lines[..number - 1].iter().rev();
            above
                .map(|line| line.trim_start())
                .take_while(|line| line.starts_with("///") || line.starts_with("#["))
                .any(|line| line.contains(section))
        };
        hits.into_iter().filter(|n| !documented(n)).collect()
    }
}

/// Line (from 1) of a byte.
fn line_of(text: &str, at: usize) -> usize {
    text[..at].bytes().filter(|&b| b == b'\n').count() + 1
}

/// Where the body's brace is, after a function's name; `None` for a declaration.
fn body_start(rest: &str) -> Option<usize> {
    let mut depth = 0i32;
    for (at, c) in rest.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' if depth == 0 => return Some(at),
            ';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// Index of the bracket that closes the one at `open`.
fn closing(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0i32;
    for (at, c) in code[open..].char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(open + at);
        }
    }
    None
}

/// First and last lines of modules behind `#[cfg(test)]`.
fn test_modules(code: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (at, word) in code.match_indices("#[cfg(test)]") {
        let rest = &code[at + word.len()..];
        if !rest.trim_start().starts_with("mod ") {
            continue;
        }
        let Some(body) = body_start(rest) else {
            continue;
        };
        if let Some(end) = closing(code, at + word.len() + body) {
            found.push((line_of(code, at), line_of(code, end)));
        }
    }
    found
}

/// The text with comments, strings and characters blanked; line breaks stay.
fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at);
        if end == at {
            out.push(chars[at]);
            at += 1;
            continue;
        }
        for &c in &chars[at..end] {
            out.push(if c == '\n' { '\n' } else { ' ' });
        }
        at = end;
    }
    out
}

/// End of the comment or literal that starts at `at`; `at` when none does.
fn literal_end(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    match (chars[at], next) {
        ('/', Some('/')) => find(chars, at, |c, _| c == '\n'),
        ('/', Some('*')) => block_comment_end(chars, at),
        ('"', _) => quoted_end(chars, at + 1, '"'),
        ('r', Some('"' | '#')) if !after_word(chars, at) => raw_string_end(chars, at),
        ('\'', Some('\\')) => quoted_end(chars, at + 1, '\''),
        ('\'', Some(_)) if chars.get(at + 2) == Some(&'\'') => at + 3,
        _ => at,
    }
}

fn after_word(chars: &[char], at: usize) -> bool {
    // `br"…"` is a raw string too.
    let before = at.checked_sub(1).map(|b| chars[b]);
    before.is_some_and(|c| (c.is_alphanumeric() && c != 'b') || c == '_')
}

fn find(chars: &[char], from: usize, hit: impl Fn(char, usize) -> bool) -> usize {
    let mut rest = from..chars.len();
    rest.find(|&i| hit(chars[i], i)).unwrap_or(chars.len())
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            break;
        }
    }
    i
}

fn quoted_end(chars: &[char], from: usize, quote: char) -> usize {
    let mut i = from;
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            c if c == quote => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

fn raw_string_end(chars: &[char], at: usize) -> usize {
    let hashes = chars[at + 1..].iter().take_while(|&&c| c == '#').count();
    if chars.get(at + 1 + hashes) != Some(&'"') {
        return at;
    }
    let closes = |c: char, i: usize| {
        let tail = &chars[i + 1..];
        c == '"' && tail.len() >= hashes && tail[..hashes].iter().all(|&h| h == '#')
    };
    let end = find(chars, at + 2 + hashes, closes);
    (end + 1 + hashes).min(chars.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str) -> Source {
        Source::scan("engine/src/a.rs", text.to_owned())
    }

    #[test]
    fn scan_blanks_comments_and_literals_only() {
        let source = scan(
            "let a = \"glommio }\"; // glommio\nlet b = r#\"{\"#; /* { /* */ */ let c: &'a u8 = '{';\n",
        );
        let words: String = source.code.split_whitespace().collect();
        assert_eq!(words, "leta=;letb=;letc:&'au8=;");
        assert_eq!(source.code.lines().count(), 2);
    }

    #[test]
    fn scan_counts_production_lines_without_tests() {
        let source = scan(
            "//! A: b.\n\nfn a() {\n    // why\n    1;\n}\n#[cfg(test)]\nmod tests {\n    fn t() {}\n}\n",
        );
        assert_eq!(source.production_lines(), 3);
        assert_eq!(source.test_module_lines(), 4);
        assert_eq!(source.production_hits("fn t"), Vec::<usize>::new());
    }

    #[test]
    fn functions_span_to_their_closing_brace() {
        let source = scan("trait T { fn decl(a: [u8; 3]); }\nfn long() {\n  if x { y }\n}\n");
        let expected = Function {
            name: "long".into(),
            first: 2,
            last: 4,
        };
        assert_eq!(source.functions(), [expected]);
    }

    #[test]
    fn discarded_matches_finds_statements_only() {
        let source =
            scan("fn f() {\n matches!(a, B);\n assert!(matches!(a, B));\n matches!(a, B)\n}");
        assert_eq!(source.discarded_matches(), [2]);
        let source = scan("let x = matches!(a, B);\nfoo();\nmatches!(\n a,\n B\n);\n");
        assert_eq!(source.discarded_matches(), [3]);
    }

    #[test]
    fn public_async_needs_the_section_above_it() {
        let source = scan(
            "/// A.\n///\n/// # Cancel safety\n/// Fine.\n#[must_use]\npub async fn a() {}\n\n/// B.\npub async fn b() {}\n",
        );
        assert_eq!(source.public_async_without("# Cancel safety"), [9]);
    }
}
