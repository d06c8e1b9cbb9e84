//! Who keeps a NAR: of all nodes, the one with the highest score for it (rendezvous hashing). When a node comes or goes, only the NARs
//! change hands that it keeps from then on, or has kept.

use narval_nix::{Sha256, Sha256Hasher};

/// The score of a node for a NAR: the same on every node, and in every version.
pub(super) fn score(node: &str, file_hash: &Sha256) -> u64 {
    let mut hasher = Sha256Hasher::new();
    hasher.update(node.as_bytes());
    // Its length is fixed, so no two pairs are the same bytes.
    hasher.update(file_hash.as_bytes());
    hasher.finish().as_bytes().iter().take(8).fold(0, |score, byte| (score << 8) | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NARS: u32 = 20_000;

    fn holders(nodes: &[String]) -> Vec<usize> {
        let holder = |nar: u32| {
            let hash = Sha256::of(&nar.to_le_bytes());
            (0..nodes.len()).max_by_key(|at| score(&nodes[*at], &hash)).unwrap()
        };
        (0..NARS).map(holder).collect()
    }

    fn nodes(count: usize) -> Vec<String> {
        (0..count).map(|at| format!("node-{at}")).collect()
    }

    #[test]
    fn nodes_keep_about_the_same_number_of_nars() {
        let holders = holders(&nodes(10));
        for node in 0..10 {
            let kept = holders.iter().filter(|holder| **holder == node).count();
            assert!((1_800..2_200).contains(&kept), "node {node}: {kept}");
        }
    }

    #[test]
    fn a_new_node_takes_its_share_and_moves_nothing_else() {
        let (before, after) = (holders(&nodes(9)), holders(&nodes(10)));
        let moved: Vec<usize> =
            before.iter().zip(&after).filter(|(old, new)| old != new).map(|(_, new)| *new).collect();
        assert!((1_800..2_200).contains(&moved.len()), "{}", moved.len());
        assert!(moved.iter().all(|new| *new == 9), "only to the new one");
    }

    /// Nodes of different versions have to agree.
    #[test]
    fn scores_never_change() {
        assert_eq!(score("node-1", &Sha256::of(b"nar")), 6_414_757_425_449_839_351);
    }
}
