//! HTTP throughput: pxed's kernel route against nginx with sendfile, the same file, the same namespace, wrk as the client.
//!
//! The route wants a boot id, so that one is drawn first: a DHCP DISCOVER as iPXE sends it, from a namespace of its own, answered with
//! the URL of that boot's script. Needs the static pxed (`cargo xtask build`).

use std::{net::SocketAddr, path::Path, time::Duration};

use crate::{
    bench::{Better, Context, OURS, Row},
    draw,
    guard::{Process, run as run_program},
    netns::Namespace,
    pxed::{Pxed, Setup, manifest},
    rack::{ADDRESS, Rack},
    wait,
};
use anyhow::{Context as _, Result, bail, ensure};

/// Size of the file, in bytes: that of a kernel.
const SIZE: usize = 16 << 20;

/// How long wrk loads a server in each round, in seconds.
const SECONDS: u32 = 3;

/// pxed takes 64 connections of one address, and wrk has one address: two hundred want several.
const CLIENTS: [u32; 2] = [1, 60];
const NGINX: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(ADDRESS), 8080);

/// Measures one client and sixty.
///
/// # Errors
/// A server cannot be started or does not deliver.
pub fn run(context: &Context) -> Result<Vec<Row>> {
    let rack = Rack::new("bench-http")?;
    let files = rack.file("files");
    std::fs::create_dir_all(&files)?;
    for name in ["kernel", "initrd"] {
        std::fs::write(files.join(name), vec![0x5a; SIZE])?;
    }
    let path = |name: &str| files.join(name).display().to_string();
    let setup = Setup::new(format!("kernel = {:?}\ninitrd = {:?}\n", path("kernel"), path("initrd")));
    let _pxed = Pxed::start(&setup, &[manifest(1, "")], rack.network(), &rack.file("pxed"))?;
    let _nginx = start_nginx(&rack, &files)?;
    let client = Namespace::new("client")?;
    let boot = draw::draw_boot(&rack, &client, "client", 1)?;
    let subjects = [(OURS, format!("{boot}/kernel")), ("nginx", format!("http://{NGINX}/kernel"))];
    let mut rows = Vec::new();
    for clients in CLIENTS {
        let title = format!("HTTP 16 MiB, {clients} client{}", if clients == 1 { "" } else { "s" });
        let mut rounds = vec![Vec::new(); subjects.len()];
        for _ in 0..context.rounds {
            for ((name, url), rounds) in subjects.iter().zip(&mut rounds) {
                rounds.push(load(rack.network(), url, clients).with_context(|| format!("{title}: {name}"))?);
            }
        }
        for ((name, _), rounds) in subjects.iter().zip(rounds) {
            let (title, subject) = (title.clone(), (*name).to_owned());
            rows.push(Row {
                title,
                subject,
                unit: "MiB/s",
                better: Better::More,
                rounds,
                note: String::new(),
            });
        }
    }
    rack.succeeded();
    Ok(rows)
}

fn start_nginx(rack: &Rack, files: &Path) -> Result<Process> {
    let place = rack.file("nginx");
    std::fs::create_dir_all(&place)?;
    let place = place.display();
    let configuration = format!(
        "daemon off; user root; worker_processes auto; pid {place}/pid; error_log {place}/error.log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;\n\
         client_body_temp_path {place}/body; proxy_temp_path {place}/proxy; fastcgi_temp_path {place}/fastcgi;\n\
         uwsgi_temp_path {place}/uwsgi; scgi_temp_path {place}/scgi;\n\
         server {{ listen {NGINX} backlog=1024; root {}; }} }}\n",
        files.display()
    );
    let file = rack.file("nginx.conf");
    std::fs::write(&file, configuration)?;
    let mut command = rack.network().command("nginx");
    command.arg("-c").arg(&file).arg("-e").arg(rack.file("nginx.log"));
    let process = Process::spawn("nginx", &mut command, &rack.file("nginx.out"))?;
    rack.network().inside(|| {
        wait::until("nginx", Duration::from_secs(10), || {
            Ok(std::net::TcpStream::connect(NGINX).ok().map(drop))
        })
    })?;
    Ok(process)
}

/// MiB a second, by wrk.
fn load(network: &Namespace, url: &str, clients: u32) -> Result<f64> {
    let mut command = network.command("wrk");
    let threads = clients.min(2);
    command.args([
        format!("-t{threads}"),
        format!("-c{clients}"),
        format!("-d{SECONDS}s"),
        "--timeout=60s".to_owned(),
    ]);
    let said = run_program(command.arg(url))?;
    ensure!(!said.contains("Non-2xx") && !said.contains("Socket errors: connect"), "wrk: {said}");
    let value = said.lines().find_map(|line| line.trim().strip_prefix("Transfer/sec:"));
    mebibytes(value.with_context(|| format!("wrk says no Transfer/sec: {said}"))?.trim())
}

/// wrk's `1.23GB`, units of 1024.
fn mebibytes(text: &str) -> Result<f64> {
    const UNITS: [(&str, f64); 4] =
        [("GB", 1024.0), ("MB", 1.0), ("KB", 1.0 / 1024.0), ("B", 1.0 / 1024.0 / 1024.0)];
    for (unit, factor) in UNITS {
        if let Some(number) = text.strip_suffix(unit) {
            return Ok(number.trim().parse::<f64>()? * factor);
        }
    }
    bail!("{text:?} is no size")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_wrk_are_read() {
        assert_eq!(mebibytes("2.00GB").expect("a size"), 2048.0);
        assert_eq!(mebibytes("12.5MB").expect("a size"), 12.5);
        assert!(mebibytes("fast").is_err());
    }
}
