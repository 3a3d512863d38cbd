//! A real API server for tests: etcd and kube-apiserver with RBAC on, each run with its own ports, keys and directory; if asked for,
//! kube-controller-manager and kube-scheduler.
//!
//! The programs are those that `cargo xtask setup` built from their Go modules; a missing one is an error with that
//! remedy. Users get kubeconfigs of their own, so that a program is tested under the role that `deploy/` gives it. Not
//! here: nodes.

mod audit;
mod credentials;
mod kind;
mod objects;
mod reactor;
mod store;
mod template;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

pub use self::audit::{Writes, request_line};
pub use self::credentials::Credentials;
pub use self::objects::Objects;
use self::reactor::Reactor;
use crate::guard::{Directory, Process};
use crate::netns::Namespace;
use crate::wait;

/// Maximum time until etcd and the API server are ready; 3 s on an idle machine.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// Timeout of one kubectl on a busy machine.
const KUBECTL_TIMEOUT: &str = "--request-timeout=60s";

/// Garbage collection settings of an API server for tests: heap growth before a collection in percent (default 100), and soft memory
/// limit. With the defaults, collections take a fifth of its start. An empty API server keeps the defaults, because benchmarks measure it.
const GARBAGE: [(&str, &str); 2] = [("GOGC", "400"), ("GOMEMLIMIT", "1536MiB")];

/// Field manager of the installed objects.
const INSTALLATION: &str = "installation";

/// Number of tries if another process took a port between its choice and its use.
const MAX_ATTEMPTS: usize = 3;

/// Directory of the programs of the versions in `tests/kubernetes`.
///
/// # Errors
/// One of them is missing; the message names the remedy.
pub fn programs() -> Result<PathBuf> {
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("kubernetes");
    let kubernetes = required(&modules.join("go.mod"), "k8s.io/kubernetes")?;
    let etcd = required(&modules.join("etcd/go.mod"), "go.etcd.io/etcd/server/v3")?;
    let cache = match (std::env::var_os("BEDPLATE_CACHE"), std::env::var_os("HOME")) {
        (Some(cache), _) => PathBuf::from(cache),
        (None, Some(home)) => Path::new(&home).join(".cache/bedplate"),
        (None, None) => bail!("neither BEDPLATE_CACHE nor HOME is set"),
    };
    let directory =
        cache.join("kubernetes").join(format!("{kubernetes}-etcd{}", etcd.trim_start_matches('v')));
    for program in
        ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubeadm", "kubectl"]
    {
        let path = directory.join(program);
        ensure!(path.is_file(), "{} is missing: run `cargo xtask setup`", path.display());
    }
    Ok(directory)
}

/// Returns the version of a module that a go.mod requires.
///
/// # Errors
/// The file cannot be read, or does not require the module.
pub fn required(go_mod: &Path, module: &str) -> Result<String> {
    let text =
        std::fs::read_to_string(go_mod).with_context(|| format!("cannot read {}", go_mod.display()))?;
    text.lines()
        .find_map(|line| {
            let mut words = line.split_whitespace().filter(|word| *word != "require");
            (words.next() == Some(module)).then(|| words.next().filter(|v| v.starts_with('v'))).flatten()
        })
        .map(str::to_owned)
        .with_context(|| format!("{} requires no {module}", go_mod.display()))
}

/// Runs a command to its end and gives what it wrote; an error holds what it said.
fn output(mut command: Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{} {:?}: {}",
        command.get_program().display(),
        command.get_args().collect::<Vec<_>>(),
        said.trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A running control plane: etcd, kube-apiserver and, if asked for, kube-controller-manager and kube-scheduler. Ended when dropped.
#[derive(Debug)]
pub struct Kubernetes {
    /// Access as the administrator. `None` only while the API server starts.
    objects: Option<Objects>,
    reactor: Arc<Reactor>,
    content: Content,
    scheduler: Option<Process>,
    controllers: Option<Process>,
    server: Option<Process>,
    etcd: Process,
    programs: PathBuf,
    address: SocketAddr,
    etcd_url: String,
    namespace: Option<String>,
    directory: Directory,
}

/// Content of a new cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Only the objects that the API server creates itself.
    Nothing,
    /// In addition, the objects of [`Kubernetes::install`].
    Installed,
}

impl Kubernetes {
    /// Starts an empty API server on the loopback interface of this machine.
    ///
    /// # Errors
    /// A program is missing, or does not get ready.
    pub fn start() -> Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), None, Content::Nothing)
    }

    /// Starts an API server on the loopback interface of this machine, with definitions and `deploy/` installed as by [`Self::install`].
    ///
    /// # Errors
    /// A program is missing, or does not become ready.
    pub fn installed() -> Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), None, Content::Installed)
    }

    /// Starts an empty API server at `address` inside a network namespace.
    ///
    /// # Errors
    /// A program is missing, or does not get ready.
    pub fn start_inside(namespace: &Namespace, address: IpAddr) -> Result<Self> {
        Self::start_at(address, Some(namespace), Content::Nothing)
    }

    /// Starts an API server at `address` inside a network namespace, with definitions and `deploy/` installed as by [`Self::install`].
    ///
    /// # Errors
    /// A program is missing, or does not become ready.
    pub fn installed_inside(namespace: &Namespace, address: IpAddr) -> Result<Self> {
        Self::start_at(address, Some(namespace), Content::Installed)
    }

    /// The one that all tests of a test program share, with the definitions and `deploy/` installed. It ends with the
    /// program.
    ///
    /// # Panics
    /// It cannot be started: a test that needs it has failed then.
    #[expect(clippy::panic, reason = "only tests call it, and they have failed then")]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Result<Kubernetes>> = OnceLock::new();
        match SHARED.get_or_init(Self::installed) {
            Ok(kubernetes) => kubernetes,
            Err(error) => panic!("no API server: {error:#}"),
        }
    }

    fn start_at(address: IpAddr, namespace: Option<&Namespace>, content: Content) -> Result<Self> {
        let mut error = None;
        for _ in 0..MAX_ATTEMPTS {
            match Self::try_start(address, namespace, content) {
                Ok(kubernetes) => return Ok(kubernetes),
                Err(why) if format!("{why:#}").contains("address already in use") => error = Some(why),
                Err(why) => return Err(why),
            }
        }
        Err(error.context("no attempt was made")?)
    }

    fn try_start(address: IpAddr, namespace: Option<&Namespace>, content: Content) -> Result<Self> {
        let programs = programs()?;
        let directory = Directory::new("kubernetes")?;
        let late = match content {
            Content::Nothing => Vec::new(),
            Content::Installed => template::copy_to(&directory.path().join("etcd"))?,
        };
        let [port, client, peer] = match namespace {
            None => free_ports(address)?,
            Some(namespace) => namespace.inside(|| free_ports(address))?,
        };
        let namespace = namespace.map(|namespace| namespace.name().to_owned());
        let etcd_url = format!("http://{}", SocketAddr::new(address, client));
        let peer_url = format!("http://{}", SocketAddr::new(address, peer));
        let mut etcd = command_inside(namespace.as_deref(), &programs.join("etcd"));
        etcd.arg("--unsafe-no-fsync").arg("--data-dir").arg(directory.path().join("etcd")).args([
            format!("--listen-client-urls={etcd_url}"),
            format!("--advertise-client-urls={etcd_url}"),
            format!("--listen-peer-urls={peer_url}"),
            format!("--initial-advertise-peer-urls={peer_url}"),
            format!("--initial-cluster=default={peer_url}"),
        ]);
        let etcd = Process::spawn("etcd", &mut etcd, &directory.path().join("etcd.log"))?;
        let address = SocketAddr::new(address, port);
        let mut kubernetes = Self {
            objects: None,
            reactor: Arc::new(Reactor::start(namespace.as_deref())?),
            content,
            scheduler: None,
            controllers: None,
            server: None,
            etcd,
            programs,
            address,
            etcd_url,
            namespace,
            directory,
        };
        kubernetes.make_keys()?;
        kubernetes.objects = Some(kubernetes.objects_of(&kubernetes.admin())?);
        kubernetes.start_server()?;
        for object in &late {
            kubernetes.objects()?.apply_as(INSTALLATION, "", object, "")?;
        }
        Ok(kubernetes)
    }

    /// One of its programs, inside its network.
    pub fn command(&self, program: &str) -> Command {
        command_inside(self.namespace.as_deref(), &self.programs.join(program))
    }

    /// Another program inside its network.
    pub fn command_inside_network(&self, program: &Path) -> Command {
        command_inside(self.namespace.as_deref(), program)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Creates the certificates with kubeadm, and the administrator's kubeconfig. ECDSA, because RSA keys take seconds.
    fn make_keys(&self) -> Result<()> {
        let ip = self.address.ip();
        let pki = self.path("pki");
        let version = self.programs.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let version = version.split_once("-etcd").map_or(version, |(version, _)| version);
        // kubeadm refuses loopback here; the kubeconfigs name controlPlaneEndpoint instead (192.0.2.0/24: RFC 5737).
        let init = "apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 192.0.2.1}
";
        let cluster = format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: {version}\ncertificatesDir: {}\n\
             encryptionAlgorithm: ECDSA-P256\ncontrolPlaneEndpoint: {}\napiServer: {{certSANs: [localhost, 127.0.0.1, \"{ip}\"]}}\n",
            pki.display(),
            self.address
        );
        std::fs::write(self.path("kubeadm.yaml"), format!("{init}---\n{cluster}"))
            .context("cannot write kubeadm's configuration")?;
        let mut kubeadm = self.command("kubeadm");
        kubeadm.args(["init", "phase", "certs", "all", "--config"]).arg(self.path("kubeadm.yaml"));
        output(kubeadm)?;
        let name = "kubernetes-super-admin";
        let admin = credentials::user_of(&self.certificate(name, &["system:masters"])?);
        self.write_kubeconfig("super-admin", &self.kubeconfig(name, &admin)?).map(drop)
    }

    /// Starts the API server (again) and waits until it is ready.
    ///
    /// # Errors
    /// It does not get ready.
    pub fn start_server(&mut self) -> Result<()> {
        let pki = self.path("pki");
        let file = |flag: &str, name: &str| format!("--{flag}={}", pki.join(name).display());
        let mut command = self.command("kube-apiserver");
        if self.content == Content::Installed {
            command.envs(GARBAGE);
        }
        command.args(self.audit_arguments()?).args([
            format!("--etcd-servers={}", self.etcd_url),
            format!("--bind-address={}", self.address.ip()),
            format!("--advertise-address={}", self.address.ip()),
            format!("--secure-port={}", self.address.port()),
            file("tls-cert-file", "apiserver.crt"),
            file("tls-private-key-file", "apiserver.key"),
            file("client-ca-file", "ca.crt"),
            // As kubeadm has it, and stricter: kubelets must show a serving certificate of the cluster.
            file("kubelet-client-certificate", "apiserver-kubelet-client.crt"),
            file("kubelet-client-key", "apiserver-kubelet-client.key"),
            file("kubelet-certificate-authority", "ca.crt"),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            file("service-account-key-file", "sa.pub"),
            file("service-account-signing-key-file", "sa.key"),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--enable-bootstrap-token-auth=true".to_owned(),
            "--profiling=false".to_owned(),
        ]);
        let mut server = Process::spawn("kube-apiserver", &mut command, &self.path("kube-apiserver.log"))?;
        let objects = self.objects()?.clone();
        wait::until_asked("a ready API server", READY_TIMEOUT, || {
            if !server.is_running() {
                bail!("kube-apiserver has ended: {}", last_lines(&server.said()));
            }
            if !self.etcd.is_running() {
                bail!("etcd has ended: {}", last_lines(&self.etcd.said()));
            }
            Ok(objects.text("/readyz").ok())
        })?;
        self.server = Some(server);
        Ok(())
    }

    /// Ends the API server; etcd keeps what it holds.
    pub fn stop_server(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill();
        }
    }

    /// Starts kube-controller-manager with these controllers, such as `csrsigning`; it signs with the cluster's CA.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_controllers(&mut self, controllers: &[&str]) -> Result<()> {
        let pki = self.path("pki");
        let kubeconfig = self.user("system:kube-controller-manager", &[])?;
        let mut command = self.command("kube-controller-manager");
        command.args([
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--controllers={}", controllers.join(",")),
            format!("--cluster-signing-cert-file={}", pki.join("ca.crt").display()),
            format!("--cluster-signing-key-file={}", pki.join("ca.key").display()),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            // Each controller has a role of its own, which is bound to a service account.
            "--use-service-account-credentials=true".to_owned(),
        ]);
        let log = self.path("kube-controller-manager.log");
        self.controllers = Some(Process::spawn("kube-controller-manager", &mut command, &log)?);
        Ok(())
    }

    /// Starts kube-scheduler: Pods without a Node get one.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_scheduler(&mut self) -> Result<()> {
        let kubeconfig = self.user("system:kube-scheduler", &[])?;
        let mut command = self.command("kube-scheduler");
        command.arg(format!("--kubeconfig={}", kubeconfig.display()));
        command.args(["--leader-elect=false", "--secure-port=0"]);
        let log = self.path("kube-scheduler.log");
        self.scheduler = Some(Process::spawn("kube-scheduler", &mut command, &log)?);
        Ok(())
    }

    /// The processes of the API server, if it runs, and of etcd.
    pub fn pids(&self) -> Vec<u32> {
        self.server.iter().chain([&self.etcd]).map(Process::pid).collect()
    }

    /// The API server's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The cluster's certificate authority (PEM file).
    pub fn ca(&self) -> PathBuf {
        self.path("pki/ca.crt")
    }

    /// Returns the directory of the certificates and keys, in the layout of kubeadm.
    pub fn pki(&self) -> PathBuf {
        self.path("pki")
    }

    /// The kubeconfig of a cluster administrator (group system:masters).
    pub fn admin(&self) -> PathBuf {
        self.path("super-admin.conf")
    }

    /// Returns access to the cluster's objects as its administrator.
    ///
    /// # Errors
    /// The API server is still starting.
    pub fn objects(&self) -> Result<&Objects> {
        self.objects.as_ref().context("the API server is still starting")
    }

    /// Returns access to the cluster's objects as the user of a kubeconfig.
    ///
    /// # Errors
    /// The kubeconfig cannot be read.
    pub fn objects_of(&self, kubeconfig: &Path) -> Result<Objects> {
        let text = std::fs::read_to_string(kubeconfig);
        Objects::connect(
            &self.reactor,
            text.with_context(|| format!("cannot read {}", kubeconfig.display()))?,
        )
    }

    /// Runs kubectl as the user of `kubeconfig` and gives what it printed.
    ///
    /// # Errors
    /// What kubectl says.
    pub fn kubectl(&self, kubeconfig: &Path, arguments: &[&str]) -> Result<String> {
        let cache = self.path("kubectl-cache");
        kubectl(self.command("kubectl"), kubeconfig, &cache, arguments)
    }

    /// Installs the kinds and the manifests of `deploy/` as docs/getting-started/install.md says, but for what keeps versions from everybody but the
    /// controller: where none runs, tests write versions in its place. Waits until the kinds are there.
    ///
    /// # Errors
    /// What the API server has against them.
    pub fn install(&self) -> Result<()> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let (crds, deploy) =
            (root.join("api/crds").display().to_string(), root.join("deploy").display().to_string());
        let admin = self.admin();
        let all = self.kubectl(&admin, &["kustomize", &deploy])?;
        // Omitted, not deleted afterwards: the API server would enforce it for a moment.
        let binds = |text: &&str| {
            text.contains("kind: ValidatingAdmissionPolicyBinding\n")
                && text.contains("\n  name: bedplate-versions\n")
        };
        let (binding, rest): (Vec<&str>, Vec<&str>) = all.split("\n---\n").partition(binds);
        ensure!(binding.len() == 1, "{} bindings of bedplate-versions in {deploy}", binding.len());
        let path = self.directory.path().join("deploy.yaml");
        std::fs::write(&path, rest.join("\n---\n"))?;
        let path = path.display().to_string();
        self.kubectl(
            &admin,
            &["apply", "--server-side", &format!("--field-manager={INSTALLATION}"), "-f", &path],
        )?;
        let established = ["wait", "--for=condition=Established", "--timeout=60s", "-f", &crds];
        self.kubectl(&admin, &established).map(drop)
    }

    /// Has versions written by bedplate-controller alone again (V1), as `deploy/` has it.
    ///
    /// # Errors
    /// What the API server has against it.
    pub fn protect_versions(&self) -> Result<()> {
        let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/controller-policy.yaml");
        let policy = policy.display().to_string();
        let manager = format!("--field-manager={INSTALLATION}");
        let apply = ["apply", "--server-side", &manager, "-f", &policy];
        self.kubectl(&self.admin(), &apply).map(drop)
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        for process in [&mut self.scheduler, &mut self.controllers].into_iter().flatten() {
            process.kill();
        }
        self.stop_server();
        self.etcd.kill();
    }
}

fn kubectl(mut command: Command, kubeconfig: &Path, cache: &Path, arguments: &[&str]) -> Result<String> {
    // Its discovery cache would be shared by all runs.
    command.arg("--kubeconfig").arg(kubeconfig).arg("--cache-dir").arg(cache);
    command.arg(KUBECTL_TIMEOUT).args(arguments);
    output(command)
}

fn command_inside(namespace: Option<&str>, program: &Path) -> Command {
    match namespace {
        None => Command::new(program),
        Some(name) => {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net=/run/netns/{name}")).arg(program);
            command
        }
    }
}

/// Three free ports.
fn free_ports(address: IpAddr) -> Result<[u16; 3]> {
    let listen = || TcpListener::bind((address, 0)).with_context(|| format!("cannot listen on {address}"));
    let listeners = [listen()?, listen()?, listen()?];
    let mut ports = [0; 3];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr().context("a listener without address")?.port();
    }
    Ok(ports)
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines.iter().skip(lines.len().saturating_sub(10)).copied().collect::<Vec<_>>().join("\n")
}
