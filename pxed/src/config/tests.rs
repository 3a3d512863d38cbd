//! Contract of the configuration: all errors are reported together, each with line and remedy; unknown keys are
//! rejected; overrides; values that a reload applies; documentation of every key.

use std::collections::BTreeSet;

use super::reload::plan_reload;
use super::*;

const GOOD: &str = r#"
site = "lab"
default-image = "host"
[source]
directory = "/etc/bedplate/machines.d"
[dhcp]
mode = "server"
interfaces = ["br0"]
[[dhcp.subnet]]
network = "10.7.0.0/24"
ranges = ["10.7.0.100-10.7.0.199"]
routers = ["10.7.0.1"]
[loaders]
bios = "undionly.kpxe"
[images.host]
layout = "/var/lib/bedplate/images/host"
kernel-arguments = ["console=ttyS0"]
"#;

fn good() -> Config {
    Config::parse(GOOD, &[]).unwrap()
}

/// Returns the errors of a document as lines of text.
fn errors(text: &str) -> Vec<String> {
    Config::parse(text, &[]).unwrap_err().iter().map(ToString::to_string).collect()
}

/// Returns the errors of the good document after replacing `from` by `to`.
fn errors_of(from: &str, to: &str) -> Vec<String> {
    assert!(GOOD.contains(from), "{from}");
    errors(&GOOD.replace(from, to))
}

#[test]
fn a_good_file_is_read_with_its_defaults() {
    let config = good();
    assert_eq!(config.site.as_str(), "lab");
    assert_eq!(config.http.listen, "0.0.0.0:8067".parse().unwrap());
    assert_eq!(config.http.connections_per_client, 64);
    assert_eq!(config.dhcp.mode, DhcpMode::Server);
    assert_eq!(config.dhcp.subnets[0].lease, Duration::from_secs(3600));
    assert_eq!(config.source, SourceConfig::Directory("/etc/bedplate/machines.d".into()));
    assert_eq!(config.images["host"].kernel_arguments, ["console=ttyS0"]);
    assert_eq!(config.bmc.secret_namespaces, ["bedplate-system"]);
    assert_eq!((config.bmc.connections, config.bmc.poll), (128, Duration::from_secs(60)));
    assert!(!config.bmc.allow_insecure, "plain HTTP is refused unless the configuration allows it");
    assert!(config.dhcp.authoritative && !config.dhcp.discovery && config.tftp.enabled);
}

#[test]
fn all_errors_are_reported_together_with_line_and_remedy() {
    let text = "sit = \"lab\"\n[source]\ndirectory = \"machines.d\"\n[dhcp]\nmode = \"sever\"\ninterfaces = \"br0\"\n\
                server-port = 70000\n[http]\nlisten = \"8067\"\nmax-streams = \"64\"\n";
    assert_eq!(
        errors(text),
        [
            "1: sit: is not a known key; did you mean \"site\"?",
            "3: source.directory: \"machines.d\" is not an absolute path",
            "5: dhcp.mode: \"sever\" is not one of server, proxy or off; did you mean \"server\"?",
            "6: dhcp.interfaces: is a text; write a list in square brackets",
            "7: dhcp.server-port: 70000 is out of range; write 1 to 65535",
            "9: http.listen: \"8067\" is not an address with a port, such as 0.0.0.0:8067 or [::]:8067",
            "10: http.max-streams: is a text; write a whole number from 1 to 65535, without quotes",
        ]
    );
}

#[test]
fn broken_toml_is_reported_with_its_line_and_other_errors() {
    let found =
        errors("site = \"lab\nsocket = \"relative\"\n[source]\nkubernetes = {}\n[dhcp]\nmode = \"off\"\n");
    assert!(found.iter().any(|m| m.starts_with("1: ") && m.ends_with("this is not valid TOML")), "{found:?}");
}

#[test]
fn empty_file_gets_errors_for_all_required_keys() {
    let found = errors("");
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("dhcp.mode: is missing; write mode = "));
    assert!(found[1].starts_with("source: does not name the source of Machines; write directory = "));
}

#[test]
fn node_secrets_are_next_to_manifests_or_in_the_cluster() {
    assert_eq!(good().secrets_directory, PathBuf::from("/etc/bedplate/secrets"));
    let text = "[source]\nkubernetes = {}\nsecrets-directory = \"/s\"\n[dhcp]\nmode = \"off\"\n";
    let found = errors(text);
    assert_eq!(
        found,
        [
            "3: source.secrets-directory: belongs to source.directory; remove it: in a cluster agents read its Secrets"
        ]
    );
}

#[test]
fn contradictions_between_keys_are_found() {
    let cases = [
        ("default-image = \"host\"", "default-image = \"hots\"", "did you mean \"host\"?"),
        ("interfaces = [\"br0\"]", "", "dhcp.interfaces: names no interface"),
        ("interfaces = [\"br0\"]", "interfaces = [\"br0\", \"br0\"]", "\"br0\" is named twice"),
        ("10.7.0.0/24", "10.7.0.5/24", "write \"10.7.0.0/24\""),
        ("10.7.0.100-10.7.0.199", "10.7.0.100-10.7.1.9", "is not inside 10.7.0.0/24"),
        ("10.7.0.100-10.7.0.199", "10.7.0.1-10.7.0.9", "holds the router 10.7.0.1"),
        ("10.7.0.100-10.7.0.199", "10.7.0.100-10.7.0.255", "broadcast address"),
        ("ranges = [\"", "ranges = [\"10.7.0.90-10.7.0.110\", \"", "overlaps"),
        ("routers = [\"10.7.0.1\"]", "routers = [\"10.8.0.1\"]", "use a router inside the network"),
        ("[loaders]", "[[dhcp.subnet]]\nnetwork = \"10.7.0.128/25\"\n[loaders]", "overlaps 10.7.0.0/24"),
        (
            "routers = ",
            "relays = [\"10.9.0.1/30\"]\nrouters = ",
            "relays[0]: \"10.9.0.1/30\" is not an IPv4 address, or",
        ),
        (
            "routers = ",
            "relays = [\"10.8.0.0/16\"]\nrouters = ",
            "has more than 256 addresses; list the relays' own",
        ),
        (
            "routers = ",
            "relays = [\"10.7.0.0/24\"]\nrouters = ",
            "contains addresses of the range 10.7.0.100",
        ),
        ("routers = ", "relays = [\"10.7.0.100\"]\nrouters = ", "could pose as any other"),
        ("mode = \"server\"", "mode = \"proxy\"", "has no meaning in proxy mode"),
        ("mode = \"server\"", "mode = \"server\"\ndiscovery = true", "is on without a discovery-image"),
        ("[loaders]", "[metrics]\nlisten = \"127.0.0.1:8067\"\n[loaders]", "clashes with http.listen"),
        ("[loaders]", "[tftp]\nlisten = \"10.7.0.1:67\"\n[loaders]", "clashes with tftp.listen"),
        ("directory =", "kubernetes = {}\ndirectory =", "are both given"),
        ("bios = \"undionly.kpxe\"", "bios = \"../undionly.kpxe\"", "is not a file name"),
        (
            "layout = ",
            "reference = \"r.example/host:1\"\nlayout = ",
            "has more than one of layout, reference and kernel",
        ),
        ("layout = \"/var/lib/bedplate/images/host\"", "", "does not name the source of the image"),
        ("layout = \"/var/lib/bedplate/images/host\"", "reference = \"r.example/host:1\"", "has no digest"),
        ("layout = ", "allow-tag = true\nlayout = ", "has no meaning without reference"),
        ("layout = ", "ca-file = \"/ca\"\nlayout = ", "has no meaning without reference"),
        (
            "layout = \"/var/lib/bedplate/images/host\"",
            "reference = \"r.example/host:1\"\nallow-tag = true\ninsecure-http = true\nca-file = \"/ca\"",
            "ca-file: has no meaning with insecure-http",
        ),
        ("layout = \"/var/lib/bedplate/images/host\"", "kernel = \"/k\"", "initrd: is required with kernel"),
        (
            "console=ttyS0",
            "console=ttyS0 quiet",
            "contains a space; write each argument as an entry of its own",
        ),
        ("console=ttyS0", "a=${x}", "holds ${, which iPXE would expand; "),
        ("console=ttyS0", "initrd=foo", "is set by pxed itself; "),
        ("console=ttyS0", "bedplate.url=x", "is set by pxed itself; "),
        ("console=ttyS0", "#c", "holds #, on which iPXE or the kernel may act; "),
        ("console=ttyS0", "quiet\", \"||", "kernel-arguments[1]: \"||\" holds |"),
        ("10.7.0.0/24", "10.7.0.0/42", "dhcp.subnet[0].network: \"10.7.0.0/42\" is not a network"),
    ];
    for (from, to, expected) in cases {
        let found = errors_of(from, to);
        assert_eq!(found.len(), 1, "{to}: {found:?}");
        assert!(found[0].contains(expected), "{to}: {found:?}");
        let has_line = found[0].starts_with(|c: char| c.is_ascii_digit());
        assert!(
            has_line
                || found[0].contains("is missing")
                || found[0].contains("is required")
                || found[0].contains("names no interface")
                || found[0].contains("clashes"),
            "{found:?}"
        );
    }
}

#[test]
fn relays_are_listed_by_address_or_small_network_and_none_by_default() {
    assert_eq!(good().dhcp.subnets[0].relays, []);
    let text = GOOD.replace("routers = ", "relays = [\"10.7.0.1\", \"10.9.0.0/30\"]\nrouters = ");
    let relays = Config::parse(&text, &[]).unwrap().dhcp.subnets.remove(0).relays;
    assert_eq!(relays, ["10.7.0.1/32".parse().unwrap(), "10.9.0.0/30".parse().unwrap()]);
}

#[test]
fn check_reports_each_subnet_without_a_relay() {
    let hints = advice::relays(&good());
    assert_eq!(hints.len(), 1, "{hints:?}");
    assert!(hints[0].starts_with("dhcp.subnet[0] (10.7.0.0/24) lists no relay"), "{hints:?}");
    assert!(hints[0].contains("relays = [\"ADDRESS\"]"), "{hints:?}");
    let text = GOOD.replace("routers = ", "relays = [\"10.7.0.1\"]\nrouters = ");
    assert!(advice::relays(&Config::parse(&text, &[]).unwrap()).is_empty());
}

#[test]
fn check_tells_a_proxy_without_subnets_about_relays() {
    let mut config = good();
    config.dhcp.subnets.clear();
    config.dhcp.mode = DhcpMode::Proxy;
    let hints = advice::relays(&config);
    assert_eq!(hints.len(), 1, "{hints:?}");
    assert!(hints[0].starts_with("no [[dhcp.subnet]] is configured: only machines on the link"), "{hints:?}");
    assert!(
        hints[0].contains("add a [[dhcp.subnet]] with their network and relays = [\"ADDRESS\"]"),
        "{hints:?}"
    );
    config.dhcp.mode = DhcpMode::Off;
    assert!(advice::relays(&config).is_empty());
}

#[test]
fn each_bad_kernel_argument_is_an_error() {
    assert_eq!(errors_of("console=ttyS0", "a=${x}\", \"quiet\", \"initrd=foo").len(), 2);
    let long = vec!["x".repeat(500); 6].join("\", \"");
    let found = errors_of("console=ttyS0", &long);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("kernel-arguments: the arguments have 3006 bytes together"), "{found:?}");
}

#[test]
fn networks_that_cannot_be_read_do_not_overlap() {
    let found = errors_of(
        "[loaders]",
        "[[dhcp.subnet]]\nnetwork = \"x\"\n[[dhcp.subnet]]\nnetwork = \"y\"\n[loaders]",
    );
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn flag_overrides_the_file_and_its_error_names_the_flag() {
    let flag = |value: &str| vec![("site", value.to_owned(), "--site or BEDPLATE_SITE".to_owned())];
    assert_eq!(Config::parse(GOOD, &flag("other")).unwrap().site.as_str(), "other");
    let problems = Config::parse(GOOD, &flag("Not A Label")).unwrap_err();
    assert_eq!(problems.len(), 1);
    assert_eq!((problems[0].line, problems[0].key.as_str()), (None, "--site or BEDPLATE_SITE"));
}

#[test]
fn no_text_makes_the_reader_panic() {
    for cut in 0..GOOD.len() {
        let _ = Config::parse(&GOOD[..cut], &[]);
        let _ = Config::parse(&GOOD.replacen(&GOOD[cut..=cut], "[", 1), &[]);
    }
    for text in [
        "images = 1",
        "dhcp.subnet = 1",
        "dhcp.subnet = [1]",
        "[[images]]",
        "site.x = 1",
        "\u{feff}",
        "[images.\"\"]",
    ] {
        assert!(Config::parse(text, &[]).is_err());
    }
}

#[test]
fn a_reload_takes_on_images_and_pools_and_names_what_needs_a_restart() {
    let old = good();
    assert_eq!(plan_reload(&old, &old).config, old);
    let text = GOOD.replace("images/host", "images/other").replace("site = \"lab\"", "site = \"other\"");
    let text =
        text.replace("10.7.0.199", "10.7.0.150").replace("interfaces", "server-port = 1067\ninterfaces");
    let reload = plan_reload(&old, &Config::parse(&text, &[]).unwrap());
    assert_eq!((reload.applied, reload.needs_restart), (vec!["dhcp", "images"], vec!["site", "dhcp"]));
    assert_ne!(reload.config.images, old.images);
    assert_ne!(reload.config.dhcp.subnets, old.dhcp.subnets);
    assert_eq!((reload.config.site, reload.config.dhcp.server_port), (old.site, 67));
}

/// Keys stand in the document as table rows `| \`key\` | ... |`.
#[test]
fn the_document_explains_every_key_and_no_other() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/configuration.md");
    let document = std::fs::read_to_string(document).unwrap();
    let documented: BTreeSet<String> = document
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(key, _)| key.to_owned()))
        .collect();
    let sections = [
        "source",
        "source.kubernetes",
        "dhcp",
        "dhcp.subnet",
        "tftp",
        "http",
        "https",
        "metrics",
        "bmc",
        "loaders",
        "images",
        "limits",
    ];
    let (_, known) = read_document("[[dhcp.subnet]]\n[images.any]\n", &[]);
    let known: BTreeSet<String> = known.into_iter().filter(|key| !sections.contains(&key.as_str())).collect();
    let missing: Vec<_> = known.difference(&documented).collect();
    let unknown: Vec<_> = documented.difference(&known).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "not explained: {missing:?}; explained but unknown: {unknown:?}"
    );
}

/// The examples are what an operator starts from.
#[test]
fn the_examples_in_the_documents_are_valid() {
    for document in
        ["reference/configuration.md", "getting-started/install.md", "getting-started/first-control-plane.md"]
    {
        let path = format!("{}/../docs/{document}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        let examples: Vec<&str> =
            text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert!(!examples.is_empty(), "{document}");
        for example in examples {
            // A part of one.
            let required =
                [("[source]", "directory = \"/etc/bedplate/machines.d\""), ("[dhcp]", "mode = \"off\"")];
            let rest = required.iter().filter(|(table, _)| !example.contains(table));
            let rest: String = rest.map(|(table, key)| format!("{table}\n{key}\n")).collect();
            if let Err(problems) = Config::parse(&format!("{example}{rest}"), &[]) {
                let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
                panic!("{document}: {}", problems.join("\n"));
            }
        }
    }
}

#[test]
fn a_registry_is_spoken_to_as_its_image_says() {
    let keys =
        "reference = \"r.example/host:1\"\nallow-tag = true\nca-file = \"/ca\"\ncredentials-file = \"/auth\"";
    let config =
        Config::parse(&GOOD.replace("layout = \"/var/lib/bedplate/images/host\"", keys), &[]).unwrap();
    let Some(ImageSource::Registry { access, .. }) = config.images.values().next().map(|image| &image.source)
    else {
        panic!("a registry");
    };
    assert_eq!(access.ca_file.as_deref(), Some(Path::new("/ca")));
    assert_eq!(access.credentials_file.as_deref(), Some(Path::new("/auth")));
    assert!(!access.insecure_http);
}

#[test]
fn the_bmc_section_names_networks_and_namespaces() {
    let text = format!(
        "{GOOD}[bmc]\nsecret-namespaces = []\nallowed-networks = [\"127.0.0.0/8\"]\nforbidden-networks = \
         [\"10.96.0.0/12\", \"fd00::/8\"]\nlease-namespace = \"rack\"\nallow-insecure = true\n"
    );
    let config = Config::parse(&text, &[]).unwrap();
    assert!(config.bmc.secret_namespaces.is_empty(), "nobody's Secrets");
    assert_eq!(translate::bmc_reach(&config).forbidden.len(), 2);
    assert_eq!(config.bmc.lease_namespace.as_deref(), Some("rack"));
    assert!(config.bmc.allow_insecure);
    let found = errors(&format!("{GOOD}[bmc]\nallowed-networks = [\"x\"]\nlease-namespace = \"A/b\"\n"));
    assert!(found[0].contains("\"x\" is not a network, such as 10.96.0.0/12"), "{found:?}");
    assert!(found[1].contains("\"A/b\" is not a namespace"), "{found:?}");
}
