//! HTTP throughput: pxed's kernel route against nginx with sendfile, the same file, the same namespace, wrk as the client.
//!
//! The route wants a boot id, so that one is drawn first: a DHCP DISCOVER as iPXE sends it, from a namespace of its own, answered with
//! the URL of that boot's script. Needs the static pxed (`cargo xtask build`).

use std::{net::SocketAddr, path::Path, time::Duration};

use crate::measurement::{Better, Context, OURS, Row, rows};
use anyhow::{Context as _, Result, bail, ensure};
use bedplate_tests::{
    draw,
    guard::{Process, run as run_program},
    netns::Namespace,
    pxed::{Pxed, Setup, manifest},
    rack::{ADDRESS, Rack},
    timeline, wait,
};

/// Size of the file, in bytes: that of a kernel.
const FILE_BYTES: usize = 16 << 20;

/// One client, and as many as a row of racks that boots concurrently.
const CLIENTS: [u32; 2] = [1, 200];
const NGINX: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(ADDRESS), 8080);

/// Measures one client and two hundred.
///
/// # Errors
/// The rack cannot be made. A server that does not start or deliver is noted.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>> {
    let rack = Rack::new("bench-http")?;
    let files = rack.file("files");
    std::fs::create_dir_all(&files)?;
    for name in ["kernel", "initrd"] {
        std::fs::write(files.join(name), vec![0x5a; FILE_BYTES])?;
    }
    let ours = context.noted("HTTP", OURS, start_pxed(&rack, &files));
    let nginx = context.noted("HTTP", "nginx", start_nginx(&rack, &files));
    let subjects = [
        ours.as_ref().map(|(_pxed, boot)| (OURS, format!("{boot}/kernel"))),
        nginx.as_ref().map(|_process| ("nginx", format!("http://{NGINX}/kernel"))),
    ];
    let subjects: Vec<(&str, String)> = subjects.into_iter().flatten().collect();
    let mut all = Vec::new();
    for clients in CLIENTS {
        let title = format!("HTTP 16 MiB, {clients} client{}", if clients == 1 { "" } else { "s" });
        let mut measured = vec![(Vec::new(), false); subjects.len()];
        for _ in 0..context.rounds {
            for ((name, url), (rounds, failed)) in subjects.iter().zip(&mut measured) {
                if *failed {
                    continue;
                }
                let load = load(rack.network(), url, clients, context.seconds());
                match context.noted(&title, name, load) {
                    Some(rate) => rounds.push(rate),
                    // The rounds before count.
                    None => *failed = true,
                }
            }
        }
        let of_subject = |((name, _), (rounds, _)): (&(&str, String), (Vec<f64>, bool))| {
            ((*name).to_owned(), rounds, String::new())
        };
        let measured = subjects.iter().zip(measured).map(of_subject);
        all.extend(rows(context, &title, "MiB/s", Better::More, measured));
        timeline::say(&format!("bench {title}: done"));
    }
    rack.succeeded();
    Ok(all)
}

/// pxed, and the URL of a boot of its one Machine.
fn start_pxed<'r>(rack: &'r Rack, files: &Path) -> Result<(Pxed<'r>, String)> {
    let path = |name: &str| files.join(name).display().to_string();
    let mut setup = Setup::new(format!("kernel = {:?}\ninitrd = {:?}\n", path("kernel"), path("initrd")));
    // The clients of wrk share an address and have no lease; in a rack each has its own.
    setup.more =
        "[http]\nconnections-per-client = 4096\nmax-streams = 1024\nrequire-leased-address = false\n"
            .to_owned();
    let pxed = Pxed::start(&setup, &[manifest(1, "")], rack.network(), &rack.file("pxed"))?;
    let client = Namespace::new("client")?;
    let boot = draw::draw_boot(rack, &client, "client", 1)?;
    Ok((pxed, boot))
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
fn load(network: &Namespace, url: &str, clients: u32, seconds: u32) -> Result<f64> {
    let mut command = network.command("wrk");
    let threads = clients.min(2);
    command.args([
        format!("-t{threads}"),
        format!("-c{clients}"),
        format!("-d{seconds}s"),
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
    bail!("{text:?} is not a size")
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
