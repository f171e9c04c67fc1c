//! Text that may be too long for its place. What must stay true: nothing is cut within a character.

/// `text`, cut to at most `bytes_max` bytes between two characters when it is longer; what was cut shows as `...`.
#[must_use]
pub fn clipped(mut text: String, bytes_max: usize) -> String {
    const CUT: &str = "...";
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max.saturating_sub(CUT.len())));
        text.push_str(CUT);
    }
    text
}
