//! The supplementary groups of a Unix socket's client (`SO_PEERGROUPS`, Linux 4.13), for which there is no safe wrapper.
//!
//! The kernel records them at connect(2), so that no process ID is looked up, and users of any directory service are known.
//! This module has only this call. Called by `accept`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use nix::libc;

/// Capacity of the first call, in groups. Few users have more.
const FIRST_CAPACITY: usize = 64;

/// Maximum number of groups of a process (`NGROUPS_MAX`).
const MAX_GROUPS: usize = 65_536;

/// Reads the IDs of the supplementary groups.
///
/// # Errors
/// The system does not know them.
pub(super) fn read(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; FIRST_CAPACITY];
    loop {
        let room = size_of_val(groups.as_slice());
        let mut length = libc::socklen_t::try_from(room).map_err(io::Error::other)?;
        // SAFETY: the descriptor is open, for it is borrowed. `groups` owns `length` writable bytes that are not moved before the call returns.
        // The kernel writes at most as many, and any bit pattern is a valid gid_t. It keeps neither pointer.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = usize::try_from(length).map_err(io::Error::other)? / size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // With ERANGE, the kernel returns the needed size.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > MAX_GROUPS {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn groups_are_those_of_the_process_that_connected() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = tokio::net::UnixListener::bind(&path).expect("bind");
        let _client = tokio::net::UnixStream::connect(&path).await.expect("connect");
        let (server, _) = listener.accept().await.expect("accept");
        let mut expected: Vec<u32> =
            nix::unistd::getgroups().expect("groups").into_iter().map(nix::unistd::Gid::as_raw).collect();
        let mut found = read(&server).expect("groups");
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
    }
}
