//! Sockets that accept connections, with the identity of the other end that the system reports: an address, or a local user.

use std::{fmt::Debug, io, net::IpAddr, net::SocketAddr};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::peer_groups;

/// A listening socket.
pub trait Accept: Send + Sync {
    /// Stream of one connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Other end of one connection.
    type Peer: Peer;

    /// Waits for a connection.
    fn accept_one(&self) -> impl Future<Output = io::Result<(Self::Stream, Self::Peer)>> + Send;
}

/// The other end of a connection.
pub trait Peer: Clone + Debug + Send + Sync + 'static {
    /// Returns the client to which the connection is counted.
    fn client(&self) -> Client;
}

/// Unit in which connections are counted and limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Client {
    /// An address.
    Address(IpAddr),
    /// A local user, by its ID. `None`: the system does not report it.
    User(Option<u32>),
}

/// The addresses of a TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpPeer {
    /// Local address.
    pub local: SocketAddr,
    /// Address of the client.
    pub remote: SocketAddr,
}

/// The client of a Unix socket, as it was when it connected (`SO_PEERCRED` and `SO_PEERGROUPS`, unix(7)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixPeer {
    /// ID of its user. `None`: the system does not report it.
    pub user: Option<u32>,
    /// ID of its primary group.
    pub group: Option<u32>,
    /// IDs of its supplementary groups. Empty if the system does not report them.
    pub groups: Vec<u32>,
}

impl Peer for TcpPeer {
    fn client(&self) -> Client {
        Client::Address(self.remote.ip().to_canonical())
    }
}

impl Peer for UnixPeer {
    fn client(&self) -> Client {
        Client::User(self.user)
    }
}

impl Accept for TcpListener {
    type Stream = TcpStream;
    type Peer = TcpPeer;

    async fn accept_one(&self) -> io::Result<(TcpStream, TcpPeer)> {
        let (stream, remote) = self.accept().await?;
        // Best effort: without it, an answer may wait for the one before to be acknowledged.
        let _ = stream.set_nodelay(true);
        let local = stream.local_addr()?;
        Ok((stream, TcpPeer { local, remote }))
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;
    type Peer = UnixPeer;

    async fn accept_one(&self) -> io::Result<(UnixStream, UnixPeer)> {
        let (stream, _) = self.accept().await?;
        let credentials = stream.peer_cred().ok();
        let user = credentials.map(|credentials| credentials.uid());
        let group = credentials.map(|credentials| credentials.gid());
        let groups = peer_groups::read(&stream).unwrap_or_default();
        Ok((stream, UnixPeer { user, group, groups }))
    }
}
