//! Carries out stage-1's steps, one after another, and retries a step that fails.
//!
//! `plan` decides about a failure; [`Boot`] has the results of a step for the
//! later ones. Called by `stage1::enter`.

use std::fs::{self, File};
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use bedplate_api::wire::{RootFs, SEED_PATH, Seed, Stage, StageReport};
use bedplate_process::file;
use jiff::Timestamp;

use super::arguments::{BootArguments, read_arguments};
use super::console::{mib, say};
use super::dhcp_wire::Lease;
use super::error::{StageError, chain, cut};
use super::handover::{BOOT_FACTS, BootFacts, HOST_SEED, StateFacts, resolv_conf};
use super::http_wire::HttpUrl;
use super::link::{self, Interface};
use super::modules::{self, Loaded, Modules};
use super::plan::{Step, plan_retry};
use super::root_image::{Partial, check_memory};
use super::state_disk::{self, RootPrograms};
use super::{clock, dhcp, http, new_root};

const INTERFACE_WAIT: Duration = Duration::from_secs(20);

/// Results of the steps so far.
#[derive(Debug, Default)]
struct Boot {
    arguments: Option<BootArguments>,
    modules: Modules,
    interface: Option<Interface>,
    lease: Option<(Lease, std::net::Ipv4Addr)>,
    seed: Option<Seed>,
    partial: Option<Partial>,
    image: Option<File>,
    state: Option<StateFacts>,
    failures: u32,
    clock_was_set: bool,
    clock_offset_seconds: Option<i64>,
}

/// Runs stage-1 until the host's init takes over, and never returns. A panic of stage-1 counts as a failed
/// step.
pub fn run() -> ! {
    let mut boot = Boot::default();
    let mut step = Step::ReadBootArguments;
    loop {
        if catch_unwind(AssertUnwindSafe(|| run_steps(&mut boot, &mut step))).is_err() {
            say(&format!("{step}: FAILED: panic in stage-1"));
            std::thread::sleep(Duration::from_secs(5));
        }
    }
}

fn run_steps(boot: &mut Boot, step: &mut Step) {
    let mut in_a_row = 0_u32;
    loop {
        let start = Instant::now();
        match boot.apply(*step) {
            Ok(done) => {
                say(&format!("{step}: {done} ({} ms)", start.elapsed().as_millis()));
                boot.report_success(*step);
                // Fetching counts on over the new address that it asked for.
                if *step != Step::GetAddress && *step != Step::ReadSeed {
                    in_a_row = 0;
                }
                *step = step.next().unwrap_or(Step::HandOver);
            }
            Err(error) => {
                in_a_row = in_a_row.saturating_add(1);
                boot.failures = boot.failures.saturating_add(1);
                let retry = plan_retry(*step, in_a_row, random_fraction());
                let text = chain(&error);
                say(&format!("{step}: FAILED: {text}"));
                boot.report_failure(*step, &text);
                say(&format!(
                    "{}: retrying in {} ms (failure {in_a_row})",
                    retry.step,
                    retry.wait.as_millis()
                ));
                std::thread::sleep(retry.wait);
                *step = retry.step;
            }
        }
    }
}

impl Boot {
    /// Carries out one step. Returns its human-readable result.
    fn apply(&mut self, step: Step) -> Result<String, StageError> {
        match step {
            Step::ReadBootArguments => self.read_boot_arguments(),
            Step::LoadModules => self.load_modules(),
            Step::FindInterface => self.find_interface(),
            Step::GetAddress => self.get_address(),
            Step::ReadSeed => self.read_seed(),
            Step::FetchRoot => self.fetch_root(),
            Step::MountRoot => self.mount_image(),
            Step::StateDisk => self.state_disk(),
            Step::HandOver => self.hand_over(),
        }
    }

    fn read_boot_arguments(&mut self) -> Result<String, StageError> {
        new_root::mount_basics()?;
        let line =
            fs::read_to_string("/proc/cmdline").map_err(StageError::system("read", "/proc/cmdline"))?;
        let arguments = read_arguments(&line)?;
        let text = format!("boot {} by interface {}", arguments.url, arguments.mac);
        self.arguments = Some(arguments);
        Ok(text)
    }

    fn load_modules(&mut self) -> Result<String, StageError> {
        if let Err(error) = modules::answer_kernel_requests(true) {
            say(&chain(&error));
        }
        self.modules = Modules::open()?;
        let loaded = self.modules.load_all();
        say_failures(&loaded);
        Ok(format!("{} modules", loaded.count))
    }

    fn find_interface(&mut self) -> Result<String, StageError> {
        let mac = self.arguments()?.mac;
        let deadline = Instant::now() + INTERFACE_WAIT;
        let interface = loop {
            if let Some(interface) = link::find_interface(Path::new("/"), mac) {
                break interface;
            }
            if Instant::now() > deadline {
                let present = link::describe_interfaces(Path::new("/"));
                return Err(StageError::NoInterface { mac, present });
            }
            std::thread::sleep(Duration::from_millis(100));
            let mut loaded = Loaded::default();
            self.modules.load_for_devices(&mut loaded);
            say_failures(&loaded);
        };
        link::set_up(&interface)?;
        link::await_carrier(&interface)?;
        let text = format!("{} has {mac} and a carrier", interface.name);
        self.interface = Some(interface);
        Ok(text)
    }

    fn get_address(&mut self) -> Result<String, StageError> {
        let interface = self.interface()?;
        let (lease, server) = dhcp::get_lease(interface, &mut random)?;
        link::configure(interface, self.lease.as_ref().map(|(lease, _)| lease), &lease)?;
        let text = format!("{}/{} from {server}", lease.address, lease.prefix);
        self.lease = Some((lease, server));
        Ok(text)
    }

    fn read_seed(&mut self) -> Result<String, StageError> {
        let path = || SEED_PATH.to_owned();
        let bytes =
            file::read_optional(Path::new(SEED_PATH)).map_err(StageError::system("read", SEED_PATH))?;
        let bytes = bytes.ok_or_else(|| StageError::NoSeed { path: path() })?;
        let seed: Seed =
            serde_json::from_slice(&bytes).map_err(|source| StageError::Seed { path: path(), source })?;
        let text = match &seed.token {
            Some(_) => format!("this is {} of site {}", seed.machine, seed.site),
            None => {
                format!(
                    "no Machine has the MAC address of {}, discovered in site {}",
                    seed.machine, seed.site
                )
            }
        };
        self.seed = Some(seed);
        Ok(text)
    }

    fn fetch_root(&mut self) -> Result<String, StageError> {
        if self.image.is_some() {
            return Ok("already fetched".to_owned());
        }
        let image = self.root_image()?;
        let url =
            HttpUrl::parse(&image.url).map_err(|source| StageError::Url { what: "root image", source })?;
        let already = self.partial.as_ref().map_or(0, Partial::done);
        check_memory(
            &image,
            already,
            crate::hardware::memory_bytes(Path::new("/"), "MemAvailable").unwrap_or(u64::MAX),
        )?;
        let partial = match &mut self.partial {
            Some(partial) => partial,
            none => none.insert(Partial::begin(&new_root::mount_fetch_area(image.size)?)?),
        };
        let nameservers = self.lease.as_ref().map(|(lease, _)| lease.nameservers.clone()).unwrap_or_default();
        let mut date = None;
        let get = |from| {
            let response = http::get(&url, from, &nameservers)?;
            date.clone_from(&response.head.date);
            Ok(response)
        };
        let fetched = partial.fetch(&image, get, &mut say);
        // The first answer: afterwards the clock may have been set.
        let offset = date.as_deref().and_then(|date| clock::observe_offset(Timestamp::now(), date));
        self.clock_offset_seconds = self.clock_offset_seconds.or(offset);
        match clock::correct(date.as_deref()) {
            Ok(set) => self.clock_was_set |= set,
            Err(error) => say(&chain(&error)),
        }
        fetched?;
        let partial = self.partial.take().ok_or(StageError::Internal("no fetch was started"))?;
        self.image = Some(partial.into_file()?);
        Ok(format!("{}, {} verified", mib(image.size), image.digest))
    }

    fn mount_image(&mut self) -> Result<String, StageError> {
        let image = self.image.as_ref().ok_or(StageError::Internal("no image was fetched"))?;
        new_root::mount_image(image)?;
        Ok(format!("image at {}", new_root::IMAGE))
    }

    fn state_disk(&mut self) -> Result<String, StageError> {
        let seed = self.seed()?;
        let Some(request) = &seed.state_disk else {
            self.state = Some(StateFacts::Memory);
            return Ok("none selected; state is in memory and is lost at the next boot".to_owned());
        };
        // A controller may show its disks late, and they need modules of their own.
        let modules = &mut self.modules;
        let disk = state_disk::await_disk(&request.select, &mut || {
            let mut loaded = Loaded::default();
            modules.load_for_devices(&mut loaded);
            say_failures(&loaded);
        })?;
        let device = Path::new("/dev").join(disk.name.unwrap_or_default());
        let by_id = disk.by_id.into_iter().next();
        let programs = RootPrograms { root: new_root::IMAGE.into() };
        let target = Path::new(new_root::STATE);
        let mounted = state_disk::prepare(&device, &seed.machine, request, target, &programs)?;
        let text = format!("{} {}", mounted.device, if mounted.made { "formatted" } else { "reused" });
        let (device, made) = (mounted.device, mounted.made);
        self.state = Some(StateFacts::Disk { device, by_id, made, wipe_token: mounted.marker.wipe_token });
        Ok(text)
    }

    fn hand_over(&mut self) -> Result<String, StageError> {
        let seed = self.seed()?;
        let state = self.state.clone().ok_or(StageError::Internal("no decision about the state disk"))?;
        let (lease, server) = self.lease.as_ref().ok_or(StageError::Internal("no lease"))?;
        let image = self.root_image()?;
        new_root::mount_root(matches!(state, StateFacts::Disk { .. }), &image.digest)?;
        new_root::write_identity(&seed.machine, &resolv_conf(lease))?;
        let interface = self.interface()?;
        let facts = BootFacts {
            machine: seed.machine.clone(),
            site: seed.site.clone(),
            boot_id: seed.boot_id,
            boot_url: self.arguments()?.url.to_string(),
            interface: interface.name.clone(),
            mac: interface.mac,
            address: lease.address,
            dhcp_server: *server,
            rootfs: image.digest,
            state,
            failures: self.failures,
            clock_was_set: self.clock_was_set,
            clock_offset_seconds: self.clock_offset_seconds,
        };
        file::write_json(Path::new(HOST_SEED), &seed, 0o600)
            .map_err(StageError::system("write", HOST_SEED))?;
        file::write_json(Path::new(BOOT_FACTS), &facts, 0o644)
            .map_err(StageError::system("write", BOOT_FACTS))?;
        modules::answer_kernel_requests(false)?;
        say(&format!("{}: starting init after {} failures", Step::HandOver, self.failures));
        match new_root::switch()? {}
    }

    /// Reports the one stage that stage-1 reaches to pxed. A lost report is not a failure of the boot.
    fn report_success(&self, step: Step) {
        if step == Step::FetchRoot {
            self.report(&StageReport { stage: Stage::RootFs, failure: None });
        }
    }

    fn report_failure(&self, step: Step, text: &str) {
        let stage = if step > Step::FetchRoot { Stage::Userspace } else { Stage::RootFs };
        let failure = cut(format!("{step}: {text}"));
        self.report(&StageReport { stage, failure: Some(failure) });
    }

    fn report(&self, report: &StageReport) {
        if let (Some(arguments), Some((lease, _))) = (&self.arguments, &self.lease)
            && let Err(error) = http::post_stage(&arguments.url, report, &lease.nameservers)
        {
            say(&format!("failed to report to pxed: {}", chain(&error)));
        }
    }

    fn arguments(&self) -> Result<&BootArguments, StageError> {
        self.arguments.as_ref().ok_or(StageError::Internal("boot arguments were not read"))
    }

    fn interface(&self) -> Result<&Interface, StageError> {
        self.interface.as_ref().ok_or(StageError::Internal("no interface was found"))
    }

    fn seed(&self) -> Result<Seed, StageError> {
        self.seed.clone().ok_or(StageError::Internal("the seed was not read"))
    }

    fn root_image(&self) -> Result<RootFs, StageError> {
        self.seed()?.rootfs.ok_or(StageError::NoRootImage)
    }
}

fn say_failures(loaded: &Loaded) {
    for failure in &loaded.failures {
        say(&format!("ignored: {failure}"));
    }
}

/// A random number from 0 to 1 for jitter.
fn random_fraction() -> f64 {
    let [high, ..] = random().to_be_bytes();
    f64::from(high) / 256.0
}

/// A random number for jitter and transaction ids: never waits, as the system's source might so early.
fn random() -> u64 {
    let mut bytes = [0; 8];
    match File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes)) {
        Ok(()) => u64::from_ne_bytes(bytes),
        Err(_) => {
            std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), Instant::now())
        }
    }
}
