//! One connection to one system bus: made on first use, made again after it
//! broke, with a deadline for each call.
//!
//! ```text
//!   none ──call──► connecting ──► live ──closed by the other side──► none
//!    ▲                 │ refused, no socket: Away, nothing is kept      (seen by the next call, which connects again)
//!    └─────────────────┘
//! ```
//! A broken connection is not repaired in the background: the next caller
//! reconnects, with its own backoff. Traffic on the connection wakes the agent
//! only if a match rule requests it. Called by all modules of `bus`.

use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;
use tokio::time::timeout;
use zbus::fdo::Error as Fdo;
use zbus::message::Type as MessageType;
use zbus::{Connection, DBusError as _, DynamicType, MatchRule, MessageStream};

use super::error::BusError;
use super::machines::Leader;
use crate::slot::confined_writer::Inside;

/// Timeout of one call, connection included: the default of libdbus.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(25);
/// Path of a system bus's socket below a root directory.
const SOCKET: &str = "run/dbus/system_bus_socket";
/// Maximum number of signals that wait for a reader. Readers take them as they arrive.
const QUEUED: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// A service on the bus.
#[derive(Debug, Clone, Copy)]
pub(super) struct Service {
    /// Name of the service.
    pub(super) name: &'static str,
    /// Debian package of the service. `None` for systemd, without which the bus has no use.
    pub(super) package: Option<&'static str>,
}

/// Interface of an object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Object<'a> {
    /// Service of the object.
    pub(super) service: Service,
    /// Path of the object.
    pub(super) path: &'a str,
    /// Interface of the object.
    pub(super) interface: &'static str,
}

/// A connection that was made.
#[derive(Debug, Clone)]
struct Live {
    connection: Connection,
    /// systemd was asked for signals on this connection.
    subscribed: Arc<AtomicBool>,
}

/// A bus, connected or not.
#[derive(Debug)]
pub(super) struct Link {
    socket: PathBuf,
    /// Leader of the container, and the root directory of the host. None: the host's bus.
    inside: Option<(Leader, PathBuf)>,
    live: Mutex<Option<Live>>,
}

impl Link {
    /// The bus of the host whose root directory is `root`.
    pub(super) fn host(root: &Path) -> Self {
        Self { socket: root.join(SOCKET), inside: None, live: Mutex::new(None) }
    }

    /// The bus inside the container of this leader.
    pub(super) fn container(root: &Path, leader: Leader) -> Self {
        let socket = leader_root(root, leader).join(SOCKET);
        Self { socket, inside: Some((leader, root.to_owned())), live: Mutex::new(None) }
    }

    /// Calls a method and waits for its reply.
    pub(super) async fn call<B, R>(
        &self,
        act: &str,
        object: Object<'_>,
        method: &'static str,
        body: &B,
    ) -> Result<R, BusError>
    where
        B: Serialize + DynamicType + Sync,
        R: DeserializeOwned + zbus::wire::Type,
    {
        self.call_within(CALL_TIMEOUT, act, object, method, body).await
    }

    /// Calls a method with a longer timeout than usual.
    pub(super) async fn call_within<B, R>(
        &self,
        limit: Duration,
        act: &str,
        object: Object<'_>,
        method: &'static str,
        body: &B,
    ) -> Result<R, BusError>
    where
        B: Serialize + DynamicType + Sync,
        R: DeserializeOwned + zbus::wire::Type,
    {
        let reply = async {
            let live = self.live(act).await?;
            let (path, interface) = (object.path, Some(object.interface));
            let call = live.connection.call_method(Some(object.service.name), path, interface, method, body);
            let message = call.await.map_err(|error| self.explain(act, object.service, error))?;
            let reply = message.body().deserialize();
            reply.map_err(|source| BusError::Unexpected { act: act.to_owned(), source })
        };
        match timeout(limit, reply).await {
            Ok(reply) => reply,
            Err(_) => Err(BusError::NoAnswer { act: act.to_owned(), limit }),
        }
    }

    /// Returns a property. `None`: this release of systemd does not have it.
    pub(super) async fn property<T>(
        &self,
        act: &str,
        object: Object<'_>,
        name: &'static str,
    ) -> Result<Option<T>, BusError>
    where
        T: TryFrom<zbus::OwnedVariant>,
    {
        let properties = Object { interface: "org.freedesktop.DBus.Properties", ..object };
        let body = (object.interface, name);
        match self.call::<_, zbus::OwnedVariant>(act, properties, "Get", &body).await {
            Ok(value) => Ok(T::try_from(value).ok()),
            Err(error) if error.refusal().is_some_and(is_unknown) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the signals that match a rule, starting when this function returns.
    pub(super) async fn signals(
        &self,
        act: &str,
        signal: Object<'_>,
        member: &'static str,
    ) -> Result<MessageStream, BusError> {
        let rule = MatchRule::builder()
            .msg_type(MessageType::Signal)
            .sender(signal.service.name)
            .path(signal.path)
            .interface(signal.interface)
            .member(member)
            .build();
        let added = async {
            let live = self.live(act).await?;
            let rule = rule.map_err(|error| self.explain(act, signal.service, error))?;
            let stream = MessageStream::for_match_rule(rule, &live.connection, Some(QUEUED)).await;
            stream.map_err(|error| self.explain(act, signal.service, error))
        };
        match timeout(CALL_TIMEOUT, added).await {
            Ok(stream) => stream,
            Err(_) => Err(BusError::NoAnswer { act: act.to_owned(), limit: CALL_TIMEOUT }),
        }
    }

    /// Subscribes to signals of jobs and units, which systemd sends only to
    /// subscribers. Once for each connection.
    pub(super) async fn subscribe(&self, act: &str, systemd: Object<'_>) -> Result<(), BusError> {
        let subscribed = self.live(act).await?.subscribed;
        if subscribed.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.call::<_, ()>(act, systemd, "Subscribe", &()).await {
            Err(error) if error.refusal() == Some("org.freedesktop.systemd1.AlreadySubscribed") => {}
            other => other?,
        }
        subscribed.store(true, Ordering::Release);
        Ok(())
    }

    /// Waits until the current connection ends, for whatever reason.
    pub(super) async fn closed(&self) -> zbus::Error {
        let connection = self.live.lock().await.as_ref().map(|live| live.connection.clone());
        if let Some(connection) = connection {
            connection.closed().await;
        }
        broken()
    }

    /// Returns the error of an unavailable bus.
    pub(super) fn away(&self, act: &str, source: zbus::Error) -> BusError {
        BusError::Away { act: act.to_owned(), socket: self.socket.clone(), source }
    }

    async fn live(&self, act: &str) -> Result<Live, BusError> {
        let mut live = self.live.lock().await;
        if let Some(live) = live.as_ref().filter(|live| !live.connection.is_closed()) {
            return Ok(live.clone());
        }
        *live = None;
        let connection = match timeout(CALL_TIMEOUT, self.connect(act)).await {
            Ok(connection) => connection?,
            Err(_) => return Err(BusError::NoAnswer { act: act.to_owned(), limit: CALL_TIMEOUT }),
        };
        let made = Live { connection, subscribed: Arc::default() };
        *live = Some(made.clone());
        Ok(made)
    }

    async fn connect(&self, act: &str) -> Result<Connection, BusError> {
        let stream = match &self.inside {
            None => tokio::net::UnixStream::connect(&self.socket).await,
            Some((leader, root)) => root_of(act, root, *leader)?.connect(SOCKET).await,
        };
        let stream = stream.and_then(tokio::net::UnixStream::into_std).map_err(|source| {
            if self.inside.is_some() && source.kind() == ErrorKind::PermissionDenied {
                return BusError::NoAccess { act: act.to_owned(), path: self.socket.clone(), source };
            }
            self.away(act, source.into())
        })?;
        let made = zbus::connection::Builder::unix_stream(stream).build().await;
        made.map_err(|error| self.away(act, error))
    }

    /// Converts an error of the bus.
    fn explain(&self, act: &str, service: Service, error: zbus::Error) -> BusError {
        let act = act.to_owned();
        let refused = |name: &str, message: &str| BusError::Refused {
            act: act.clone(),
            name: name.to_owned(),
            message: message.to_owned(),
        };
        match error {
            zbus::Error::MethodError(name, message, _) => {
                refused(name.as_str(), message.as_deref().unwrap_or_default())
            }
            zbus::Error::FDO(fdo) if is_absent(&fdo) => match service.package {
                Some(package) => BusError::NoService { act, service: service.name, package },
                None => self.away(&act, zbus::Error::FDO(fdo)),
            },
            zbus::Error::FDO(fdo) if is_gone(&fdo) => self.away(&act, zbus::Error::FDO(fdo)),
            zbus::Error::FDO(fdo) => refused(fdo.name().as_str(), fdo.description().unwrap_or_default()),
            io @ (zbus::Error::InputOutput(_) | zbus::Error::Connection(..) | zbus::Error::Handshake(_)) => {
                self.away(&act, io)
            }
            source => BusError::Unexpected { act, source },
        }
    }
}

/// Returns the root directory of a container, in the view of its host.
pub(super) fn leader_root(root: &Path, leader: Leader) -> PathBuf {
    root.join(format!("proc/{leader}/root"))
}

/// Returns the error of a connection that has ended.
pub(super) fn broken() -> zbus::Error {
    std::io::Error::new(ErrorKind::BrokenPipe, "the connection was closed").into()
}

/// Opens the root of a container. Commands for a slot must not reach the host's systemd.
fn root_of(act: &str, root: &Path, leader: Leader) -> Result<Inside, BusError> {
    leader.open_root(root).map_err(|source| match source.kind() {
        ErrorKind::PermissionDenied => {
            BusError::NoAccess { act: act.to_owned(), path: leader_root(root, leader), source }
        }
        _ => BusError::NotALeader { act: act.to_owned(), leader: leader.get() },
    })
}

/// Returns true if the name has no owner and no service can be started for it.
fn is_absent(error: &Fdo) -> bool {
    matches!(
        error,
        Fdo::ServiceUnknown(_)
            | Fdo::NameHasNoOwner(_)
            | Fdo::SpawnServiceNotFound(_)
            | Fdo::SpawnExecFailed(_)
            | Fdo::SpawnChildExited(_)
    )
}

/// Returns true if the bus or the service has stopped since the connection.
fn is_gone(error: &Fdo) -> bool {
    matches!(
        error,
        Fdo::Disconnected(_) | Fdo::NoReply(_) | Fdo::NoServer(_) | Fdo::Timeout(_) | Fdo::TimedOut(_)
    )
}

/// Returns true if the error means that an object lacks the property, interface or method.
fn is_unknown(name: &str) -> bool {
    ["UnknownProperty", "UnknownInterface", "UnknownMethod", "UnknownObject", "InvalidArgs"]
        .iter()
        .any(|unknown| name.strip_prefix("org.freedesktop.DBus.Error.") == Some(unknown))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn slot_whose_bus_is_a_link_to_the_hosts_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let host = root.path().join(SOCKET);
        let slot = root.path().join("proc/7/root").join(SOCKET);
        for socket in [&host, &slot] {
            std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        }
        let listener = UnixListener::bind(&host).unwrap();
        listener.set_nonblocking(true).unwrap();
        symlink(&host, &slot).unwrap();
        let link = Link::container(root.path(), Leader::new(7).unwrap());
        let error = link.connect("reload").await.unwrap_err();
        assert!(matches!(error, BusError::Away { .. }), "{error:?}");
        assert_eq!(
            listener.accept().unwrap_err().kind(),
            ErrorKind::WouldBlock,
            "the host's bus was reached"
        );
        // The host's own root, as behind a reused process ID.
        std::fs::create_dir(root.path().join("proc/9")).unwrap();
        symlink(root.path(), root.path().join("proc/9/root")).unwrap();
        let link = Link::container(root.path(), Leader::new(9).unwrap());
        let error = link.connect("reload").await.unwrap_err();
        assert!(matches!(error, BusError::NotALeader { .. }), "{error:?}");
    }
}
