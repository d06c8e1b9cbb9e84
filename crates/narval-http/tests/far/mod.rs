//! A relay that simulates a long line, with a given rate and round-trip time.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

/// Chunks in flight in each direction of a connection, of up to [`CHUNK`] bytes: more than any window that is tested.
const IN_FLIGHT: usize = 1024;
const CHUNK: usize = 64 * 1024;

/// A line that was idle for less than this catches up: a sleep may take as much too long.
const LATE_MAX: Duration = Duration::from_millis(5);

/// Forwards connections to `server`, each byte half of `round_trip` later, and `rate` bytes per second in each direction of a connection.
pub(crate) fn relay(server: SocketAddr, round_trip: Duration, rate: f64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(server).unwrap();
            for socket in [&client, &server] {
                socket.set_nodelay(true).unwrap();
            }
            delay(client.try_clone().unwrap(), server.try_clone().unwrap(), round_trip / 2, rate);
            delay(server, client, round_trip / 2, rate);
        }
    });
    address
}

/// One direction, until either side ends.
fn delay(mut from: TcpStream, mut to: TcpStream, by: Duration, rate: f64) {
    let (sender, in_flight) = sync_channel::<(Instant, Vec<u8>)>(IN_FLIGHT);
    std::thread::spawn(move || {
        let mut buffer = vec![0; CHUNK];
        let mut is_free = Instant::now();
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            is_free = is_free.max(Instant::now() - LATE_MAX) + Duration::from_secs_f64(count as f64 / rate);
            if sender.send((is_free + by, buffer[..count].to_vec())).is_err() {
                return;
            }
            std::thread::sleep(is_free.saturating_duration_since(Instant::now()));
        }
    });
    std::thread::spawn(move || {
        for (due, bytes) in in_flight {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        // It fails if the other direction has ended the connection.
        let _ = to.shutdown(Shutdown::Write);
    });
}
