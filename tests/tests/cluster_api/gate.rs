//! Gate between a program and its API server: shut, the program cannot reach the server. Others can.

use std::io::Read as _;
use std::io::Write as _;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Open connections. None: the gate is shut.
type Open = Arc<Mutex<Option<Vec<TcpStream>>>>;

/// A gate. Its threads end with the test program.
pub(crate) struct Gate {
    pub(crate) address: SocketAddr,
    open: Open,
}

impl Gate {
    /// Makes an open gate to this address.
    pub(crate) fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, open) = (listener.local_addr().unwrap(), Open::new(Mutex::new(Some(Vec::new()))));
        let shared = open.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // While the gate is shut, the connection ends here.
                if let Some(all) = &mut *shared.lock().unwrap()
                    && let Ok(server) = TcpStream::connect(server)
                {
                    copy(client.try_clone().unwrap(), server.try_clone().unwrap());
                    copy(server.try_clone().unwrap(), client.try_clone().unwrap());
                    all.extend([client, server]);
                }
            }
        });
        Self { address, open }
    }

    /// Ends all connections, and lets no other through.
    pub(crate) fn shut(&self) {
        for stream in self.open.lock().unwrap().take().into_iter().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Lets connections through again.
    pub(crate) fn open(&self) {
        *self.open.lock().unwrap() = Some(Vec::new());
    }
}

/// Copies from one stream to the other, until one of both ends.
fn copy(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
