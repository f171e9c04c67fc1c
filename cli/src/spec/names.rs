//! Lists of names as operators write them: `gpu-[0001-0064]`.
//!
//! What must stay true: each name stands once in what comes out, with as many digits as the range was written with; a list is bounded before it is written
//! out.

use crate::failure::Failure;
use crate::units;
use muster_model::bounds::JOIN_TOKEN_NAMES_MAX;

/// Digits of the numbers in a range: names are no longer.
const RANGE_DIGITS_MAX: usize = 64;

/// Writes the names out.
///
/// # Errors
/// When a range cannot be one, or there are too many names.
pub fn names(field: &str, written: &[String]) -> Result<Vec<String>, Failure> {
    let mut all = Vec::new();
    for pattern in written {
        let more = expanded(pattern).map_err(|problem| {
            Failure::field(field, format!("{pattern:?} {problem}"), "write names, or a range such as gpu-[0001-0064]")
        })?;
        all.extend(more);
        if all.len() > JOIN_TOKEN_NAMES_MAX {
            let problem = format!("has more than {JOIN_TOKEN_NAMES_MAX} names");
            return Err(Failure::field(field, problem, "make several tokens"));
        }
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

fn expanded(pattern: &str) -> Result<Vec<String>, &'static str> {
    let Some((head, rest)) = pattern.split_once('[') else { return Ok(vec![pattern.to_owned()]) };
    let (range, tail) = rest.split_once(']').ok_or("has no closing bracket")?;
    if tail.contains('[') {
        return Err("has two ranges");
    }
    let (first, last) = range.split_once('-').ok_or("has a range without '-'")?;
    if first.len() > RANGE_DIGITS_MAX {
        return Err("has a range with too many digits");
    }
    let number = |text: &str| units::whole_number(text).ok_or("has a range whose ends are no numbers");
    let (from, to) = (number(first)?, number(last)?);
    if from > to {
        return Err("has a range that ends before it begins");
    }
    if to - from >= JOIN_TOKEN_NAMES_MAX as u64 {
        return Err("has a range with too many names");
    }
    let digits = first.len();
    Ok((from..=to).map(|number| format!("{head}{number:0digits$}{tail}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_written_out() {
        let of = |written: &[&str]| {
            names("names", &written.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
                .map_err(|failure| failure.to_string())
        };
        let expect = |names: &[&str]| Ok(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(
            of(&["gpu-[08-11].rack", "a", "gpu-[09-10].rack"]),
            expect(&["a", "gpu-08.rack", "gpu-09.rack", "gpu-10.rack", "gpu-11.rack"])
        );
        assert_eq!(of(&["n[1-3]"]), expect(&["n1", "n2", "n3"]));
        let many_digits = format!("n[{}1-2]", "0".repeat(70_000));
        for wrong in [
            many_digits.as_str(),
            "n[+1-3]",
            "n[1-+3]",
            "n[1-3",
            "n[3]",
            "n[a-b]",
            "n[3-1]",
            "n[1-2][3-4]",
            "n[0-99999999]",
        ] {
            assert!(of(&[wrong]).is_err(), "{wrong}");
        }
    }
}
