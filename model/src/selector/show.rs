//! A selector as text: what parses back to the same tree.

use super::{Expr, Order, Selector, Word};
use std::fmt::{self, Display, Formatter};

impl Display for Selector {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Display for Expr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Expr::All(parts) => joined(f, parts, " && "),
            Expr::Any(parts) => joined(f, parts, " || "),
            // Each level of the text is a level of the tree, so what is within the bounds can be read again.
            Expr::Not(part) if matches!(**part, Expr::Not(_)) => write!(f, "!{part}"),
            Expr::Not(part) => write!(f, "!({part})"),
            Expr::Model(models) => one_of(f, "device.model", models.iter().map(|model| quoted(model.facts().name))),
            Expr::Memory(order, limit) => write!(f, "device.memory_mib {order} {limit}"),
            Expr::Driver(order, limit) => write!(f, "device.driver {order} version(\"{limit}\")"),
            Expr::Cuda(order, limit) => write!(f, "device.cuda {order} version(\"{limit}\")"),
            Expr::Word(word, any_of) => one_of(f, &word.to_string(), any_of.iter().map(|text| quoted(text))),
            Expr::HasLabel(label) => write!(f, "{} in node.labels", quoted(label)),
        }
    }
}

/// Parts that are joined themselves stand in brackets, so that the text does not lean on precedence.
fn joined(f: &mut Formatter<'_>, parts: &[Expr], by: &str) -> fmt::Result {
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            f.write_str(by)?;
        }
        if matches!(part, Expr::All(_) | Expr::Any(_)) { write!(f, "({part})")? } else { part.fmt(f)? }
    }
    Ok(())
}

fn one_of(f: &mut Formatter<'_>, field: &str, words: impl ExactSizeIterator<Item = String>) -> fmt::Result {
    let alone = words.len() == 1;
    let words = words.collect::<Vec<_>>().join(", ");
    if alone { write!(f, "{field} == {words}") } else { write!(f, "{field} in [{words}]") }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

impl Display for Order {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::Equal => "==",
            Order::Below => "<",
            Order::AtMost => "<=",
            Order::Above => ">",
            Order::AtLeast => ">=",
        })
    }
}

impl Display for Word {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Word::Name => f.write_str("node.name"),
            Word::Pool => f.write_str("node.pool"),
            Word::Region => f.write_str("node.region"),
            Word::Zone => f.write_str("node.zone"),
            Word::Block => f.write_str("node.block"),
            Word::Leaf => f.write_str("node.leaf"),
            Word::Label(label) => write!(f, "node.labels[{}]", quoted(label)),
        }
    }
}
