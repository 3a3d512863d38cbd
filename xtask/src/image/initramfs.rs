//! The initramfs: the agent as /init, and the modules that it may need before there is a root file system.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::compose::{Inputs, Root};
use super::cpio::{self, Entry};
use super::recipe::{Compression, Initramfs};
use crate::progress::Step;

/// Builds the archive.
pub(super) fn build(step: &Step, inputs: &Inputs<'_>, root: &Root, work: &Path) -> Result<PathBuf> {
    let wanted = &inputs.recipe.initramfs;
    let modules = root.path.join("usr/lib/modules").join(&root.release);
    let read = |name: &str| {
        let path = modules.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let (dep, builtin) = (read("modules.dep")?, read("modules.builtin")?);
    let files = choose(&dep, &builtin, wanted)?;
    let mut content: BTreeMap<String, (u32, Vec<u8>)> = BTreeMap::new();
    let at = |path: &str| format!("lib/modules/{}/{path}", root.release);
    for file in &files {
        let bytes = fs::read(modules.join(file)).with_context(|| format!("cannot read module {file}"))?;
        content.insert(at(file), (0o644, bytes));
    }
    content.insert(at("modules.dep"), (0o644, only_lines(&dep, &files).into_bytes()));
    content.insert(at("modules.alias"), (0o644, only_aliases(&read("modules.alias")?, &files).into_bytes()));
    content.insert(at("modules.builtin"), (0o644, builtin.into_bytes()));
    content.insert("etc/bedplate/modules".into(), (0o644, (wanted.required.join("\n") + "\n").into_bytes()));
    let agent = fs::read(&inputs.options.agent).context("cannot read the agent")?;
    content.insert("init".into(), (0o755, agent));
    let archive = cpio::archive(&entries(content));
    let path = work.join("initrd");
    fs::write(&path, archive).context("cannot write the initramfs")?;
    if wanted.compression == Compression::None {
        return Ok(path);
    }
    let packed = work.join("initrd.zst");
    step.run(
        Command::new("zstd").args(["-q", "-19", "-T1", "--no-check", "-f"]).arg(&path).arg("-o").arg(&packed),
    )?;
    Ok(packed)
}

/// Directories before what is in them, everything in the order of its path; the nodes that Linux opens for /init.
fn entries(content: BTreeMap<String, (u32, Vec<u8>)>) -> Vec<Entry> {
    let mut directories: BTreeSet<String> =
        ["dev", "proc", "run", "sys", "tmp"].into_iter().map(str::to_owned).collect();
    for path in content.keys() {
        directories.extend(path.match_indices('/').filter_map(|(at, _)| path.get(..at)).map(str::to_owned));
    }
    let mut entries: Vec<Entry> = directories.into_iter().map(|path| Entry::directory(path, 0o755)).collect();
    entries.push(Entry::character_device("dev/console", 0o600, 5, 1));
    entries.push(Entry::character_device("dev/kmsg", 0o600, 1, 11));
    entries.push(Entry::character_device("dev/null", 0o666, 1, 3));
    entries.extend(content.into_iter().map(|(path, (mode, data))| Entry::file(path, mode, data)));
    entries
}

fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

/// The module files that the recipe asks for, with what they need.
fn choose(dep: &str, builtin: &str, wanted: &Initramfs) -> Result<BTreeSet<String>> {
    let lines: BTreeMap<&str, Vec<&str>> = dep
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(file, needs)| (file, needs.split_whitespace().collect()))
        .collect();
    let by_name: BTreeMap<String, &str> = lines.keys().map(|file| (module_name(file), *file)).collect();
    let built_in: BTreeSet<String> = builtin.lines().map(module_name).collect();
    let mut chosen = BTreeSet::new();
    for name in wanted.modules.iter().chain(&wanted.required) {
        if name.ends_with('/') {
            chosen.extend(lines.keys().filter(|file| file.starts_with(name.as_str())));
        } else if let Some(file) = by_name.get(&module_name(name)) {
            chosen.insert(*file);
        } else if wanted.required.contains(name) && !built_in.contains(&module_name(name)) {
            bail!("this kernel has no module {name}, and stage-1 cannot do without it");
        }
    }
    chosen.retain(|file| !wanted.without_modules.iter().any(|out| file.starts_with(&format!("{out}/"))));
    let needs: Vec<&str> = chosen.iter().filter_map(|file| lines.get(file)).flatten().copied().collect();
    Ok(chosen.into_iter().chain(needs).map(str::to_owned).collect())
}

fn only_lines(dep: &str, files: &BTreeSet<String>) -> String {
    let ours = |line: &&str| line.split_once(':').is_some_and(|(file, _)| files.contains(file));
    dep.lines().filter(ours).map(|line| format!("{line}\n")).collect()
}

fn only_aliases(aliases: &str, files: &BTreeSet<String>) -> String {
    let names: BTreeSet<String> = files.iter().map(|file| module_name(file)).collect();
    let ours =
        |line: &&str| line.rsplit(' ').next().is_some_and(|module| names.contains(&module_name(module)));
    aliases.lines().filter(ours).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "kernel/net/core/failover.ko:\nkernel/drivers/net/net_failover.ko: kernel/net/core/failover.ko\n\
        kernel/drivers/net/virtio_net.ko: kernel/drivers/net/net_failover.ko kernel/net/core/failover.ko\n\
        kernel/drivers/net/ethernet/intel/e1000e/e1000e.ko:\nkernel/drivers/net/ethernet/mellanox/mlxsw/mlxsw_core.ko:\n\
        kernel/fs/squashfs/squashfs.ko:\nkernel/sound/snd.ko:\n";

    fn wanted(modules: &[&str], required: &[&str]) -> Initramfs {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        Initramfs {
            modules: texts(modules),
            required: texts(required),
            without_modules: texts(&["kernel/drivers/net/ethernet/mellanox/mlxsw"]),
            compression: Compression::None,
        }
    }

    #[test]
    fn modules_include_dependencies_and_directories_lack_exclusions() {
        let wanted =
            wanted(&["virtio-net", "kernel/drivers/net/ethernet/", "not_there"], &["squashfs", "loop"]);
        let files = choose(DEP, "kernel/drivers/block/loop.ko\n", &wanted).unwrap();
        let names: Vec<String> = files.iter().map(|file| module_name(file)).collect();
        assert_eq!(names, ["e1000e", "net_failover", "virtio_net", "squashfs", "failover"]);
        assert_eq!(only_lines(DEP, &files).lines().count(), 5);
        assert_eq!(only_aliases("alias a e1000e\nalias fs-x snd\n", &files), "alias a e1000e\n");
    }

    #[test]
    fn a_required_module_that_is_nowhere_is_an_error() {
        assert!(choose(DEP, "", &wanted(&[], &["overlay"])).is_err());
    }

    #[test]
    fn directories_stand_before_what_is_in_them() {
        let content = BTreeMap::from([("etc/bedplate/modules".to_owned(), (0o644, Vec::new()))]);
        let paths: Vec<String> = entries(content).into_iter().map(|entry| entry.path).collect();
        let at = |path: &str| paths.iter().position(|p| p == path).unwrap();
        assert!(at("etc") < at("etc/bedplate") && at("etc/bedplate") < at("etc/bedplate/modules"));
        assert!(at("dev") < at("dev/console"));
    }
}
