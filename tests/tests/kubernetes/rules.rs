//! One accepted and one refused object for each validation rule of the kinds.

use serde_json::{Value, json};

use super::cluster::{DIGEST, claim, configuration, machine, operation, version, with};

/// A rule, found by its message.
pub(crate) struct Case {
    pub(crate) message: &'static str,
    pub(crate) accepted: Value,
    pub(crate) refused: Value,
}

fn case(message: &'static str, base: &Value, accepted: &Value, refused: &Value) -> Case {
    Case { message, accepted: with(base, accepted), refused: with(base, refused) }
}

pub(crate) fn all() -> Vec<Case> {
    [machines(), disks(), controllers(), configurations(), operations(), pools(), claims()]
        .into_iter()
        .flatten()
        .collect()
}

fn machines() -> Vec<Case> {
    let base = machine("case");
    let pxe = |pxe: Value| json!({ "spec": { "pxe": pxe } });
    let macs = |macs: &[&str]| {
        let interfaces: Vec<_> = macs.iter().map(|mac| json!({ "macAddress": mac })).collect();
        pxe(json!({ "interfaces": interfaces }))
    };
    let interface = |field: &str, value: Value| {
        pxe(json!({ "interfaces": [{ "macAddress": "525400000001", field: value }] }))
    };
    let sixteen: Vec<String> = (0..16).map(|n| format!("52-54-00-00-00-{n:02X}")).collect();
    let sixteen: Vec<&str> = sixteen.iter().map(String::as_str).collect();
    let name = |name: &str| json!({ "metadata": { "name": name } });
    let bmc = json!({ "protocol": "Redfish", "address": "b", "credentialsSecretRef": { "namespace": "bmc", "name": "node-1" } });
    // One refused object for each sign; what is accepted has every other one.
    let every_other = "!$%()*+,-./0:<=>?@A[]^_a{}~";
    let signs = ["a;reboot", "||", "a&&b", "#x", "a\\", "a=\"b", "a='b", "a=`b"].map(|argument| {
        case(
            "a kernel argument must not contain \" # & ' ; \\ ` or | (iPXE or the kernel would act on them)",
            &base,
            &pxe(json!({ "kernelArguments": [every_other] })),
            &pxe(json!({ "kernelArguments": [argument] })),
        )
    });
    let mut cases = vec![
        case(
            "metadata.name must be a host name: at most 63 of a-z, 0-9 and '-', not first or last '-'",
            &base,
            &name(&"a".repeat(63)),
            &name(&"a".repeat(64)),
        ),
        case(
            "metadata.name must be a host name: at most 63 of a-z, 0-9 and '-', not first or last '-'",
            &base,
            &name("node-1"),
            &name("node.1"),
        ),
        case(
            "spec.pxe must be set when spec.provider is pxe, and may only be set then",
            &base,
            &json!({ "spec": { "provider": "manual", "pxe": null } }),
            &json!({ "spec": { "provider": "manual" } }),
        ),
        case(
            "spec.pxe must be set when spec.provider is pxe, and may only be set then",
            &base,
            &json!({}),
            &json!({ "spec": { "pxe": null } }),
        ),
        case(
            "spec.bmc must be set when deletionPolicy is PowerOff: no other program powers the machine off",
            &base,
            &json!({ "spec": { "deletionPolicy": "PowerOff", "bmc": bmc } }),
            &json!({ "spec": { "deletionPolicy": "PowerOff" } }),
        ),
        case(
            "spec.bmc must be set when deletionPolicy is PowerOff: no other program powers the machine off",
            &base,
            &json!({ "spec": { "deletionPolicy": "PowerOff", "provider": "metal", "pxe": null } }),
            &json!({ "spec": { "deletionPolicy": "PowerOff", "provider": "manual", "pxe": null } }),
        ),
        case(
            "spec.pxe.takeover may only be set when spec.bmc is set and powerPolicy is Managed",
            &base,
            &json!({ "spec": { "pxe": { "takeover": "one" }, "bmc": bmc } }),
            &json!({ "spec": { "pxe": { "takeover": "one" } } }),
        ),
        case(
            "spec.pxe.takeover may only be set when spec.bmc is set and powerPolicy is Managed",
            &base,
            &json!({ "spec": { "pxe": { "takeover": "one" }, "bmc": bmc, "powerPolicy": "Managed" } }),
            &json!({ "spec": { "pxe": { "takeover": "one" }, "bmc": bmc, "powerPolicy": "Unmanaged" } }),
        ),
        case(
            "two interfaces must not have the same macAddress",
            &base,
            &macs(&sixteen),
            &macs(&["5254.0000.00aB", "52:54:00:00:00:Ab"]),
        ),
        case(
            "netboot must be true on at least one interface when it is set on any; unset on all, the first netboots",
            &base,
            &interface("netboot", json!(true)),
            &interface("netboot", json!(false)),
        ),
        case(
            "macAddress must be a unicast address: the second digit even, and not all zero",
            &base,
            &macs(&["fe54.0000.0001"]),
            &macs(&["01:00:5e:00:00:01"]),
        ),
        case(
            "macAddress must be a unicast address: the second digit even, and not all zero",
            &base,
            &macs(&["00-00-00-00-00-01"]),
            &macs(&["0000.0000.0000"]),
        ),
        case(
            "must be an IPv4 or IPv6 address",
            &base,
            &interface("gateway", json!("10.7.0.1")),
            &interface("gateway", json!("10.7.0.256")),
        ),
        case(
            "must be an IPv4 or IPv6 address",
            &base,
            &interface("nameservers", json!(["10.7.0.1", "10.7.0.2"])),
            &interface("nameservers", json!(["10.7.0.256"])),
        ),
        case(
            "addresses of an interface must be IPv4: IPv6 is not served",
            &base,
            &interface("addresses", json!(["10.7.0.21/24", "10.8.0.21/24"])),
            &interface("addresses", json!(["10.7.0.21/24", "fd00::21/64"])),
        ),
        case(
            "gateway of an interface must be IPv4: IPv6 is not served",
            &base,
            &interface("gateway", json!("10.7.0.1")),
            &interface("gateway", json!("fd00::1")),
        ),
        case(
            "nameservers of an interface must be IPv4: IPv6 is not served",
            &base,
            &interface("nameservers", json!(["10.7.0.1"])),
            &interface("nameservers", json!(["10.7.0.1", "fd00::1"])),
        ),
        case(
            "a kernel argument must not start with 'bedplate.' or 'initrd=' (set by pxed) or '-' (the kernel would hand it to init), or contain '${' (iPXE would expand it)",
            &base,
            &pxe(json!({ "kernelArguments": ["console=ttyS0", "ip=dhcp"] })),
            &pxe(json!({ "kernelArguments": ["console=ttyS0", "bedplate.url=http://elsewhere"] })),
        ),
        case(
            "a kernel argument must not start with 'bedplate.' or 'initrd=' (set by pxed) or '-' (the kernel would hand it to init), or contain '${' (iPXE would expand it)",
            &base,
            &pxe(json!({ "kernelArguments": ["initrd", "x.initrd=1"] })),
            &pxe(json!({ "kernelArguments": ["initrd=http://elsewhere"] })),
        ),
        case(
            "a kernel argument must not start with 'bedplate.' or 'initrd=' (set by pxed) or '-' (the kernel would hand it to init), or contain '${' (iPXE would expand it)",
            &base,
            &pxe(json!({ "kernelArguments": ["memmap=64K$0x18690000"] })),
            &pxe(json!({ "kernelArguments": ["a=${net0/mac}"] })),
        ),
        case(
            "a kernel argument must not start with 'bedplate.' or 'initrd=' (set by pxed) or '-' (the kernel would hand it to init), or contain '${' (iPXE would expand it)",
            &base,
            &pxe(json!({ "kernelArguments": ["a-b=-1"] })),
            &pxe(json!({ "kernelArguments": ["--"] })),
        ),
        case(
            "kernelArguments must have at most 800 characters together, with the spaces between them",
            &base,
            &pxe(json!({ "kernelArguments": vec!["x".repeat(99); 8] })),
            &pxe(json!({ "kernelArguments": vec!["x".repeat(100); 8] })),
        ),
        case(
            "exactly one of image.name and image.reference must be set",
            &base,
            &pxe(json!({ "image": { "name": "host" } })),
            &pxe(json!({ "image": { "name": "host", "reference": format!("r/host@{DIGEST}") } })),
        ),
        case(
            "exactly one of image.name and image.reference must be set",
            &base,
            &json!({}),
            &pxe(json!({ "image": { "allowTag": true } })),
        ),
        case(
            "image.reference must end with a digest (@sha256:...) unless image.allowTag is true",
            &base,
            &pxe(json!({ "image": { "reference": "registry.example/host:1", "allowTag": true } })),
            &pxe(json!({ "image": { "reference": "registry.example/host:1", "allowTag": false } })),
        ),
    ];
    cases.extend(signs);
    cases
}

fn disks() -> Vec<Case> {
    let base = machine("case");
    let disk = |disk: Value| json!({ "spec": { "pxe": { "stateDisk": disk } } });
    vec![
        case(
            "exactly one of stateDisk.byID, serial, wwn, hctl and rule must be set",
            &base,
            &disk(json!({ "byID": "virtio-state" })),
            &disk(json!({ "byID": "virtio-state", "serial": "S1" })),
        ),
        case(
            "exactly one of stateDisk.byID, serial, wwn, hctl and rule must be set",
            &base,
            &disk(json!({ "hctl": "0:0:1:0" })),
            &disk(json!({ "wipe": "Never" })),
        ),
        case(
            "stateDisk.wipeToken must be set when stateDisk.wipe is Once, and may only be set then",
            &base,
            &disk(json!({ "serial": "S1", "wipe": "Once", "wipeToken": "2026-01" })),
            &disk(json!({ "serial": "S1", "wipe": "Once" })),
        ),
        case(
            "stateDisk.wipeToken must be set when stateDisk.wipe is Once, and may only be set then",
            &base,
            &disk(json!({ "wwn": "0x5000c500a1b2c3d4" })),
            &disk(json!({ "serial": "S1", "wipeToken": "2026-01" })),
        ),
        case(
            "at least one property of stateDisk.rule must be set",
            &base,
            &disk(json!({ "rule": { "rotational": false } })),
            &disk(json!({ "rule": {} })),
        ),
        case(
            "stateDisk.rule.minSizeBytes must not be larger than maxSizeBytes",
            &base,
            &disk(json!({ "rule": { "minSizeBytes": 1, "maxSizeBytes": 1 } })),
            &disk(json!({ "rule": { "minSizeBytes": 2, "maxSizeBytes": 1 } })),
        ),
    ]
}

fn controllers() -> Vec<Case> {
    let secret = json!({ "namespace": "bmc", "name": "node-1" });
    let bmc = |bmc: Value| json!({ "spec": { "bmc": bmc } });
    let redfish = with(
        &machine("case"),
        &bmc(
            json!({ "protocol": "Redfish", "address": "https://bmc.example", "credentialsSecretRef": secret }),
        ),
    );
    let ipmi = with(
        &machine("case"),
        &bmc(json!({ "protocol": "IPMI", "address": "10.0.0.1:623", "credentialsSecretRef": secret })),
    );
    let tls = |tls: Value| bmc(json!({ "redfish": { "tls": tls } }));
    let union = "bmc.redfish may only be set when bmc.protocol is Redfish, and bmc.ipmi only when it is IPMI";
    let pinned = "tls.pins must be set, to one or two pins, when tls.mode is Pin, and may only be set then";
    let pins = |count: usize| (0..count).map(|n| format!("sha256:{n:064x}")).collect::<Vec<_>>();
    vec![
        case(
            union,
            &redfish,
            &bmc(json!({ "redfish": { "systemID": "1", "tls": { "mode": "CA" } } })),
            &bmc(json!({ "protocol": "IPMI", "address": "10.0.0.1", "redfish": { "systemID": "1" } })),
        ),
        case(union, &ipmi, &json!({}), &tls(json!({ "mode": "Insecure" }))),
        case(
            union,
            &redfish,
            &bmc(json!({ "protocol": "IPMI", "address": "bmc.example", "ipmi": { "cipherSuite": 17 } })),
            &bmc(json!({ "ipmi": { "cipherSuite": 17 } })),
        ),
        case(
            "bmc.address must be host or host:port, not a URL, when bmc.protocol is IPMI",
            &ipmi,
            &bmc(json!({ "address": "[fd00::1]:623" })),
            &bmc(json!({ "address": "https://10.0.0.1" })),
        ),
        case(
            pinned,
            &redfish,
            &tls(json!({ "mode": "Pin", "pins": pins(2) })),
            &tls(json!({ "mode": "Pin", "pins": [] })),
        ),
        case(
            pinned,
            &redfish,
            &tls(json!({ "mode": "Pin", "pins": pins(1) })),
            &tls(json!({ "mode": "CA", "pins": pins(1) })),
        ),
        case(
            "tls.caBundle may only be set when tls.mode is CA",
            &redfish,
            &tls(json!({ "mode": "CA", "caBundle": "pem" })),
            &tls(json!({ "mode": "Insecure", "caBundle": "pem" })),
        ),
    ]
}

fn configurations() -> Vec<Case> {
    let base = configuration("case");
    let template = |template: Value| json!({ "spec": { "template": template } });
    let file = |file: Value| template(json!({ "files": [file] }));
    let named = |name: &str| json!({ "metadata": { "name": name } });
    let tag = |allow: bool| {
        template(json!({ "image": { "reference": "registry.example/node:1", "allowTag": allow } }))
    };
    let from = json!({ "secret": { "namespace": "n", "name": "s", "key": "k" } });
    vec![
        case(
            "the name of a MachineConfiguration must have at most 240 characters, so that the names of its versions fit",
            &base,
            &named(&"a".repeat(240)),
            &named(&"a".repeat(241)),
        ),
        case(
            "updateStrategy.rollingUpdate may only be set when type is RollingUpdate",
            &base,
            &json!({ "spec": { "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "25%" } } } }),
            &json!({ "spec": { "updateStrategy": { "rollingUpdate": { "maxUnavailable": 1 } } } }),
        ),
        case(
            "image.reference must have a digest (@sha256:...) when allowTag is not true",
            &base,
            &tag(true),
            &tag(false),
        ),
        case(
            "exactly one of content and contentFrom of a file must be set",
            &base,
            &file(json!({ "path": "/etc/a", "contentFrom": from })),
            &file(json!({ "path": "/etc/a", "content": "x", "contentFrom": from })),
        ),
        case(
            "inPlace of a file may only be set when append is false: added text cannot be changed in place",
            &base,
            &file(json!({ "path": "/etc/a", "content": "", "inPlace": { "restartUnits": ["a.service"] } })),
            &file(json!({ "path": "/etc/a", "content": "", "append": true, "inPlace": {} })),
        ),
        case(
            "a file's path must not contain '..'",
            &base,
            &file(json!({ "path": "/etc/..a/b", "content": "" })),
            &file(json!({ "path": "/etc/../b", "content": "" })),
        ),
        case(
            "paths of container.binds must not contain '..'",
            &base,
            &template(json!({ "container": { "binds": ["/srv/..a:/b..:ro,rbind", "/dev/fuse"] } })),
            &template(json!({ "container": { "binds": ["/srv/a:/b/../c"] } })),
        ),
        case(
            "a file's path must not be below /run, /var/run, /tmp, /dev, /proc, /sys, /lib/modules or /usr/lib/modules, nor be \
             /etc/resolv.conf: the node would not see the file",
            &base,
            &file(json!({ "path": "/srv/run/a", "content": "" })),
            &file(json!({ "path": "/var//run/a", "content": "" })),
        ),
        case(
            "container.network must be Host when kubernetes.role is ControlPlane: other hosts, or its own, do not reach it in another network",
            &base,
            &template(json!({ "container": { "network": "Veth" }, "kubernetes": { "role": "Worker" } })),
            &template(
                json!({ "container": { "network": "Veth" }, "kubernetes": { "role": "ControlPlane" } }),
            ),
        ),
        case(
            "healthGate.minReadySeconds must not be longer than timeoutSeconds",
            &base,
            &template(json!({ "healthGate": { "timeoutSeconds": 60, "minReadySeconds": 60 } })),
            &template(json!({ "healthGate": { "timeoutSeconds": 60, "minReadySeconds": 61 } })),
        ),
        case(
            "the name must be <configurationName>-v<version>",
            &version("case", 12),
            &json!({}),
            &json!({ "spec": { "version": 13 } }),
        ),
    ]
}

fn operations() -> Vec<Case> {
    let base = operation("case");
    let selector = |selector: Value| json!({ "spec": { "machineRef": null, "machineSelector": selector } });
    let fields = |operator: &str, values: Value| {
        let mut field = json!({ "key": "spec.provider", "operator": operator });
        if !values.is_null() {
            field["values"] = values;
        }
        json!({ "matchFields": [field] })
    };
    let labels = json!({ "matchLabels": { "rack": "7" } });
    let expressions = json!({ "matchExpressions": [{ "key": "rack", "operator": "Exists" }] });
    vec![
        case(
            "exactly one of machineRef and machineSelector must be set",
            &base,
            &selector(labels.clone()),
            &json!({ "spec": { "machineSelector": labels } }),
        ),
        case(
            "exactly one of machineRef and machineSelector must be set",
            &base,
            &json!({}),
            &json!({ "spec": { "machineRef": null } }),
        ),
        case(
            "machineSelector must have at least one requirement: an empty selector would match all Machines",
            &base,
            &selector(expressions),
            &selector(json!({})),
        ),
        case(
            "matchFields: values must be set when operator is In or NotIn, and may only be set then",
            &base,
            &selector(fields("In", json!(["pxe"]))),
            &selector(fields("In", json!([]))),
        ),
        case(
            "matchFields: values must be set when operator is In or NotIn, and may only be set then",
            &base,
            &selector(fields("Exists", Value::Null)),
            &selector(fields("Exists", json!(["pxe"]))),
        ),
        case(
            "machineSelector must have at least one requirement: an empty selector would match all Machines",
            &base,
            &selector(fields("Exists", Value::Null)),
            &selector(json!({ "matchFields": [] })),
        ),
        case(
            "machineSelector must have at least one requirement: an empty selector would match all Machines",
            &base,
            &selector(labels.clone()),
            &selector(json!({ "matchLabels": {}, "matchExpressions": [] })),
        ),
        case(
            "maxParallel and failureLimit may only be set when machineSelector is set",
            &with(&base, &selector(labels)),
            &json!({ "spec": { "maxParallel": 2, "failureLimit": 1 } }),
            &json!({ "spec": { "machineSelector": null, "machineRef": { "name": "node-1" }, "failureLimit": 1 } }),
        ),
    ]
}

/// Machines and configurations for claims.
fn pools() -> Vec<Case> {
    let (base, configured) = (machine("case"), configuration("case"));
    let policy = |policy: Value| json!({ "spec": { "claimPolicy": policy } });
    let own = json!({ "namespaces": ["team-a"] });
    let of = |spec: Value| {
        let bare = json!({ "kubernetes": { "kubeletConfiguration": null } });
        with(&json!({ "spec": { "claimPolicy": own, "template": bare } }), &json!({ "spec": spec }))
    };
    vec![
        case(
            "claimPolicy and configurationRef must not both be set: a claim names the configuration",
            &base,
            &policy(own.clone()),
            &json!({ "spec": { "claimPolicy": own, "configurationRef": { "name": "workers" } } }),
        ),
        case(
            "claimPolicy.release must be set when claimPolicy.namespaces has '*' or more than one entry",
            &base,
            &policy(json!({ "namespaces": ["team-a", "team-b"], "release": "Empty" })),
            &policy(json!({ "namespaces": ["team-a", "team-b"] })),
        ),
        case(
            "claimPolicy.release must be set when claimPolicy.namespaces has '*' or more than one entry",
            &base,
            &policy(json!({ "namespaces": ["*"], "release": "Wipe" })),
            &policy(json!({ "namespaces": ["*"] })),
        ),
        case(
            "claimPolicy.release must not be Wipe when provider is not pxe: only a host that Bedplate boots can be wiped",
            &base,
            &policy(json!({ "namespaces": ["team-a"], "release": "Wipe" })),
            &json!({ "spec": { "provider": "manual", "pxe": null,
                "claimPolicy": { "namespaces": ["team-a"], "release": "Wipe" } } }),
        ),
        case(
            "pxe.stateDisk.wipe must be IfBlank when claimPolicy.release is Wipe: Never forbids the wipe, and Once wipes again after it; set it to IfBlank and remove wipeToken",
            &base,
            &json!({ "spec": { "claimPolicy": { "namespaces": ["team-a"], "release": "Wipe" },
                "pxe": { "stateDisk": { "serial": "S1" } } } }),
            &json!({ "spec": { "claimPolicy": { "namespaces": ["team-a"], "release": "Wipe" },
                "pxe": { "stateDisk": { "serial": "S1", "wipe": "Once", "wipeToken": "t" } } } }),
        ),
        case(
            "powerPolicy may only be OnClaim when claimPolicy and bmc are set and provider is pxe: pxed powers the machine on for a claim",
            &base,
            &json!({ "spec": { "powerPolicy": "OnClaim", "claimPolicy": own, "bmc": { "protocol": "Redfish", "address": "b",
                "credentialsSecretRef": { "namespace": "bmc", "name": "node-1" } } } }),
            &json!({ "spec": { "powerPolicy": "OnClaim", "claimPolicy": own } }),
        ),
        case(
            "machineSelector must not be set when claimPolicy is set: a claim names the configuration",
            &configured,
            &of(json!({})),
            &of(json!({ "machineSelector": {} })),
        ),
        case(
            "template.kubernetes must have only version when claimPolicy is set: the user data of a claim configures the kubelet",
            &configured,
            &of(json!({})),
            &json!({ "spec": { "claimPolicy": own } }),
        ),
        case(
            "template.kubernetes must have only version when claimPolicy is set: the user data of a claim configures the kubelet",
            &configured,
            &of(json!({ "template": { "kubernetes": { "role": "Worker" } } })),
            &of(json!({ "template": { "kubernetes": { "role": "ControlPlane" } } })),
        ),
        case(
            "preKubeadmCommands and postKubeadmCommands must not be set when claimPolicy is set: the user data of a claim has its own commands",
            &configured,
            &of(json!({ "template": { "files": [{ "path": "/etc/motd", "content": "" }] } })),
            &of(json!({ "template": { "preKubeadmCommands": ["true"] } })),
        ),
    ]
}

fn claims() -> Vec<Case> {
    let base = claim("case");
    let spec = |spec: Value| json!({ "spec": spec });
    vec![
        case(
            "metadata.name must be the name of a Machine: at most 63 of a-z, 0-9 and '-', not first or last '-'",
            &base,
            &json!({}),
            &json!({ "metadata": { "name": "case.1" } }),
        ),
        case(
            "spec.providerID must be bedplate://<name of this claim>/<UID of the claimant>",
            &base,
            &spec(json!({ "providerID": "bedplate://case/0f3c" })),
            &spec(json!({ "providerID": "bedplate://case-2/u-1" })),
        ),
        case(
            "vip has no effect yet and must not be set: use an external load balancer",
            &base,
            &json!({}),
            &spec(json!({ "vip": { "address": "10.7.0.9", "port": 6443, "virtualRouterID": 1 } })),
        ),
    ]
}

/// Objects with one value that its field's schema does not allow.
pub(crate) fn outside_the_schema() -> Vec<(&'static str, Value)> {
    let machine = |what, patch: Value| (what, with(&machine("case"), &json!({ "spec": patch })));
    let mac = |what, mac: &str| machine(what, json!({ "pxe": { "interfaces": [{ "macAddress": mac }] } }));
    let address = |what, address: &str| {
        let interface = json!({ "macAddress": "525400000001", "addresses": [address] });
        machine(what, json!({ "pxe": { "interfaces": [interface] } }))
    };
    let argument = |what, text: &str| machine(what, json!({ "pxe": { "kernelArguments": [text] } }));
    let rolling = |what, count: Value| {
        let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": count } });
        (what, with(&configuration("case"), &json!({ "spec": { "updateStrategy": strategy } })))
    };
    let template =
        |what, patch: Value| (what, with(&configuration("case"), &json!({ "spec": { "template": patch } })));
    let memory = |what, quantity: Value| template(what, json!({ "container": { "memoryMax": quantity } }));
    let bind = |what, bind: &str| template(what, json!({ "container": { "binds": [bind] } }));
    let taint = |what, key: &str, value: &str| {
        let taint = json!({ "key": key, "value": value, "effect": "NoSchedule" });
        template(what, json!({ "kubernetes": { "taints": [taint] } }))
    };
    let operation = |what, patch: Value| (what, with(&operation("case"), &json!({ "spec": patch })));
    let claim = |what, patch: Value| (what, with(&claim("case"), &json!({ "spec": patch })));
    let many: Vec<Value> = (0..17).map(|n| json!({ "macAddress": format!("5254000000{n:02x}") })).collect();
    let secret = json!({ "namespace": "bmc", "name": "node-1" });
    let pinned = |pins: &[String]| {
        let tls = json!({ "mode": "Pin", "pins": pins });
        json!({ "bmc": { "protocol": "Redfish", "address": "b", "redfish": { "tls": tls }, "credentialsSecretRef": secret } })
    };
    let three: Vec<String> = (0..3).map(|n| format!("sha256:{n:064x}")).collect();
    vec![
        claim("a providerID without a claimant", json!({ "providerID": "bedplate://case" })),
        claim("a providerID with a third part", json!({ "providerID": "bedplate://case/u/v" })),
        claim("a providerID of another scheme", json!({ "providerID": "other://case/u-1" })),
        claim("a claimant without a UID", json!({ "claimant": { "uid": "" } })),
        claim("a Node name that is not a label", json!({ "nodeName": "w.1" })),
        claim("a role that does not exist", json!({ "role": "Etcd" })),
        claim("a release policy that does not exist", json!({ "release": "Keep" })),
        claim("no configuration", json!({ "configurationRef": null })),
        claim(
            "a virtual router beyond 255",
            json!({ "vip": { "address": "10.7.0.9", "port": 1, "virtualRouterID": 256 } }),
        ),
        machine("a pool without namespaces", json!({ "claimPolicy": { "namespaces": [] } })),
        machine(
            "a pool with a namespace twice",
            json!({ "claimPolicy": { "namespaces": ["a", "a"], "release": "Empty" } }),
        ),
        machine("a pool with a pattern", json!({ "claimPolicy": { "namespaces": ["team-*"] } })),
        mac("mixed separators", "52:54-00:00:00:01"),
        mac("five octets", "52:54:00:00:00"),
        machine("no interfaces", json!({ "pxe": { "interfaces": [] } })),
        machine("seventeen interfaces", json!({ "pxe": { "interfaces": many } })),
        address("an address without prefix length", "10.7.0.1"),
        address("an address with leading zeros", "010.7.0.1/24"),
        address("a prefix length beyond 32", "10.7.0.1/33"),
        machine("an unknown firmware", json!({ "pxe": { "firmware": "openfirmware" } })),
        argument("a kernel argument with a line break", "a\nboot"),
        argument("an empty kernel argument", ""),
        argument("two kernel arguments in one", "quiet splash"),
        argument("a kernel argument outside of ASCII", "a=\u{fc}"),
        machine("an upper-case site", json!({ "site": "Rack" })),
        machine("an empty provider", json!({ "provider": "" })),
        machine("version 0", json!({ "configurationRef": { "name": "workers", "version": 0 } })),
        machine("a stateDisk below /dev", json!({ "pxe": { "stateDisk": { "byID": "../sda" } } })),
        machine("three pins", pinned(&three)),
        machine("one pin twice", pinned(&[DIGEST.to_owned(), DIGEST.to_owned()])),
        machine("a BMC without credentials", json!({ "bmc": { "protocol": "Redfish", "address": "b" } })),
        rolling("maxUnavailable 0", json!(0)),
        rolling("maxUnavailable 0%", json!("0%")),
        rolling("maxUnavailable 101%", json!("101%")),
        rolling("maxUnavailable as text", json!("1")),
        rolling("maxUnavailable beyond 32 bits", json!(1_i64 << 31)),
        operation(
            "a field that no selector may name",
            json!({ "machineRef": null,
                "machineSelector": { "matchFields": [{ "key": "status.phase", "operator": "Exists" }] } }),
        ),
        memory("memory that is not a quantity", json!("8 GiB")),
        memory("memory in thousandths", json!("8000m")),
        memory("memory with an exponent", json!("1e9")),
        memory("no memory", json!("0")),
        memory("no memory as a number", json!(0)),
        memory("more memory than 64 bits count", json!("99Ei")),
        bind("a bind with a wrong option", "/srv:/data:exec"),
        bind("a bind with four parts", "/srv:/data:ro:rw"),
        bind("a bind with a relative target", "/srv:data"),
        bind("a bind with a backslash", "/srv\\data"),
        taint("a taint's key with a space", "a b", ""),
        taint("a taint's key with two slashes", "a/b/c", ""),
        taint("a taint's value with a space", "a", "b c"),
        template("a label's value with a space", json!({ "kubernetes": { "nodeLabels": { "a": "b c" } } })),
        template("a kernel module twice", json!({ "kernelModules": ["ip_vs", "ip_vs"] })),
        template("a unit twice", json!({ "units": [{ "name": "a.service" }, { "name": "a.service" }] })),
        template(
            "a capability twice",
            json!({ "container": { "capabilities": ["CAP_SYSLOG", "CAP_SYSLOG"] } }),
        ),
        template("an empty kernel parameter", json!({ "sysctls": { "kernel.panic": "" } })),
        template(
            "a kernel parameter of two lines",
            json!({ "sysctls": { "kernel.panic": "1\nkernel.sysrq=1" } }),
        ),
        template(
            "an API server without a port",
            json!({ "kubernetes": { "apiServerEndpoint": "k.example" } }),
        ),
        template(
            "an API server as a URL",
            json!({ "kubernetes": { "apiServerEndpoint": "https://k.example:6443" } }),
        ),
        template(
            "an API server with port 0",
            json!({ "kubernetes": { "apiServerEndpoint": "k.example:0" } }),
        ),
        operation("an operation name with a slash", json!({ "operationName": "a/b" })),
        operation("an operation name that ends in a dot", json!({ "operationName": "a." })),
        operation("an operation name of 64 characters", json!({ "operationName": "a".repeat(64) })),
        operation("a negative time to live", json!({ "ttlSecondsAfterFinished": -1 })),
        operation("a parameter of 4097 characters", json!({ "parameters": { "a": "x".repeat(4097) } })),
        operation(
            "a label's value with a space in a selector",
            json!({ "machineRef": null, "machineSelector": { "matchLabels": { "a": "b c" } } }),
        ),
    ]
}
