//! Undoes deltas of NARs: the content coding `dcz` (RFC 9842, section 5).

use std::io::{self, BufRead, Read};

use narval_nix::NarHash;

use super::error::{DecodeError, corrupt, truncated};
use super::zstd::Zstd;
use super::zstd_context::context_with_window;
use crate::delta::{DELTA_HEADER_LEN, delta_header, window_log_max};

/// Reads a NAR from its delta.
///
/// Memory: twice the base while it is created, then the base and the window ([`delta_memory`](crate::delta::delta_memory)). A
/// delta that asks for a larger window is damaged. Like every decoder, it checks no hash of what it reads.
pub struct DeltaDecoder<R> {
    zstd: Zstd<R>,
    /// The header, until it was read.
    expected: Option<[u8; DELTA_HEADER_LEN]>,
}

impl<R: BufRead> DeltaDecoder<R> {
    /// Prepares to undo a delta from `base`, whose hash is `base_hash`. Nothing is read yet.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(source: R, base: Vec<u8>, base_hash: &NarHash) -> Result<Self, DecodeError> {
        let mut context = context_with_window(window_log_max(base.len() as u64))?;
        // A dictionary that is not raw would begin with another magic number than a NAR does.
        let loaded = context.load_dictionary(&base);
        loaded.map_err(|code| DecodeError::Start("dcz", zstd_safe::get_error_name(code).to_owned()))?;
        drop(base);
        Ok(Self { zstd: Zstd::with_context(source, context), expected: Some(delta_header(base_hash)) })
    }

    /// The source, at the position where the decoder stopped.
    pub const fn source_mut(&mut self) -> &mut R {
        self.zstd.source_mut()
    }

    fn check_header(&mut self, expected: &[u8; DELTA_HEADER_LEN]) -> io::Result<()> {
        let mut found = [0; DELTA_HEADER_LEN];
        self.zstd.source_mut().read_exact(&mut found).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => truncated("dcz"),
            _ => error,
        })?;
        if found.get(..8) != expected.get(..8) {
            return Err(corrupt("dcz", "they do not begin with its magic number"));
        }
        if found != *expected {
            return Err(corrupt("dcz", "they are a delta from another base than the requested one"));
        }
        Ok(())
    }
}

impl<R: BufRead> Read for DeltaDecoder<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if let Some(expected) = &self.expected {
            let expected = *expected;
            self.check_header(&expected)?;
            self.expected = None;
        }
        self.zstd.read(out)
    }
}

#[cfg(test)]
mod tests {
    use narval_nix::Sha256;

    use super::*;
    use crate::delta::DELTA_HEADER_LEN;
    use crate::encode::{is_delta_of, make_delta, make_smallest_delta};

    /// Bytes that compress like programs do not: only the base helps.
    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..len).map(next).collect()
    }

    fn delta(base: &[u8], nar: &[u8]) -> Vec<u8> {
        make_delta((base, &Sha256::of(base)), nar, nar.len()).unwrap().unwrap()
    }

    fn undone(delta: &[u8], base: &[u8]) -> io::Result<Vec<u8>> {
        let mut nar = Vec::new();
        DeltaDecoder::new(delta, base.to_vec(), &Sha256::of(base)).unwrap().read_to_end(&mut nar)?;
        Ok(nar)
    }

    /// A rebuild: the same bytes, except for a few hash parts.
    fn rebuilt(base: &[u8]) -> Vec<u8> {
        let mut nar = base.to_vec();
        for (at, byte) in nar.iter_mut().enumerate() {
            *byte = if at % 100_000 < 32 { b'x' } else { *byte };
        }
        nar
    }

    #[test]
    fn a_rebuild_of_megabytes_is_a_delta_of_kilobytes_and_comes_back() {
        let base = noise(12 << 20, 1);
        let nar = [rebuilt(&base), b"and something new".to_vec()].concat();
        let made = delta(&base, &nar);
        assert!(made.len() < nar.len() / 500, "{} bytes", made.len());
        assert_eq!(undone(&made, &base).unwrap(), nar);
        assert!(is_delta_of(&made, &base, &nar).unwrap());
        assert!(!is_delta_of(&made, &nar, &nar).unwrap(), "another base");
        for wrong in [&nar[..1 << 20], &nar[1..], &base, &[&nar[..], b"x"].concat()] {
            assert!(!is_delta_of(&made, &base, wrong).unwrap());
        }
        assert!(!is_delta_of(&made[..made.len() - 1], &base, &nar).unwrap());
    }

    #[test]
    fn the_start_of_the_base_is_used_to_the_end_of_the_window() {
        // The parts are in the opposite order: the last bytes refer to the first ones.
        let (one, two) = (noise(9 << 20, 2), noise(9 << 20, 3));
        let (base, nar) = ([&one[..], &two].concat(), [&two[..], &one].concat());
        let made = delta(&base, &nar);
        assert!(made.len() < 100_000, "{} bytes", made.len());
        assert_eq!(undone(&made, &base).unwrap(), nar);
    }

    #[test]
    fn incompressible_changes_make_no_delta() {
        let (base, nar) = (noise(1 << 20, 4), noise(1 << 20, 5));
        let made = make_delta((&base, &Sha256::of(&base)), &nar, nar.len() / 10 * 8).unwrap();
        assert_eq!(made, None);
        // Larger than the window that every client accepts.
        let nar = noise(9 << 20, 5);
        assert_eq!(make_delta((&base, &Sha256::of(&base)), &nar, usize::MAX >> 1).unwrap(), None);
    }

    #[test]
    fn no_window_is_larger_than_receivers_accept() {
        let (content, hash) = (vec![7; 8_000_001], Sha256::from_bytes([1; 32]));
        let made = |base: &[u8], content: &[u8], len_max| make_smallest_delta((base, &hash), content, len_max).unwrap();
        assert!(made(&content[..1000], &content, 1 << 20).is_none());
        assert!(made(&content[..6_400_001], &content, 1 << 20).is_some());
        assert!(made(&content[..1000], &content[1..], 1 << 20).is_some());
        assert!(made(&content, &content, DELTA_HEADER_LEN - 1).is_none());
    }

    #[test]
    fn hostile_deltas_end_in_one_clear_error() {
        let base = noise(1 << 20, 6);
        let nar = rebuilt(&base);
        let made = delta(&base, &nar);
        let error = |delta: &[u8]| undone(delta, &base).unwrap_err().to_string();
        let changed = |at: usize, to: &[u8]| {
            let mut delta = made.clone();
            delta[at..at + to.len()].copy_from_slice(to);
            delta
        };
        assert_eq!(error(&changed(0, &[0])), "the dcz data are damaged: they do not begin with its magic number");
        let other = "the dcz data are damaged: they are a delta from another base than the requested one";
        assert_eq!(error(&changed(39, &[made[39] ^ 1])), other);
        for cut in [0, 7, 39] {
            assert_eq!(error(&made[..cut]), "the dcz data end too early");
        }
        for cut in [41, 45, made.len() / 2, made.len() - 1] {
            assert!(error(&made[..cut]).ends_with("end too early"), "{}", error(&made[..cut]));
        }
        // A frame without contents size, and a window of 2 GB (RFC 8878, 3.1.1.1.2: exponent 21).
        let bomb = [&made[..DELTA_HEADER_LEN], &[0x28, 0xb5, 0x2f, 0xfd, 0, 21 << 3, 1, 0, 0]].concat();
        assert!(error(&bomb).contains("requires too much memory"), "{}", error(&bomb));
        // A single segment whose contents size is 2^40.
        let huge = [&made[..DELTA_HEADER_LEN], &[0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0]];
        assert!(error(&huge.concat()).contains("requires too much memory"), "{}", error(&huge.concat()));
        // The base is another one than promised: the bytes are wrong, which the NAR hash shows.
        let lie = DeltaDecoder::new(&made[..], noise(1 << 20, 7), &Sha256::of(&base));
        let mut wrong = Vec::new();
        assert!(lie.unwrap().read_to_end(&mut wrong).is_err() || wrong != nar);
        // With only the header, there is an empty NAR, which has the wrong size.
        assert_eq!(undone(&made[..DELTA_HEADER_LEN], &base).unwrap(), b"");
    }
}
