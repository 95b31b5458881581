//! TCP: a server of one shard and of two, as many clients for each shard: CPU of its process for each record.
//!
//! **Invariants**
//! - Each run has a directory of its own, with a log for each shard; the lane is idle.
//!
//! **Not here**: the generator (`generator`), how the server is started (`own`).

use std::time::Duration;

use serde_json::json;

use super::{CPU_RATIO_MAX, Figures, rows, table};
use crate::Result;
use crate::compare::own::open;
use crate::compare::sides::{Bench, SEED};
use crate::compare::verdicts::Ratios;
use crate::generator::{LoadSpec, PayloadPool, Plan, drive};
use crate::report::{Report, Target, progress};
use crate::targets::TargetUrl;
use crate::workdir::idle_lane;

/// The load for each shard.
const SPEC: LoadSpec = LoadSpec::of(16, 64, 100);
/// Log of each shard: no run fills it.
const LOG_BYTES: u64 = 2 << 30;

/// Runs the pairs and tells what they came to.
pub(super) fn run(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let options = bench.options;
    let pool = PayloadPool::new(SPEC.record_bytes, SEED);
    let (mut ones, mut twos) = (Vec::new(), Vec::new());
    for pair in 1..=options.pairs.max(1) {
        progress("shards over TCP", pair, options.pairs.max(1));
        for (shards, figures) in [(2, &mut twos), (1, &mut ones)] {
            std::thread::sleep(Duration::from_secs_f64(options.rest));
            figures.push(figures_of(bench, shards, &pool)?);
        }
    }
    let title = "shards: a server of one and of two over TCP, lane idle";
    report.tables.push(table(title.to_owned(), &ones, &twos));
    let pairs = twos.iter().zip(&ones);
    let cpu = Ratios::of_figures(pairs.map(|(two, one)| (two.cpu_us, one.cpu_us)));
    let name = format!(
        "shards: server CPU per record over TCP of 2 / 1, {}",
        cpu.describe()
    );
    let target = Target::at_most(name, cpu.median(), CPU_RATIO_MAX);
    report.targets.push(target);
    report.data.insert(
        "shards_tcp".to_owned(),
        json!({ "cpu_ratio": cpu.json(), "one": rows(&ones), "two": rows(&twos) }),
    );
    Ok(())
}

fn figures_of(bench: &Bench<'_>, shards: u16, pool: &PayloadPool) -> Result<Figures> {
    bench.workdir.clear()?;
    let mut config = idle_lane(bench.workdir, LOG_BYTES);
    // As good as never: the runs end before it.
    config.wal.lane_start_bytes = LOG_BYTES;
    config.logs = shards;
    config.shards = shards.into();
    let target = open(bench.workdir, &TargetUrl::Native, config)?;
    let spec = LoadSpec {
        clients: SPEC.clients * usize::from(shards),
        ..SPEC
    };
    let plan = Plan::closed(spec, bench.options.seconds);
    target.empty(&plan)?;
    let outcome = drive(target.as_ref(), &plan, pool)?;
    let (_, server) = outcome.cpu_us();
    Ok(Figures {
        records_per_s: outcome.records_per_s(),
        cpu_us: server.ok_or("the server's CPU time is not known")?,
    })
}
