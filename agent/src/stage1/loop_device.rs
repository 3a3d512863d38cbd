//! Makes a block device of an open file (loop(4)).
//!
//! One of two modules of the agent with `unsafe`: two ioctls for which nix has
//! no safe call. Called by `new_root`.
//!
//! Safety: `LOOP_CTL_GET_FREE` takes no argument. `LOOP_CONFIGURE` reads a
//! `struct loop_config` (linux/loop.h) through a pointer to a value that lives across
//! the call. `Configuration` has that layout, which its test verifies, and each bit
//! pattern of it is valid. Both get file descriptors that are open for the whole call.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use super::error::StageError;

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

#[repr(C)]
struct Configuration {
    file: u32,
    block_size: u32,
    device: u64,
    inode: u64,
    real_device: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

mod call {
    #![allow(missing_docs, reason = "made by nix's macros")]
    nix::ioctl_none_bad!(loop_ctl_get_free, 0x4C82);
    nix::ioctl_write_ptr_bad!(loop_configure, 0x4C0A, super::Configuration);
}
use call::{loop_configure, loop_ctl_get_free};

/// Returns a read-only block device of `file`, which the kernel removes after its last use. Keep the returned
/// file open until the device is mounted.
pub(crate) fn attach(file: &File) -> Result<(PathBuf, File), StageError> {
    attach_with(file, LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR)
}

/// Attaches a file for reading and writing, for tests.
#[cfg(test)]
pub(super) fn attach_writable(file: &File) -> Result<(PathBuf, File), StageError> {
    attach_with(file, LO_FLAGS_AUTOCLEAR)
}

fn attach_with(file: &File, flags: u32) -> Result<(PathBuf, File), StageError> {
    let control = File::options().read(true).write(true).open("/dev/loop-control");
    let control = control.map_err(StageError::system("open", "/dev/loop-control"))?;
    let descriptor =
        u32::try_from(file.as_raw_fd()).map_err(|_| StageError::Internal("a descriptor is negative"))?;
    let mut tries = 0;
    loop {
        // SAFETY: the descriptor is open, the call takes no argument.
        let number = unsafe { loop_ctl_get_free(control.as_raw_fd()) };
        let number = number.map_err(StageError::system("get a free device from", "/dev/loop-control"))?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        // The kernel makes the device read-only if it is configured through a read-only descriptor.
        let writable = flags & LO_FLAGS_READ_ONLY == 0;
        let device = File::options()
            .read(true)
            .write(writable)
            .open(&path)
            .map_err(StageError::system("open", path.display()))?;
        let configuration = configuration(descriptor, flags);
        // SAFETY: the descriptor is open, the pointer leads to a whole `loop_config` that outlives the call.
        match unsafe { loop_configure(device.as_raw_fd(), &raw const configuration) } {
            Ok(_) => return Ok((path, device)),
            // Another process took the loop device first.
            Err(nix::errno::Errno::EBUSY) if tries < 16 => tries += 1,
            Err(errno) => return Err(StageError::system("configure", path.display())(errno)),
        }
    }
}

fn configuration(file: u32, flags: u32) -> Configuration {
    Configuration {
        file,
        block_size: 0,
        device: 0,
        inode: 0,
        real_device: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
        reserved: [0; 8],
    }
}

#[cfg(test)]
mod tests {
    use super::Configuration;

    #[test]
    fn layout_is_the_kernels() {
        assert_eq!(size_of::<Configuration>(), 304);
        assert_eq!(std::mem::offset_of!(Configuration, flags), 60);
        assert_eq!(std::mem::offset_of!(Configuration, reserved), 240);
    }
}
