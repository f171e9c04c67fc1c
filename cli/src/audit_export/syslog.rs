//! An export to a receiver of syslog: RFC 5424 messages over TCP, each with its length before it (RFC 6587).
//!
//! What must stay true: syslog has no acknowledgement, and what the kernel has taken from a program may be lost. So each batch has a connection of its own:
//! this side closes its direction after the last record, and the batch counts as taken when the receiver then closes the connection in order and its
//! kernel has confirmed every byte. A receiver that goes away earlier, or leaves something unread, resets the connection, or does not confirm what came after.

use super::{NotTaken, Outgoing};
use std::fmt::Write as _;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// For one batch, connection included.
const BATCH_TIME_MAX: Duration = Duration::from_secs(15);
/// Between two looks at what the receiver has confirmed.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Facility 13 (log audit), severity 6 (informational).
const PRIORITY: u8 = 13 * 8 + 6;
/// RFC 5424 allows so many characters for the name of a host.
const HOST_NAME_MAX: usize = 255;

/// A receiver.
#[derive(Clone, Debug)]
pub struct Receiver {
    address: String,
    host: String,
}

impl Receiver {
    /// A receiver at `HOST:PORT`.
    #[must_use]
    pub fn new(address: &str) -> Self {
        let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Receiver { address: address.to_owned(), host: host_name(&host) }
    }

    /// Sends a batch.
    ///
    /// # Errors
    /// When the receiver may lack a part of it.
    pub async fn send(&self, batch: &[Outgoing]) -> Result<(), NotTaken> {
        let sent = tokio::time::timeout(BATCH_TIME_MAX, self.deliver(batch)).await;
        let sent = sent.unwrap_or_else(|_| {
            let seconds = BATCH_TIME_MAX.as_secs();
            Err(Error::other(format!("it did not take the records and close the connection within {seconds} s")))
        });
        sent.map_err(|error| NotTaken::ForNow(error.to_string()))
    }

    async fn deliver(&self, batch: &[Outgoing]) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(&self.address).await?;
        stream.write_all(messages(&self.host, batch).as_bytes()).await?;
        stream.shutdown().await?;
        // What a receiver says is nothing that syslog knows of.
        let mut said = [0; 512];
        while stream.read(&mut said).await? > 0 {}
        while unconfirmed(&stream)? > 0 {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        match stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// Bytes that the other side has not confirmed, its end of the stream counted as one.
///
/// # Errors
/// Why the connection has failed, if it has.
fn unconfirmed(stream: &TcpStream) -> std::io::Result<i32> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ (SIOCOUTQ) of a socket that is open writes one int.
    match unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) } {
        0 => Ok(bytes),
        _ => Err(Error::last_os_error()),
    }
}

/// A batch as it is sent.
fn messages(host: &str, batch: &[Outgoing]) -> String {
    let mut text = String::new();
    for record in batch {
        let message = format!("<{PRIORITY}>1 {} {host} muster - audit - {}", record.time, record.json);
        let _ = write!(text, "{} {message}", message.len());
    }
    text
}

/// The name of this host as RFC 5424 allows it.
fn host_name(name: &str) -> String {
    let allowed: String = name.chars().filter(char::is_ascii_graphic).take(HOST_NAME_MAX).collect();
    if allowed.is_empty() { "-".to_owned() } else { allowed }
}

#[cfg(test)]
mod tests {
    use super::super::chain::example;
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    fn outgoing(count: u64) -> Vec<Outgoing> {
        example(count).iter().map(|record| Outgoing::new(record).expect("a line")).collect()
    }

    #[test]
    fn messages_have_their_length_in_bytes_and_the_head_of_rfc_5424() {
        let batch = outgoing(2);
        let text = messages("host-1", &batch);
        let (length, rest) = text.split_once(' ').expect("a length");
        let length: usize = length.parse().expect("a number");
        let head = "<110>1 2023-11-14T22:13:21.001Z host-1 muster - audit - {\"number\":1,";
        assert!(rest.starts_with(head), "{rest}");
        assert!(rest[..length].ends_with(&batch[0].json));
        assert!(rest[length..].contains("<110>1 2023-11-14T22:13:22.002Z"));
        assert_eq!(host_name("a b\n"), "ab");
        assert_eq!(host_name("ä"), "-");
    }

    /// What an export says when its receiver does this with the connection.
    fn with_receiver(records: u64, receive: impl FnOnce(&mut std::net::TcpStream) + Send) -> Result<(), NotTaken> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let receiver = Receiver::new(&listener.local_addr().expect("an address").to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        std::thread::scope(|scope| {
            scope.spawn(|| receive(&mut listener.accept().expect("a connection").0));
            runtime.block_on(receiver.send(&outgoing(records)))
        })
    }

    #[test]
    fn a_batch_is_taken_when_the_receiver_has_read_it_to_its_end() {
        let taken = with_receiver(300, |stream| {
            let mut text = String::new();
            stream.read_to_string(&mut text).expect("all of it");
            assert_eq!(text, messages(&Receiver::new("").host, &outgoing(300)));
        });
        assert!(taken.is_ok(), "{taken:?}");
    }

    #[test]
    fn a_receiver_that_goes_away_in_the_middle_has_not_taken_it() {
        for bytes in [0, 10_000] {
            let taken = with_receiver(300, |stream| {
                stream.read_exact(&mut vec![0; bytes]).expect("a part");
            });
            assert!(matches!(taken, Err(NotTaken::ForNow(_))), "{taken:?}");
        }
    }
}
