//! What others have written, made harmless for a terminal.
//!
//! Names, reasons and output of tasks may hold characters that a terminal obeys: they move the cursor, change its title, or write what the reader then sends as a command. They are
//! shown as JSON would write them: `\u001b`. What must stay true: no byte that a terminal obeys passes but newlines and tabs; text that people read stays as it is; a stream
//! may be cut anywhere.

use std::fmt::Write as _;

/// Bytes of a character at most, less one.
const TAIL_MAX: usize = 3;

/// Makes a stream of bytes harmless, piece by piece.
#[derive(Debug, Default)]
pub struct Neutral {
    /// The beginning of a character whose rest has not come.
    tail: Vec<u8>,
    /// The last piece ended with a carriage return.
    after_return: bool,
}

impl Neutral {
    /// The next piece.
    #[must_use]
    pub fn take(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.tail);
        all.extend_from_slice(bytes);
        let mut out = String::with_capacity(all.len());
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            chunk.valid().chars().for_each(|letter| self.letter(letter, &mut out));
            let broken = chunk.invalid();
            if broken.is_empty() {
                continue;
            }
            if chunks.peek().is_none() && broken.len() <= TAIL_MAX && is_begun(broken) {
                self.tail = broken.to_vec();
                continue;
            }
            broken.iter().for_each(|byte| escape(u32::from(*byte), &mut out));
        }
        out
    }

    /// What is left when nothing comes any more.
    #[must_use]
    pub fn end(&mut self) -> String {
        let mut out = String::new();
        std::mem::take(&mut self.tail).iter().for_each(|byte| escape(u32::from(*byte), &mut out));
        if std::mem::take(&mut self.after_return) {
            out.push('\n');
        }
        out
    }

    fn letter(&mut self, letter: char, out: &mut String) {
        // A line that is written over itself, as progress is shown, becomes lines.
        let was_return = std::mem::replace(&mut self.after_return, letter == '\r');
        if was_return && !matches!(letter, '\n' | '\r') {
            out.push('\n');
        }
        match letter {
            '\r' => {}
            '\n' | '\t' => out.push(letter),
            _ if letter.is_control() || turns_text(letter) => escape(u32::from(letter), out),
            _ => out.push(letter),
        }
    }
}

/// Marks that have what follows shown from right to left, so that it reads as something else.
const fn turns_text(letter: char) -> bool {
    matches!(letter, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether these bytes may be the beginning of a character.
fn is_begun(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

fn escape(code: u32, out: &mut String) {
    let _ = write!(out, "\\u{code:04x}");
}

/// A whole text.
#[must_use]
pub fn neutral(text: &str) -> String {
    let mut stream = Neutral::default();
    let mut out = stream.take(text.as_bytes());
    out.push_str(&stream.end());
    out
}

/// A text that has to stay on one line.
#[must_use]
pub fn on_one_line(text: &str) -> String {
    if text.chars().any(|letter| letter.is_control() || turns_text(letter)) {
        neutral(text).replace('\n', "\\n").replace('\t', " ")
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_terminal_obeys_is_shown() {
        assert_eq!(neutral("\u{1b}]0;title\u{7}\u{1b}[2Jok"), "\\u001b]0;title\\u0007\\u001b[2Jok");
        assert_eq!(neutral("größe\t1\nnext\n"), "größe\t1\nnext\n");
        assert_eq!(neutral("\u{9b}31m\u{202e}lairt"), "\\u009b31m\\u202elairt");
        assert_eq!(neutral("10 %\r20 %\r\ndone\r"), "10 %\n20 %\ndone\n");
        assert_eq!(on_one_line("a\nb\u{1b}"), "a\\nb\\u001b");
        let mut stream = Neutral::default();
        assert_eq!([stream.take(b"\xc3"), stream.take(b"\xa4\xff"), stream.end()].concat(), "ä\\u00ff");
        assert_eq!([stream.take(b"\xe2\x82"), stream.end()].concat(), "\\u00e2\\u0082");
    }

    proptest! {
        #[test]
        fn no_stream_and_no_cut_lets_anything_pass(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..9)) {
            let mut stream = Neutral::default();
            let mut out: String = pieces.iter().map(|piece| stream.take(piece)).collect();
            out.push_str(&stream.end());
            prop_assert!(out.chars().all(|letter| matches!(letter, '\n' | '\t') || !letter.is_control() && !turns_text(letter)));
            let mut whole = Neutral::default();
            let mut at_once = whole.take(&pieces.concat());
            at_once.push_str(&whole.end());
            prop_assert_eq!(out, at_once, "wherever it is cut");
        }
    }
}
