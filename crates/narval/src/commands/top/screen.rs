//! The figures in a terminal: charts of the last minutes, and a table below them.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline};

use super::metrics::Stats;
use super::source::Reading;
use super::text;
use crate::ui::failure::Failure;
use crate::ui::signals::Interrupt;

/// The number of readings kept for the charts: five minutes, which is wider than terminals are.
const HISTORY_MAX: usize = 300;
/// The maximum delay until a key takes effect.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The width of a figure in the table: its name and its value.
const CELL_WIDTH: u16 = 20;
/// In narrower terminals the charts are below each other.
const TWO_CHARTS_WIDTH: u16 = 70;

/// An entry of the table: its name, its text, and whether it is a problem.
type Cell = (&'static str, fn(&Stats) -> String, fn(&Stats) -> bool);

const CELLS: [Cell; 20] = [
    ("requests/s", |now| text::count(now.requests), |_| false),
    ("narinfos/s", |now| text::count(now.narinfos), |_| false),
    ("NARs/s", |now| text::count(now.nars), |_| false),
    ("uploads/s", |now| text::count(now.uploads), |_| false),
    ("sent/s", |now| text::bytes(now.sent_bytes), |_| false),
    ("received/s", |now| text::bytes(now.received_bytes), |_| false),
    ("upstream/s", |now| text::bytes(now.upstream_bytes), |_| false),
    ("connections", |now| text::count(now.connections), |_| false),
    ("queue", |now| text::count(now.queue), |now| now.queue > Some(0.0)),
    ("busy", |now| text::percent(now.busy_percent), |now| now.busy_percent > Some(90.0)),
    ("from memory", |now| text::percent(now.hits_percent), |_| false),
    ("NAR hits", |now| text::percent(now.nar_hits_percent), |_| false),
    ("median", |now| text::time(now.median_seconds), |_| false),
    ("99 % within", |now| text::time(now.slowest_seconds), |_| false),
    ("404/s", |now| text::count(now.absent), |_| false),
    ("refused/s", |now| text::count(now.uploads_refused), |now| now.uploads_refused > Some(0.0)),
    ("errors/s", |now| text::count(now.failed), |now| now.failed > Some(0.0)),
    ("overload/s", |now| text::count(now.overloaded), |now| now.overloaded > Some(0.0)),
    ("aborted/s", |now| text::count(now.aborted), |now| now.aborted > Some(0.0)),
    ("store err/s", |now| text::count(now.store_errors), |now| now.store_errors > Some(0.0)),
];

/// A chart: its name, what it shows, as a number in text, and the end of its scale if that is fixed.
type Chart = (&'static str, fn(&Stats) -> Option<f64>, fn(Option<f64>) -> String, Option<f64>);

const CHARTS: [Chart; 4] = [
    ("Requests/s", |now| now.requests, text::count, None),
    ("Sent/s", |now| now.sent_bytes, text::bytes, None),
    ("Workers busy", |now| now.busy_percent, text::percent, Some(100.0)),
    ("99 % within", |now| now.slowest_seconds.filter(|seconds| seconds.is_finite()), text::time, None),
];

/// Shows the readings until a key or a signal ends it.
///
/// # Errors
/// The terminal cannot be used.
pub(super) fn run(server: &str, readings: &Receiver<Reading>, interrupt: &Interrupt) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::runtime(format!("the terminal cannot be used: {error}; try --plain"));
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let mut screen = Screen { server, history: VecDeque::new(), trouble: None };
    let result = loop {
        match readings.try_recv() {
            Ok(reading) => screen.take(reading),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                break Err(io::Error::other("the thread that reads the server has ended"));
            }
        }
        if let Err(error) = terminal.draw(|frame| screen.draw(frame)) {
            break Err(error);
        }
        match wants_end() {
            Ok(false) if interrupt.check().is_ok() => {}
            Ok(_) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    // The terminal may be gone, which is then the reason why this ends.
    let restored = ratatui::try_restore();
    result.and(restored).map_err(failed)
}

/// Waits for a key for a moment.
fn wants_end() -> io::Result<bool> {
    if !event::poll(LOOK_EVERY)? {
        return Ok(false);
    }
    Ok(match event::read()? {
        Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
            KeyCode::Char('q') | KeyCode::Esc => true,
            KeyCode::Char('c' | 'd') => key.modifiers.contains(KeyModifiers::CONTROL),
            _ => false,
        },
        _ => false,
    })
}

struct Screen<'a> {
    server: &'a str,
    /// The newest last.
    history: VecDeque<Stats>,
    trouble: Option<String>,
}

impl Screen<'_> {
    fn take(&mut self, reading: Reading) {
        self.trouble = None;
        match reading {
            Reading::Stats(stats) => {
                if self.history.len() == HISTORY_MAX {
                    self.history.pop_front();
                }
                self.history.push_back(*stats);
            }
            Reading::First => {}
            Reading::Failed(trouble) => self.trouble = Some(trouble),
        }
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let columns = (area.width / CELL_WIDTH).clamp(1, 5);
        let rows = u16::try_from(CELLS.len()).unwrap_or(u16::MAX).div_ceil(columns);
        let lines = self.history.back().map(|now| now.upstreams.lines()).unwrap_or_default();
        // Of small terminals they take a quarter at most.
        let upstreams = u16::try_from(lines.len()).unwrap_or(u16::MAX).min(area.height / 4);
        let [title, charts, list, table] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(upstreams),
            Constraint::Length(rows),
        ])
        .areas(area);
        frame.render_widget(Paragraph::new(lines.into_iter().map(Line::from).collect::<Vec<_>>()), list);
        self.draw_title(frame, title);
        self.draw_charts(frame, charts);
        self.draw_table(frame, table, columns);
    }

    fn draw_title(&self, frame: &mut Frame<'_>, area: Rect) {
        let line = match &self.trouble {
            Some(trouble) => Line::styled(format!(" trying again: {trouble}"), alarm()),
            None => Line::from(vec![
                Span::styled(format!(" {} ", self.server), Style::new().add_modifier(Modifier::BOLD)),
                Span::raw(if self.history.is_empty() { " reading …" } else { " q quits" }),
            ]),
        };
        frame.render_widget(Paragraph::new(line).style(Style::new().add_modifier(Modifier::REVERSED)), area);
    }

    /// As many charts as fit: side by side in a wide terminal.
    fn draw_charts(&self, frame: &mut Frame<'_>, area: Rect) {
        let across = if area.width >= TWO_CHARTS_WIDTH { 2 } else { 1 };
        let down = if area.height < 2 { 0 } else { usize::from(area.height / 2).min(2) };
        let rows = Layout::vertical(vec![Constraint::Fill(1); down]).split(area);
        let mut charts = CHARTS.iter();
        for row in rows.iter() {
            let places = Layout::horizontal(vec![Constraint::Fill(1); across]).spacing(2).split(*row);
            for (place, chart) in places.iter().zip(charts.by_ref()) {
                self.draw_chart(frame, *place, chart);
            }
        }
    }

    fn draw_chart(&self, frame: &mut Frame<'_>, area: Rect, (name, value, shown, scale): &Chart) {
        let [head, bars] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
        let values: Vec<f64> = self.history.iter().map(|stats| value(stats).unwrap_or_default()).collect();
        let from = values.len().saturating_sub(usize::from(bars.width));
        let values = values.get(from..).unwrap_or_default();
        let most = values.iter().copied().fold(0.0, f64::max);
        let end = scale.unwrap_or(most).max(f64::MIN_POSITIVE);
        let now = shown(self.history.back().and_then(value));
        let line = Line::from(vec![
            Span::styled(format!("{name} "), Style::new().add_modifier(Modifier::BOLD)),
            Span::raw(now),
            Span::styled(format!("  most {}", shown(Some(most))), Style::new().add_modifier(Modifier::DIM)),
        ]);
        frame.render_widget(line, head);
        // The newest is at the right edge.
        let empty = usize::from(bars.width).saturating_sub(values.len());
        let parts = values.iter().map(|value| (value / end * 1000.0) as u64);
        let data: Vec<u64> = std::iter::repeat_n(0, empty).chain(parts).collect();
        frame.render_widget(Sparkline::default().data(&data).max(1000).style(Style::new().fg(Color::Cyan)), bars);
    }

    fn draw_table(&self, frame: &mut Frame<'_>, area: Rect, columns: u16) {
        let now = self.history.back().cloned().unwrap_or_default();
        let cells = Layout::horizontal(vec![Constraint::Fill(1); usize::from(columns)]).spacing(1).split(area);
        for (column, cells) in cells.iter().zip(CELLS.chunks(usize::from(area.height.max(1)))) {
            let lines = cells.iter().map(|(name, shown, is_trouble)| {
                // Not marked by colour alone.
                let (mark, style) = if is_trouble(&now) { ("!", alarm()) } else { (" ", Style::new()) };
                let room = usize::from(column.width).saturating_sub(name.len() + 2);
                Line::from(vec![
                    Span::raw(mark),
                    Span::styled(*name, Style::new().add_modifier(Modifier::DIM)),
                    Span::styled(format!(" {:>room$}", shown(&now)), style),
                ])
            });
            frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), *column);
        }
    }
}

fn alarm() -> Style {
    Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    /// What the screen shows in a terminal of this size.
    fn shown(screen: &Screen<'_>, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let cells = buffer.content().chunks(usize::from(width));
        cells.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()).collect()
    }

    fn screen() -> Screen<'static> {
        let mut screen = Screen { server: "http://cache:5000", history: VecDeque::new(), trouble: None };
        for requests in 0..400 {
            let stats = Stats { requests: Some(f64::from(requests)), failed: Some(0.5), ..Stats::default() };
            screen.take(Reading::Stats(Box::new(stats)));
        }
        screen
    }

    #[test]
    fn every_figure_fits_terminals_of_usual_sizes() {
        for (width, height) in [(80, 24), (40, 15), (200, 60)] {
            let shown = shown(&screen(), width, height);
            for (name, _, _) in CELLS {
                assert!(shown.iter().any(|row| row.contains(name)), "{name} is missing: {shown:#?}");
            }
            assert!(shown[0].contains("http://cache:5000") && shown[0].contains("q quits"), "{shown:#?}");
            assert!(shown.iter().any(|row| row.contains("Requests/s 399  most 399")), "{shown:#?}");
            assert!(shown.iter().any(|row| row.contains("!errors/s")), "{shown:#?}");
            assert!(shown.iter().any(|row| row.ends_with('█')), "no bar at the right edge: {shown:#?}");
        }
    }

    #[test]
    fn trouble_is_shown_and_nothing_panics_in_tiny_terminals() {
        let mut screen = screen();
        assert_eq!(screen.history.len(), HISTORY_MAX);
        screen.take(Reading::Failed("connection refused\u{1b}[2J".to_owned()));
        let title = shown(&screen, 80, 24).swap_remove(0);
        assert!(title.contains("trying again: connection refused") && !title.contains('\u{1b}'), "{title:?}");
        for (width, height) in [(1, 1), (5, 2), (19, 3), (300, 1), (1, 100)] {
            shown(&screen, width, height);
        }
    }
}
