//! KubeadmConfigs: the bootstrap data of one machine each (B1 to B3).
//!
//! ```text
//! observe: the stores -> plan: the next step -> carry out: one read or one write -> plan again, until nothing is left
//! ```
//! Called by the worker of the kind. Not here: decisions ([`plan`]).

pub mod certificates;
pub mod issue;
pub mod lock;
pub mod observed;
pub mod plan;
pub mod status;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::cluster::full::{Cluster, Machine};
use bedplate_api::cluster::kubeadm::reason::BootstrapEvent;
use bedplate_api::cluster::kubeadm::{GROUP, KubeadmConfig, TOKEN_ID_ANNOTATION};
use bedplate_bootstrap::capi::{CertificatePurpose, UserData, secrets_needed};
use bedplate_bootstrap::token::{RANDOM_BYTES, Token};
use bedplate_engine::Context as _;
use bedplate_engine::object;
use bedplate_engine::write::{self, WriteError, ask, called};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::json;
use zeroize::Zeroizing;

use self::plan::{
    Act, Contents, Data, Found, Live, MAX_CONTENTS, Observed, Owner, Read, TokenState, after_renewal, plan,
};
use self::status::Situation;
use super::context::World;
use crate::metrics::Kind;
use crate::owner::owner;

/// Maximum number of steps of one turn. More than any turn takes without a conflict.
const MAX_STEPS: usize = 48;

/// Reconciles a KubeadmConfig.
///
/// # Errors
/// [`WriteError`]
pub async fn reconcile(
    config: Arc<KubeadmConfig>,
    world: Arc<World>,
) -> Result<Option<Duration>, WriteError> {
    if !world.scope.includes(config.labels()) {
        return Ok(None);
    }
    let turn = Turn { observed: observe(config, &world), world: &world };
    world.leading(turn.run()).await
}

fn observe(config: Arc<KubeadmConfig>, world: &World) -> Observed {
    let namespace = config.namespace().unwrap_or_default();
    let machine = owner(&*config, "Machine").and_then(|(name, uid)| {
        let machine = world.stores.machines.get(&ObjectRef::new(name).within(&namespace))?;
        (machine.metadata.uid.as_deref() == Some(uid) && names(&machine, &config)).then_some(machine)
    });
    let cluster = machine.as_ref().and_then(|machine| {
        world.stores.clusters.get(&ObjectRef::new(&machine.spec.cluster_name).within(&namespace))
    });
    let owner = match machine {
        Some(machine) => Owner::Machine(machine),
        None if owner(&*config, "MachinePool").is_some() => Owner::Pool,
        None => Owner::None,
    };
    Observed { config, owner, cluster, live: Live::default() }
}

/// Returns true if a Machine names a KubeadmConfig. Otherwise two of them could make data for one holder of the lock.
fn names(machine: &Machine, config: &KubeadmConfig) -> bool {
    machine.spec.bootstrap.config_ref.as_ref().is_some_and(|reference| {
        reference.api_group == GROUP
            && reference.kind == "KubeadmConfig"
            && reference.name == config.name_any()
    })
}

/// One turn of a KubeadmConfig.
struct Turn<'a> {
    observed: Observed,
    world: &'a World,
}

impl Turn<'_> {
    /// Carries out steps until none is left.
    async fn run(mut self) -> Result<Option<Duration>, WriteError> {
        for _ in 0..MAX_STEPS {
            match plan(&self.observed, Timestamp::now()) {
                Act::Done(after) => return Ok(after),
                Act::Read(read) => self.read(read).await?,
                Act::TakeLock => self.take_lock().await?,
                Act::ReleaseLock(held) => self.release_lock(held).await?,
                Act::MakeCertificate(purpose) => self.make_certificate(purpose).await?,
                Act::RecordToken => return self.record_token().await.map(|()| None),
                Act::MakeToken(id) => self.make_token(&id).await?,
                Act::RenewToken(id) => return self.renew_token(&id).await,
                Act::Store(data) => self.store(&data).await?,
                Act::Status(status, situation) => {
                    self.wrote();
                    let config = &*self.observed.config;
                    self.world.manager.apply_status(&self.api(), config, &*status).await?;
                    if let Situation::Failed(text) = situation {
                        self.world.news.publish(config, BootstrapEvent::BootstrapDataFailed, &text);
                    }
                    return Ok(None);
                }
            }
        }
        Err(WriteError::Conflict { what: called(&*self.observed.config) })
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.world.client.clone(), &self.observed.config.namespace().unwrap_or_default())
    }

    fn wrote(&self) {
        self.world.counters.wrote(Kind::Config);
    }

    fn publish(&self, reason: BootstrapEvent, note: &str) {
        self.world.news.publish(&*self.observed.config, reason, note);
    }

    /// Returns the Cluster. The planner asks for no step without one.
    fn cluster(&self) -> Result<Arc<Cluster>, WriteError> {
        let conflict = || WriteError::Conflict { what: called(&*self.observed.config) };
        self.observed.cluster.clone().ok_or_else(conflict)
    }

    async fn get<K>(&self, name: &str) -> Result<Option<K>, WriteError>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
    {
        ask(&format!("{} {name}", K::kind(&())), object::get(&self.api::<K>(), name)).await
    }

    async fn read(&mut self, read: Read) -> Result<(), WriteError> {
        let cluster = self.cluster()?;
        match read {
            Read::Data => {
                let secret = self.get::<Secret>(&self.observed.config.name_any()).await?;
                self.observed.live.data = Some(issue::state(&self.observed.config, secret.as_ref()));
            }
            Read::Contents => self.observed.live.contents = Some(self.contents().await?),
            Read::Lock => {
                let lock = self.get::<ConfigMap>(&lock::name(&cluster.name_any())).await?;
                self.observed.live.lock = Some(lock::read(lock.as_ref()));
            }
            Read::Holder(held) => {
                let found = self.get::<Machine>(&held.machine).await?;
                self.observed.live.holder_exists = Some(found.is_some_and(|found| held.is_of(&found)));
            }
            Read::Cluster => {
                let found = self.get::<Cluster>(&cluster.name_any()).await?;
                let may_init = found.is_some_and(|found| {
                    found.metadata.uid == cluster.metadata.uid && !plan::is_initialized(&found)
                });
                self.observed.live.may_init = Some(may_init);
            }
            Read::Certificate(purpose) => {
                let secret = self.get::<Secret>(&purpose.secret_name(&cluster.name_any())).await?;
                self.observed.live.certificates.insert(purpose, certificates::found(purpose, secret));
            }
            Read::Token(id) => {
                let state = self.world.tokens.read(&cluster, &id).await;
                if state == TokenState::Absent && self.is_stored() {
                    let note = format!("bootstrap token {id} does not exist in the cluster any more");
                    self.publish(BootstrapEvent::BootstrapTokenLost, &note);
                }
                if let TokenState::Unknown(cause) = &state
                    && self.is_stored()
                {
                    self.publish_not_renewed(&id, cause);
                }
                self.observed.live.token = Some(state);
            }
        }
        Ok(())
    }

    fn publish_not_renewed(&self, id: &str, cause: &str) {
        let note = format!("bootstrap token {id} is not renewed: {cause}");
        self.publish(BootstrapEvent::BootstrapTokenNotRenewed, &note);
    }

    fn is_stored(&self) -> bool {
        let status = self.observed.config.status.as_ref();
        status.is_some_and(|status| status.data_secret_name.is_some())
    }

    /// Reads the Secrets that the spec names, each once.
    async fn contents(&self) -> Result<Contents, WriteError> {
        let mut wanted: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for key in secrets_needed(&self.observed.config.spec) {
            wanted.entry(key.name.clone()).or_default().push(key);
        }
        let (mut values, mut size) = (BTreeMap::new(), 0_usize);
        for (name, keys) in wanted {
            let secret = self.get::<Secret>(&name).await?;
            let mut data = secret.and_then(|secret| secret.data).unwrap_or_default();
            for key in keys {
                let Some(value) = data.remove(&key.key) else { continue };
                size = size.saturating_add(value.0.len());
                values.insert(key, Zeroizing::new(value.0));
            }
            if size > MAX_CONTENTS {
                return Ok(Contents::TooLarge);
            }
        }
        Ok(Contents::Read(values))
    }

    async fn take_lock(&mut self) -> Result<(), WriteError> {
        let cluster = self.cluster()?;
        let Owner::Machine(machine) = &self.observed.owner else { return Ok(()) };
        let lock = lock::config_map(&cluster, machine);
        self.wrote();
        let (api, post): (Api<ConfigMap>, _) = (self.api(), self.world.manager.post());
        match ask(&called(&lock), api.create(&post, &lock)).await {
            Ok(created) => self.observed.live.lock = Some(lock::read(Some(&created))),
            // Another Machine was faster.
            Err(WriteError::Conflict { .. }) => self.observed.live.lock = None,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn release_lock(&mut self, held: lock::Held) -> Result<(), WriteError> {
        let name = lock::name(&self.cluster()?.name_any());
        self.wrote();
        match write::delete(&self.api::<ConfigMap>(), &name, held.uid, None).await {
            Ok(()) | Err(WriteError::Conflict { .. }) => {}
            Err(error) => return Err(error),
        }
        tracing::info!(lock = name, machine = held.machine, "init lock released");
        (self.observed.live.lock, self.observed.live.holder_exists) = (None, None);
        Ok(())
    }

    async fn make_certificate(&mut self, purpose: CertificatePurpose) -> Result<(), WriteError> {
        let (cluster, config) = (self.cluster()?, self.observed.config.clone());
        let name = purpose.secret_name(&cluster.name_any());
        let refused = |why: String| WriteError::Refused { what: format!("Secret {name}"), why };
        let making = {
            let config = config.clone();
            tokio::task::spawn_blocking(move || certificates::make(purpose, &config, Timestamp::now()))
        };
        let made = making.await.map_err(|error| refused(error.to_string()))?;
        let made = made.map_err(|error| refused(error.to_string()))?;
        let secret = certificates::secret(&config, &cluster, &made);
        match self.create(&secret).await? {
            true => {
                self.publish(BootstrapEvent::CertificatesCreated, &format!("created Secret {name}"));
                self.observed.live.certificates.insert(purpose, Found::Certificate(made));
            }
            // Another writer was faster.
            false => drop(self.observed.live.certificates.remove(&purpose)),
        }
        Ok(())
    }

    /// Creates a Secret. False: it exists.
    async fn create(&self, secret: &Secret) -> Result<bool, WriteError> {
        self.wrote();
        let api: Api<Secret> = self.api();
        match ask(&called(secret), api.create(&self.world.manager.post(), secret)).await {
            Ok(_) => Ok(true),
            Err(WriteError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Records the ID of a new token, so that a process that ends before it has stored the data makes no second token.
    async fn record_token(&self) -> Result<(), WriteError> {
        let annotations = json!({ TOKEN_ID_ANNOTATION: random_token(None)?.id() });
        let change = json!({ "metadata": { "annotations": annotations } });
        self.wrote();
        self.world.manager.merge(&self.api(), &*self.observed.config, &change).await
    }

    async fn make_token(&mut self, id: &str) -> Result<(), WriteError> {
        let (cluster, token, now) = (self.cluster()?, random_token(Some(id))?, Timestamp::now());
        let made = self.world.tokens.make(&cluster, token, now).await;
        if matches!(made, TokenState::Made(_)) {
            self.publish(BootstrapEvent::BootstrapTokenCreated, &format!("created bootstrap token {id}"));
        }
        // Another process may have made the token, and the data.
        if matches!(made, TokenState::There(_)) {
            self.observed.live.data = None;
        }
        self.observed.live.token = Some(made);
        Ok(())
    }

    /// Renews a token. It is not read again in this turn: its server may answer with any expiration.
    async fn renew_token(&mut self, id: &str) -> Result<Option<Duration>, WriteError> {
        let (cluster, now) = (self.cluster()?, Timestamp::now());
        let renewed = self.world.tokens.renew(&cluster, id, now).await;
        if let TokenState::Unknown(cause) = &renewed {
            self.publish_not_renewed(id, cause);
        }
        Ok(after_renewal(&renewed, now))
    }

    async fn store(&mut self, data: &UserData) -> Result<(), WriteError> {
        let cluster = self.cluster()?;
        let config = self.observed.config.clone();
        if !data.dropped.is_empty() {
            tracing::info!(config = config.name_any(), fields = ?data.dropped, "fields omitted for this kubeadm");
        }
        if self.create(&issue::secret(&config, &cluster.name_any(), data)).await? {
            let note = format!("created Secret {}", config.name_any());
            self.publish(BootstrapEvent::BootstrapDataCreated, &note);
            self.observed.live.data = Some(Data::Own);
        } else {
            self.observed.live.data = None;
        }
        Ok(())
    }
}

/// Makes a token, with a given ID or with a random one.
fn random_token(id: Option<&str>) -> Result<Token, WriteError> {
    let random: Zeroizing<[u8; RANDOM_BYTES]> = Zeroizing::new(rand::random());
    let token = Token::from_random(&random).and_then(|token| match id {
        None => Some(token),
        Some(id) => {
            let text = token.text();
            let secret = text.split_once('.')?.1;
            Token::parse(&Zeroizing::new(format!("{id}.{secret}")))
        }
    });
    token.ok_or_else(|| WriteError::Later {
        what: "bootstrap token".to_owned(),
        why: "no random bytes".to_owned(),
        again: None,
    })
}
