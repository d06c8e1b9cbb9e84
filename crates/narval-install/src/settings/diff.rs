//! The difference of two short texts, as lines.

/// Lines of context around a change.
const CONTEXT: usize = 2;

/// The lines that were removed (`-`), added (`+`), and a few around them (` `), each as `show` renders it: `show` gets
/// a whole text and returns one with as many lines. Empty for equal texts. If two places have changed, the lines
/// between them are included.
pub fn lines(before: &str, after: &str, show: impl Fn(&str) -> String) -> Vec<(char, String)> {
    if before == after {
        return Vec::new();
    }
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let (old_shown, new_shown) = (show(before), show(after));
    let (old_shown, new_shown): (Vec<&str>, Vec<&str>) = (old_shown.lines().collect(), new_shown.lines().collect());
    let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let left = old.len().min(new.len()) - same;
    let same_end = old.iter().rev().zip(new.iter().rev()).take(left).take_while(|(old, new)| old == new).count();
    let (old_end, new_end) = (old.len() - same_end, new.len() - same_end);
    let parts = [
        (' ', &new_shown, same.saturating_sub(CONTEXT)..same),
        ('-', &old_shown, same..old_end),
        ('+', &new_shown, same..new_end),
        (' ', &new_shown, new_end..(new_end + CONTEXT).min(new.len())),
    ];
    let marked = |(mark, lines, range): (char, &Vec<&str>, std::ops::Range<usize>)| {
        let lines = lines.get(range).unwrap_or_default();
        lines.iter().map(|line| (mark, (*line).to_owned())).collect::<Vec<_>>()
    };
    parts.into_iter().flat_map(marked).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(before: &str, after: &str) -> String {
        lines(before, after, str::to_owned).iter().map(|(mark, line)| format!("{mark}{line}\n")).collect()
    }

    #[test]
    fn a_diff_shows_changes_with_context() {
        assert_eq!(shown("a\n", "a\n"), "");
        assert_eq!(shown("", "a\nb\n"), "+a\n+b\n");
        assert_eq!(shown("a\nb\nc\n", "a\nb\nc\nd\n"), " b\n c\n+d\n");
        assert_eq!(shown("a\nb\nc\nd\ne\n", "a\nb\nx\nd\ne\n"), " a\n b\n-c\n+x\n d\n e\n");
        assert_eq!(shown("a\na\n", "a\n"), " a\n-a\n");
        assert_eq!(shown("a\n", ""), "-a\n");
    }

    #[test]
    fn secrets_are_compared_and_not_shown() {
        let masked = lines("a 1\nb\n", "a 2\nb\n", |text| text.replace(|c: char| c.is_numeric(), "…"));
        assert_eq!(masked, [('-', "a …".to_owned()), ('+', "a …".to_owned()), (' ', "b".to_owned())]);
    }
}
