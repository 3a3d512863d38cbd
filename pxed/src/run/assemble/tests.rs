//! Each loop of an assembled program is watched, in both planes.

use std::collections::BTreeSet;
use std::time::Duration;

use bedplate_process::health::Health as _;
use bedplate_process::shutdown::Shutdown;

use super::*;

/// Tasks of engines: their threads have pulses of their own.
const ENGINES: [&str; 2] = ["dhcp", "tftp"];

/// Loops of both planes.
const LOOPS: [&str; 18] = [
    "boots",
    "events",
    "finalizers",
    "follow",
    "health",
    "hearing",
    "http",
    "https",
    "image events",
    "images",
    "machines",
    "operations",
    "power",
    "power leadership",
    "socket",
    "source",
    "status writer",
    "store",
];

/// Assembles a pxed with this source. Its tasks are not started.
async fn assemble(source: &str) -> (tempfile::TempDir, Program, Daemon) {
    bedplate_process::tls::install_crypto_provider();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    std::fs::create_dir(at("machines.d")).unwrap();
    let local = "listen = \"127.0.0.1:0\"";
    let text = format!(
        "state-directory = \"{}\"\nsocket = \"{}\"\n[source]\n{}\n[dhcp]\nmode = \"off\"\n[tftp]\n{local}\n[http]\n{local}\n\
         [https]\n{local}\n[metrics]\n{local}\n",
        at("state"),
        at("pxed.sock"),
        source.replace("HERE", &at("")),
    );
    std::fs::write(at("pxed.toml"), text).unwrap();
    let config = Config::load(directory.path().join("pxed.toml").as_path(), &[]).unwrap();
    let program = Program::new(CancellationToken::new());
    let daemon = Daemon::assemble(config, &program).await.unwrap();
    (directory, program, daemon)
}

/// Names of the loops in a text of `/healthz`.
fn named(text: &str, end: &str) -> BTreeSet<String> {
    text.split("; ").filter_map(|part| Some(part.split_once(end)?.0.to_owned())).collect()
}

/// Checks that `/healthz` names each loop that stands still, and each that has ended.
async fn check(source: &str, of_plane: &[&str]) {
    let (_directory, program, daemon) = assemble(source).await;
    assert_eq!(daemon.look.liveness(), Ok(()));
    tokio::time::advance(DISK_PATIENCE + Duration::from_secs(1)).await;
    let expected: BTreeSet<String> = LOOPS.iter().chain(of_plane).map(ToString::to_string).collect();
    let is_watched = |task: &&str| expected.contains(*task) || ENGINES.contains(task);
    let unwatched: Vec<&str> = program.tasks.running().into_iter().filter(|task| !is_watched(task)).collect();
    assert_eq!(unwatched, [""; 0], "tasks without a pulse");
    let silent = named(&daemon.look.liveness().unwrap_err(), " sent no pulse");
    assert_eq!(silent.difference(&expected).collect::<Vec<_>>(), Vec::<&String>::new());
    assert_eq!(expected.difference(&silent).collect::<Vec<_>>(), Vec::<&String>::new());
    let tasks = program.tasks.clone();
    let shutdown = Shutdown::new(tasks.clone(), program.stages.clone(), CancellationToken::new());
    drop(shutdown.finish());
    tasks.ended(Stage::Done).await;
    assert_eq!(named(&daemon.look.liveness().unwrap_err(), " has ended"), expected);
}

#[tokio::test(start_paused = true)]
async fn healthz_names_each_loop_that_stops_if_standalone() {
    check("directory = \"HEREmachines.d\"", &["versions"]).await;
}

#[tokio::test(start_paused = true)]
async fn healthz_names_each_loop_that_stops_in_a_cluster() {
    check("kubernetes = { kubeconfig = \"HERElater\" }", &["claims", "client authority", "lease"]).await;
}
