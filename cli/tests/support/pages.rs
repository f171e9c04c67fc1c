//! The pages of a role, by the plainest HTTP.

use crate::waiting::PATIENCE;
use std::io::{Read, Write};
use std::net::TcpStream;

/// The page at `path`, with its status line and headers; `None` when nobody serves it there.
pub(crate) fn get(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
