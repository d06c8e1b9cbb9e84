//! The engine's counters as OpenMetrics text.

use std::fmt::Write;

use super::counters::Snapshot;

impl Snapshot {
    /// The counters in the OpenMetrics text format, without its final `# EOF` line, so that a service can append its own.
    /// Serve it as `application/openmetrics-text; version=1.0.0; charset=utf-8`.
    pub fn openmetrics(&self) -> String {
        let mut text = String::with_capacity(4096);
        let counters: &[(&str, &str, u64)] = &[
            ("narval_http_sent_bytes", "Bytes written to sockets.", self.bytes_sent),
            ("narval_http_received_bytes", "Bytes received.", self.bytes_received),
            ("narval_http_connections_accepted", "Connections accepted.", self.connections_accepted),
            ("narval_http_connections_refused", "Connections refused because of a limit.", self.connections_refused),
            (
                "narval_http_connections_given_up",
                "Idle connections closed to make room for others.",
                self.connections_given_up,
            ),
            ("narval_http_accept_errors", "Failures to accept a connection.", self.accept_errors),
            ("narval_http_requests_rejected", "Malformed requests.", self.rejected),
            ("narval_http_requests_overloaded", "Requests answered 503 because the queue was full.", self.overloaded),
            ("narval_http_timeouts", "Connections closed at a deadline, except idle ones.", self.timeouts),
            ("narval_http_answers_aborted", "Answers aborted.", self.aborts),
            ("narval_http_panics", "Handlers that panicked.", self.panics),
            ("narval_http_polls", "Calls of the driver's wait.", self.polls),
            ("narval_http_completions", "Operations and events completed by the driver.", self.completions),
            ("narval_http_messages", "Messages from other threads handled by shards.", self.messages),
            ("narval_http_handshakes", "TLS handshakes completed.", self.handshakes),
            ("narval_http_handshakes_failed", "TLS handshakes that failed.", self.handshakes_failed),
            ("narval_http_handshakes_refused", "TLS handshakes refused because of a limit.", self.handshakes_refused),
            ("narval_http_connections_http2", "Connections that use HTTP/2.", self.connections_http2),
            ("narval_http_answers_http2", "Responses over HTTP/2, also counted among all.", self.answers_http2),
            (
                "narval_http_output_memory_refused",
                "Answers and messages refused because memory for output was used up.",
                self.output_memory_refused,
            ),
            (
                "narval_http_output_memory_closed",
                "Connections closed because they held most of the memory for output.",
                self.output_memory_closed,
            ),
            ("narval_http_inline_slow", "Measured inline calls of more than 200 us.", self.inline_slow),
            ("narval_http_log_lines_dropped", "Access log lines dropped.", self.log_lines_dropped),
        ];
        family(&mut text, "narval_http_requests", "counter", "Requests answered, inline or by a worker.");
        for (place, count) in [("inline", self.requests_inline), ("worker", self.requests_worker)] {
            sample(&mut text, format_args!("narval_http_requests_total{{where=\"{place}\"}} {count}"));
        }
        family(&mut text, "narval_http_responses", "counter", "Responses by status.");
        for (status, count) in &self.statuses {
            sample(&mut text, format_args!("narval_http_responses_total{{code=\"{status}\"}} {count}"));
        }
        for (name, help, value) in counters {
            family(&mut text, name, "counter", help);
            sample(&mut text, format_args!("{name}_total {value}"));
        }
        for (name, help, value) in [
            ("narval_http_connections_open", "Connections open now.", self.connections_open),
            ("narval_http_queue_depth", "Requests queued for a worker.", self.queue_depth as u64),
            ("narval_http_body_memory_bytes", "Memory used by request bodies.", self.body_memory_bytes),
            (
                "narval_http_output_memory_bytes",
                "Memory held for clients that have yet to read it, and for messages of WebSockets.",
                self.output_memory_bytes,
            ),
            ("narval_http_output_memory_max_bytes", "The limit of that memory.", self.output_memory_max_bytes),
            (
                "narval_http_bodies_waiting",
                "Requests with streamed bodies queued for a thread.",
                self.bodies_waiting as u64,
            ),
            ("narval_http_bodies_streamed", "Streamed bodies that have a thread or wait.", self.bodies_streamed as u64),
            ("narval_http_handshakes_running", "TLS handshakes in progress.", self.handshakes_running as u64),
            ("narval_http_workers", "Worker threads.", self.workers as u64),
            ("narval_http_connections_open_limit", "The limit of open connections.", self.connections_max as u64),
            ("narval_http_queue_depth_limit", "The limit of requests queued for a worker.", self.queue_max as u64),
            (
                "narval_http_body_memory_limit_bytes",
                "The limit of memory for request bodies.",
                self.body_memory_max_bytes,
            ),
            (
                "narval_http_bodies_waiting_limit",
                "The limit of queued streamed bodies.",
                self.bodies_waiting_max as u64,
            ),
            ("narval_http_bodies_streamed_limit", "Threads for streamed bodies.", self.bodies_streamed_max as u64),
            ("narval_http_handshakes_running_limit", "The limit of TLS handshakes.", self.handshakes_max as u64),
        ] {
            family(&mut text, name, "gauge", help);
            sample(&mut text, format_args!("{name} {value}"));
        }
        family(&mut text, "narval_http_worker_busy_seconds", "counter", "Time that workers have spent on jobs.");
        let busy = self.worker_busy.as_secs_f64();
        sample(&mut text, format_args!("narval_http_worker_busy_seconds_total {busy}"));
        for (name, help, histogram) in [
            ("narval_http_inline_seconds", "Duration of inline calls; a sample.", &self.inline_time),
            (
                "narval_http_request_seconds",
                "From the head to the last byte, by workers; a sample.",
                &self.request_time,
            ),
            ("narval_http_job_seconds", "Duration of workers' jobs.", &self.job_time),
            ("narval_http_queue_seconds", "How long requests waited for a worker; a sample.", &self.queue_time),
            ("narval_http_queue_depths", "Length of the queue when a request was added; a sample.", &self.queue_depths),
        ] {
            family(&mut text, name, "histogram", help);
            for (bound, so_far) in histogram.buckets() {
                let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
                sample(&mut text, format_args!("{name}_bucket{{le=\"{bound}\"}} {so_far}"));
            }
            sample(&mut text, format_args!("{name}_sum {}", histogram.sum()));
            sample(&mut text, format_args!("{name}_count {}", histogram.count()));
        }
        text
    }
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# TYPE {name} {kind}");
    if let Some(unit) = ["bytes", "seconds"].iter().find(|unit| name.ends_with(**unit)) {
        let _ = writeln!(text, "# UNIT {name} {unit}");
    }
    let _ = writeln!(text, "# HELP {name} {help}");
}

fn sample(text: &mut String, line: std::fmt::Arguments<'_>) {
    let _ = writeln!(text, "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_belongs_to_the_family_before_it() {
        let snapshot = Snapshot { statuses: vec![(200, 7), (404, 1)], requests_inline: 8, ..Snapshot::default() };
        let text = snapshot.openmetrics();
        let mut family = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().unwrap();
            } else if !line.starts_with('#') {
                assert!(line.starts_with(family), "{line} under {family}");
            }
        }
        assert!(text.contains("narval_http_responses_total{code=\"404\"} 1\n"));
        assert!(text.contains("narval_http_requests_total{where=\"inline\"} 8\n"));
    }
}
