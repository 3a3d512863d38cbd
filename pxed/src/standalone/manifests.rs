//! Machines, MachineOperations and MachineConfigurations from a directory of manifests (`*.yaml`, `*.yml`, `*.json`;
//! no subdirectories, no hidden files).
//!
//! The directory is watched, with a short pause so that an editor can finish. It is also read every
//! [`RESCAN_INTERVAL`] in case a notification was lost. Only files whose time, length or inode changed are read and
//! checked, several concurrently. A Machine that did not change stays the same object, so its consumers do not
//! process it again.
//!
//! A file with an error keeps its last good content in force, also over a restart: the store records which Machine
//! came from which file. Operations and configurations of a file that was not readable yet continue. If two places
//! define one name, neither is used and both are reported.

pub(crate) mod parallel;
pub mod parse;
pub(crate) mod schema;
pub(crate) mod yaml;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::convert::Infallible;
use std::fs::Metadata;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bedplate_api::machine::Machine;
use bedplate_process::liveness::Pulse;
use nix::sys::statvfs::{FsFlags, statvfs};
use notify::Watcher;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::manifests::parallel::for_each;
use super::manifests::parse::{MAX_BYTES, read_manifest};
use crate::machines::source::{
    OtherManifests, SourceEnded, Sourced, SourcedConfiguration, SourcedOperation, Update,
};

/// Delay between a change notification and reading the directory.
const DEBOUNCE_DELAY: Duration = Duration::from_millis(150);
/// Interval between reads without a notification.
const RESCAN_INTERVAL: Duration = Duration::from_secs(30);
/// Interval between checks for a directory that is missing or cannot be watched.
const WATCH_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Minimum number of files for which starting a thread pays off.
const WORTH_A_THREAD: usize = 16;

/// Result of one read of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Look {
    /// Files that were read, and their Machines checked.
    read: usize,
    /// True if the set may differ from the one before.
    changed: bool,
}

/// Content in force of one file.
#[derive(Debug, Clone, Default)]
struct File {
    stamp: Option<Stamp>,
    /// Machines with their lines (0 where only the store knows them).
    good: Vec<(u64, Sourced)>,
    operations: Vec<SourcedOperation>,
    configurations: Vec<SourcedConfiguration>,
    problems: Vec<String>,
    /// True if the file was read without an error since this process started.
    was_good: bool,
}

/// Metadata that distinguishes two contents of a file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
    /// True if every user of this machine may write it.
    is_open: bool,
}

/// The directory's state.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    files: BTreeMap<PathBuf, File>,
    sent: Option<Update>,
    /// Paths that every user of this host may write.
    open: BTreeSet<PathBuf>,
}

impl Directory {
    /// A directory that was not read yet; `kept` is what the store remembers of it.
    pub fn new(path: PathBuf, kept: Vec<Sourced>) -> Self {
        let mut files: BTreeMap<PathBuf, File> = BTreeMap::new();
        for sourced in kept.into_iter().filter(|sourced| !sourced.origin.is_empty()) {
            files.entry(PathBuf::from(&sourced.origin)).or_default().good.push((0, sourced));
        }
        Self { path, files, sent: None, open: BTreeSet::new() }
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads and watches until `shutdown`.
    ///
    /// # Errors
    /// It has ended before.
    pub async fn run(
        self,
        updates: mpsc::Sender<Update>,
        pulse: Pulse,
        shutdown: CancellationToken,
    ) -> Result<(), SourceEnded> {
        tokio::select! {
            // A file system that hangs must not hold up the drain.
            () = shutdown.cancelled() => Ok(()),
            ended = self.watch(Self::read, &updates, &pulse) => match ended? {},
        }
    }

    async fn watch(
        mut self,
        read: fn(&mut Self) -> Look,
        updates: &mpsc::Sender<Update>,
        pulse: &Pulse,
    ) -> Result<Infallible, SourceEnded> {
        let (changed, mut changes) = mpsc::channel::<()>(1);
        let mut watcher = None;
        loop {
            if watcher.is_none() {
                watcher = watch(&self.path, changed.clone());
            }
            let reading = tokio::task::spawn_blocking(move || {
                let look = read(&mut self);
                (self, look)
            });
            let look;
            (self, look) = tokio::select! {
                read = reading => read.map_err(SourceEnded::Reading)?,
                // A restart would hang in the same place, and the known Machines are still served.
                never = pulse.beating() => match never {},
            };
            if look.changed || self.sent.is_none() {
                let update = self.update();
                if self.sent.as_ref() != Some(&update) {
                    tracing::debug!(files = self.files.len(), read = look.read, "machines directory read");
                    updates.send(update.clone()).await.map_err(|_| SourceEnded::Unheard)?;
                    self.sent = Some(update);
                }
            }
            tokio::select! {
                never = pulse.beating() => match never {},
                Some(()) = changes.recv() => tokio::time::sleep(DEBOUNCE_DELAY).await,
                () = tokio::time::sleep(if watcher.is_some() { RESCAN_INTERVAL } else { WATCH_RETRY_INTERVAL }) => {
                    // A watch does not follow a directory that was replaced by another of its name.
                    watcher = None;
                }
            }
            // Notifications of the pause are covered by the next read.
            while changes.try_recv().is_ok() {}
        }
    }

    /// Reads every file that changed.
    fn read(&mut self) -> Look {
        let entries = match list(&self.path) {
            Ok(entries) => entries,
            Err(error) => {
                let reason = format!("cannot read {}: {error}", self.path.display());
                self.files.entry(self.path.clone()).or_default().problems = vec![reason];
                return Look { read: 0, changed: true };
            }
        };
        for path in self.newly_open(&entries) {
            let path = path.display();
            tracing::warn!(%path, "manifests are writable by every local user, run chmod o-w");
        }
        let there: HashSet<&Path> = entries.iter().map(|(path, _)| path.as_path()).collect();
        let before = self.files.len();
        self.files.retain(|path, _| there.contains(path.as_path()));
        let removed = self.files.len() != before;
        let mut due = Vec::new();
        for (path, stamp) in entries {
            if stamp.is_some() && self.files.get(&path).is_some_and(|file| file.stamp == stamp) {
                continue;
            }
            let mut file = self.files.remove(&path).unwrap_or_default();
            file.stamp = stamp;
            due.push((path, file));
        }
        for_each(&mut due, WORTH_A_THREAD, |(path, file)| file.read(path));
        let read = due.len();
        self.files.extend(due);
        Look { read, changed: removed || read > 0 }
    }

    /// Returns what every local user may write since this look: a manifest decides which image a machine boots, and where passwords go.
    fn newly_open(&mut self, entries: &[(PathBuf, Option<Stamp>)]) -> Vec<PathBuf> {
        let directory = std::fs::metadata(&self.path).is_ok_and(|metadata| Stamp::of(&metadata).is_open);
        // The mode of a pod's volume lets all users write, and its mount none.
        let is_read_only = || statvfs(&self.path).is_ok_and(|fs| fs.flags().contains(FsFlags::ST_RDONLY));
        let files = entries.iter().filter(|(_, stamp)| stamp.is_some_and(|stamp| stamp.is_open));
        let open = directory.then_some(&self.path).into_iter().chain(files.map(|(path, _)| path));
        let mut open: BTreeSet<PathBuf> = open.cloned().collect();
        if !open.is_empty() && is_read_only() {
            open.clear();
        }
        let new = open.difference(&self.open).cloned().collect();
        self.open = open;
        new
    }

    /// The complete set now.
    fn update(&self) -> Update {
        if let Some(problem) = self.files.get(&self.path).and_then(|directory| directory.problems.first()) {
            return Update::Unreachable { reason: problem.clone() };
        }
        let mut problems: Vec<String> = self.files.values().flat_map(|file| file.problems.clone()).collect();
        let mut by_name: BTreeMap<String, Vec<(u64, &Sourced)>> = BTreeMap::new();
        for (line, sourced) in self.files.values().flat_map(|file| &file.good) {
            let name = sourced.machine.metadata.name.clone().unwrap_or_default();
            by_name.entry(name).or_default().push((*line, sourced));
        }
        let mut machines = Vec::new();
        for (name, places) in by_name {
            match places.as_slice() {
                [(_, sourced)] => machines.push((*sourced).clone()),
                _ => {
                    let places: Vec<_> =
                        places.iter().map(|(line, sourced)| format!("{}:{line}", sourced.origin)).collect();
                    let message = format!(
                        "Machine {name} is defined in {}; neither is served",
                        places.join(" and in ")
                    );
                    problems.push(message);
                }
            }
        }
        let operations = self.files.values().flat_map(|file| file.operations.clone()).collect();
        let configurations = self.files.values().flat_map(|file| file.configurations.clone()).collect();
        let whole = self.files.values().all(|file| file.was_good);
        Update::Set { machines, others: OtherManifests { operations, configurations, whole }, problems }
    }
}

impl File {
    /// Reads the file. An error leaves the last good content in force.
    fn read(&mut self, path: &Path) {
        let text = match read_bounded(path) {
            Ok(text) => text,
            Err(error) => {
                self.problems =
                    vec![format!("{}: cannot be read: {error}{}", path.display(), self.consequence())];
                // Read again next time, even if it looks the same: it may be permissions.
                self.stamp = None;
                return;
            }
        };
        match read_manifest(&text) {
            Ok(manifest) => {
                for (line, kind) in &manifest.ignored {
                    tracing::info!(file = %path.display(), line, kind, "object of an unsupported kind skipped");
                }
                let origin = path.display().to_string();
                let operation = |(line, operation)| SourcedOperation {
                    origin: origin.clone(),
                    line,
                    operation: Arc::new(operation),
                };
                self.operations = manifest.operations.into_iter().map(operation).collect();
                let configuration = |(line, configuration)| SourcedConfiguration {
                    origin: origin.clone(),
                    line,
                    configuration: Arc::new(configuration),
                };
                self.configurations = manifest.configurations.into_iter().map(configuration).collect();
                self.take(&origin, manifest.machines);
                self.problems.clear();
                self.was_good = true;
            }
            Err(problems) => {
                let consequence = self.consequence();
                self.problems =
                    problems.iter().map(|p| format!("{}:{p}{consequence}", path.display())).collect();
            }
        }
    }

    /// Takes over what the file holds now; a Machine that is as it was stays the object that it was.
    fn take(&mut self, origin: &str, machines: Vec<(u64, Machine)>) {
        let before: HashMap<_, _> = self
            .good
            .iter()
            .map(|(_, sourced)| (sourced.machine.metadata.name.clone(), sourced.machine.clone()))
            .collect();
        let shared = machines.into_iter().map(|(line, mut machine)| {
            let known = before.get(&machine.metadata.name);
            machine.metadata.generation = Some(generation(known.map(Arc::as_ref), &machine));
            let machine = match known {
                Some(same) if **same == machine => same.clone(),
                Some(_) | None => Arc::new(machine),
            };
            (line, Sourced { origin: origin.to_owned(), machine })
        });
        self.good = shared.collect();
    }

    fn consequence(&self) -> &'static str {
        let holds = !self.good.is_empty() || !self.operations.is_empty() || !self.configurations.is_empty();
        match (holds, self.was_good) {
            (true, _) => " (the last valid content of the file stays in force)",
            (false, true) => "",
            (false, false) => " (operations and configurations of its earlier content continue)",
        }
    }
}

/// Returns the generation of a Machine: 1 for a new one, and one more with each change of its spec, as an API server counts. `known`: the
/// Machine of this name that the file had before, also in an earlier process.
fn generation(known: Option<&Machine>, machine: &Machine) -> i64 {
    let Some(known) = known else { return 1 };
    let before = known.metadata.generation.unwrap_or(1);
    if known.spec == machine.spec { before } else { before.saturating_add(1) }
}

fn read_bounded(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let limit = MAX_BYTES as u64 + 1;
    std::fs::File::open(path)?.take(limit).read_to_string(&mut text)?;
    Ok(text)
}

/// The manifest files of a directory, in the order of their names.
fn list(directory: &Path) -> io::Result<Vec<(PathBuf, Option<Stamp>)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        let manifest = path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
        if hidden || !manifest {
            continue;
        }
        match std::fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => files.push((path, Some(Stamp::of(&metadata)))),
            Ok(_) => {}
            // A dangling link or a file that was just removed: the read fails and reports it.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {}
            Err(_) => files.push((path, None)),
        }
    }
    files.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(files)
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        let is_open = metadata.mode() & 0o002 != 0;
        Self { modified: metadata.modified().ok(), length: metadata.len(), inode: metadata.ino(), is_open }
    }
}

/// Creates a watch on the directory; none if it cannot be watched now.
fn watch(directory: &Path, changed: mpsc::Sender<()>) -> Option<notify::RecommendedWatcher> {
    let tell = move |event: notify::Result<notify::Event>| {
        // Reading a file does not change it. If the channel is full, a notification is already queued.
        if !event.is_ok_and(|event| event.kind.is_access()) {
            let _ = changed.try_send(());
        }
    };
    let watcher = notify::recommended_watcher(tell).and_then(|mut watcher| {
        watcher.watch(directory, notify::RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    watcher.inspect_err(|error| tracing::debug!(%error, "failed to watch the machines directory")).ok()
}

#[cfg(test)]
mod tests {
    use bedplate_process::liveness::{Liveness, PULSE_INTERVAL};

    use super::*;

    fn manifest(name: &str, mac: &str) -> String {
        format!(
            "apiVersion: bedplate.dev/v1alpha1\nkind: Machine\nmetadata:\n  name: {name}\nspec:\n  provider: pxe\n  \
             pxe:\n    interfaces:\n    - macAddress: {mac}\n---\n"
        )
    }

    fn names(update: &Update) -> (Vec<String>, Vec<String>) {
        let Update::Set { machines, problems, .. } = update else { panic!("{update:?}") };
        (machines.iter().map(|s| s.machine.metadata.name.clone().unwrap()).collect(), problems.clone())
    }

    const A: &str = "52:54:00:00:00:0a";
    const B: &str = "52:54:00:00:00:0b";

    #[test]
    fn manifests_that_every_local_user_may_write_are_named_once() {
        use std::os::unix::fs::PermissionsExt as _;
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("a.yaml");
        std::fs::write(&path, manifest("a", A)).unwrap();
        let chmod = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let mut directory = Directory::new(temporary.path().to_owned(), Vec::new());
        let mut open = || directory.newly_open(&list(temporary.path()).unwrap());
        assert_eq!(open(), Vec::<PathBuf>::new());
        chmod(&path, 0o666);
        assert_eq!((open(), open()), (vec![path.clone()], vec![]));
        chmod(&path, 0o664);
        chmod(temporary.path(), 0o777);
        assert_eq!(open(), [temporary.path()]);
    }

    #[test]
    fn a_broken_file_keeps_its_last_good_content_and_hurts_no_other() {
        let temporary = tempfile::tempdir().unwrap();
        let path = |name: &str| temporary.path().join(name);
        std::fs::write(path("a.yaml"), manifest("a", A)).unwrap();
        std::fs::write(path("b.json"), manifest("b", B)).unwrap();
        std::fs::write(path(".hidden.yaml"), "broken: [").unwrap();
        std::fs::write(path("notes.txt"), "broken: [").unwrap();
        let mut directory = Directory::new(temporary.path().to_owned(), Vec::new());
        directory.read();
        assert_eq!(names(&directory.update()), (vec!["a".to_owned(), "b".to_owned()], vec![]));
        std::fs::write(path("a.yaml"), manifest("a", "not a mac")).unwrap();
        std::fs::write(path("b.json"), manifest("c", B)).unwrap();
        directory.read();
        let (found, problems) = names(&directory.update());
        assert_eq!(found, ["a", "c"]);
        assert_eq!(problems.len(), 1);
        let expected = format!("{}:9: spec.pxe.interfaces[0].macAddress: ", path("a.yaml").display());
        assert!(problems[0].starts_with(&expected), "{problems:?}");
        assert!(problems[0].ends_with("(the last valid content of the file stays in force)"), "{problems:?}");
        std::fs::remove_file(path("a.yaml")).unwrap();
        directory.read();
        assert_eq!(names(&directory.update()), (vec!["c".to_owned()], vec![]));
    }

    #[test]
    fn file_broken_at_start_keeps_machines_of_the_store() {
        let temporary = tempfile::tempdir().unwrap();
        let file = temporary.path().join("a.yaml");
        std::fs::write(&file, manifest("a", A)).unwrap();
        let mut directory = Directory::new(temporary.path().to_owned(), Vec::new());
        directory.read();
        let Update::Set { machines, .. } = directory.update() else { panic!("a set") };
        std::fs::write(&file, "broken: [").unwrap();
        let mut directory = Directory::new(temporary.path().to_owned(), machines);
        directory.read();
        let (found, problems) = names(&directory.update());
        assert_eq!((found.len(), problems.len()), (1, 1));
    }

    #[test]
    fn set_is_incomplete_while_operations_of_broken_file_are_unknown() {
        let temporary = tempfile::tempdir().unwrap();
        let file = temporary.path().join("operations.yaml");
        let operation = "apiVersion: bedplate.dev/v1alpha1\nkind: MachineOperation\nmetadata:\n  name: x\nspec:\n  \
                         operationName: powerCycle\n  machineRef:\n    name: a\n";
        let mut directory = Directory::new(temporary.path().to_owned(), Vec::new());
        let mut update_after = |text: &str| {
            std::fs::write(&file, text).unwrap();
            directory.read();
            let Update::Set { others, problems, .. } = directory.update() else { panic!("a set") };
            (others.operations.len(), others.whole, problems.first().cloned().unwrap_or_default())
        };
        let (operations, whole, problem) = update_after("broken: [");
        assert_eq!((operations, whole), (0, false));
        assert!(
            problem.ends_with(" (operations and configurations of its earlier content continue)"),
            "{problem}"
        );
        assert_eq!(update_after(operation), (1, true, String::new()));
        let (operations, whole, problem) = update_after("broken: [[");
        assert_eq!((operations, whole), (1, true), "what stood in it is known");
        assert!(problem.ends_with(" (the last valid content of the file stays in force)"), "{problem}");
    }

    #[test]
    fn only_changed_files_are_read_and_only_changed_machines_replaced() {
        let temporary = tempfile::tempdir().unwrap();
        let path = |number: u32| temporary.path().join(format!("{number:03}.yaml"));
        let text = |number: u32, mac: &str| {
            manifest(&format!("n{number}"), mac) + &manifest(&format!("m{number}"), mac)
        };
        for number in 0..100 {
            std::fs::write(path(number), text(number, A)).unwrap();
        }
        let mut directory = Directory::new(temporary.path().to_owned(), Vec::new());
        assert_eq!(directory.read(), Look { read: 100, changed: true });
        let Update::Set { machines: before, .. } = directory.update() else { panic!("a set") };
        assert_eq!(directory.read(), Look { read: 0, changed: false });
        // One file is rewritten with one of its two Machines changed; another one only has a new timestamp.
        std::fs::write(path(7), manifest("n7", A) + &manifest("m7", B) + "# longer\n").unwrap();
        std::fs::write(path(8), text(8, A) + "# longer\n").unwrap();
        std::fs::remove_file(path(9)).unwrap();
        assert_eq!(directory.read(), Look { read: 2, changed: true });
        let Update::Set { machines: after, .. } = directory.update() else { panic!("a set") };
        let new: Vec<_> = after
            .iter()
            .filter(|now| !before.iter().any(|then| Arc::ptr_eq(&then.machine, &now.machine)))
            .map(|now| now.machine.metadata.name.clone().unwrap())
            .collect();
        assert_eq!((after.len(), new), (198, vec!["m7".to_owned()]));
    }

    #[test]
    fn generation_of_a_machine_counts_the_changes_of_its_spec() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("a.yaml");
        let found = |directory: &mut Directory| {
            directory.read();
            let Update::Set { machines, .. } = directory.update() else { panic!("a set") };
            let generation = machines[0].machine.metadata.generation;
            (machines, generation)
        };
        let mut directory = Directory::new(temporary.path().to_owned(), Vec::new());
        // A manifest that was copied from a cluster does not set it.
        let copied = manifest("a", A).replace("name: a", "name: a\n  generation: 9");
        std::fs::write(&path, &copied).unwrap();
        assert_eq!(found(&mut directory).1, Some(1));
        std::fs::write(&path, copied + "# longer\n").unwrap();
        assert_eq!(found(&mut directory).1, Some(1), "the spec is as it was");
        std::fs::write(&path, manifest("a", B)).unwrap();
        let (kept, generation) = found(&mut directory);
        assert_eq!(generation, Some(2));
        // Another process, with what the store has of the first.
        let mut directory = Directory::new(temporary.path().to_owned(), kept);
        assert_eq!(found(&mut directory).1, Some(2));
        std::fs::write(&path, manifest("a", A) + "# longest\n").unwrap();
        assert_eq!(found(&mut directory).1, Some(3));
    }

    #[test]
    fn one_name_in_two_places_is_neither_and_both_are_named() {
        let temporary = tempfile::tempdir().unwrap();
        std::fs::write(temporary.path().join("a.yaml"), manifest("a", A) + &manifest("c", A)).unwrap();
        std::fs::write(temporary.path().join("b.yaml"), manifest("a", B)).unwrap();
        let mut directory = Directory::new(temporary.path().to_owned(), Vec::new());
        directory.read();
        let (found, problems) = names(&directory.update());
        assert_eq!(found, ["c"]);
        assert!(
            problems[0].contains("a.yaml:1 and in ") && problems[0].contains("b.yaml:1; neither"),
            "{problems:?}"
        );
    }

    #[test]
    fn a_directory_that_goes_away_takes_nothing_with_it() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("machines.d");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("a.yaml"), manifest("a", A)).unwrap();
        let mut directory = Directory::new(path.clone(), Vec::new());
        directory.read();
        std::fs::rename(&path, temporary.path().join("elsewhere")).unwrap();
        directory.read();
        assert!(matches!(directory.update(), Update::Unreachable { .. }));
        std::fs::rename(temporary.path().join("elsewhere"), &path).unwrap();
        directory.read();
        assert_eq!(names(&directory.update()).0, ["a"]);
    }

    #[tokio::test]
    async fn new_file_is_reported_within_seconds() {
        let temporary = tempfile::tempdir().unwrap();
        let (sender, mut updates) = mpsc::channel(4);
        let shutdown = CancellationToken::new();
        let directory = Directory::new(temporary.path().to_owned(), Vec::new());
        let task = tokio::spawn(directory.run(sender, Pulse::unwatched(), shutdown.clone()));
        let next = async |updates: &mut mpsc::Receiver<Update>| {
            tokio::time::timeout(Duration::from_secs(20), updates.recv()).await.unwrap().unwrap()
        };
        assert_eq!(names(&next(&mut updates).await).0, Vec::<String>::new());
        std::fs::write(temporary.path().join("a.yaml"), manifest("a", A)).unwrap();
        assert_eq!(names(&next(&mut updates).await).0, ["a"]);
        shutdown.cancel();
        task.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_panic_while_reading_is_an_error_and_no_quiet_end() {
        let temporary = tempfile::tempdir().unwrap();
        let (sender, _updates) = mpsc::channel(4);
        let directory = Directory::new(temporary.path().to_owned(), Vec::new());
        let ended = directory.watch(|_| panic!("a mistake"), &sender, &Pulse::unwatched()).await;
        assert!(matches!(ended, Err(SourceEnded::Reading(_))), "{ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_directory_without_news_gives_signs_of_life() {
        let temporary = tempfile::tempdir().unwrap();
        let (sender, mut updates) = mpsc::channel(4);
        let shutdown = CancellationToken::new();
        let liveness = Liveness::new(shutdown.clone());
        let pulse = liveness.part("source", PULSE_INTERVAL * 2);
        let directory = Directory::new(temporary.path().to_owned(), Vec::new());
        let task = tokio::spawn(directory.run(sender, pulse, shutdown.clone()));
        updates.recv().await.unwrap();
        for _ in 0..60 {
            tokio::time::sleep(PULSE_INTERVAL).await;
            assert_eq!(liveness.check(), Ok(()));
        }
        task.abort();
        assert!(task.await.is_err());
        assert_eq!(liveness.check(), Err("source has ended".to_owned()));
    }
}
