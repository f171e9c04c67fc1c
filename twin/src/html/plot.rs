//! Small plots as SVG text: steps and areas over time, and ranges on a logarithmic axis of durations.
//!
//! What must stay true: same data, same bytes; every axis says its unit; coordinates are rounded to a tenth of a pixel, so that
//! a page of several plots stays small.

use super::words::{count, escape};
use std::fmt::Write;

/// Size of a plot and of the room around it for labels, in pixels.
const WIDTH: f64 = 1000.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 44.0;

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Filled down to zero.
    Area,
    /// A line.
    Line,
}

/// One series over the bins.
pub(super) struct Layer<'a> {
    pub(super) mark: Mark,
    /// A class of the page's style: `c1` to `c9`.
    pub(super) class: &'a str,
    pub(super) values: &'a [f64],
}

/// A plot over the window's time.
pub(super) struct TimePlot<'a> {
    /// What it shows, for those who cannot see it.
    pub(super) title: &'a str,
    /// With the unit.
    pub(super) y_label: &'a str,
    pub(super) height: f64,
    pub(super) bin_s: f64,
    pub(super) y_max: f64,
    /// A dashed line across, with its name.
    pub(super) mark_at: Option<(f64, &'a str)>,
    pub(super) layers: &'a [Layer<'a>],
    /// Each layer stands on the one before.
    pub(super) stacked: bool,
    /// Values are shares of 1, written as percentages.
    pub(super) percent: bool,
}

impl TimePlot<'_> {
    /// The value at the top of the plot; what is above is drawn there.
    pub(super) fn top(&self) -> f64 {
        nice_top(self.y_max)
    }

    /// The plot as one `<svg>`.
    pub(super) fn svg(&self) -> String {
        let bins = self.layers.iter().map(|layer| layer.values.len()).max().unwrap_or(0).max(1);
        let bottom = self.height - BOTTOM;
        let x = |bin: usize| LEFT + (WIDTH - LEFT - RIGHT) * bin as f64 / bins as f64;
        let top_value = self.top();
        let y = |value: f64| bottom - (bottom - TOP) * (value / top_value).clamp(0.0, 1.0);
        let mut out = open(self.height, self.title);
        for step in 0..=4 {
            let value = top_value * f64::from(step) / 4.0;
            let text = if self.percent { format!("{:.0} %", value * 100.0) } else { tick(value, top_value) };
            grid_line(&mut out, y(value), &text);
        }
        self.days(&mut out, bins, bottom);
        let _ = write!(
            out,
            r#"<text class="al" transform="translate(14 {:.1}) rotate(-90)">{}</text>"#,
            (TOP + bottom) / 2.0,
            escape(self.y_label)
        );
        let mut floor = vec![0.0; bins];
        for layer in self.layers {
            let tops: Vec<f64> = (0..bins)
                .map(|bin| layer.values.get(bin).copied().unwrap_or(0.0) + if self.stacked { floor[bin] } else { 0.0 })
                .collect();
            let path = match layer.mark {
                Mark::Line => steps(&tops, &x, &y),
                Mark::Area => closed(&tops, if self.stacked { &floor } else { &[] }, &x, &y),
            };
            let kind = if layer.mark == Mark::Line { "l" } else { "f" };
            let _ = write!(out, r#"<path class="{kind} {}" d="{path}"/>"#, layer.class);
            if self.stacked {
                floor = tops;
            }
        }
        if let Some((value, name)) = self.mark_at {
            let at = y(value);
            let _ = write!(
                out,
                r#"<path class="cap" d="M{LEFT} {at:.1}H{:.1}"/><text class="ct" x="{:.1}" y="{:.1}">{}</text>"#,
                WIDTH - RIGHT,
                WIDTH - RIGHT - 4.0,
                if at < TOP + 16.0 { at + 14.0 } else { at - 5.0 },
                escape(name)
            );
        }
        out.push_str("</svg>");
        out
    }

    fn days(&self, out: &mut String, bins: usize, bottom: f64) {
        let window_s = self.bin_s * bins as f64;
        let (step_s, unit_s, unit) = match window_s / 86_400.0 {
            days if days <= 0.5 => (nice_step(window_s / 3600.0 / 8.0) * 3600.0, 3600.0, "hours"),
            days if days <= 2.0 => (6.0 * 3600.0, 3600.0, "hours"),
            days if days <= 14.0 => (86_400.0, 86_400.0, "days"),
            days => (nice_step(days / 10.0).max(1.0) * 86_400.0, 86_400.0, "days"),
        };
        let mut at_s = 0.0;
        while at_s <= window_s * 1.0001 {
            let at = LEFT + (WIDTH - LEFT - RIGHT) * at_s / window_s;
            let text = format!("{}", (at_s / unit_s * 100.0).round() / 100.0);
            let _ = write!(
                out,
                r#"<path class="tk" d="M{at:.1} {bottom:.1}v5"/><text class="xt" x="{at:.1}" y="{:.1}">{text}</text>"#,
                bottom + 18.0
            );
            at_s += step_s;
        }
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        let _ = write!(
            out,
            r#"<text class="al" x="{middle:.1}" y="{:.1}">{unit} since the window began</text>"#,
            self.height - 6.0
        );
    }
}

/// One row of a range plot: seconds.
pub(super) struct Range {
    pub(super) name: String,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
}

/// Median, 90th and 99th percentile of each row on a logarithmic axis; what is below a second stands at the left edge.
pub(super) fn ranges(title: &str, rows: &[Range]) -> String {
    const ROW: f64 = 30.0;
    const NAME: f64 = 150.0;
    let height = TOP + ROW * rows.len() as f64 + BOTTOM;
    let bottom = height - BOTTOM;
    // From one second to the first mark that holds everything, a day at least.
    let marks = [
        (1.0, "≤ 1 s"),
        (10.0, "10 s"),
        (60.0, "1 min"),
        (600.0, "10 min"),
        (3600.0, "1 h"),
        (21_600.0, "6 h"),
        (86_400.0, "1 d"),
        (604_800.0, "7 d"),
        (2_592_000.0, "30 d"),
        (31_536_000.0, "1 y"),
    ];
    let most = rows.iter().map(|row| row.p99).fold(0.0, f64::max);
    let last = marks.iter().position(|(s, _)| *s >= most.max(86_400.0)).unwrap_or(marks.len() - 1);
    let scale = marks[last].0.ln();
    let x = |s: f64| NAME + (WIDTH - NAME - RIGHT - 20.0) * (s.clamp(1.0, marks[last].0).ln() / scale);
    let mut out = open(height, title);
    for (s, text) in &marks[..=last] {
        let at = x(*s);
        let _ = write!(
            out,
            r#"<path class="g" d="M{at:.1} {TOP}V{bottom:.1}"/><text class="xt" x="{at:.1}" y="{:.1}">{text}</text>"#,
            bottom + 18.0
        );
    }
    for (index, row) in rows.iter().enumerate() {
        let y = TOP + ROW * (index as f64 + 0.5);
        let (a, b, c) = (x(row.p50), x(row.p90), x(row.p99));
        let _ =
            write!(out, r#"<text class="rn" x="{:.1}" y="{:.1}">{}</text>"#, NAME - 14.0, y + 4.0, escape(&row.name));
        let _ =
            write!(out, r#"<path class="r1" d="M{a:.1} {y:.1}H{b:.1}"/><path class="r2" d="M{b:.1} {y:.1}H{c:.1}"/>"#);
        let _ = write!(
            out,
            r#"<path class="p99" d="M{c:.1} {:.1}v14"/><circle class="p90" cx="{b:.1}" cy="{y:.1}" r="5"/><circle class="p50" cx="{a:.1}" cy="{y:.1}" r="5"/>"#,
            y - 7.0
        );
    }
    let _ = write!(
        out,
        r#"<text class="al" x="{:.1}" y="{:.1}">wait from submission to binding (logarithmic)</text></svg>"#,
        (NAME + WIDTH) / 2.0,
        height - 6.0
    );
    out
}

fn open(height: f64, title: &str) -> String {
    format!(r#"<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{}">"#, escape(title))
}

fn grid_line(out: &mut String, y: f64, text: &str) {
    let _ = write!(
        out,
        r#"<path class="g" d="M{LEFT} {y:.1}H{:.1}"/><text class="yt" x="{:.1}" y="{:.1}">{text}</text>"#,
        WIDTH - RIGHT,
        LEFT - 8.0,
        y + 4.0
    );
}

/// Moves over the bins in steps; equal neighbours are joined, which is most of the saving in a quiet trace.
fn steps(tops: &[f64], x: &impl Fn(usize) -> f64, y: &impl Fn(f64) -> f64) -> String {
    let mut path = format!("M{:.1} {:.1}", x(0), y(tops[0]));
    walk(&mut path, tops, 0..tops.len(), x, y);
    path
}

fn walk(
    path: &mut String,
    tops: &[f64],
    bins: std::ops::Range<usize>,
    x: &impl Fn(usize) -> f64,
    y: &impl Fn(f64) -> f64,
) {
    let shown = |bin: usize| (y(tops[bin]) * 10.0).round();
    let end = bins.end;
    for bin in bins {
        if bin + 1 < end && shown(bin) == shown(bin + 1) {
            continue;
        }
        let _ = write!(path, "H{:.1}", x(bin + 1));
        if bin + 1 < end {
            let _ = write!(path, "V{:.1}", y(tops[bin + 1]));
        }
    }
}

/// The steps of `tops` and back along `floor`, or along zero.
fn closed(tops: &[f64], floor: &[f64], x: &impl Fn(usize) -> f64, y: &impl Fn(f64) -> f64) -> String {
    let mut path = steps(tops, x, y);
    let bins = tops.len();
    let low = |bin: usize| y(floor.get(bin).copied().unwrap_or(0.0));
    let _ = write!(path, "V{:.1}", low(bins - 1));
    for bin in (0..bins).rev() {
        if bin > 0 && (low(bin) * 10.0).round() == (low(bin - 1) * 10.0).round() {
            continue;
        }
        let _ = write!(path, "H{:.1}", x(bin));
        if bin > 0 {
            let _ = write!(path, "V{:.1}", low(bin - 1));
        }
    }
    path.push('Z');
    path
}

/// A readable figure of at least `value`.
fn nice_step(value: f64) -> f64 {
    let power = 10f64.powf(value.max(1e-9).log10().floor());
    [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0]
        .into_iter()
        .map(|times| times * power)
        .find(|step| *step >= value * 0.9999)
        .unwrap_or(value)
}

/// A top of the axis that four even steps divide into readable figures.
fn nice_top(value: f64) -> f64 {
    if value <= 0.0 { 1.0 } else { nice_step(value / 4.0) * 4.0 }
}

fn tick(value: f64, top: f64) -> String {
    if top >= 8.0 { count(value.round() as u64) } else { format!("{value:.2}") }
}
