//! Tests of the configuration: keys, values, and the tables of `docs/cli.md`.

use super::*;

fn applied(text: &str) -> Result<EngineConfig, String> {
    let mut layers = Layers::new(false);
    apply(&mut layers, text).map(|()| layers.config)
}

#[test]
fn apply_known_keys_set_their_fields() {
    let config = applied(
        "logs = 2\nbucket_dir = \"/b\"\npin = true\ngc_grace_ms = 5\nwal.flush_interval_ms = 7\n\
         [wal]\nsegment_bytes = \"128 MiB\"\ndisk_bytes_max = 1073741824\n[batch]\nrecords_max = 10\n",
    );
    // `wal.x` and `[wal]` in one file is not TOML.
    assert!(config.is_err());
    let config = applied(
        "logs = 2\nbucket_dir = \"/b\"\npin = true\ngc_grace_ms = 5\n\
         [wal]\nsegment_bytes = \"128 MiB\"\ndisk_bytes_max = 1073741824\n[batch]\nrecords_max = 10\n",
    )
    .unwrap();
    assert_eq!((config.logs, config.pin), (2, true));
    assert_eq!(config.bucket_dir.as_deref(), Some(Path::new("/b")));
    assert_eq!(config.gc_grace, Duration::from_millis(5));
    assert_eq!(config.wal.segment_bytes, 128 << 20);
    assert_eq!(config.wal.disk_bytes_max, 1 << 30);
    assert_eq!(config.frame.records_max, 10);
}

#[test]
fn apply_wrong_files_name_the_key() {
    for (text, refusal) in [
        ("log = 2", "unknown key log"),
        ("[wal]\nsegment_byte = 1", "unknown key wal.segment_byte"),
        ("wal.x.y = 1", "unknown key wal.x"),
        ("[cache]\nx = 1", "unknown key cache.x"),
        ("[caches]\nx = 1", "unknown key caches"),
        ("s3.region = 1", "s3.region = 1: text in quotes is needed"),
        ("wal = 3", "unknown key wal"),
        (
            "logs = 70000",
            "logs = 70000: a whole number from 0 to 65535 is needed",
        ),
        (
            "logs = -1",
            "logs = -1: a whole number from 0 to 65535 is needed",
        ),
        ("pin = 1", "pin = 1: true or false is needed"),
        (
            "pack_bytes = \"64 MB\"",
            "pack_bytes = \"64 MB\": bytes are needed, below 2^63: 67108864, or \"64 MiB\" (B, KiB, MiB, GiB)",
        ),
    ] {
        assert_eq!(applied(text), Err(refusal.to_owned()), "{text}");
    }
    let broken = applied("logs = 2\npin = = 3").unwrap_err();
    assert!(broken.starts_with("line 2: "), "{broken}");
}

#[test]
fn keys_all_take_a_value_of_their_kind() {
    for key in all_keys() {
        let value = match key {
            "data_dir" | "bucket_dir" | "bucket" | "s3.region" | "s3.endpoint" => "\"x\"",
            "serve.listen" | "serve.http_listen" | "serve.admin_listen" => "\"127.0.0.1:1\"",
            "serve.token_file" | "serve.tls_cert" | "serve.tls_key" | "serve.log" => "\"x\"",
            "serve.log_format" => "\"json\"",
            "pin" | "s3.unsafe_no_conditions" | "serve.insecure" => "true",
            _ => "1",
        };
        assert!(applied(&format!("{key} = {value}")).is_ok(), "{key}");
    }
}

/// Rows of the tables of keys in `docs/cli.md`: key, standard, edge.
fn documented() -> Vec<[String; 3]> {
    let doc = include_str!("../../../docs/cli.md");
    let section = doc.split("## Configuration file").nth(1).unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = |row: &str| -> [String; 3] {
        let mut cells = row.split('|').map(|cell| cell.trim().trim_end_matches('`'));
        std::array::from_fn(|_| cells.next().unwrap().to_owned())
    };
    rows.map(cells).collect()
}

/// A value as the tables show it.
fn documented_value(value: Option<Value>) -> String {
    match value {
        None => String::new(),
        Some(Value::String(text)) => text,
        Some(Value::Integer(n)) if n >= 1 << 10 && n % (1 << 10) == 0 => {
            let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
            let unit = units.iter().find(|(shift, _)| n % (1 << shift) == 0);
            let (shift, name) = unit.unwrap();
            format!("{} {name}", n >> shift)
        }
        Some(other) => other.to_string(),
    }
}

#[test]
fn keys_and_values_of_both_profiles_are_the_documented_ones() {
    let (standard, edge) = (Layers::new(false), Layers::new(true));
    let mut expected = Vec::new();
    for (key, _, get) in KEYS {
        let value = |layers: &Layers| documented_value(get(&layers.config));
        let values = match *key {
            "data_dir" => [String::new(), String::new()],
            _ => [value(&standard), value(&edge)],
        };
        expected.push((*key, values));
    }
    for (key, _, get) in STORE_KEYS {
        let value = |layers: &Layers| documented_value(get(&layers.store));
        expected.push((*key, [value(&standard), value(&edge)]));
    }
    for (key, _, get) in SERVE_KEYS {
        let value = |layers: &Layers| documented_value(get(&layers.serve));
        expected.push((&key["serve.".len()..], [value(&standard), value(&edge)]));
    }
    let documented = documented();
    for (key, [standard, edge]) in &expected {
        let row = documented.iter().find(|[named, ..]| named == key);
        let [_, by_standard, by_edge] = row.unwrap_or_else(|| panic!("{key} is not documented"));
        let plain = |text: &str| text.replace(',', "");
        // "1024 records" and "1 KiB" are the same number.
        let same = |told: &str, is: &str| {
            let told = plain(told);
            told == is || size_of_text(&told).is_some_and(|n| Some(n) == size_of_text(is))
        };
        assert!(
            same(by_standard, standard),
            "{key}: {by_standard}, {standard}"
        );
        assert!(same(by_edge, edge), "{key}, edge: {by_edge}, {edge}");
    }
    assert_eq!(documented.len(), expected.len(), "keys that there are not");
}

#[test]
fn keys_bound_what_nothing_fits_in() {
    for key in [
        "batch.bytes_max",
        "batch.records_max",
        "batch.record_bytes_max",
        "batch.key_bytes_max",
    ] {
        let config = applied(&format!("{key} = 0")).unwrap();
        let file = PathBuf::from("sealog.toml");
        let refused = check(&config, Some(&file)).unwrap_err();
        let told = format!("configuration sealog.toml: {key} = 0, at least 1 needed");
        assert_eq!(refused.message, told);
    }
    for (text, rule) in [
        ("roll.bytes = 16383", "at least 16384 needed"),
        ("roll.after_ms = 999", "at least 1000 needed"),
        ("roll.after_ms = 31622400001", "at most 31622400000 allowed"),
    ] {
        let config = applied(text).unwrap();
        let refused = check(&config, Some(&PathBuf::from("sealog.toml"))).unwrap_err();
        let told = format!("configuration sealog.toml: {text}, {rule}");
        assert_eq!(refused.message, told);
    }
    let refused = applied("serve.connections_max = 0").unwrap_err();
    assert!(
        refused.starts_with("serve.connections_max = 0: at least 1"),
        "{refused}"
    );
}
