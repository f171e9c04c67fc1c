//! Where an export goes: what stands after `--to`.
//!
//! What must stay true: without encryption HTTP goes to this machine alone.

use crate::failure::Failure;
use http::Uri;
use std::net::IpAddr;
use std::path::PathBuf;

/// Where an export goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A file of JSON lines.
    File(PathBuf),
    /// A receiver of RFC 5424 messages over TCP: `HOST:PORT`.
    Syslog(String),
    /// A server that takes JSON lines by POST.
    Post(String),
}

impl Destination {
    /// Reads `file:PATH`, `syslog:HOST:PORT` or a URL.
    ///
    /// # Errors
    /// When it is none of them.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let bad = |fix: &str| Failure::field("to", format!("is {text:?}"), fix);
        if let Some(path) = text.strip_prefix("file:") {
            return match path {
                "" => Err(bad("name the file: file:PATH")),
                path => Ok(Destination::File(path.into())),
            };
        }
        if let Some(address) = text.strip_prefix("syslog:") {
            let address = address.trim_start_matches("//");
            let parts = address.rsplit_once(':').map(|(host, port)| (!host.is_empty(), port.parse::<u16>()));
            return match parts {
                Some((true, Ok(_))) => Ok(Destination::Syslog(address.to_owned())),
                _ => Err(bad("write it as syslog:HOST:PORT")),
            };
        }
        let url = text.parse::<Uri>().ok();
        match url.as_ref().and_then(|url| Some((url.scheme_str()?, url.host()?))) {
            Some(("https", _)) => Ok(Destination::Post(text.to_owned())),
            Some(("http", host)) if is_this_machine(host) => Ok(Destination::Post(text.to_owned())),
            Some(("http", _)) => Err(bad("use https; http is for receivers on this machine (127.0.0.1)")),
            _ => Err(bad("use file:PATH, syslog:HOST:PORT or https://HOST/PATH")),
        }
    }

    /// For people; without what stands in a URL behind the host, which may be a secret.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Destination::File(path) => path.display().to_string(),
            Destination::Syslog(address) => format!("syslog at {address}"),
            Destination::Post(url) => {
                let url = url.parse::<Uri>().unwrap_or_default();
                let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
                format!("{}://{}{port}", url.scheme_str().unwrap_or_default(), url.host().unwrap_or_default())
            }
        }
    }
}

fn is_this_machine(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_read() {
        let read = |text: &str| Destination::parse(text).expect("a destination");
        assert_eq!(read("file:/var/log/audit.jsonl"), Destination::File("/var/log/audit.jsonl".into()));
        assert_eq!(read("syslog:[::1]:601"), Destination::Syslog("[::1]:601".to_owned()));
        let url = "https://logs.example.com:8088/services/collector/raw?channel=secret";
        assert_eq!(read(url), Destination::Post(url.to_owned()));
        assert_eq!(read(url).name(), "https://logs.example.com:8088");
        for url in ["http://127.0.0.1:8080/in", "http://[::1]/", "http://localhost/in"] {
            assert_eq!(read(url), Destination::Post(url.to_owned()));
        }
    }

    #[test]
    fn what_is_none_is_refused_with_what_to_write() {
        for (text, fix) in [
            ("audit.jsonl", "file:PATH"),
            ("file:", "file:PATH"),
            ("syslog:logs", "syslog:HOST:PORT"),
            ("syslog::601", "syslog:HOST:PORT"),
            ("http://logs.example.com/in", "use https"),
            ("http://127.0.0.1.example.com/in", "use https"),
            ("ftp://logs.example.com/in", "https://HOST/PATH"),
        ] {
            let refused = Destination::parse(text).expect_err(text).to_string();
            assert!(refused.starts_with("to: ") && refused.contains(fix), "{refused}");
        }
    }
}
