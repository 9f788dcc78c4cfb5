//! Numbers -> one line plot as inline SVG: axes, nice ticks, a legend. Colours come from the page.
//!
//! What is not a number is a gap in the line. A long run is thinned to the lowest and the highest
//! value of every few pixels, so jumps stay visible and the file small.

use std::fmt::Write;

/// Units are about pixels of a desktop page, so that letters there have their own size.
const SIZE: (f64, f64) = (500.0, 240.0);
const WIDE: (f64, f64) = (1030.0, 320.0);
const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 34.0;
/// Columns that a line is thinned to.
const COLUMNS: usize = 300;

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A line in front.
    Line,
    /// A thin line behind: values that a smoother line speaks for.
    Faint,
    /// A dashed line: a limit or a plan.
    Dashed,
    /// A line with a dot at every value, for values that are rare.
    Dots,
}

/// One line of a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// In the legend; empty for a line that needs none.
    pub name: String,
    /// Which colour of the page: 1, 2 or 3.
    pub colour: usize,
    /// How it is drawn.
    pub mark: Mark,
    /// (x, y), x rising.
    pub points: Vec<(f64, f64)>,
}

/// One plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// What is shown, for those who cannot see it.
    pub title: String,
    /// Under the axis.
    pub x_label: String,
    /// Behind the numbers of the vertical axis: "%", " GiB".
    pub unit: String,
    /// Whether the vertical axis begins at zero.
    pub from_zero: bool,
    /// Whether it takes the whole width of the page.
    pub wide: bool,
    /// The lines, the last in front.
    pub series: Vec<Series>,
}

/// Values of an axis and where they lie on the page.
struct Axis {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
    step: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn at(&self, value: f64) -> f64 {
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }
}

/// Draws a plot. Every text is escaped; no number can break it.
pub fn svg(plot: &Plot) -> String {
    let points = || plot.series.iter().flat_map(|series| &series.points).filter(|p| drawable(p));
    let mut out = String::new();
    let title = escape(&plot.title);
    let (width, height) = if plot.wide { WIDE } else { SIZE };
    let _ = write!(
        out,
        "<svg class=\"plot\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\" \
         xmlns=\"http://www.w3.org/2000/svg\">"
    );
    match (range(points().map(|p| p.0)), range(points().map(|p| p.1))) {
        (Some(x), Some(y)) => {
            let y = if plot.from_zero { (y.0.min(0.0), y.1) } else { y };
            let x = steps_axis(x, width - RIGHT);
            let y = value_axis(y, height - BOTTOM);
            axes(&mut out, plot, &x, &y);
            plot.series.iter().for_each(|series| draw(&mut out, series, &x, &y));
        }
        _ => {
            let (x, y) = (width / 2.0, height / 2.0);
            let _ = write!(out, "<text x=\"{x}\" y=\"{y}\" class=\"none\">nothing was measured</text>");
        }
    }
    out.push_str("</svg>");
    let legend = legend(plot);
    let class = if plot.wide { " class=\"wide\"" } else { "" };
    format!("<figure{class}><figcaption><b>{title}</b>{legend}</figcaption>{out}</figure>")
}

/// Values so large that differences overflow are not drawn either.
fn drawable(point: &(f64, f64)) -> bool {
    let sane = |value: f64| value.abs() < 1e200;
    sane(point.0) && sane(point.1)
}

fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

/// 1, 2 or 5 times a power of ten: about `count` of them between `low` and `high`.
fn nice_step(low: f64, high: f64, count: f64) -> f64 {
    let rough = (high - low) / count;
    let power = 10f64.powf(rough.log10().floor());
    match rough / power {
        share if share <= 1.0 => power,
        share if share <= 2.0 => 2.0 * power,
        share if share <= 5.0 => 5.0 * power,
        _ => 10.0 * power,
    }
}

fn ticks(low: f64, high: f64, step: f64) -> Vec<f64> {
    let first = (low / step - 1e-9).ceil();
    let count = ((high / step + 1e-9).floor() - first).clamp(0.0, 50.0) as usize;
    // Whole numbers times the step: adding it up would drift. Adding zero makes -0 plain.
    (0..=count).map(|i| (first + i as f64) * step + 0.0).collect()
}

/// The horizontal axis ends where the steps end.
fn steps_axis((low, high): (f64, f64), to: f64) -> Axis {
    let (low, high) = if high > low { (low, high) } else { (low - 1.0, high + 1.0) };
    let step = nice_step(low, high, 8.0).max(1.0);
    Axis { low, high, ticks: ticks(low, high, step), step, from: LEFT, to }
}

/// The vertical axis ends on ticks.
fn value_axis((low, high): (f64, f64), from: f64) -> Axis {
    let least = low.abs().max(high.abs()).max(1e-200) * 1e-6;
    let (low, high) = match high - low > least {
        true => (low, high),
        false if low == 0.0 => (0.0, 1.0),
        // A value that stands still gets room of a tenth around it.
        false => (low - low.abs() * 0.1, high + high.abs() * 0.1),
    };
    let step = nice_step(low, high, 5.0);
    let (low, high) = ((low / step + 1e-9).floor() * step, (high / step - 1e-9).ceil() * step);
    Axis { low, high, ticks: ticks(low, high, step), step, from, to: TOP }
}

fn axes(out: &mut String, plot: &Plot, x: &Axis, y: &Axis) {
    for &tick in &y.ticks {
        let (at, text) = (y.at(tick), label(tick, y.step));
        let (end, text_x, text_y) = (x.to, LEFT - 8.0, at + 4.0);
        let _ =
            write!(out, "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{end}\" y2=\"{at:.1}\"/>");
        let unit = escape(&plot.unit);
        let _ = write!(out, "<text class=\"y\" x=\"{text_x}\" y=\"{text_y:.1}\">{text}{unit}</text>");
    }
    let base = y.from;
    let _ = write!(out, "<line class=\"base\" x1=\"{LEFT}\" y1=\"{base}\" x2=\"{}\" y2=\"{base}\"/>", x.to);
    // The last number would run into the name of the axis.
    let room = x.to - 12.0 - 7.0 * plot.x_label.chars().count() as f64;
    for &tick in &x.ticks {
        let (at, text) = (x.at(tick), label(tick, x.step));
        let _ = write!(
            out,
            "<line class=\"base\" x1=\"{at:.1}\" y1=\"{base}\" x2=\"{at:.1}\" y2=\"{}\"/>",
            base + 4.0
        );
        if at < room {
            let _ = write!(out, "<text class=\"x\" x=\"{at:.1}\" y=\"{}\">{text}</text>", base + 18.0);
        }
    }
    let name = escape(&plot.x_label);
    let _ = write!(out, "<text class=\"name\" x=\"{}\" y=\"{}\">{name}</text>", x.to, base + 18.0);
}

/// As many digits as the step needs; powers of ten where that would be many.
fn label(value: f64, step: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let digits = -(step.log10() + 1e-9).floor();
    if value.abs() >= 1e6 || digits > 4.0 {
        let behind = (value.abs().log10() + 1e-9).floor() + digits;
        return format!("{value:.0$e}", behind.clamp(0.0, 4.0) as usize);
    }
    let text = format!("{value:.0$}", digits.max(0.0) as usize);
    // Digits in groups from a thousand on, like everywhere else.
    match value.abs() >= 1000.0 && digits <= 0.0 && value > 0.0 {
        true => crate::words::grouped(value.round() as u64),
        false => text,
    }
}

fn draw(out: &mut String, series: &Series, x: &Axis, y: &Axis) {
    let mut path = String::new();
    let mut pen_down = false;
    let mut dots = String::new();
    for point in thin(&series.points) {
        if !drawable(&point) {
            pen_down = false;
            continue;
        }
        let (px, py) = (x.at(point.0), y.at(point.1));
        let _ = write!(path, "{}{px:.1} {py:.1}", if pen_down { "L" } else { "M" });
        pen_down = true;
        if series.mark == Mark::Dots || series.points.len() == 1 {
            let told = format!("{} {}: {:.4}", "step", point.0, point.1);
            let _ =
                write!(dots, "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"3\"><title>{told}</title></circle>");
        }
    }
    let mark = class(series.mark);
    let _ = write!(out, "<g class=\"c{} {mark}\"><path d=\"{path}\"/>{dots}</g>", series.colour.clamp(1, 3));
}

fn class(mark: Mark) -> &'static str {
    match mark {
        Mark::Line => "line",
        Mark::Faint => "faint",
        Mark::Dashed => "dashed",
        Mark::Dots => "dots",
    }
}

/// At most a few points per column: its lowest and highest, in their order, and one gap if it has one.
fn thin(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= 2 * COLUMNS {
        return points.to_vec();
    }
    let mut kept = Vec::new();
    for column in points.chunks(points.len().div_ceil(COLUMNS)) {
        let whole: Vec<usize> = (0..column.len()).filter(|&i| drawable(&column[i])).collect();
        let by_height = |a: &&usize, b: &&usize| column[**a].1.total_cmp(&column[**b].1);
        let ends = whole.iter().min_by(by_height).zip(whole.iter().max_by(by_height));
        if let Some((&low, &high)) = ends {
            kept.push(column[low.min(high)]);
            if low != high {
                kept.push(column[low.max(high)]);
            }
        }
        if whole.len() < column.len() {
            kept.push((column[0].0, f64::NAN));
        }
    }
    kept
}

fn legend(plot: &Plot) -> String {
    let named: Vec<&Series> = plot.series.iter().filter(|series| !series.name.is_empty()).collect();
    let mut out = String::new();
    for series in named {
        let (mark, colour, name) = (class(series.mark), series.colour.clamp(1, 3), escape(&series.name));
        let _ = write!(
            out,
            "<span class=\"key\"><svg viewBox=\"0 0 22 10\" aria-hidden=\"true\"><g class=\"c{colour} {mark}\">\
             <path d=\"M1 5L21 5\"/></g></svg>{name}</span>"
        );
    }
    out
}

/// Text for HTML and XML: the five characters that mean something, and none that may not be there.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            '\r' => out.push('\n'),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c if c.is_control() => out.push('\u{fffd}'),
            // Marks that turn the direction of what follows could show a text that is not there.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plot(points: Vec<(f64, f64)>) -> Plot {
        let series = Series { name: "loss".into(), colour: 1, mark: Mark::Line, points };
        Plot {
            title: "Loss".into(),
            x_label: "step".into(),
            unit: String::new(),
            from_zero: false,
            wide: false,
            series: vec![series],
        }
    }

    #[test]
    fn ticks_are_numbers_that_people_say() {
        assert_eq!(value_axis((1.62, 3.31), 200.0).ticks, [1.5, 2.0, 2.5, 3.0, 3.5]);
        assert_eq!(value_axis((0.0, 5e-5), 200.0).ticks.len(), 6);
        let axis = steps_axis((1.0, 1000.0), 500.0);
        assert_eq!((axis.ticks[0], axis.step), (200.0, 200.0));
        let labels: Vec<String> =
            value_axis((0.0, 5e-5), 200.0).ticks.iter().map(|t| label(*t, 1e-5)).collect();
        assert_eq!(labels, ["0", "1e-5", "2e-5", "3e-5", "4e-5", "5e-5"]);
        assert_eq!([label(1200.0, 200.0), label(2.5, 0.5), label(0.04, 0.02)], ["1,200", "2.5", "0.04"]);
        assert_eq!([label(2e6, 1e6), label(1.5e-5, 5e-6), label(-0.5, 0.5)], ["2e6", "1.5e-5", "-0.5"]);
    }

    #[test]
    fn a_gap_lifts_the_pen() {
        let text = svg(&plot(vec![(1.0, 2.0), (2.0, f64::NAN), (3.0, 1.0), (4.0, 1.5)]));
        let path = text.split("<path d=\"").last().unwrap().split('"').next().unwrap();
        assert_eq!(path.matches('M').count(), 2);
        assert_eq!(path.matches('L').count(), 1);
    }

    #[test]
    fn nothing_measured_is_said_so() {
        for points in [vec![], vec![(1.0, f64::NAN)], vec![(1.0, f64::INFINITY)]] {
            assert!(svg(&plot(points)).contains("nothing was measured"));
        }
    }

    #[test]
    fn a_long_run_is_thinned_but_keeps_its_jump() {
        let mut points: Vec<(f64, f64)> = (0..100_000).map(|i| (f64::from(i), 1.0)).collect();
        points[77_777].1 = 9.0;
        let thinned = thin(&points);
        assert!(thinned.len() <= 3 * COLUMNS && thinned.contains(&(77_777.0, 9.0)));
        assert!(thinned.is_sorted_by(|a, b| a.0 <= b.0));
        assert!(svg(&plot(points)).len() < 20_000);
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(
            escape("<a b='c'>&\"\u{0}\u{1b}\r\u{202e}😀字"),
            "&lt;a b=&#39;c&#39;&gt;&amp;&quot;\u{fffd}\u{fffd}\n\u{fffd}😀字"
        );
    }

    proptest! {
        #[test]
        fn any_numbers_give_coordinates_on_the_page(
            values in prop::collection::vec(prop_oneof![any::<f64>(), -10.0..10.0f64, Just(0.0), Just(f64::NAN)], 0..50),
            from_zero: bool,
        ) {
            let points: Vec<(f64, f64)> = values.iter().enumerate().map(|(i, v)| (i as f64, *v)).collect();
            let text = svg(&Plot { from_zero, ..plot(points) });
            prop_assert!(!text.contains("NaN") && !text.contains("inf"), "{}", text);
            let path = text.split("<path d=\"").last().unwrap().split('"').next().unwrap();
            for number in path.split(['M', 'L', ' ']).filter(|part| !part.is_empty()) {
                let value: f64 = number.parse().unwrap();
                prop_assert!((-0.1..=SIZE.0 + 0.1).contains(&value), "{}", path);
            }
        }
    }
}
