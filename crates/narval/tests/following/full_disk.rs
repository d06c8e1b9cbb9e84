//! A disk that is full: what runs goes on, nothing is half there, and the next round succeeds when there is room.

use std::fs;
use std::io::Write;
use std::process::Command;

use crate::disk::Disk;
use crate::machine::{Kind, Machine};

/// The size of the disk, as `mount` wants it.
const SIZE: &str = "size=64m";
/// What a release adds that does not fit.
const PAYLOAD: usize = 6 << 20;

/// Temporary names that were left.
fn left(disk: &Disk) -> Vec<String> {
    let output = Command::new("find").arg(disk.disk()).args(["-name", ".narval-tmp-*"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(ToOwned::to_owned).collect()
}

/// Fills the disk but for so many bytes.
fn fill(disk: &Disk, free: usize) {
    let mut file = fs::File::create(disk.disk().join("filler")).unwrap();
    let mut len = 0;
    while let Ok(written) = file.write(&[0; 4096]) {
        len += written as u64;
    }
    file.set_len(len.saturating_sub(free as u64)).unwrap();
}

#[test]
fn a_full_disk_changes_nothing() {
    let Some(disk) = Disk::new(Machine::new(), &["-t", "tmpfs", "-o", SIZE, "none"]) else { return };
    let machine = &disk.machine;
    machine.release(1, Kind::Good);
    let message = disk.once();
    assert_eq!(message.outcome(), ("switched", Some(0)), "{}", message.log);
    let (mut runs, mut random) = (1, 7_u64);
    // From no room at all to nearly enough of it.
    for (revision, free) in (2..).zip([0, 4096, 64 << 10, 1 << 20, PAYLOAD / 2]) {
        let source = machine.path(&format!("source-{revision}"));
        fs::create_dir(&source).unwrap();
        // It is not made smaller by compression.
        let payload = (0..PAYLOAD).map(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            random.to_le_bytes()[7]
        });
        fs::write(source.join("payload"), payload.collect::<Vec<_>>()).unwrap();
        machine.release(revision, Kind::Good);
        fill(&disk, free);
        for _ in 0..2 {
            let message = disk.once();
            assert_eq!(message.code, Some(6), "{free} bytes are free: {}", message.log);
            assert_eq!((disk.current(), machine.running()), (runs, runs.to_string()), "{free} bytes are free");
        }
        fs::remove_file(disk.disk().join("filler")).unwrap();
        let message = disk.once();
        assert_eq!(message.outcome(), ("switched", Some(0)), "{free} bytes were free: {}", message.log);
        assert_eq!((disk.current(), machine.running()), (revision, revision.to_string()));
        assert_eq!(left(&disk), Vec::<String>::new());
        runs = revision;
    }
}
