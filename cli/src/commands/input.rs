//! Files that a command is given; `-` is standard input.

use crate::failure::Failure;
use std::io::Read;
use std::path::Path;

/// Largest file that is read: far above any job or tenant file.
const BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The whole text, with a name for messages.
///
/// # Errors
/// When it cannot be read, is too large, or is not text.
pub fn read(path: &Path) -> Result<(String, String), Failure> {
    let (name, result) = if path == Path::new("-") {
        ("standard input".to_owned(), read_all(std::io::stdin().lock()))
    } else {
        (path.display().to_string(), std::fs::File::open(path).and_then(read_all))
    };
    match result {
        Ok(text) => Ok((text, name)),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            Err(Failure::field(name, error.to_string(), "save the file as UTF-8"))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Failure::NotFound(format!("file {name} does not exist")))
        }
        Err(error) => Err(Failure::io(format!("reading {name}"), error)),
    }
}

fn read_all(reader: impl Read) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    reader.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, "is larger than 16 MiB"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + good.iter().filter(|byte| **byte == b'\n').count();
        std::io::Error::new(std::io::ErrorKind::InvalidData, format!("is not UTF-8 text at line {line}"))
    })
}
