//! The known word that was probably meant.

/// The word of `known` that is a slip away: two edits at most, and fewer than half the word. `_` and `-`, upper and lower case are the same.
#[must_use]
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace('_', "-");
    let word = plain(word);
    let close = |other: &&str| other.chars().count().abs_diff(word.chars().count()) <= 2;
    let (edits, meant) = known.into_iter().filter(close).map(|other| (edits(&word, &plain(other)), other)).min()?;
    (edits <= 2 && edits * 2 < meant.len().max(word.len())).then_some(meant)
}

/// Levenshtein's distance, where two neighbouring letters that changed places count once.
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let mut least = (rows[i][j] + usize::from(a[i] != b[j])).min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_slip_finds_its_word_and_another_word_finds_none() {
        let known = ["gold", "serving", "time_limit"];
        assert_eq!(nearest("gol", known), Some("gold"));
        assert_eq!(nearest("glod", known), Some("gold"));
        assert_eq!(nearest("Servnig", known), Some("serving"));
        assert_eq!(nearest("time-limit", known), Some("time_limit"));
        assert_eq!(nearest("silver", known), None);
        assert_eq!(nearest("x", known), None);
    }
}
