//! The pages of a role, by the plainest HTTP.

use crate::waiting::PATIENCE;
use std::io::{Read, Write};
use std::net::TcpStream;

/// The page at `path`, with its status line and headers; `None` when nobody serves it there.
pub(crate) fn get(address: &str, path: &str) -> Option<String> {
    get_with(address, path, "")
}

/// The same with further headers in the request, each a line with its end.
pub(crate) fn get_with(address: &str, path: &str, headers: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
