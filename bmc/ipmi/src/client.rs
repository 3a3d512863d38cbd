//! IPMI client over UDP: drives [`crate::session`] on its own task with tokio's clock and socket. One client is one
//! session.
//!
//! All calls end in bounded time, and any future of the client may be dropped: an unsent request is then not sent, a
//! sent one may be carried out, and the session remains in use. A dropped client closes its session in the
//! background. Lost sessions are not reopened here; the caller decides.

mod options;

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

pub use options::{ClientError, Options};
use secrecy::SecretString;
use tokio::{
    net::UdpSocket,
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time,
};
use tracing::{debug, trace};

use crate::{
    command::{
        Command,
        boot::{BootDevice, FlagsLast, GetValidBitClearing, SetBootOption, ValidBitClearing, plan_next_boot},
        sel::{FIRST_RECORD, GetSelEntry, LAST_RECORD, SelRecord},
    },
    crypto::{Password, UserName},
    session::{Event, RequestError, Session, SessionError, Settings, Ticket},
    wire::{
        completion::Completion,
        message::{Request, Response},
    },
};

/// IANA's port of RMCP.
pub const PORT: u16 = 623;
/// Larger than any packet of a session that asks for no long answers.
pub(crate) const LONGEST_DATAGRAM: usize = 2048;
/// Delay after a socket error that the peer did not cause.
const ERROR_DELAY: Duration = Duration::from_millis(50);
/// Numbers in a log that may be missing in a row before its end is taken for reached.
const MOST_GAP: u16 = 8;

type Answer = Result<Response, RequestError>;

/// Payloads of serial over LAN that wait to be read; what is more is dropped, and sent again by the BMC.
const MOST_PAYLOADS: usize = 16;

/// Request of a client to its driver.
enum Ask {
    /// Carry out a command.
    Command { request: Request, answer: oneshot::Sender<Answer> },
    /// Hand over received data of the serial console.
    Listen(mpsc::Sender<Vec<u8>>),
    /// Send to the serial console.
    Serial(Vec<u8>),
}

/// A session with a BMC.
#[derive(Debug)]
pub struct Client {
    asks: mpsc::Sender<Ask>,
    failure: Arc<OnceLock<SessionError>>,
    task: JoinHandle<()>,
    patience: Duration,
}

impl Client {
    /// Opens a session.
    ///
    /// # Errors
    /// All that [`SessionError`] names; a wrong password is tried once.
    pub async fn connect(
        address: SocketAddr,
        user: &str,
        password: &SecretString,
        options: &Options,
    ) -> Result<Self, ClientError> {
        let settings = Settings {
            user: UserName::new(user).map_err(ClientError::User)?,
            password: Password::new(password).map_err(ClientError::Password)?,
            key: options.key.as_ref().map(Password::new).transpose().map_err(ClientError::Password)?,
            suite: options.suite,
            privilege: options.privilege,
            retry: options.retry,
            keep_alive: options.keep_alive,
        };
        let socket = open(address).await.map_err(|source| ClientError::Socket { address, source })?;
        let random =
            |octets: &mut [u8]| aws_lc_rs::rand::fill(octets).expect("the system provides random numbers");
        let session = Session::start(settings, Box::new(random), Instant::now());
        let failure = Arc::new(OnceLock::new());
        let (asks, asked) = mpsc::channel(1);
        let (opened, is_open) = oneshot::channel();
        let driver = Driver {
            socket,
            session,
            asked,
            opened: Some(opened),
            waiting: None,
            closing: false,
            listener: None,
            failure: Arc::clone(&failure),
        };
        let client = Self { asks, failure, task: tokio::spawn(driver.run()), patience: options.request };
        match time::timeout(options.connect, is_open).await {
            Ok(Ok(())) => Ok(client),
            Ok(Err(_)) => Err(client.over()),
            Err(_) => Err(ClientError::TimedOut(options.connect)),
        }
    }

    /// Has a command carried out.
    ///
    /// # Errors
    /// No answer, a refusal, or an answer that is none. [`RequestError::Unanswered`] and [`ClientError::TimedOut`] leave open whether the
    /// command was carried out.
    pub async fn request<C: Command>(&self, command: &C) -> Result<C::Answer, ClientError> {
        let response = time::timeout(self.patience, self.ask(command.request()));
        let response = response.await.map_err(|_| ClientError::TimedOut(self.patience))??;
        command.read(&response).map_err(ClientError::Command)
    }

    async fn ask(&self, request: Request) -> Result<Response, ClientError> {
        let (answer, answered) = oneshot::channel();
        self.asks.send(Ask::Command { request, answer }).await.map_err(|_| self.over())?;
        match answered.await {
            Ok(answer) => answer.map_err(ClientError::Request),
            Err(_) => Err(self.over()),
        }
    }

    /// Makes the machine boot from `device` next time, once, and returns how long the BMC keeps that setting.
    /// Parameters that a BMC does not have are skipped, except the flags themselves.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub async fn set_next_boot(&self, device: BootDevice, efi: bool) -> Result<FlagsLast, ClientError> {
        let clearing = match self.request(&GetValidBitClearing).await {
            Err(ClientError::Command(error)) => {
                debug!(%error, "valid bit clearing not read");
                None
            }
            read => Some(read?),
        };
        let (mut failed, mut last) = (None, FlagsLast::Minute);
        for option in plan_next_boot(device, efi, clearing) {
            if failed.is_some() && option != SetBootOption::End {
                continue;
            }
            match self.request(&option).await {
                Err(error) if error.completion().is_some() && option.is_optional() => {
                    debug!(?option, %error, "boot option refused, skipped");
                }
                Err(error) => failed = failed.or(Some(error)),
                Ok(()) if matches!(option, SetBootOption::KeepFlags(_)) => last = FlagsLast::UntilBoot,
                Ok(()) => {}
            }
        }
        if last == FlagsLast::UntilBoot {
            // Some take the parameter and do not keep it.
            let kept = self.request(&GetValidBitClearing).await.is_ok_and(ValidBitClearing::keeps_flags);
            last = if kept { last } else { FlagsLast::Minute };
        }
        failed.map_or(Ok(last), Err)
    }

    /// The last records of the event log, the latest first, `most` at most. Reads by falling numbers: a log has no way back, and may be
    /// thousands of records long.
    ///
    /// # Errors
    /// As [`Client::request`]; an empty log is none.
    pub async fn log_tail(&self, most: usize) -> Result<Vec<SelRecord>, ClientError> {
        let mut records = Vec::new();
        let (mut number, mut gap) = (LAST_RECORD, 0);
        while records.len() < most && gap < MOST_GAP && number != FIRST_RECORD {
            match self.request(&GetSelEntry(number)).await {
                Ok(record) => {
                    gap = 0;
                    number = record.id;
                    records.push(record);
                }
                Err(error) if error.completion() == Some(Completion::NotPresent) && number == LAST_RECORD => {
                    break;
                }
                Err(error) if error.completion() == Some(Completion::NotPresent) => gap += 1,
                Err(error) => return Err(error),
            }
            number = number.saturating_sub(1);
        }
        Ok(records)
    }

    /// Payloads of serial over LAN as they come from now on; see [`crate::console`].
    pub(crate) async fn listen(&self) -> Result<mpsc::Receiver<Vec<u8>>, ClientError> {
        let (sender, receiver) = mpsc::channel(MOST_PAYLOADS);
        self.asks.send(Ask::Listen(sender)).await.map_err(|_| self.over())?;
        Ok(receiver)
    }

    /// Sends a payload of serial over LAN.
    pub(crate) async fn serial(&self, payload: Vec<u8>) -> Result<(), ClientError> {
        self.asks.send(Ask::Serial(payload)).await.map_err(|_| self.over())
    }

    /// Returns the reason why the session has ended, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<SessionError> {
        self.failure.get().copied()
    }

    fn over(&self) -> ClientError {
        ClientError::Session(self.failure().unwrap_or(SessionError::Lost))
    }

    /// Closes the session, and waits until the BMC confirms it, or until the request times out.
    pub async fn close(self) {
        let Self { asks, task, patience, .. } = self;
        drop(asks);
        if time::timeout(patience, task).await.is_err() {
            debug!("session not closed in time");
        }
    }
}

/// A socket that takes datagrams of this peer only.
pub(crate) async fn open(address: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(address).await?;
    Ok(socket)
}

struct Driver {
    socket: UdpSocket,
    session: Session,
    asked: mpsc::Receiver<Ask>,
    opened: Option<oneshot::Sender<()>>,
    waiting: Option<(Ticket, oneshot::Sender<Answer>)>,
    closing: bool,
    listener: Option<mpsc::Sender<Vec<u8>>>,
    failure: Arc<OnceLock<SessionError>>,
}

impl Driver {
    async fn run(mut self) {
        loop {
            while let Some(datagram) = self.session.transmit() {
                // Lost datagrams are repeated, also those that were lost here.
                if let Err(error) = self.socket.send(&datagram).await {
                    trace!(%error, "datagram not sent");
                }
            }
            while let Some(event) = self.session.event() {
                self.tell(event);
            }
            if self.session.is_over() {
                return;
            }
            let deadline = self.session.deadline();
            tokio::select! {
                ready = self.socket.readable() => if let Err(error) = ready.and_then(|()| self.receive()) {
                    debug!(%error, "datagram not received");
                    time::sleep(ERROR_DELAY).await;
                },
                () = unwanted(&mut self.waiting) => {
                    if let Some((ticket, _)) = self.waiting.take() {
                        self.session.cancel(ticket);
                    }
                }
                ask = self.asked.recv(), if self.waiting.is_none() && !self.closing => self.ask(ask),
                () = sleep_until(deadline), if deadline.is_some() => self.session.elapse(Instant::now()),
            }
        }
    }

    /// Takes received data. The buffer is not kept: most of thousands of sessions are idle.
    fn receive(&mut self) -> io::Result<()> {
        let mut buffer = [0; LONGEST_DATAGRAM];
        match self.socket.try_recv(&mut buffer) {
            Ok(length) => {
                self.session.receive(buffer.get(..length).unwrap_or_default(), Instant::now());
                Ok(())
            }
            // No process listens at the port yet: treated as no answer.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes one request; none when the client is gone.
    fn ask(&mut self, ask: Option<Ask>) {
        let now = Instant::now();
        match ask {
            // The caller has dropped the request.
            Some(Ask::Command { answer, .. }) if answer.is_closed() => {}
            Some(Ask::Command { request, answer }) => {
                self.waiting = Some((self.session.request(request, now), answer));
            }
            Some(Ask::Listen(listener)) => self.listener = Some(listener),
            Some(Ask::Serial(payload)) => self.session.serial(&payload),
            None => {
                self.closing = true;
                self.session.close(now);
            }
        }
    }

    fn tell(&mut self, event: Event) {
        match event {
            Event::Opened => {
                // No receiver: the client and its sender are dropped, which closes the session.
                let _ = self.opened.take().map(|opened| opened.send(()));
            }
            Event::Answer(ticket, answer) => {
                if let Some((_, sender)) = self.waiting.take_if(|(is, _)| *is == ticket) {
                    // No receiver: the request was dropped.
                    let _ = sender.send(answer);
                }
            }
            Event::Serial(payload) => {
                // A payload without space in the channel is not acknowledged, and the BMC repeats it.
                let _ = self.listener.as_ref().map(|listener| listener.try_send(payload));
            }
            Event::Closed => trace!("session closed"),
            Event::Failed(error) => {
                let _ = self.failure.set(error);
            }
        }
    }
}

/// Waits until the request is dropped; without a request it never ends.
async fn unwanted(waiting: &mut Option<(Ticket, oneshot::Sender<Answer>)>) {
    match waiting {
        Some((_, sender)) => sender.closed().await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    if let Some(deadline) = deadline {
        time::sleep_until(deadline.into()).await;
    }
}
