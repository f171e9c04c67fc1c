//! Figures and names as people read them.

/// Text that is safe inside HTML and SVG, attributes included.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

/// `1,234,567`.
#[must_use]
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A large amount without its fraction, a small one with it.
#[must_use]
pub fn amount(value: f64) -> String {
    if value >= 100.0 || value == value.trunc() { count(value.round() as u64) } else { format!("{value:.1}") }
}

/// `42.5 %`.
#[must_use]
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// `0 s`, `42 s`, `3.2 min`, `5.1 h`, `2.3 d`.
#[must_use]
pub fn span(seconds: f64) -> String {
    let one = |value: f64, unit: &str| {
        let text = format!("{value:.1}");
        format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
    };
    match seconds {
        s if s <= 0.0 => "0 s".to_owned(),
        s if s < 1.0 => "< 1 s".to_owned(),
        s if s < 99.5 => format!("{s:.0} s"),
        s if s < 5_970.0 => one(s / 60.0, "min"),
        s if s < 170_000.0 => one(s / 3600.0, "h"),
        s => one(s / 86_400.0, "d"),
    }
}
