//! Plots of policies side by side: a dot at the mean of the seeds, a line from the least to the most.
//!
//! What must stay true: same data, same bytes; every axis says its unit; colours are the page's classes `c1` to `c9`.

use super::figures::Spread;
use muster_twin::html::words::{escape, span};
use std::fmt::Write;

const WIDTH: f64 = 1000.0;
/// Beside another plot.
const HALF: f64 = 460.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 40.0;

/// How values are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// Shares of 1 as percentages.
    Percent {
        /// In percent, where the axis begins.
        least: u32,
        /// Where it ends.
        most: u32,
    },
    /// Plain numbers from 0 to 1.
    Index,
    /// Seconds on a logarithmic axis; what is below a second stands at its foot.
    Seconds,
}

/// One policy's value in a group.
pub(super) struct Dot {
    pub(super) class: &'static str,
    pub(super) spread: Spread,
}

/// Dots of one load or size.
pub(super) struct Group {
    pub(super) name: String,
    pub(super) dots: Vec<Dot>,
}

/// Marks of the axis of seconds.
const MARKS: [(f64, &str); 9] = [
    (1.0, "≤ 1 s"),
    (10.0, "10 s"),
    (60.0, "1 min"),
    (600.0, "10 min"),
    (3_600.0, "1 h"),
    (21_600.0, "6 h"),
    (86_400.0, "1 d"),
    (604_800.0, "7 d"),
    (2_592_000.0, "30 d"),
];

/// Half or all of the page's width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    Half,
    Full,
}

/// The plot as one `<svg>`. `mark` draws a dashed line across, with its name.
pub(super) fn dots(
    title: &str,
    y_label: &str,
    scale: Scale,
    groups: &[Group],
    mark: Option<(f64, &str)>,
    width: Width,
) -> String {
    let (width, height) = if width == Width::Half { (HALF, 240.0) } else { (WIDTH, 260.0) };
    let spreads = || groups.iter().flat_map(|group| &group.dots).map(|dot| dot.spread);
    let most = spreads().map(|spread| spread.high).chain(mark.map(|(at, _)| at)).fold(0.0, f64::max);
    let last = MARKS.iter().position(|(s, _)| *s >= most.max(600.0)).unwrap_or(MARKS.len() - 1);
    let bottom = height - BOTTOM;
    let y = |value: f64| {
        let part = match scale {
            Scale::Percent { least, most } => {
                let (least, most) = (f64::from(least) / 100.0, f64::from(most) / 100.0);
                (value - least) / (most - least)
            }
            Scale::Index => value,
            Scale::Seconds => value.max(1.0).ln() / MARKS[last].0.ln(),
        };
        bottom - (bottom - TOP) * part.clamp(0.0, 1.0)
    };
    let mut out = format!(r#"<svg viewBox="0 0 {width} {height}" role="img" aria-label="{}">"#, escape(title));
    for (value, text) in ticks(scale, last) {
        let at = y(value);
        let _ = write!(
            out,
            r#"<path class="g" d="M{LEFT} {at:.1}H{:.1}"/><text class="yt" x="{:.1}" y="{:.1}">{text}</text>"#,
            width - RIGHT,
            LEFT - 8.0,
            at + 4.0
        );
    }
    let _ = write!(
        out,
        r#"<text class="al" transform="translate(12 {:.1}) rotate(-90)">{}</text>"#,
        (TOP + bottom) / 2.0,
        escape(y_label)
    );
    let each = (width - LEFT - RIGHT) / groups.len().max(1) as f64;
    for (index, group) in groups.iter().enumerate() {
        let middle = LEFT + each * (index as f64 + 0.5);
        let _ =
            write!(out, r#"<text class="xt" x="{middle:.1}" y="{:.1}">{}</text>"#, bottom + 20.0, escape(&group.name));
        let step = (each * 0.7 / group.dots.len().max(1) as f64).min(34.0);
        for (place, dot) in group.dots.iter().enumerate() {
            let x = middle + step * (place as f64 - (group.dots.len() as f64 - 1.0) / 2.0);
            let (at, low, high) = (y(dot.spread.mean), y(dot.spread.low), y(dot.spread.high));
            let _ = write!(
                out,
                r#"<path class="l {0}" d="M{x:.1} {low:.1}V{high:.1}M{1:.1} {low:.1}h8M{1:.1} {high:.1}h8"/><circle class="f {0}" cx="{x:.1}" cy="{at:.1}" r="5"><title>{2}</title></circle>"#,
                dot.class,
                x - 4.0,
                escape(&read(scale, dot.spread)),
            );
        }
    }
    if let Some((value, name)) = mark {
        let at = y(value);
        let _ = write!(
            out,
            r#"<path class="cap" d="M{LEFT} {at:.1}H{:.1}"/><text class="ct" x="{:.1}" y="{:.1}">{}</text>"#,
            width - RIGHT,
            width - RIGHT - 4.0,
            if at < TOP + 16.0 { at + 14.0 } else { at - 5.0 },
            escape(name)
        );
    }
    out.push_str("</svg>");
    out
}

/// A bar: its name, its parts by their class of colour, and a mark; the whole width is 1.
pub(super) type Bar = (String, Vec<(&'static str, f64)>, f64);

/// Bars made of parts.
pub(super) fn bars(title: &str, rows: &[Bar]) -> String {
    const ROW: f64 = 24.0;
    const NAME: f64 = 150.0;
    let height = TOP + ROW * rows.len() as f64 + 30.0;
    let wide = WIDTH - NAME - RIGHT - 20.0;
    let mut out = format!(r#"<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{}">"#, escape(title));
    for percent in [0, 25, 50, 75, 100] {
        let x = NAME + wide * f64::from(percent) / 100.0;
        let _ = write!(
            out,
            r#"<path class="g" d="M{x:.1} {TOP}V{:.1}"/><text class="xt" x="{x:.1}" y="{:.1}">{percent} %</text>"#,
            height - 30.0,
            height - 12.0
        );
    }
    for (index, (name, parts, bound)) in rows.iter().enumerate() {
        let y = TOP + ROW * index as f64 + 4.0;
        let _ = write!(out, r#"<text class="rn" x="{:.1}" y="{:.1}">{}</text>"#, NAME - 10.0, y + 13.0, escape(name));
        let mut x = NAME;
        for (class, share) in parts {
            let width = wide * share.clamp(0.0, 1.0);
            let _ = write!(out, r#"<path class="f {class}" d="M{x:.1} {y:.1}h{width:.2}v16h-{width:.2}z"/>"#);
            x += width;
        }
        let at = NAME + wide * bound;
        let _ = write!(out, r#"<path class="p99" d="M{at:.1} {:.1}v20"/>"#, y - 2.0);
    }
    out.push_str("</svg>");
    out
}

fn ticks(scale: Scale, last: usize) -> Vec<(f64, String)> {
    match scale {
        Scale::Percent { least, most } => {
            let step = match most - least {
                0..=5 => 1,
                6..=25 => 5,
                _ => 20,
            };
            (least..=most).step_by(step).map(|percent| (f64::from(percent) / 100.0, format!("{percent} %"))).collect()
        }
        Scale::Index => {
            (0..=5).map(|fifth| (f64::from(fifth) / 5.0, format!("{:.1}", f64::from(fifth) / 5.0))).collect()
        }
        Scale::Seconds => MARKS[..=last].iter().map(|(s, text)| (*s, (*text).to_owned())).collect(),
    }
}

fn read(scale: Scale, spread: Spread) -> String {
    let one = |value: f64| match scale {
        Scale::Percent { .. } => format!("{:.2} %", value * 100.0),
        Scale::Index => format!("{value:.3}"),
        Scale::Seconds => span(value),
    };
    format!("{} ({} to {})", one(spread.mean), one(spread.low), one(spread.high))
}
