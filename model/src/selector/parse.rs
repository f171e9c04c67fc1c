//! From text to a tree, by recursive descent.
//!
//! CEL's precedence: `||` binds least, then `&&`, then one comparison, then `!`. What must stay true: every fault names where it is
//! (a byte, from 1), what stands there and what to write; recursion is bounded before it happens, whatever the text.

use super::{Expr, Order, Selector, Word};
use crate::driver::DriverVersion;
use crate::gpu::GpuModel;
use crate::words::UnknownWord;
use std::str::FromStr;

/// Bounds of one selector: a person writes less, and evaluation stays far below a microsecond.
pub mod bounds {
    /// Bytes of text.
    pub const TEXT_BYTES_MAX: usize = 4_096;
    /// Comparisons, joins and negations together.
    pub const PARTS_MAX: usize = 64;
    /// Brackets and negations inside each other.
    pub const DEPTH_MAX: usize = 16;
    /// Bytes of one word: as much as a label may have.
    pub const WORD_BYTES_MAX: usize = crate::bounds::TEXT_BYTES_MAX;
    /// Words of one list.
    pub const LIST_MAX: usize = 64;
}

/// Text that is no selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem} at byte {at}; {fix}")]
pub struct BadSelector {
    /// Where, from 1.
    pub at: usize,
    /// What stands there.
    pub problem: String,
    /// What to write instead.
    pub fix: String,
}

const FIELDS: &str = "use device.model, device.memory_mib, device.driver, device.cuda, node.name, node.pool, node.region, node.zone, node.block, \
                      node.leaf or node.labels[\"...\"]";
const COMPARISONS: &str =
    "compare a field: device.model == \"h100\", device.memory_mib >= 40000, device.driver >= version(\"550\")";

impl FromStr for Selector {
    type Err = BadSelector;

    fn from_str(text: &str) -> Result<Self, BadSelector> {
        short_enough(text.len())?;
        let mut parser = Parser { text, at: 0 };
        let expr = parser.any(0)?;
        parser.space();
        if parser.at < text.len() {
            return Err(parser.fault(parser.at, "join comparisons with && or ||"));
        }
        bounded(expr).map(Selector)
    }
}

/// A text of so many bytes is within the bounds.
pub(super) fn short_enough(bytes: usize) -> Result<(), BadSelector> {
    if bytes <= bounds::TEXT_BYTES_MAX {
        return Ok(());
    }
    let fix = format!("use at most {} bytes", bounds::TEXT_BYTES_MAX);
    Err(BadSelector { at: bounds::TEXT_BYTES_MAX, problem: format!("has {bytes} bytes"), fix })
}

/// The tree, when it is within the bounds.
pub(super) fn bounded(expr: Expr) -> Result<Expr, BadSelector> {
    fn measure(expr: &Expr) -> (usize, usize) {
        let of = |parts: &mut dyn Iterator<Item = &Expr>| {
            parts.map(measure).fold((1, 1), |(count, depth), (more, below)| (count + more, depth.max(below + 1)))
        };
        match expr {
            Expr::All(parts) | Expr::Any(parts) => of(&mut parts.iter()),
            Expr::Not(part) => of(&mut std::iter::once(&**part)),
            _ => (1, 1),
        }
    }
    let (parts, depth) = measure(&expr);
    let most = |what: &str, got: usize, most: usize| BadSelector {
        at: 1,
        problem: format!("has {got} {what}"),
        fix: format!("use at most {most}: name the models, or label the nodes"),
    };
    if parts > bounds::PARTS_MAX {
        return Err(most("parts", parts, bounds::PARTS_MAX));
    }
    let bytes = expr.to_string().len();
    if bytes > bounds::TEXT_BYTES_MAX {
        return Err(most("bytes written out", bytes, bounds::TEXT_BYTES_MAX));
    }
    if depth > bounds::DEPTH_MAX {
        return Err(most("levels", depth, bounds::DEPTH_MAX));
    }
    Ok(expr)
}

/// What one side of a comparison is.
enum Side {
    Model,
    Memory,
    Driver,
    Cuda,
    Word(Word),
    Labels,
    Text(String),
    Number(u64),
    Version(DriverVersion),
    List(Vec<String>),
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn any(&mut self, depth: usize) -> Result<Expr, BadSelector> {
        let mut parts = vec![self.all(depth)?];
        while self.takes("||") {
            parts.push(self.all(depth)?);
            self.not_too_many(&parts)?;
        }
        Ok(join(parts, Expr::Any, |part| match part {
            Expr::Any(parts) => Ok(parts),
            other => Err(other),
        }))
    }

    fn all(&mut self, depth: usize) -> Result<Expr, BadSelector> {
        let mut parts = vec![self.unary(depth)?];
        while self.takes("&&") {
            parts.push(self.unary(depth)?);
            self.not_too_many(&parts)?;
        }
        Ok(join(parts, Expr::All, |part| match part {
            Expr::All(parts) => Ok(parts),
            other => Err(other),
        }))
    }

    fn unary(&mut self, depth: usize) -> Result<Expr, BadSelector> {
        self.space();
        let start = self.at;
        if depth > bounds::DEPTH_MAX {
            let fix = format!("nest at most {} brackets and negations", bounds::DEPTH_MAX);
            return Err(BadSelector { at: start + 1, problem: "is nested too deeply".to_owned(), fix });
        }
        if self.takes("!") {
            return Ok(Expr::Not(Box::new(self.unary(depth + 1)?)));
        }
        if self.takes("(") {
            let inner = self.any(depth + 1)?;
            return if self.takes(")") { Ok(inner) } else { Err(self.fault(self.at, "close the bracket with )")) };
        }
        self.comparison()
    }

    fn not_too_many(&self, parts: &[Expr]) -> Result<(), BadSelector> {
        if parts.len() <= bounds::PARTS_MAX {
            return Ok(());
        }
        let fix = format!("use at most {} parts", bounds::PARTS_MAX);
        Err(BadSelector { at: self.at + 1, problem: "has too many parts".to_owned(), fix })
    }

    fn comparison(&mut self) -> Result<Expr, BadSelector> {
        self.space();
        let start = self.at;
        let left = self.side()?;
        self.space();
        let sign_at = self.at;
        let sign = ["==", "!=", "<=", ">=", "<", ">", "in"].into_iter().find(|sign| self.takes(sign));
        let Some(sign) = sign else { return Err(self.fault(sign_at, "compare with ==, !=, <, <=, >, >= or in")) };
        let right = self.side()?;
        let wrong = |problem: &str, fix: &str| {
            Err(BadSelector { at: start + 1, problem: problem.to_owned(), fix: fix.to_owned() })
        };
        match (left, sign, right) {
            (Side::Text(label), "in", Side::Labels) => Ok(Expr::HasLabel(label)),
            (Side::Model, "in", Side::List(names)) => models(start, &names),
            (Side::Word(word), "in", Side::List(words)) => Ok(Expr::Word(word, words)),
            (Side::Model, "==" | "!=", Side::Text(name)) | (Side::Text(name), "==" | "!=", Side::Model) => {
                Ok(negated(sign, models(start, &[name])?))
            }
            (Side::Word(word), "==" | "!=", Side::Text(text)) | (Side::Text(text), "==" | "!=", Side::Word(word)) => {
                Ok(negated(sign, Expr::Word(word, vec![text])))
            }
            (Side::Memory, _, Side::Number(limit)) if sign != "in" => {
                Ok(negated(sign, Expr::Memory(order(sign, false), limit)))
            }
            (Side::Number(limit), _, Side::Memory) if sign != "in" => {
                Ok(negated(sign, Expr::Memory(order(sign, true), limit)))
            }
            (Side::Driver, _, Side::Version(limit)) if sign != "in" => {
                Ok(negated(sign, Expr::Driver(order(sign, false), limit)))
            }
            (Side::Version(limit), _, Side::Driver) if sign != "in" => {
                Ok(negated(sign, Expr::Driver(order(sign, true), limit)))
            }
            (Side::Cuda, _, Side::Version(limit)) if sign != "in" => {
                Ok(negated(sign, Expr::Cuda(order(sign, false), limit)))
            }
            (Side::Version(limit), _, Side::Cuda) if sign != "in" => {
                Ok(negated(sign, Expr::Cuda(order(sign, true), limit)))
            }
            (Side::Driver, ..) | (_, _, Side::Driver) => {
                wrong("device.driver is compared with no version", "write device.driver >= version(\"550\")")
            }
            (Side::Cuda, ..) | (_, _, Side::Cuda) => {
                wrong("device.cuda is compared with no version", "write device.cuda >= version(\"12.4\")")
            }
            (Side::Memory, ..) | (_, _, Side::Memory) => {
                wrong("device.memory_mib is compared with no number", "write device.memory_mib >= 40000, in MiB")
            }
            (Side::Model | Side::Word(_), ..) | (_, _, Side::Model | Side::Word(_)) => {
                wrong("a word is compared with no word", "write == \"word\" or in [\"one\", \"other\"]")
            }
            (Side::Labels, ..) | (_, _, Side::Labels) => wrong(
                "node.labels is compared as a whole",
                "write node.labels[\"name\"] == \"value\" or \"name\" in node.labels",
            ),
            _ => wrong("no field is compared", COMPARISONS),
        }
    }

    fn side(&mut self) -> Result<Side, BadSelector> {
        self.space();
        let start = self.at;
        match self.rest().bytes().next() {
            Some(b'"' | b'\'') => self.word().map(Side::Text),
            Some(b'[') => self.list().map(Side::List),
            Some(b'0'..=b'9') => {
                let digits = self.take_while(|c| c.is_ascii_digit());
                digits.parse().map(Side::Number).map_err(|_| self.fault(start, "write a number of MiB"))
            }
            Some(byte) if byte.is_ascii_alphabetic() => self.field(),
            _ => Err(self.fault(start, COMPARISONS)),
        }
    }

    fn field(&mut self) -> Result<Side, BadSelector> {
        let start = self.at;
        let name = self.take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'));
        Ok(match name.as_str() {
            "device.model" => Side::Model,
            "device.memory_mib" => Side::Memory,
            "device.driver" => Side::Driver,
            "device.cuda" => Side::Cuda,
            "node.name" => Side::Word(Word::Name),
            "node.pool" => Side::Word(Word::Pool),
            "node.region" => Side::Word(Word::Region),
            "node.zone" => Side::Word(Word::Zone),
            "node.block" => Side::Word(Word::Block),
            "node.leaf" => Side::Word(Word::Leaf),
            "node.labels" if self.takes("[") => {
                let label = self.word()?;
                if !self.takes("]") {
                    return Err(self.fault(self.at, "close the label with ]"));
                }
                Side::Word(Word::Label(label))
            }
            "node.labels" => Side::Labels,
            "version" => {
                let fix = "write version(\"550\") or version(\"550.54.15\")";
                if !self.takes("(") {
                    return Err(self.fault(self.at, fix));
                }
                let at = self.at;
                let version = self.word()?.parse().map_err(|_| self.fault(at, fix))?;
                if !self.takes(")") {
                    return Err(self.fault(self.at, fix));
                }
                Side::Version(version)
            }
            _ => return Err(self.fault(start, FIELDS)),
        })
    }

    fn list(&mut self) -> Result<Vec<String>, BadSelector> {
        let start = self.at;
        self.takes("[");
        let mut words = Vec::new();
        loop {
            words.push(self.word()?);
            if words.len() > bounds::LIST_MAX {
                let fix = format!("list at most {} words", bounds::LIST_MAX);
                return Err(BadSelector { at: start + 1, problem: "the list is too long".to_owned(), fix });
            }
            if !self.takes(",") {
                break;
            }
        }
        if self.takes("]") { Ok(words) } else { Err(self.fault(self.at, "close the list with ]")) }
    }

    /// A word in double or single quotes; `\` keeps the next character as it is.
    fn word(&mut self) -> Result<String, BadSelector> {
        self.space();
        let start = self.at;
        let mut chars = self.rest().char_indices();
        let Some((_, quote @ ('"' | '\''))) = chars.next() else {
            return Err(self.fault(start, "write a word in quotes"));
        };
        let mut word = String::new();
        while let Some((at, c)) = chars.next() {
            if c == quote {
                self.at = start + at + 1;
                if word.len() > bounds::WORD_BYTES_MAX {
                    let fix = format!("use at most {} bytes", bounds::WORD_BYTES_MAX);
                    return Err(BadSelector {
                        at: start + 1,
                        problem: format!("the word has {} bytes", word.len()),
                        fix,
                    });
                }
                return Ok(word);
            }
            match c {
                '\\' => word.extend(chars.next().map(|(_, c)| c)),
                _ => word.push(c),
            }
        }
        Err(self.fault(start, "close the quotes"))
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn takes(&mut self, sign: &str) -> bool {
        self.space();
        let there = self.rest().starts_with(sign);
        if there {
            self.at += sign.len();
        }
        there
    }

    fn take_while(&mut self, good: impl Fn(char) -> bool) -> String {
        let rest = self.rest();
        let taken = rest[..rest.find(|c| !good(c)).unwrap_or(rest.len())].to_owned();
        self.at += taken.len();
        taken
    }

    fn fault(&self, at: usize, fix: &str) -> BadSelector {
        let there: String = self.text[at..].chars().take(20).collect();
        let problem =
            if there.is_empty() { "the text ends".to_owned() } else { format!("{there:?} is not understood") };
        BadSelector { at: at + 1, problem, fix: fix.to_owned() }
    }
}

fn models(start: usize, names: &[String]) -> Result<Expr, BadSelector> {
    let known = |name: &String| {
        let unknown = |word: UnknownWord| BadSelector { at: start + 1, problem: word.problem(), fix: word.fix() };
        name.parse::<GpuModel>().map_err(unknown)
    };
    names.iter().map(known).collect::<Result<_, _>>().map(Expr::Model)
}

fn negated(sign: &str, expr: Expr) -> Expr {
    if sign == "!=" { Expr::Not(Box::new(expr)) } else { expr }
}

/// The order that `sign` means; `turned`: the field stands on the right.
fn order(sign: &str, turned: bool) -> Order {
    match (sign, turned) {
        ("<", false) | (">", true) => Order::Below,
        ("<=", false) | (">=", true) => Order::AtMost,
        (">", false) | ("<", true) => Order::Above,
        (">=", false) | ("<=", true) => Order::AtLeast,
        _ => Order::Equal,
    }
}

/// One part by itself, or several joined; a part that is the same kind of join gives its own parts.
fn join(mut parts: Vec<Expr>, kind: fn(Vec<Expr>) -> Expr, open: fn(Expr) -> Result<Vec<Expr>, Expr>) -> Expr {
    if parts.len() == 1
        && let Some(alone) = parts.pop()
    {
        return alone;
    }
    kind(parts.into_iter().flat_map(|part| open(part).unwrap_or_else(|other| vec![other])).collect())
}
