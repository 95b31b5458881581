//! Glob: patterns over names with slashes: `*` any run without a slash, `**` as a segment any number of
//! segments, also none.
//!
//! **Invariants**
//! - Matching takes at most as many steps as pattern and name are long, multiplied.
//! - Every other character is itself.

/// Whether `name` matches `pattern`.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<&str> = pattern.split('/').collect();
    let name: Vec<&str> = name.split('/').collect();
    // For each number of pattern segments: which numbers of name segments they can take.
    let mut reach = vec![false; name.len() + 1];
    reach[0] = true;
    for part in pattern {
        let mut next = vec![false; name.len() + 1];
        if part == "**" {
            let from = reach.iter().position(|reached| *reached);
            from.into_iter()
                .for_each(|from| next[from..].iter_mut().for_each(|end| *end = true));
        } else {
            for (at, segment) in name.iter().enumerate() {
                next[at + 1] = reach[at] && segment_matches(part.as_bytes(), segment.as_bytes());
            }
        }
        reach = next;
    }
    reach[name.len()]
}

/// The text that every name matching `pattern` begins with.
#[must_use]
pub(crate) fn prefix(pattern: &str) -> &str {
    let literal = pattern.split('*').next().unwrap_or_default();
    // `a/**` matches `a` too.
    match pattern[literal.len()..].starts_with("**") {
        true => literal.strip_suffix('/').unwrap_or(literal),
        false => literal,
    }
}

/// Whether a segment matches a pattern without slashes: the last `*` takes more until the rest fits.
fn segment_matches(pattern: &[u8], segment: &[u8]) -> bool {
    let (mut p, mut s) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while s < segment.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, s));
                p += 1;
            }
            Some(byte) if *byte == segment[s] => {
                p += 1;
                s += 1;
            }
            _ => {
                let Some((at, taken)) = star else {
                    return false;
                };
                star = Some((at, taken + 1));
                (p, s) = (at + 1, taken + 1);
            }
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_what_they_say() {
        let cases = [
            ("events/*", "events/a", true),
            ("events/*", "events/a/b", false),
            ("events/*", "events", false),
            ("events/*", "events/", true),
            ("events/**", "events/a/b/c", true),
            ("events/**", "events", true),
            ("events/**", "eventsx", false),
            ("**", "any/thing/at/all", true),
            ("**", "x", true),
            ("**/log", "log", true),
            ("**/log", "a/b/log", true),
            ("**/log", "a/b/logs", false),
            ("a/**/z", "a/z", true),
            ("a/**/z", "a/b/c/z", true),
            ("a/**/m/**/z", "a/m/b/m/z", true),
            ("a*c/d", "abbc/d", true),
            ("a*c/d", "ab/c/d", false),
            ("*", "", true),
            ("a.b", "axb", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("exact", "exact", true),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
            if expected {
                assert!(name.starts_with(prefix(pattern)), "{pattern} {name}");
            }
        }
    }

    #[test]
    fn hostile_pattern_is_quick() {
        let pattern = "*a".repeat(300) + &"/**".repeat(100);
        assert!(!matches(&pattern, &("a".repeat(900) + "b")));
    }
}
