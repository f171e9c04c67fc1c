//! Splits Rust source into the tokens that paths are made of, each with its line.
//!
//! What must stay true: comments, text between quotation marks and lifetimes give no token, so that nothing a reader would not take for code
//! is taken for a reference. Code that is compiled for tests alone is left out by [`without_tests`].

/// A name, a `::`, or one character of punctuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    /// The characters.
    pub(super) text: &'a str,
    /// Counted from one.
    pub(super) line: usize,
}

/// All tokens of `text`.
pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    let bytes = text.as_bytes();
    let (mut tokens, mut at, mut line) = (Vec::new(), 0, 1);
    while at < bytes.len() {
        let end = at + length(text, at);
        let token = text.get(at..end).unwrap_or_default();
        let first = bytes[at];
        let is_word = is_name(first) && !first.is_ascii_digit() && !token.ends_with(['"', '#']);
        let is_mark = first.is_ascii_punctuation() && token.len() == 1;
        if is_word || is_mark || token == "::" {
            tokens.push(Token { text: token, line });
        }
        line += token.bytes().filter(|byte| *byte == b'\n').count();
        at = end;
    }
    tokens
}

/// How many bytes belong to what begins at `at`; at least one.
fn length(text: &str, at: usize) -> usize {
    let rest = &text.as_bytes()[at..];
    let until = |found: Option<usize>, more: usize| found.map_or(rest.len(), |found| found + more);
    match rest {
        [b'/', b'/', ..] => until(rest.iter().position(|byte| *byte == b'\n'), 0),
        [b'/', b'*', ..] => block_comment(rest),
        [b':', b':', ..] => 2,
        [b'"', ..] => quoted(rest),
        [b'\'', b'\\', ..] => until(rest[3.min(rest.len())..].iter().position(|byte| *byte == b'\''), 4),
        [b'\'', ..] => character(text, at),
        [first, ..] if is_name(*first) => {
            let name = until(rest.iter().position(|byte| !is_name(*byte)), 0);
            match &rest[..name] {
                b"b" | b"c" if rest.get(name) == Some(&b'"') => name + quoted(&rest[name..]),
                b"r" | b"br" | b"cr" => raw(rest, name),
                _ => name,
            }
        }
        [first, ..] if !first.is_ascii() => text[at..].chars().next().map_or(1, char::len_utf8),
        _ => 1,
    }
}

/// Bytes of a `'x'` that is no escape, or of a lifetime with its name.
fn character(text: &str, at: usize) -> usize {
    let mut rest = text[at + 1..].chars();
    let inside = rest.next().map_or(0, char::len_utf8);
    if rest.next() == Some('\'') {
        return inside + 2;
    }
    1 + text[at + 1..].bytes().take_while(|byte| is_name(*byte)).count()
}

/// Bytes of the comment in which others may lie.
fn block_comment(rest: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while at < rest.len() {
        match rest.get(at..at + 2) {
            Some(b"/*") => (at, depth) = (at + 2, depth + 1),
            Some(b"*/") if depth == 1 => return at + 2,
            Some(b"*/") => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
    }
    rest.len()
}

/// Bytes of a text with its quotation marks.
fn quoted(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Bytes of a raw text whose prefix has `prefix` bytes; of the prefix alone if it is a name after all.
fn raw(rest: &[u8], prefix: usize) -> usize {
    let hashes = rest[prefix..].iter().take_while(|byte| **byte == b'#').count();
    if rest.get(prefix + hashes) != Some(&b'"') {
        return prefix;
    }
    let opened = prefix + hashes + 1;
    let closing = [&b"\""[..], &b"#".repeat(hashes)].concat();
    let found = rest[opened..].windows(closing.len()).position(|window| window == closing);
    found.map_or(rest.len(), |found| opened + found + closing.len())
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// What is left without the items below `#[cfg(test)]`, and the modules that are declared below it.
pub(super) fn without_tests<'a>(tokens: &[Token<'a>]) -> (Vec<Token<'a>>, Vec<&'a str>) {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut left, mut modules, mut at) = (Vec::new(), Vec::new(), 0);
    while at < tokens.len() {
        let marked =
            MARK.iter().enumerate().all(|(index, text)| tokens.get(at + index).is_some_and(|t| t.text == *text));
        if !marked {
            left.push(tokens[at]);
            at += 1;
            continue;
        }
        let end = item_end(tokens, at + MARK.len());
        let item = &tokens[at..end];
        if let Some(name) = item.windows(2).find(|pair| pair[0].text == "mod").map(|pair| pair[1].text) {
            modules.push(name);
        }
        at = end;
    }
    (left, modules)
}

/// Where the item that begins at `at` is over: after its `;`, or after the brace that closes its first one.
fn item_end(tokens: &[Token<'_>], at: usize) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" => depth = depth.saturating_sub(1),
            "}" if depth <= 1 => return index + 1,
            "}" => depth -= 1,
            ";" if depth == 0 => return index + 1,
            _ => {}
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_text_and_lifetimes_are_no_code() {
        let text = r###"a::b // c::d
            /* e /* f */ g */ "h::i \" j" r#"k " l"# b"m" 'n' '\'' '\u{1f}' fn o<'p>(q: &'p str) -> r; 'ö' s"###;
        let found: Vec<&str> = tokens(text).iter().map(|token| token.text).collect();
        let expected = ["a", "::", "b", "fn", "o", "<", ">", "(", "q", ":", "&", "str", ")", "-", ">", "r", ";", "s"];
        assert_eq!(found, expected);
    }

    #[test]
    fn lines_are_counted_through_text() {
        let found: Vec<(&str, usize)> = tokens("a \"\n\" b\nc").iter().map(|token| (token.text, token.line)).collect();
        assert_eq!(found, [("a", 1), ("b", 2), ("c", 3)]);
    }

    #[test]
    fn tests_are_left_out() {
        let text = "a; #[cfg(test)] #[path = \"x\"] mod b; c; #[cfg(test)] mod d { fn e() { f } } g; #[cfg(test)] fn h(i: [u8; 2]) {} j";
        let all = tokens(text);
        let (left, modules) = without_tests(&all);
        let names: Vec<&str> = left.iter().map(|token| token.text).filter(|text| *text != ";").collect();
        assert_eq!((names, modules), (vec!["a", "c", "g", "j"], vec!["b", "d"]));
    }
}
