//! A version's slot as files of the host: mount, container, resources, kernel parameters and modules.
//!
//! Pure: text out of values. Each setting that is not obvious has its reason in the file itself, for the
//! operator who reads it at night. Contents of the slot's root: `bootstrap` and `contents`. Called by `node`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bedplate_api::configuration::{ContainerNetwork, Template};
use bedplate_api::id::MachineName;
use bedplate_api::machine::{SlotName, VersionRef};
use bedplate_bootstrap::template::{self, Refusal, one_line};
use bedplate_oci::node::MOST_LAYERS;

use super::network::{self, Uplink};
use super::paths::{Places, machine, service};
use super::store;

/// Input of the host's files.
#[derive(Debug, Clone)]
pub struct Input<'a> {
    /// The slot.
    pub slot: SlotName,
    /// The Machine.
    pub machine: &'a MachineName,
    /// The version, for descriptions.
    pub version: &'a VersionRef,
    /// Template of the version.
    pub template: &'a Template,
    /// Number of layers of its image.
    pub layers: usize,
    /// The host's list of name servers, without a stub resolver on its loopback.
    pub resolv_conf: &'a Path,
    /// Uplink of the host, for a slot with its own network.
    pub uplink: Option<&'a Uplink>,
}

/// A file to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Path of the file.
    pub path: PathBuf,
    /// Permissions of the file.
    pub mode: u32,
    /// Content of the file.
    pub content: String,
}

/// Reason for which a version cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderSlotError {
    /// Too many layers.
    #[error("the node image has {0} layers, more than {MOST_LAYERS}; build it with fewer layers")]
    Layers(usize),
    /// The template, for every host.
    #[error(transparent)]
    Template(#[from] Refusal),
    /// The host has no uplink for a network of the slot's own.
    #[error(
        "container.network is Veth or Macvlan, but this host has no interface with an IPv4 address and a \
         default route"
    )]
    NoUplink,
}

/// Kernel parameters that a kubelet needs. It refuses to change these itself where `/proc/sys` is read-only,
/// as in a container. Nodes forward traffic of Pods, and bridged traffic passes the host's filters.
pub(crate) const SYSCTLS: [(&str, &str); 11] = [
    // Limits of the host's root user, which is also the slot's and that of most
    // Pods. About sixty Pods use up 128 instances.
    ("fs.inotify.max_user_instances", "8192"),
    ("fs.inotify.max_user_watches", "1048576"),
    ("kernel.keys.root_maxbytes", "25000000"),
    ("kernel.keys.root_maxkeys", "1000000"),
    ("kernel.panic", "10"),
    ("kernel.panic_on_oops", "1"),
    ("net.bridge.bridge-nf-call-ip6tables", "1"),
    ("net.bridge.bridge-nf-call-iptables", "1"),
    ("net.ipv4.ip_forward", "1"),
    ("vm.overcommit_memory", "1"),
    ("vm.panic_on_oom", "0"),
];

/// File of kernel parameters, below `/run`. The last file by name counts: a
/// version's parameters override the host's.
pub(crate) const SYSCTL_FILE: &str = "sysctl.d/99-zz-bedplate-slot.conf";
/// The file of kernel modules, below `/run`. One of the same name in `/etc` would be read instead of it.
pub(crate) const MODULES_FILE: &str = "modules-load.d/60-bedplate-slot.conf";

/// Modules that containers and their networks need, and cannot load themselves.
const MODULES: [&str; 5] = ["overlay", "br_netfilter", "nf_conntrack", "bridge", "veth"];

/// Returns the files of the host for a slot.
///
/// # Errors
/// The template contains text that no file can hold.
pub fn host(input: &Input<'_>, places: &Places) -> Result<Vec<File>, RenderSlotError> {
    let system = places.run.join("systemd/system");
    let file = |path: PathBuf, content: String| File { path, mode: 0o644, content };
    let mut files = vec![
        file(system.join(places.mount_unit(input.slot)), mount_unit(input, places)?),
        file(
            system.join(format!("{}.d/50-bedplate.conf", service(input.slot))),
            service_drop_in(input, places)?,
        ),
        file(
            places.run.join("systemd/nspawn").join(format!("{}.nspawn", machine(input.slot))),
            nspawn(input, places)?,
        ),
        file(places.run.join(MODULES_FILE), modules(input.template)),
        file(places.run.join(SYSCTL_FILE), sysctls(input.template)?),
    ];
    files.extend(network::files(input.template, input.machine, input.slot, input.uplink, places)?);
    Ok(files)
}

fn mount_unit(input: &Input<'_>, places: &Places) -> Result<String, RenderSlotError> {
    if input.layers == 0 || input.layers > MOST_LAYERS {
        return Err(RenderSlotError::Layers(input.layers));
    }
    let slot = input.slot;
    // overlayfs expects the newest layer first.
    let lower: Vec<String> =
        (0..input.layers).rev().map(|number| places.layer(slot, number).display().to_string()).collect();
    Ok(format!(
        "# Root of a node's slot. A separate unit, because systemd-nspawn@ applies its device policy from its first process on.\n\
         [Unit]\nDescription=Root of slot {name} ({version})\n\n\
         [Mount]\nWhat=overlay\nType=overlay\nWhere={root}\n\
         # Forces mount(2): the newer interface of mount(8) since 2.39 accepts 255 bytes of layers, which are eight.\n\
         Environment=LIBMOUNT_FORCE_MOUNT2=always\n\
         # Both slots share the layers, which are never written. The node writes to upper.\n\
         Options=lowerdir={lower},upperdir={upper},workdir={work}\n",
        name = machine(slot),
        version = input.version.version_name(),
        root = places.root(slot).display(),
        lower = lower.join(":"),
        upper = places.upper(slot).display(),
        work = places.work(slot).display(),
    ))
}

fn service_drop_in(input: &Input<'_>, places: &Places) -> Result<String, RenderSlotError> {
    let mut text = format!(
        "# Slot {name} ({version}), in addition to systemd's own systemd-nspawn@.service.\n\
         [Unit]\nRequires={mount}\nAfter={mount}\n\n\
         [Service]\n\
         # The unit's device policy is closed. The kubelet reads the kernel's log to detect OOM kills.\n\
         DeviceAllow=/dev/kmsg rw\n\
         # The tasks of all Pods count. The default limit of systemd is for ordinary containers.\n\
         TasksMax={tasks}\n",
        name = machine(input.slot),
        version = input.version.version_name(),
        mount = places.mount_unit(input.slot).replace('%', "%%"),
        tasks = input
            .template
            .container
            .as_ref()
            .and_then(|container| container.tasks_max)
            .map_or("infinity".to_owned(), |most| most.to_string()),
    );
    for bind in template::binds(input.template)? {
        if let Some(device) = bind.device() {
            text.push_str(&format!(
                "# Bound into the slot.\nDeviceAllow={} rwm\n",
                device.replace('%', "%%")
            ));
        }
    }
    if let Some(container) = &input.template.container {
        if let Some(weight) = container.cpu_weight {
            text.push_str(&format!("CPUWeight={weight}\n"));
        }
        if let Some(bytes) = template::memory_max(input.template)? {
            text.push_str(&format!("MemoryMax={bytes}\n"));
        }
    }
    Ok(text)
}

fn nspawn(input: &Input<'_>, places: &Places) -> Result<String, RenderSlotError> {
    let slot = input.slot;
    let container = input.template.container.clone().unwrap_or_default();
    let capabilities: Vec<&str> = ["CAP_NET_ADMIN", "CAP_SYSLOG"]
        .into_iter()
        .chain(container.capabilities.iter().map(String::as_str))
        .collect();
    let mut text = format!(
        "# Slot {name} ({version}). Overrides settings of the command line in systemd-nspawn@.service.\n\
         [Exec]\nBoot=yes\nHostname={machine}\n\
         # Volumes and layers belong to the users that their images name; -U would shift them.\n\
         PrivateUsers=no\n\
         # In addition to nspawn's defaults: network plug-ins make bridges and routes; the kubelet opens the kernel's log.\n\
         Capability={capabilities}\n\
         # In addition to nspawn's defaults: runc makes a session keyring, and device programs of cgroup v2.\n\
         SystemCallFilter=add_key keyctl bpf\n\
         # Both are files of the slot, see [Files].\n\
         ResolvConf=off\nTimezone=off\nLinkJournal=no\n\n\
         [Files]\n\
         # The kubelet reads the kernel's log.\nBind=/dev/kmsg\n\
         # kubeadm reads the kernel's configuration, and looks for modules.\nBindReadOnly=/lib/modules\n\
         BindReadOnly={resolv}:/etc/resolv.conf\n\
         # Data that outlives the slot's root. A real file system: containers' overlays cannot be on an overlay.\n",
        name = machine(slot),
        version = input.version.version_name(),
        machine = input.machine,
        capabilities = capabilities.join(" "),
        resolv = input.resolv_conf.display(),
    );
    for (name, target) in store::kept(input.template.kubernetes.role) {
        text.push_str(&format!("Bind={}:{target}\n", places.kept(slot, name).display()));
    }
    text.push_str("# Exchange between agent and node, in memory.\n");
    text.push_str(&format!("Bind={}:/run/bedplate\n", places.shared(slot).display()));
    for bind in template::binds(input.template)? {
        text.push_str(&format!("{}\n", bind.setting()));
    }
    text.push_str(&network::nspawn(input.template, slot, input.uplink, places)?);
    Ok(text)
}

fn modules(template: &Template) -> String {
    let mut text = "# Kernel modules that the node needs, and those of its configuration.\n".to_owned();
    let own = (network::of(template) == ContainerNetwork::Macvlan).then_some("macvlan");
    for module in MODULES.iter().copied().chain(own).chain(template.kernel_modules.iter().map(String::as_str))
    {
        text.push_str(module);
        text.push('\n');
    }
    text
}

fn sysctls(template: &Template) -> Result<String, RenderSlotError> {
    let mut all: BTreeMap<&str, &str> = SYSCTLS.into_iter().collect();
    for (name, value) in &template.sysctls {
        all.insert(one_line("sysctls", name)?, one_line("sysctls", value)?);
    }
    let mut text =
        "# Parameters that a kubelet needs and may not set itself, and those of the node's configuration.\n"
            .to_owned();
    for (name, value) in all {
        text.push_str(&format!("{name} = {value}\n"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::slot::contents::{self, Secrets};

    #[allow(clippy::needless_pass_by_value, reason = "it is written where it is used")]
    fn template(more: serde_json::Value) -> Template {
        let mut template = json!({"image": {"reference": "r.example/node", "allowTag": true}, "kubernetes": {"version": "v1.34.4"}});
        for (name, value) in more.as_object().unwrap() {
            template[name] = value.clone();
        }
        serde_json::from_value(template).unwrap()
    }

    fn rendered(template: &Template, slot: SlotName) -> Result<String, RenderSlotError> {
        let version = VersionRef { name: "workers".to_owned(), version: 3 };
        let machine = "node-1".parse().unwrap();
        let input = Input {
            slot,
            machine: &machine,
            version: &version,
            template,
            layers: 3,
            resolv_conf: Path::new("/etc/resolv.conf"),
            uplink: Some(&Uplink {
                interface: "eth0".to_owned(),
                address: [10, 7, 0, 101].into(),
                mtu: 1500,
            }),
        };
        let files = host(&input, &Places::default())?;
        Ok(files
            .iter()
            .map(|file| format!("==> {} {:o}\n{}\n", file.path.display(), file.mode, file.content))
            .collect())
    }

    /// Compares with a committed file; `BEDPLATE_BLESS=1 cargo test -p bedplate-agent goldens` writes it.
    fn compare(name: &str, text: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens").join(name);
        if std::env::var_os("BEDPLATE_BLESS").is_some() {
            std::fs::write(&path, text).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(golden, text, "BEDPLATE_BLESS=1 cargo test -p bedplate-agent goldens");
    }

    #[test]
    fn host_files_are_those_of_the_goldens() {
        compare("slot-host.txt", &rendered(&template(json!({})), SlotName::A).unwrap());
        let everything = template(json!({
            "sysctls": {"vm.max_map_count": "262144", "kernel.panic": "5"},
            "kernelModules": ["ip_vs", "nvme_tcp"],
            "container": {"network": "Host", "binds": ["/srv/data:/data:ro", "/dev/fuse"], "capabilities": ["CAP_SYS_RAWIO"],
                "memoryMax": "8Gi", "cpuWeight": 200, "tasksMax": 32768},
        }));
        compare("slot-everything.txt", &rendered(&everything, SlotName::B).unwrap());
        for network in ["Macvlan", "Veth"] {
            let template = template(json!({"container": {"network": network}}));
            let contents =
                contents::make(&"node-1".parse().unwrap(), "uid-1", &template, &Secrets::new()).unwrap();
            let lines = contents.files.iter().map(|file| {
                format!(
                    "==> slot {} {:o}\n{}\n",
                    file.path,
                    file.mode,
                    String::from_utf8_lossy(&file.content)
                )
            });
            let links =
                contents.links.iter().map(|link| format!("==> slot {} -> {}\n", link.path, link.target));
            let text = rendered(&template, SlotName::A).unwrap();
            compare(
                &format!("slot-{}.txt", network.to_lowercase()),
                &lines.chain(links).fold(text, |text, more| text + &more),
            );
        }
    }

    #[test]
    fn kernel_parameters_and_modules_of_a_version_override_the_host_image() {
        let names = |directory: &str| -> Vec<String> {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/host/files/etc").join(directory);
            let entries = std::fs::read_dir(path).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        let (directory, parameters) = SYSCTL_FILE.split_once('/').unwrap();
        let host = names(directory);
        assert!(!host.is_empty() && host.iter().all(|name| name.as_str() < parameters), "{host:?}");
        assert!("99-sysctl.conf" < parameters, "a host of another making has what is in /etc/sysctl.conf");
        let (directory, modules) = MODULES_FILE.split_once('/').unwrap();
        let host = names(directory);
        assert!(!host.is_empty() && host.iter().all(|name| name != modules), "{host:?}");
    }

    #[test]
    fn the_host_image_has_every_parameter_that_a_kubelet_needs() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/host/files/etc/sysctl.d/90-bedplate.conf");
        let text = std::fs::read_to_string(path).unwrap();
        for (name, value) in SYSCTLS {
            assert!(text.contains(&format!("\n{name} = {value}\n")), "{name}");
        }
    }

    #[test]
    fn the_roots_mount_takes_more_layers_than_mount_s_newer_way_does() {
        let text = rendered(&template(json!({})), SlotName::A).unwrap();
        let mount = text.split("==> ").find(|file| file.contains("[Mount]")).unwrap();
        assert!(mount.contains("\nEnvironment=LIBMOUNT_FORCE_MOUNT2=always\n"), "{mount}");
    }

    #[test]
    fn no_value_becomes_another_setting() {
        for (more, field) in [
            (json!({"sysctls": {"kernel.panic": "1\nvm.swappiness = 0"}}), "sysctls"),
            (json!({"container": {"binds": ["/a\nBind=/b"]}}), "container.binds"),
            (json!({"container": {"binds": ["/a\\"]}}), "container.binds"),
        ] {
            let error = rendered(&template(more), SlotName::A).unwrap_err();
            assert!(
                matches!(&error, RenderSlotError::Template(Refusal::Text { field: found, .. }) if *found == field),
                "{error}"
            );
        }
    }

    #[test]
    fn a_mount_of_the_most_layers_fits_into_a_page() {
        let places = Places::default();
        let longest: usize =
            (0..MOST_LAYERS).map(|number| places.layer(SlotName::A, number).as_os_str().len() + 1).sum();
        let others = places.upper(SlotName::A).as_os_str().len() + places.work(SlotName::A).as_os_str().len();
        assert!(longest + others + 64 < 4096, "{longest}");
    }
}
