//! Names that need a glossary of this project: the field has a word for each.
//!
//! What must stay true: a name of the left column is in no code (comments and text between quotation marks are not looked at), but for the
//! exceptions, where the word means what it says in English.

use crate::Finding;

/// What is not to be used as a name, and what to use.
const WORDS: &[(&str, &str)] = &[
    ("shelf", "bucket"),
    ("shelves", "buckets"),
    ("Shelf", "Bucket"),
    ("Make", "NodeClass"),
    ("stand_in", "assumed"),
    ("rest_until", "backoff_until"),
    ("stays_until", "a name that says what is not done until then"),
    ("patience", "a name that says what is waited for, and how long"),
    ("passed_over", "bypassed"),
    ("Keeper", "StarvationGuard"),
    ("starved", "bypassed"),
    ("siblings", "other_limits: the same class with other time limits"),
    ("kin", "families"),
    ("Kin", "Family"),
    ("glance", "fingerprint"),
    ("Departure", "ReleaseEvent"),
    ("shaken", "invalidated"),
    ("unsure", "uncommitted"),
    ("in_force", "active"),
    ("Sole", "SoleHolder"),
    ("Census", "Occupancy"),
    ("census", "occupancy"),
    ("Seat", "Entry of the session registry"),
    ("seat", "entry"),
    ("Tap", "LogStream"),
    ("funnel", "batcher"),
    ("Funnel", "Batcher"),
    ("door", "auth"),
    ("books", "ledger, or capacity"),
    ("Books", "Ledger"),
    ("story", "scenario"),
    ("Ground", "PlacementDomain"),
    ("promised", "reserved, or bound"),
    ("promises", "reservations"),
    ("Promised", "Reserved"),
    ("kept_for", "reserved_for"),
    ("kept_apart", "anti_affinity"),
    ("KeptApart", "AntiAffinityConflict"),
    ("apart_from", "anti_affinity"),
    ("ApartFrom", "AntiAffinity"),
    ("ApartLevel", "AntiAffinityLevel"),
    ("rooms", "modules, or free states"),
    ("nowhere", "infeasible"),
    ("blind", "topology_unaware"),
];

/// Where a word is right, with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    // Its own test.
    ("xtask/src/words.rs", "shelf"),
    ("xtask/src/words.rs", "books"),
];

/// Names of one file that are on the list.
#[must_use]
pub fn check_file(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for name in names(line) {
            let Some((_, right)) = WORDS.iter().find(|(wrong, _)| *wrong == name) else { continue };
            if !EXCEPTIONS.iter().any(|(below, word)| path.starts_with(below) && *word == name) {
                findings.push(Finding::new(path, format!("line {}: {name}: use {right}", number + 1)));
            }
        }
    }
    findings
}

/// The names in a line of code: words outside of comments and of text.
fn names(line: &str) -> Vec<&str> {
    let code = line.split("//").next().unwrap_or_default();
    let outside = code.split('"').step_by(2);
    let words = outside.flat_map(|part| part.split(|c: char| !c.is_alphanumeric() && c != '_'));
    words.filter(|word| !word.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_prose_is_not() {
        let wrong = "let shelf = self.books.get(\"the books\"); // on a shelf";
        let found: Vec<String> = check_file("model/src/x.rs", wrong).into_iter().map(|finding| finding.text).collect();
        assert_eq!(found, ["line 1: shelf: use bucket", "line 1: books: use ledger, or capacity"]);
        assert_eq!(check_file("xtask/src/words.rs", "let shelf = 1;"), []);
        assert_eq!(check_file("model/src/x.rs", "let bookshelf = \"shelf\"; // nowhere"), []);
    }
}
