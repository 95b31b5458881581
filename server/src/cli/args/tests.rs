//! Tests of the command line.

use super::*;

#[test]
fn command_line_definition_is_consistent() {
    Cli::command().debug_assert();
}

fn parsed(line: &str) -> Result<Cli, Early> {
    parse(line.split(' ').map(OsString::from))
}

#[test]
fn help_is_a_verb_too() {
    for (line, word) in [
        ("sealog help", "Exit status: 0"),
        ("sealog help append", "--fencing-token"),
        ("sealog feed help", "create"),
        ("sealog help feed create", "--exclusive"),
    ] {
        let Early::Shown(text) = parsed(line).unwrap_err() else {
            panic!("{line} is wrong");
        };
        let shown = text.render().to_string();
        assert!(shown.contains(word), "{line}: {shown}");
    }
    assert!(matches!(parsed("sealog help x"), Err(Early::Wrong(..))));
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
        let mut command = adjusted(Cli::command());
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
