//! Charts of the last hour as inline SVG: one hue, the layers named beside them. The picture stretches with the window, the words do not.
//! Styles are classes: the page's policy forbids style attributes.

use maud::{Markup, html};

use crate::watch::history::{KEPT, Sample};

/// The columns of an hour: half a minute each.
pub(super) const COLUMNS: usize = 120;
/// Samples in a column.
const OF_COLUMN: usize = KEPT / COLUMNS;
/// The height of a picture, in its own units.
const HEIGHT: f64 = 120.0;
/// The least distance between two names.
const LINE: f64 = 17.0;

/// Values by column, the oldest first.
pub(super) type Columns = [u64; COLUMNS];

/// One figure of each sample, by column: what it was in half a minute.
pub(super) fn columns(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> Columns {
    let mut columns = [0; COLUMNS];
    let newest: Vec<u64> = samples.iter().rev().map(of).collect();
    for (column, values) in std::iter::zip(columns.iter_mut().rev(), newest.chunks(OF_COLUMN)) {
        // The first one may be of a shorter time.
        *column = values.iter().sum::<u64>() * OF_COLUMN as u64 / values.len() as u64;
    }
    columns
}

/// A layer: how it is drawn, its words, and its values.
pub(super) struct Layer {
    pub(super) class: &'static str,
    pub(super) words: String,
    pub(super) values: Columns,
}

/// Layers on top of each other, the first one at the bottom. `peak` says how much the highest column is.
pub(super) fn stacked(about: &str, layers: &[Layer], peak: impl Fn(u64) -> String) -> Markup {
    let mut sums = Vec::new();
    let mut sum = [0; COLUMNS];
    for layer in layers {
        std::iter::zip(&mut sum, layer.values).for_each(|(sum, value)| *sum += value);
        sums.push(sum);
    }
    let top = sum.into_iter().max().unwrap_or(0);
    let scale = HEIGHT / top.max(1) as f64;
    let shapes = std::iter::zip(&sums, layers).rev().map(|(sum, layer)| (layer.class, area(sum, HEIGHT, -scale)));
    let mean = |columns: &Columns| columns.iter().sum::<u64>() as f64 / COLUMNS as f64;
    let mut below = 0.0;
    let middles = sums.iter().map(|sum| {
        let above = mean(sum);
        let middle = HEIGHT - scale * f64::midpoint(below, above);
        below = above;
        middle
    });
    let names: Vec<_> = std::iter::zip(middles, layers).map(|(middle, layer)| (middle, layer.words.as_str())).collect();
    picture(about, &peak(top), shapes.collect(), names)
}

/// Two layers from one line: the first one grows up, the second one down.
pub(super) fn mirrored(about: &str, [up, down]: &[Layer; 2], peak: impl Fn(u64) -> String) -> Markup {
    let most = |layer: &Layer| layer.values.into_iter().max().unwrap_or(0);
    let (above, below) = (most(up), most(down));
    let scale = (HEIGHT - 1.0) / (above + below).max(1) as f64;
    let line = above as f64 * scale;
    let shapes = vec![(up.class, area(&up.values, line, -scale)), (down.class, area(&down.values, line + 1.0, scale))];
    let names = vec![((line + HEIGHT) / 2.0, down.words.as_str()), (line / 2.0, up.words.as_str())];
    picture(about, &peak(above.max(below)), shapes, names)
}

/// The path of an area with steps, from a line.
fn area(columns: &Columns, line: f64, scale: f64) -> String {
    let mut path = format!("M0 {line:.1}");
    let mut last = None;
    for (at, value) in columns.iter().enumerate() {
        if last != Some(*value) {
            path.push_str(&format!("H{at}V{:.1}", line + *value as f64 * scale));
            last = Some(*value);
        }
    }
    path.push_str(&format!("H{COLUMNS}V{line:.1}Z"));
    path
}

/// `shapes`: the class of each layer and its path, in the order in which they are drawn. `names`: where each stands, the lowest first.
fn picture(about: &str, peak: &str, shapes: Vec<(&str, String)>, mut names: Vec<(f64, &str)>) -> Markup {
    // Apart from each other, and within the picture.
    let mut lowest = HEIGHT - 4.0;
    for (middle, _) in &mut names {
        *middle = (*middle + 5.0).min(lowest);
        lowest = *middle - LINE;
    }
    let mut highest = 12.0;
    for (middle, _) in names.iter_mut().rev() {
        *middle = middle.max(highest);
        highest = *middle + LINE;
    }
    let words: Vec<_> = names.iter().map(|(_, words)| *words).collect();
    let label = format!("{about}: {}", words.join(", "));
    html! {
        figure.chart {
            p.soft.peak { (peak) }
            div.plot {
                svg.area viewBox=(format!("0 0 {COLUMNS} {HEIGHT}")) preserveAspectRatio="none" role="img" aria-label=(label) {
                    @for (class, path) in shapes { path class=(class) d=(path) {} }
                }
                svg.names width="150" height=(HEIGHT) aria-hidden="true" {
                    @for (middle, words) in &names { text x="0" y=(format!("{middle:.0}")) { (words) } }
                }
            }
            p.soft.times { span { "an hour ago" } span { "now" } }
        }
    }
}

/// A bar of parts of a whole. What is left of it is free.
pub(super) fn bar(about: &str, parts: &[u64], whole: u64) -> Markup {
    let mut from = 0.0;
    let rects: Vec<_> = parts
        .iter()
        .enumerate()
        .map(|(at, part)| {
            let width = (100.0 * *part as f64 / whole.max(1) as f64).min(100.0 - from);
            let rect = (format!("l{at}"), from, width);
            from += width;
            rect
        })
        .collect();
    html! {
        svg.whole viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label=(about) {
            @for (class, from, width) in rects {
                rect class=(class) x=(format!("{from:.2}")) width=(format!("{width:.2}")) y="0" height="10" {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_sample_is_at_the_right() {
        let samples: Vec<_> = (1..=8).map(|hits| Sample { hits, ..Sample::default() }).collect();
        let columns = columns(&samples, |sample| u64::from(sample.hits));
        assert_eq!(columns[COLUMNS - 3..], [0, 3 * (1 + 2), 3 + 4 + 5 + 6 + 7 + 8]);
        assert_eq!(super::columns(&[samples[0]; KEPT], |sample| u64::from(sample.hits)), [6; COLUMNS]);
        assert_eq!(area(&columns, 100.0, -1.0), "M0 100.0H0V100.0H118V91.0H119V67.0H120V100.0Z");
    }

    #[test]
    fn names_stand_apart_and_within_the_picture() {
        let layer = |words: &str, value| Layer { class: "l0", words: words.into(), values: [value; COLUMNS] };
        let layers = [layer("a", 1000), layer("b", 1), layer("c", 1), layer("d", 0)];
        let text = stacked("it", &layers, |top| top.to_string()).into_string();
        let at: Vec<f64> =
            text.split("y=\"").skip(1).map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect();
        assert_eq!(at.len(), 4, "{text}");
        assert!(at.windows(2).all(|pair| pair[0] - pair[1] >= LINE - 1.0), "{at:?}");
        assert!(at.iter().all(|y| (10.0..HEIGHT).contains(y)), "{at:?}");
        assert!(text.contains(">1002</p>"), "{text}");
    }

    #[test]
    fn a_bar_is_never_longer_than_its_whole() {
        let text = bar("it", &[50, 100], 100).into_string();
        assert!(text.contains(r#"x="0.00" width="50.00""#) && text.contains(r#"x="50.00" width="50.00""#), "{text}");
        assert!(bar("none", &[0], 0).into_string().contains(r#"width="0.00""#));
    }
}
