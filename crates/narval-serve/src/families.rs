//! Metrics of several sources in one answer. OpenMetrics wants all samples of a family together, whichever cache they are of.

use std::collections::HashMap;
use std::fmt::Write;

use narval_client::trace::Times;

/// The end of an answer.
const END: &str = "# EOF";

/// Families of metrics, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Families {
    families: Vec<Family>,
    by_name: HashMap<String, usize>,
}

/// One family.
#[derive(Debug, Default)]
struct Family {
    about: String,
    samples: String,
}

/// How a family is named and described.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<'a> {
    /// `gauge`, `counter` or `histogram`.
    pub(crate) kind: &'a str,
    pub(crate) name: &'a str,
    /// Without its full stop.
    pub(crate) help: &'a str,
}

impl<'a> Named<'a> {
    pub(crate) const fn gauge(name: &'a str, help: &'a str) -> Self {
        Self { kind: "gauge", name, help }
    }

    pub(crate) const fn counter(name: &'a str, help: &'a str) -> Self {
        Self { kind: "counter", name, help }
    }
}

impl Families {
    /// Adds a sample. A counter's name gets its `_total`.
    pub(crate) fn add(&mut self, named: Named<'_>, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let suffix = if named.kind == "counter" { "_total" } else { "" };
        self.add_with(named, suffix, labels, value);
    }

    /// Adds a sample with this suffix to the family's name.
    fn add_with(
        &mut self,
        Named { kind, name, help }: Named<'_>,
        suffix: &str,
        labels: &[(&str, &str)],
        value: impl std::fmt::Display,
    ) {
        let family = self.family(name);
        // Writing to a string cannot fail.
        if family.about.is_empty() {
            let _ = writeln!(family.about, "# TYPE {name} {kind}");
            if let Some(unit) = ["bytes", "seconds"].into_iter().find(|unit| name.ends_with(&format!("_{unit}"))) {
                let _ = writeln!(family.about, "# UNIT {name} {unit}");
            }
            let _ = writeln!(family.about, "# HELP {name} {help}.");
        }
        let labels: Vec<_> = labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(family.samples, "{name}{suffix}{labels} {value}");
    }

    /// Adds a histogram with these upper bounds.
    pub(crate) fn add_times<const N: usize>(
        &mut self,
        (name, help): (&str, &str),
        labels: &[(&str, &str)],
        bounds: [f64; N],
        times: &Times<N>,
    ) {
        let named = Named { kind: "histogram", name, help };
        for (bound, count) in std::iter::zip(bounds, times.counts) {
            self.add_with(named, "_bucket", &[labels, &[("le", &format!("{bound:?}"))]].concat(), count);
        }
        self.add_with(named, "_bucket", &[labels, &[("le", "+Inf")]].concat(), times.count);
        self.add_with(named, "_sum", labels, times.sum.as_secs_f64());
        self.add_with(named, "_count", labels, times.count);
    }

    /// Adds all families of a text in this format.
    pub(crate) fn add_text(&mut self, text: &str) {
        let (mut name, mut is_new) = ("", true);
        for line in text.lines().filter(|line| *line != END) {
            let about = line.strip_prefix("# ").and_then(|about| about.split(' ').nth(1));
            if let Some(about) = about.filter(|about| *about != name) {
                name = about;
                is_new = self.family(name).about.is_empty();
            }
            let family = self.family(name);
            match (about, is_new) {
                (Some(_), true) => family.about.extend([line, "\n"]),
                (Some(_), false) => {}
                (None, _) => family.samples.extend([line, "\n"]),
            }
        }
    }

    fn family(&mut self, name: &str) -> &mut Family {
        let next = self.families.len();
        let at = *self.by_name.entry(name.to_owned()).or_insert(next);
        if at == next {
            self.families.push(Family::default());
        }
        // Just added, if it was not there.
        #[allow(clippy::indexing_slicing, reason = "numbers of families are only given out here")]
        &mut self.families[at]
    }

    /// The whole answer.
    pub(crate) fn into_text(self) -> String {
        let mut text: String = self.families.iter().flat_map(|family| [&*family.about, &*family.samples]).collect();
        text.push_str(END);
        text.push('\n');
        text
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_one_family_are_together() {
        let mut families = Families::default();
        let gauge = Named::gauge("a_bytes", "A");
        families.add(gauge, &[("cache", "x")], 1);
        families.add(Named::counter("b", "B"), &[], 2);
        families.add(gauge, &[("cache", "y\"\\")], 3);
        families.add_text("# HELP c C.\n# TYPE c counter\nc_total{cache=\"x\"} 1\n# EOF\n");
        families.add_text("# HELP c C.\n# TYPE c counter\nc_total{cache=\"y\"} 2\n# EOF\n");
        let text = "# TYPE a_bytes gauge\n# UNIT a_bytes bytes\n# HELP a_bytes A.\na_bytes{cache=\"x\"} 1\n\
            a_bytes{cache=\"y\\\"\\\\\"} 3\n# TYPE b counter\n# HELP b B.\nb_total 2\n\
            # HELP c C.\n# TYPE c counter\nc_total{cache=\"x\"} 1\nc_total{cache=\"y\"} 2\n# EOF\n";
        assert_eq!(families.into_text(), text);
    }
}
