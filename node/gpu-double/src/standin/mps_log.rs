//! Times as the MPS daemon writes them.
//!
//! What must stay true: a line of a log begins with the time, the part that speaks, and its process id.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Appends lines in NVIDIA's form: `[2026-05-31 23:46:49.893 Control 11107] text`, in UTC.
pub(super) fn log(file: &Path, who: &str, pid: u32, text: impl Display) -> io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (now.as_secs() / 86_400, now.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second, ms) = (seconds / 3_600, seconds / 60 % 60, seconds % 60, now.subsec_millis());
    let mut log = OpenOptions::new().append(true).create(true).open(file)?;
    text.to_string().lines().try_for_each(|line| {
        let time = format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{ms:03}");
        writeln!(log, "[{time} {who} {pid:>5}] {line}")
    })
}

/// Year, month and day of a day since 1970, in the Gregorian calendar.
const fn date(days: u64) -> (u64, u64, u64) {
    // Counted from the 1st of March of year 0, so that the leap day is a year's last.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + (month <= 2) as u64, month, day)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn days_are_dates() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(11_016), (2000, 2, 29));
        assert_eq!(date(20_453), (2025, 12, 31));
        assert_eq!(date(20_454), (2026, 1, 1));
    }
}
