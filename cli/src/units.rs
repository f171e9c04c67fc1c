//! How people write durations, sizes, CPUs and shares of a card, and how these are shown.
//!
//! What must stay true: nothing is rounded in silence; what cannot be said exactly is refused with the way to say it.

use muster_model::GpuUnits;

/// What is wrong with a written amount, and how to write it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}; {fix}")]
pub struct UnitError {
    /// What was written, and why it will not do.
    pub problem: String,
    /// What to write.
    pub fix: &'static str,
}

impl UnitError {
    fn new(problem: String, fix: &'static str) -> Self {
        UnitError { problem, fix }
    }
}

/// Seconds in `4h`, `1h30m`, `2d`, `90s`, `1:30:00`, `2-12:00:00`.
///
/// # Errors
/// When it is none of these. A bare number is none: it is minutes to users of Slurm and seconds to others.
pub fn seconds(text: &str) -> Result<u64, UnitError> {
    let bad = || UnitError::new(format!("{text:?} is not a duration"), "write 30s, 45m, 4h, 1h30m, 2d or 2-12:00:00");
    let without_unit = || {
        let problem = format!("{text:?} has no unit");
        UnitError::new(problem, "write s, m, h or d after the number: 30s, 45m, 4h, 2d")
    };
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(bad());
    }
    if trimmed.contains(':') {
        return clock_seconds(trimmed).ok_or_else(bad);
    }
    let mut total: u64 = 0;
    let mut number = String::new();
    for c in trimmed.chars() {
        if c.is_ascii_digit() {
            number.push(c);
            continue;
        }
        let unit = match c {
            's' => 1,
            'm' => 60,
            'h' => 3_600,
            'd' => 86_400,
            'w' => 7 * 86_400,
            _ => return Err(bad()),
        };
        let count: u64 = number.parse().map_err(|_| bad())?;
        total = count.checked_mul(unit).and_then(|part| total.checked_add(part)).ok_or_else(bad)?;
        number.clear();
    }
    if number.is_empty() { Ok(total) } else { Err(without_unit()) }
}

/// `H:MM:SS` or `D-HH:MM:SS`, as Slurm writes them; `M:SS` too.
fn clock_seconds(text: &str) -> Option<u64> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (whole_number(days)?, clock),
        None => (0, text),
    };
    let parts: Vec<u64> = clock.split(':').map(whole_number).collect::<Option<_>>()?;
    let (hours, minutes, rest) = match parts[..] {
        [h, m, s] => (h, m, s),
        [m, s] => (0, m, s),
        _ => return None,
    };
    if minutes > 59 && parts.len() == 3 || rest > 59 {
        return None;
    }
    let whole = days.checked_mul(86_400)?.checked_add(hours.checked_mul(3_600)?)?;
    whole.checked_add(minutes.checked_mul(60)?)?.checked_add(rest)
}

/// A number that is written with digits alone: no sign, as `+5` would be.
pub(crate) fn whole_number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// MiB in `512Mi`, `80Gi`, `1Ti` and the same with `G`, `GB` or `GiB`: all are powers of 1,024, as in Slurm.
///
/// # Errors
/// Without a unit, or when it is no whole number of MiB.
pub fn mebibytes(text: &str) -> Result<u64, UnitError> {
    const FIX: &str = "write 512Mi, 80Gi or 1Ti";
    let bad = |why: &str| UnitError::new(format!("{text:?} {why}"), FIX);
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let kib_per_unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" => return Err(bad("has no unit")),
        "k" | "kb" | "ki" | "kib" => 1,
        "m" | "mb" | "mi" | "mib" => 1 << 10,
        "g" | "gb" | "gi" | "gib" => 1 << 20,
        "t" | "tb" | "ti" | "tib" => 1 << 30,
        _ => return Err(bad("is not a size")),
    };
    let kib = decimal_times(number, kib_per_unit).ok_or_else(|| bad("is not a size"))?;
    if kib % 1_024 != 0 {
        return Err(bad("is not a whole number of MiB"));
    }
    Ok(kib / 1_024)
}

/// Milli-CPUs in `4`, `0.5`, `500m`.
///
/// # Errors
/// When it is none of these.
pub fn milli_cpus(text: &str) -> Result<u64, UnitError> {
    let trimmed = text.trim();
    let parsed = match trimmed.strip_suffix('m') {
        Some(milli) => whole_number(milli),
        None => decimal_times(trimmed, 1_000),
    };
    parsed.ok_or_else(|| UnitError::new(format!("{text:?} is not a number of CPUs"), "write 4, 0.5 or 500m"))
}

/// GPU units in cards `8`, `0.5`, `3/7`, or plainly `3500 units`.
///
/// # Errors
/// When it is none of these or falls between two units.
pub fn gpu_units(text: &str) -> Result<GpuUnits, UnitError> {
    let card = GpuUnits::CARD.0;
    let bad = || {
        UnitError::new(
            format!("{text:?} is not a whole number of GPU units (1 GPU has 7,000)"),
            "write GPUs as 8, 0.5 or 3/7, or 2333 units",
        )
    };
    let trimmed = text.trim();
    if let Some(units) = trimmed.strip_suffix("units") {
        return whole_number(units.trim()).map(GpuUnits).ok_or_else(bad);
    }
    if let Some((above, below)) = trimmed.split_once('/') {
        let above = whole_number(above.trim()).ok_or_else(bad)?;
        let below = whole_number(below.trim()).ok_or_else(bad)?;
        let units = above.checked_mul(card).ok_or_else(bad)?;
        return if below > 0 && units % below == 0 { Ok(GpuUnits(units / below)) } else { Err(bad()) };
    }
    decimal_times(trimmed, card).map(GpuUnits).ok_or_else(bad)
}

/// A decimal number times `factor`, if that is a whole number.
fn decimal_times(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.len() > 9 || number.ends_with('.') {
        return None;
    }
    let whole = whole_number(whole)?;
    let scale = 10_u64.pow(u32::try_from(fraction.len()).ok()?);
    let part = if fraction.is_empty() { 0 } else { whole_number(fraction)? };
    let fraction_units = part.checked_mul(factor)?;
    if fraction_units % scale != 0 {
        return None;
    }
    whole.checked_mul(factor)?.checked_add(fraction_units / scale)
}

/// Units as cards, with no more digits than needed: `8`, `0.5`, `0.14`.
#[must_use]
pub fn show_cards(units: u64) -> String {
    trim_zeros(format!("{:.2}", GpuUnits(units).as_cards()))
}

/// MiB in the largest unit that says it exactly, otherwise with one digit: `80Gi`, `1.5Ti`.
#[must_use]
pub fn show_mebibytes(mib: u64) -> String {
    const GI: u64 = 1_024;
    const TI: u64 = 1_024 * 1_024;
    match mib {
        0..GI => format!("{mib}Mi"),
        GI..TI => format!("{}Gi", trim_zeros(format!("{:.1}", mib as f64 / GI as f64))),
        _ => format!("{}Ti", trim_zeros(format!("{:.1}", mib as f64 / TI as f64))),
    }
}

/// Units so that they can be written back: `8`, `0.5`, and `2333 units` where a decimal number would round.
#[must_use]
pub fn exact_cards(units: u64) -> String {
    let shown = show_cards(units);
    if gpu_units(&shown).is_ok_and(|read| read.0 == units) { shown } else { format!("{units} units") }
}

/// MiB so that they can be written back: `80Gi`, `1536Mi`.
#[must_use]
pub fn exact_mebibytes(mib: u64) -> String {
    let shown = show_mebibytes(mib);
    if mebibytes(&shown).is_ok_and(|read| read == mib) { shown } else { format!("{mib}Mi") }
}

/// `1 task`, `3 tasks`.
#[must_use]
pub fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Milli-CPUs as CPUs.
#[must_use]
pub fn show_cpus(milli: u64) -> String {
    trim_zeros(format!("{:.2}", milli as f64 / 1_000.0))
}

/// Seconds as squeue shows them: `3:07`, `1:02:03`, `2-03:00:00`.
#[must_use]
pub fn show_seconds(seconds: u64) -> String {
    let (days, hours, minutes, rest) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes}:{rest:02}"),
        (0, _) => format!("{hours}:{minutes:02}:{rest:02}"),
        _ => format!("{days}-{hours:02}:{minutes:02}:{rest:02}"),
    }
}

/// A moment as RFC 3339 in UTC, to the second.
#[must_use]
pub fn show_moment(ms: u64) -> String {
    let second = i64::try_from(ms / 1_000).ok().and_then(|second| jiff::Timestamp::from_second(second).ok());
    second.map_or_else(|| ms.to_string(), |timestamp| timestamp.to_string())
}

fn trim_zeros(text: String) -> String {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}
