//! What a request does for a trace that nobody collects, alone: prints nanoseconds of processor time. For `bench/otlp`.
//!
//! The same calls as a narinfo that a worker answers: the context is looked for, and the request is a span with notes. How long a read of the index takes is measured for
//! the metrics all the same, so that is not a part of it.

use std::hint::black_box;
use std::process::ExitCode;

use narval_client::trace::{self, Work};

const REQUESTS: u32 = 2_000_000;

fn main() -> ExitCode {
    let begun = processor_time();
    for number in 0..REQUESTS {
        let context =
            trace::accept(|| Some(black_box(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".as_slice())));
        black_box(context);
        let mut request = trace::begin(Work::Request, || number.to_string());
        for name in ["http.request.method", "url.path", "narval.cache", "http.response.status_code"] {
            black_box(&mut request).note(name, || number.to_string());
        }
        black_box(&mut request).rename(|name| format!("{name} {number}"));
        drop(black_box(request));
    }
    let (Some(begun), Some(ended)) = (begun, processor_time()) else { return ExitCode::FAILURE };
    println!("{:.2}", (ended - begun) / f64::from(REQUESTS));
    ExitCode::SUCCESS
}

/// Of this process so far, in nanoseconds.
fn processor_time() -> Option<f64> {
    std::fs::read_to_string("/proc/self/schedstat").ok()?.split(' ').next()?.parse().ok()
}
