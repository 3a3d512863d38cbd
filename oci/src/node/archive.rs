//! A tar archive as a stream of members: headers of all kinds put together, content as it comes, every length bounded.
//!
//! Not here: what becomes of a member (`unpack`). Callers: `unpack`, the fuzz target.

use std::io::{self, BufRead};
use std::path::PathBuf;

use thiserror::Error;

use super::tar::{self, BLOCK_BYTES, Flag, Header, Kind, LONGEST_PATH, Records};

/// Largest pax header in bytes: more than any member's attributes that a file system would take.
const LARGEST_PAX: u64 = 1 << 20;
/// Maximum number of headers before one member.
const MOST_EXTENSIONS: usize = 16;

/// Reason for rejecting an archive.
#[derive(Debug, Error)]
pub enum ReadArchiveError {
    /// The source of the bytes failed.
    #[error("reading the content failed")]
    Read(#[source] io::Error),
    /// The archive ends too early.
    #[error("the archive ends in the middle of a member")]
    Truncated,
    /// It is not a tar archive, or not of a supported form.
    #[error("after {at} bytes there is {problem}")]
    Damaged {
        /// Bytes of the uncompressed archive.
        at: u64,
        /// Problem at this place.
        problem: &'static str,
    },
    /// A member is rejected.
    #[error("member {name:?} is rejected: {problem}")]
    Member {
        /// Name of the member.
        name: String,
        /// Problem of the member.
        problem: &'static str,
    },
}

/// Member of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Path of the member: relative, of normal components; empty for the root itself.
    pub path: PathBuf,
    /// Kind of the member.
    pub kind: Kind,
    /// Target of a link, as in the archive.
    pub link: Vec<u8>,
    /// Permissions with setuid, setgid and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of content; 0 unless it is a file.
    pub size: u64,
    /// Time of modification: seconds since 1970 and nanoseconds.
    pub mtime: (i64, u32),
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Reads an archive member by member.
#[derive(Debug)]
pub(crate) struct Archive<R> {
    source: R,
    /// Bytes of content that are not read yet.
    left: u64,
    /// Padding after the content.
    padding: u64,
    position: u64,
    ended: bool,
}

/// Values of the extension headers before a member.
#[derive(Debug, Default)]
struct Extensions {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    records: Records,
}

impl<R: BufRead> Archive<R> {
    /// An archive from its beginning.
    pub(crate) fn new(source: R) -> Self {
        Self { source, left: 0, padding: 0, position: 0, ended: false }
    }

    /// Returns the next member, and skips the rest of the former one's content. `None`: the archive has
    /// ended.
    ///
    /// # Errors
    /// The archive is damaged, or the member is rejected.
    pub(crate) fn next_member(&mut self) -> Result<Option<Member>, ReadArchiveError> {
        let mut extensions = Extensions::default();
        for count in 0..=MOST_EXTENSIONS {
            let Some(header) = self.header()? else {
                return if count == 0 { Ok(None) } else { Err(ReadArchiveError::Truncated) };
            };
            let at = self.position;
            let damaged = |problem| ReadArchiveError::Damaged { at, problem };
            match header.flag {
                Flag::Member(kind) => return self.member(kind, header, extensions).map(Some),
                Flag::LongName => extensions.name = Some(self.long_name(header.size)?),
                Flag::LongLink => extensions.link = Some(self.long_name(header.size)?),
                Flag::Pax => {
                    let bytes = self.extension(header.size, LARGEST_PAX)?;
                    extensions.records = tar::records(&bytes).map_err(damaged)?;
                }
                Flag::GlobalPax => {
                    let bytes = self.extension(header.size, LARGEST_PAX)?;
                    // git's comment is harmless. A header that changes every member is not supported.
                    if !tar::records(&bytes).map_err(damaged)?.is_empty() {
                        return Err(damaged("a global pax header that changes members"));
                    }
                }
            }
        }
        Err(ReadArchiveError::Damaged { at: self.position, problem: "too many headers before one member" })
    }

    /// Returns the next bytes of the member's content, empty at its end. The caller must report the used
    /// bytes by `consume`.
    ///
    /// # Errors
    /// The archive ends before, or its source fails.
    pub(crate) fn content(&mut self) -> Result<&[u8], ReadArchiveError> {
        if self.left == 0 {
            return Ok(&[]);
        }
        let bytes = self.source.fill_buf().map_err(ReadArchiveError::Read)?;
        if bytes.is_empty() {
            return Err(ReadArchiveError::Truncated);
        }
        let length = usize::try_from(self.left).map_or(bytes.len(), |left| left.min(bytes.len()));
        Ok(bytes.get(..length).unwrap_or_default())
    }

    /// Marks bytes of [`Archive::content`] as used.
    pub(crate) fn consume(&mut self, length: usize) {
        self.source.consume(length);
        self.left = self.left.saturating_sub(length as u64);
        self.position += length as u64;
    }

    /// Reads the bytes after the last member, to the end of the source, and returns the source.
    ///
    /// # Errors
    /// The source fails.
    pub(crate) fn finish(mut self) -> Result<R, ReadArchiveError> {
        loop {
            let length = self.source.fill_buf().map_err(ReadArchiveError::Read)?.len();
            if length == 0 {
                return Ok(self.source);
            }
            self.source.consume(length);
        }
    }

    /// The next header; `None` at the end of the archive.
    fn header(&mut self) -> Result<Option<Header>, ReadArchiveError> {
        self.skip()?;
        if self.ended {
            return Ok(None);
        }
        let Some(block) = self.block()? else { return Ok(None) };
        if block.iter().all(|byte| *byte == 0) {
            self.ended = true;
            return match self.block()? {
                Some(second) if second.iter().any(|byte| *byte != 0) => Err(ReadArchiveError::Damaged {
                    at: self.position,
                    problem: "something after a lone block of zeros",
                }),
                _ => Ok(None),
            };
        }
        let header = tar::header(&block)
            .map_err(|problem| ReadArchiveError::Damaged { at: self.position, problem })?;
        self.left = match header.flag {
            // Some archivers write a size that is not that of the content.
            Flag::Member(kind) if kind != Kind::File => 0,
            _ => header.size,
        };
        self.pad();
        Ok(Some(header))
    }

    fn pad(&mut self) {
        let beyond = self.left % BLOCK_BYTES as u64;
        self.padding = if beyond == 0 { 0 } else { BLOCK_BYTES as u64 - beyond };
    }

    /// Reads one block; `None` if the source ends before it.
    fn block(&mut self) -> Result<Option<[u8; BLOCK_BYTES]>, ReadArchiveError> {
        let mut block = [0; BLOCK_BYTES];
        let mut filled = 0;
        while filled < BLOCK_BYTES {
            let bytes = self.source.fill_buf().map_err(ReadArchiveError::Read)?;
            if bytes.is_empty() {
                return if filled == 0 { Ok(None) } else { Err(ReadArchiveError::Truncated) };
            }
            let length = bytes.len().min(BLOCK_BYTES - filled);
            for (to, from) in block.iter_mut().skip(filled).zip(bytes) {
                *to = *from;
            }
            filled += length;
            self.source.consume(length);
        }
        self.position += BLOCK_BYTES as u64;
        Ok(Some(block))
    }

    /// Skips the rest of a member and its padding.
    fn skip(&mut self) -> Result<(), ReadArchiveError> {
        for padding in [false, true] {
            if padding {
                self.left = std::mem::take(&mut self.padding);
            }
            loop {
                let length = match self.content() {
                    Ok(bytes) => bytes.len(),
                    // Some archivers leave the padding of the last member out.
                    Err(ReadArchiveError::Truncated) if padding => 0,
                    Err(error) => return Err(error),
                };
                if length == 0 {
                    break;
                }
                self.consume(length);
            }
            self.left = 0;
        }
        Ok(())
    }

    /// Returns the content of an extension header.
    fn extension(&mut self, size: u64, limit: u64) -> Result<Vec<u8>, ReadArchiveError> {
        if size > limit {
            let problem = "a header that is larger than the limit";
            return Err(ReadArchiveError::Damaged { at: self.position, problem });
        }
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
        loop {
            let part = self.content()?;
            if part.is_empty() {
                return Ok(bytes);
            }
            bytes.extend_from_slice(part);
            let length = part.len();
            self.consume(length);
        }
    }

    fn long_name(&mut self, size: u64) -> Result<Vec<u8>, ReadArchiveError> {
        let bytes = self.extension(size, LONGEST_PATH as u64 + 1)?;
        Ok(tar::text(&bytes).to_vec())
    }

    /// The member that header and extensions describe.
    fn member(
        &mut self,
        kind: Kind,
        header: Header,
        extensions: Extensions,
    ) -> Result<Member, ReadArchiveError> {
        let Extensions { name, link, records } = extensions;
        let name = records.path.or(name).unwrap_or(header.name);
        let link = records.link.or(link).unwrap_or(header.link);
        let refused = |problem| ReadArchiveError::Member {
            name: String::from_utf8_lossy(&name).chars().take(200).collect(),
            problem,
        };
        let path = tar::clean(&name).map_err(refused)?;
        let is_link = matches!(kind, Kind::Symlink | Kind::HardLink);
        if is_link && (link.is_empty() || link.len() > LONGEST_PATH || link.contains(&0)) {
            return Err(refused("its target is not a path"));
        }
        // (u32)-1 means "leave it" to chown.
        let owner = |id: u64| u32::try_from(id).ok().filter(|id| *id != u32::MAX);
        let ids = owner(records.uid.unwrap_or(header.uid)).zip(owner(records.gid.unwrap_or(header.gid)));
        let (uid, gid) = ids.ok_or_else(|| refused("its owner does not fit into 32 bits"))?;
        let mut size = 0;
        if kind == Kind::File {
            size = records.size.unwrap_or(header.size);
            if i64::try_from(size).is_err() {
                return Err(refused("its size exceeds the largest file"));
            }
            self.left = size;
            self.pad();
        }
        let mtime = records.mtime.unwrap_or((header.mtime, 0));
        let xattrs = records.xattrs;
        let (mode, device) = (header.mode, header.device);
        Ok(Member { path, kind, link, mode, uid, gid, size, mtime, device, xattrs })
    }
}
