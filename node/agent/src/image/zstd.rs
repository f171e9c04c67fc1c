//! Reading zstd data of several frames, as builders write them that want parts of a layer to be found again.
//!
//! What must stay true: the end of a frame is the end of the data only where nothing follows it.

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::{self, BufRead, BufReader, Read};

/// The data behind a compressed input.
pub(super) struct Zstd<R: Read> {
    input: BufReader<R>,
    decoder: FrameDecoder,
    is_inside: bool,
}

fn wrong(error: &impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

impl<R: Read> Zstd<R> {
    pub(super) fn new(input: R) -> Self {
        Zstd { input: BufReader::new(input), decoder: FrameDecoder::new(), is_inside: false }
    }

    /// What is left of the input.
    pub(super) fn into_input(self) -> R {
        self.input.into_inner()
    }

    /// Begins the next frame. Says whether there is one.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.input.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.input) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    io::copy(&mut (&mut self.input).take(u64::from(length)), &mut io::sink())?;
                }
                Err(error) => return Err(wrong(&error)),
            }
        }
        Ok(false)
    }
}

impl<R: Read> Read for Zstd<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.is_inside {
                self.is_inside = self.begin()?;
                if !self.is_inside {
                    return Ok(0);
                }
            }
            match self.decoder.read(into)? {
                0 if self.decoder.is_finished() => self.is_inside = false,
                0 => {
                    let one = BlockDecodingStrategy::UptoBlocks(1);
                    self.decoder.decode_blocks(&mut self.input, one).map_err(|error| wrong(&error))?;
                }
                read => return Ok(read),
            }
        }
    }
}
