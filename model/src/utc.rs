//! Moments in words: what a reason says of a time. Arithmetic alone, in UTC.

/// A moment as RFC 3339 writes it, to the second: `2026-11-23T01:05:33Z`.
#[must_use]
pub fn show(ms: u64) -> String {
    let seconds = ms / 1_000;
    let (year, month, day) = date(seconds / 86_400);
    let of_day = seconds % 86_400;
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", of_day / 3_600, of_day / 60 % 60, of_day % 60)
}

/// Year, month and day of a number of days since 1970-01-01, in the Gregorian calendar: whole cycles of 400, 100, 4 and 1 years that
/// begin on the first of March.
fn date(days: u64) -> (u64, u64, u64) {
    // 1970-01-01 is day 719,468 after 0000-03-01.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::show;

    #[test]
    fn moments_are_written_as_rfc_3339_says() {
        for (seconds, written) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_795_395_933, "2026-11-23T01:05:33Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(show(seconds * 1_000), written);
        }
    }
}
