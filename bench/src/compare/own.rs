//! Own: Sealog as a contestant: a server started for the workload, an engine in this process, or a URL.
//!
//! **Invariants**
//! - Both kinds of engine get the same numbers on a directory that was written before, `sustained` on an empty one.
//!
//! **Not here**: peers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use sealog_engine::EngineConfig;

use super::contest::Runner;
use super::peers::reach;
use super::sides::Bench;
use super::workloads::Shape;
use crate::Result;
use crate::child::{Served, Server, find_program, free_address};
use crate::generator::Target;
use crate::targets::TargetUrl;
use crate::targets::client::ClientTarget;
use crate::targets::http::HttpTarget;
use crate::targets::in_process::InProcess;
use crate::targets::native::NativeTarget;
use crate::workdir::{Workdir, idle_lane, prewrite};

/// Log that is written before, and then recycled, where the lane works.
const PREWRITE_BYTES: u64 = 700 << 20;
/// Names the server's program, if it isn't beside this one or on PATH.
const SERVER_VARIABLE: &str = "SEALOG_BIN";

/// The target, ready for a workload of this shape.
///
/// # Errors
/// It can't be started.
pub fn runner<'a>(bench: &'a Bench<'_>, shape: &Shape) -> Result<Runner<'a>> {
    let (workdir, url) = (bench.workdir, shape.target(&bench.options.target));
    if !is_own(&url) {
        return Ok(Runner::Load(reach(&url, shape.spec().clients)?));
    }
    let config = match shape {
        Shape::Sustained(_) => {
            return Ok(Runner::Fresh(Box::new(move || {
                workdir.clear()?;
                open(workdir, &url, EngineConfig::new(workdir.data()))
            })));
        }
        Shape::Blocks(_) => {
            let bytes = bench.options.log_mib << 20;
            let mut config = idle_lane(workdir, bytes);
            prewrite(&config, bytes / 10 * 9)?;
            // As good as never: the runs end before it.
            config.wal.lane_start_bytes = bytes;
            config
        }
        Shape::Records(_) | Shape::Http(..) | Shape::OpenHalf(_) | Shape::Shards => {
            written_before(workdir)?
        }
    };
    Ok(Runner::Load(open(workdir, &url, config)?))
}

/// A directory whose log was written before, and the settings that a server comes with.
///
/// # Errors
/// It can't be written.
pub fn written_before(workdir: &Workdir) -> Result<EngineConfig> {
    prewrite(&idle_lane(workdir, 1 << 30), PREWRITE_BYTES)?;
    Ok(EngineConfig::new(workdir.data()))
}

/// One target on a directory as it is: an engine in this process, or a server.
///
/// # Errors
/// It can't be started.
pub fn open(workdir: &Workdir, url: &TargetUrl, config: EngineConfig) -> Result<Box<dyn Target>> {
    if *url == TargetUrl::InProcess {
        return Ok(Box::new(InProcess::open(config)?));
    }
    if matches!(url, TargetUrl::Http | TargetUrl::HttpProducers) {
        let http = free_address()?;
        let (native, server) = serve(workdir, &config, Some(http))?;
        let target = HttpTarget::new(http, native.pid, *url == TargetUrl::HttpProducers);
        return Ok(Box::new(Served::new(target, server)));
    }
    let (target, server) = serve(workdir, &config, None)?;
    if *url == TargetUrl::NativeRaw {
        return Ok(Box::new(Served::new(target, server)));
    }
    let target = ClientTarget { server: target };
    Ok(Box::new(Served::new(target, server)))
}

/// A server of its own on a directory as it is, up; it speaks HTTP at `http`, if that is given.
///
/// # Errors
/// It can't be started.
pub fn serve(
    workdir: &Workdir,
    config: &EngineConfig,
    http: Option<SocketAddr>,
) -> Result<(NativeTarget, Server)> {
    let dir = workdir.path("server");
    std::fs::create_dir_all(&dir)?;
    let settings = dir.join("sealog.toml");
    let text = format!(
        "logs = {}\nshards = {}\nwal.disk_bytes_max = {}\nwal.lane_start_bytes = {}\ninflight_bytes_max = {}\n",
        config.logs,
        config.shards,
        config.wal.disk_bytes_max,
        config.wal.lane_start_bytes,
        config.inflight_bytes_max
    );
    std::fs::write(&settings, text)?;
    let address = free_address()?;
    let mut command = Command::new(program()?);
    command
        .arg("serve")
        .arg("--data-dir")
        .arg(&config.data_dir)
        .arg("--config")
        .arg(&settings)
        .args(["--listen", &address.to_string(), "--shard-port", "0"])
        .args(["--admin-listen", "none", "--http-listen"])
        .arg(http.map_or_else(|| "none".to_owned(), |at| at.to_string()));
    let mut server = Server::start(command, &dir)?;
    let pid = Some(server.pid());
    let target = NativeTarget { address, pid };
    server.wait_for(&|| target.is_up())?;
    Ok((target, server))
}

/// Whether the target is started here.
pub fn is_own(url: &TargetUrl) -> bool {
    use TargetUrl::{Http, HttpProducers, InProcess, Native, NativeRaw};
    matches!(url, Native | NativeRaw | InProcess | Http | HttpProducers)
}

/// `$SEALOG_BIN`, the one beside this program, then PATH.
fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(SERVER_VARIABLE) {
        return Ok(path.into());
    }
    let own = std::env::current_exe()?;
    let beside: Vec<PathBuf> = own.parent().map(PathBuf::from).into_iter().collect();
    find_program("sealog", &beside).ok_or_else(|| {
        let text = "the server's program isn't there: cargo build --release -p sealog, or --target in-process";
        text.into()
    })
}
