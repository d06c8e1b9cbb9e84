//! Who keeps a NAR: of all nodes, the one with the highest score for it (rendezvous hashing). When a node comes or goes, or its weight
//! changes, only the NARs change hands that it keeps from then on, or has kept.

use narval_nix::{Sha256, Sha256Hasher};

/// The score of a node for a NAR: the same on every node, and in every version.
pub(super) fn score(node: &str, file_hash: &Sha256) -> u64 {
    let mut hasher = Sha256Hasher::new();
    hasher.update(node.as_bytes());
    // Its length is fixed, so no two pairs are the same bytes.
    hasher.update(file_hash.as_bytes());
    hasher.finish().as_bytes().iter().take(8).fold(0, |score, byte| (score << 8) | u64::from(*byte))
}

/// The score of a node with this weight, of which it has another one without: shares are as weights are. Nodes of one weight are in the
/// same order as without.
pub(super) fn weighted(score: u64, weight: u64) -> u64 {
    // Between 0 and 1, without either. A double has 53 bits, of which the half takes one.
    let part = ((score >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
    // Doubles that are greater than 0 are in the order of their bits.
    (-(weight.max(1) as f64) / part.ln()).to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NARS: u32 = 20_000;

    fn holders(nodes: &[String]) -> Vec<usize> {
        holders_by_weight(nodes, &vec![1; nodes.len()])
    }

    fn holders_by_weight(nodes: &[String], weights: &[u64]) -> Vec<usize> {
        let holder = |nar: u32| {
            let hash = Sha256::of(&nar.to_le_bytes());
            (0..nodes.len()).max_by_key(|at| weighted(score(&nodes[*at], &hash), weights[*at])).unwrap()
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

    #[test]
    fn shares_are_as_weights_are() {
        const T: u64 = 1 << 40;
        let weights = [T / 2, T, 2 * T, 4 * T + T / 2];
        let holders = holders_by_weight(&nodes(4), &weights);
        for (node, weight) in weights.iter().enumerate() {
            let kept = holders.iter().filter(|holder| **holder == node).count() as f64;
            let expected = f64::from(NARS) * *weight as f64 / (8 * T) as f64;
            assert!((0.94..1.06).contains(&(kept / expected)), "node {node}: {kept} instead of {expected}");
        }
    }

    #[test]
    fn a_changed_weight_moves_only_what_that_node_gets_or_gives() {
        let (nodes, before) = (nodes(5), [100, 100, 100, 100, 200]);
        let old = holders_by_weight(&nodes, &before);
        // 2 of 6 parts become 4 of 8, or 1 of 5.
        for (weight, parts) in [(400, 1.0 / 2.0 - 1.0 / 3.0), (100, 1.0 / 3.0 - 1.0 / 5.0)] {
            let mut after = before;
            after[4] = weight;
            let new = holders_by_weight(&nodes, &after);
            let moved: Vec<_> = old.iter().zip(&new).filter(|(old, new)| old != new).collect();
            let share = moved.len() as f64 / f64::from(NARS);
            assert!((share - parts).abs() < 0.015, "{share} instead of {parts}");
            assert!(moved.iter().all(|(old, new)| *(if weight > 200 { new } else { old }) == &4));
        }
    }

    #[test]
    fn nodes_of_one_weight_are_in_the_order_of_nodes_without() {
        let nodes = nodes(7);
        for nar in 0..1000_u32 {
            let hash = Sha256::of(&nar.to_le_bytes());
            let order = |by: &dyn Fn(u64) -> u64| {
                let mut order: Vec<usize> = (0..nodes.len()).collect();
                order.sort_by_key(|at| by(score(&nodes[*at], &hash)));
                order
            };
            assert_eq!(order(&|score| score), order(&|score| weighted(score, 20_000_000_000)));
        }
        let extremes = [weighted(0, 1), weighted(1 << 63, 0), weighted(1 << 63, 2), weighted(u64::MAX, u64::MAX)];
        assert!(extremes.is_sorted(), "{extremes:?}");
        assert!(f64::from_bits(extremes[3]).is_finite());
    }

    /// Nodes of different versions have to agree.
    #[test]
    fn scores_never_change() {
        assert_eq!(score("node-1", &Sha256::of(b"nar")), 6_414_757_425_449_839_351);
        // The logarithm's last bits may be others elsewhere.
        let weighted = f64::from_bits(weighted(6_414_757_425_449_839_351, 1_000));
        assert!((weighted - 946.712_7).abs() < 0.001, "{weighted}");
    }
}
