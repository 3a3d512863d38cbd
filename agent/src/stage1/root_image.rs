//! Fetches the root image into memory, resumes after an interruption, and accepts only the image that the
//! seed names.
//!
//! The digest is computed while bytes arrive. A wrong image is discarded completely. Called by the driver.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bedplate_api::id::Digest;
use bedplate_api::wire::RootFs;
use sha2::{Digest as _, Sha256};

use super::console::mib;
use super::error::StageError;
use super::http::Response;

/// Memory that the rest of the boot needs in addition to the image.
const HEADROOM_BYTES: u64 = 96 << 20;
const CHUNK_BYTES: usize = 256 * 1024;

/// An image on its way, kept over failures.
#[derive(Debug)]
pub(crate) struct Partial {
    path: PathBuf,
    file: File,
    hash: Sha256,
    done: u64,
}

/// Checks that the image fits: `available` is the kernel's estimate in bytes.
pub(crate) fn check_memory(image: &RootFs, already: u64, available: u64) -> Result<(), StageError> {
    let need = image.size.saturating_sub(already).saturating_add(HEADROOM_BYTES);
    if need > available {
        return Err(StageError::Memory { need: need >> 20, have: available >> 20 });
    }
    Ok(())
}

impl Partial {
    /// Starts an empty file at `path`. An existing one is replaced.
    pub(crate) fn begin(path: &Path) -> Result<Self, StageError> {
        let made = File::options().read(true).write(true).create(true).truncate(true).open(path);
        let file = made.map_err(StageError::system("make", path.display()))?;
        Ok(Self { path: path.to_owned(), file, hash: Sha256::new(), done: 0 })
    }

    /// Returns the number of received bytes.
    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    fn start_over(&mut self) -> Result<(), StageError> {
        *self = Self::begin(&self.path)?;
        Ok(())
    }

    /// Fetches the rest with `get`, which requests the image from an offset. Returns an error when a
    /// connection breaks, and continues from there when it is called again. `say` reports each tenth.
    pub(crate) fn fetch(
        &mut self,
        image: &RootFs,
        get: impl FnOnce(u64) -> Result<Response, StageError>,
        say: &mut dyn FnMut(&str),
    ) -> Result<(), StageError> {
        if self.done < image.size {
            let mut response = get(self.done)?;
            self.check_range(image, &response)?;
            self.copy(image, &mut response, say)?;
        }
        self.verify(image)
    }

    /// Checks the range of an answer. An answer with the complete file, or from another offset, restarts the
    /// fetch.
    fn check_range(&mut self, image: &RootFs, response: &Response) -> Result<(), StageError> {
        let (first, whole) = match response.head.content_range {
            Some((first, whole)) if response.head.status == 206 => (first, whole),
            _ => (0, response.head.content_length),
        };
        if let Some(found) = whole.filter(|whole| *whole != image.size) {
            return Err(StageError::Size { url: image.url.clone(), expected: image.size, found });
        }
        match first {
            first if first == self.done => Ok(()),
            0 => self.start_over(),
            _ => Err(StageError::Internal("the server sent another range of the image than requested")),
        }
    }

    fn copy(
        &mut self,
        image: &RootFs,
        response: &mut dyn Read,
        say: &mut dyn FnMut(&str),
    ) -> Result<(), StageError> {
        let mut buffer = vec![0; CHUNK_BYTES];
        let start = Instant::now();
        let from = self.done;
        let mut tenth = tenths(self.done, image.size);
        while self.done < image.size {
            let room = usize::try_from(image.size - self.done).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            let length = response.read(&mut buffer[..room]).unwrap_or(0);
            if length == 0 {
                let (url, done, size) = (image.url.clone(), self.done, image.size);
                return Err(StageError::BrokeOff { url, done, size });
            }
            self.file
                .write_all(&buffer[..length])
                .map_err(StageError::system("write", self.path.display()))?;
            self.hash.update(&buffer[..length]);
            self.done += length as u64;
            if tenths(self.done, image.size) > tenth {
                tenth = tenths(self.done, image.size);
                let rate = speed(self.done - from, start.elapsed());
                say(&format!("root image {}0 % of {}, {rate}", tenth, mib(image.size)));
            }
        }
        Ok(())
    }

    fn verify(&mut self, image: &RootFs) -> Result<(), StageError> {
        let found = Digest::from_sha256(self.hash.clone().finalize().into());
        if found != image.digest {
            self.start_over()?;
            return Err(StageError::WrongDigest { expected: image.digest, found });
        }
        Ok(())
    }

    /// Returns the verified image. Its name is removed, and its content stays as long as the file is open.
    pub(crate) fn into_file(self) -> Result<File, StageError> {
        let file = File::open(&self.path).map_err(StageError::system("open", self.path.display()))?;
        fs::remove_file(&self.path).map_err(StageError::system("remove the name of", self.path.display()))?;
        Ok(file)
    }
}

fn tenths(done: u64, size: u64) -> u64 {
    done.saturating_mul(10).checked_div(size).unwrap_or(10)
}

fn speed(bytes: u64, time: Duration) -> String {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    format!("{}/s", mib(bytes.saturating_mul(1000) / millis))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::stage1::http;
    use crate::stage1::http_wire::HttpUrl;

    /// Serves one connection for each answer: what is written before the connection closes. Gives back the requests.
    fn server(answers: Vec<Vec<u8>>) -> (HttpUrl, thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = HttpUrl::parse(&format!("http://{}/rootfs", listener.local_addr().unwrap())).unwrap();
        let thread = thread::spawn(move || {
            let mut requests = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    request.push(byte[0]);
                }
                requests.push(String::from_utf8(request).unwrap());
                stream.write_all(&answer).unwrap();
            }
            requests
        });
        (url, thread)
    }

    fn answer(head: &str, body: &[u8]) -> Vec<u8> {
        [format!("HTTP/1.1 {head}\r\n\r\n").as_bytes(), body].concat()
    }

    fn image(content: &[u8]) -> RootFs {
        let digest = Digest::from_sha256(Sha256::digest(content).into());
        RootFs { url: "http://x/".to_owned(), digest, size: content.len() as u64 }
    }

    #[test]
    fn broken_transfer_resumes_and_a_complete_answer_starts_over() {
        let content: Vec<u8> = (0..600_000_u32).map(|n| n.to_le_bytes()[1]).collect();
        let (url, thread) = server(vec![
            answer("200 OK\r\nContent-Length: 600000", &content[..300_000]),
            answer(
                "206 Partial Content\r\nContent-Range: bytes 300000-599999/600000\r\nContent-Length: 300000",
                &content[300_000..400_000],
            ),
            answer("503 Busy\r\nContent-Length: 39", br#"{"reason":"Busy","message":"come later"}"#),
            answer("200 OK\r\nContent-Length: 600000", &content),
        ]);
        let directory = tempfile::tempdir().unwrap();
        let mut partial = Partial::begin(&directory.path().join("image")).unwrap();
        let (image, mut lines) = (image(&content), Vec::new());
        let mut errors = Vec::new();
        while let Err(error) =
            partial.fetch(&image, |from| http::get(&url, from, &[]), &mut |l| lines.push(l.to_owned()))
        {
            errors.push(error.to_string());
        }
        let requests = thread.join().unwrap();
        let ranges: Vec<_> = requests.iter().map(|r| r.lines().find(|l| l.starts_with("Range"))).collect();
        assert_eq!(
            ranges,
            [None, Some("Range: bytes=300000-"), Some("Range: bytes=400000-"), Some("Range: bytes=400000-")]
        );
        assert_eq!(errors[0], "transfer of http://x/ stopped after 300000 of 600000 bytes");
        assert!(errors[2].contains("status 503"), "{errors:?}");
        assert!(lines.last().unwrap().starts_with("root image 100 % of 1 MiB"), "{lines:?}");
        let mut read = Vec::new();
        partial.into_file().unwrap().read_to_end(&mut read).unwrap();
        assert!(read == content);
    }

    #[test]
    fn a_wrong_image_is_thrown_away_and_fetched_again() {
        let good = b"good content".as_slice();
        let (url, thread) = server(vec![
            answer("200 OK\r\nContent-Length: 12", b"evil content"),
            answer("200 OK\r\nContent-Length: 12", good),
        ]);
        let directory = tempfile::tempdir().unwrap();
        let mut partial = Partial::begin(&directory.path().join("image")).unwrap();
        let mut fetch = || partial.fetch(&image(good), |from| http::get(&url, from, &[]), &mut |_| {});
        assert!(matches!(fetch(), Err(StageError::WrongDigest { .. })));
        fetch().unwrap();
        assert!(thread.join().unwrap().iter().all(|request| !request.contains("Range")));
    }

    #[test]
    fn an_image_of_another_size_is_not_read() {
        let (url, thread) = server(vec![answer("200 OK\r\nContent-Length: 99999999999", b"")]);
        let directory = tempfile::tempdir().unwrap();
        let mut partial = Partial::begin(&directory.path().join("image")).unwrap();
        let result = partial.fetch(&image(b"small"), |from| http::get(&url, from, &[]), &mut |_| {});
        assert!(matches!(result, Err(StageError::Size { found: 99_999_999_999, .. })), "{result:?}");
        thread.join().unwrap();
    }

    #[test]
    fn too_little_memory_says_what_is_needed_and_what_is_there() {
        let image = RootFs { size: 200 << 20, ..image(b"") };
        let error = check_memory(&image, 0, 250 << 20).unwrap_err().to_string();
        assert_eq!(error, "memory is too small for the root image; 296 MiB are needed, 250 MiB are free");
        assert!(check_memory(&image, 100 << 20, 250 << 20).is_ok());
    }
}
