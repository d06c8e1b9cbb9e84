//! A node whose machine was suspended.

use super::*;
use narval_client::clock::{Jumping, VIRTUAL};

#[test]
fn a_node_that_has_not_looked_for_long_takes_it_that_all_has_changed() {
    let Some(server) = PostgresServer::shared() else { return };
    let index = Postgres::open(&server.database()).unwrap();
    let node = Node::new(false).unwrap();
    let mut connection = index.database.pool.open().unwrap();
    let clocks = Jumping::begin();
    let mut look = |before: Option<&watch::Seen>| {
        connection.run(DEADLINE, async |client| watch::look(client, &node, before).await).unwrap()
    };
    let (seen, _) = look(None);
    assert!(!look(Some(&seen)).1);
    clocks.elapsed.set(Duration::from_secs(29 * 60));
    assert!(!look(Some(&seen)).1);
    clocks.elapsed.set(Duration::from_secs(30 * 60));
    assert!(look(Some(&seen)).1, "the rows of changes may be gone");
    VIRTUAL.set(None);
}

/// Its host has paused it, and no clock of its own shows that.
#[test]
fn changes_that_were_pruned_are_noticed_whatever_the_clock_says() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    let index = Postgres::open(&address).unwrap();
    let node = Node::new(false).unwrap();
    let mut connection = index.database.pool.open().unwrap();
    let mut run = |before: Option<&watch::Seen>| {
        connection.run(DEADLINE, async |client| watch::look(client, &node, before).await).unwrap()
    };
    let (seen, _) = run(None);
    index.create_cache(&CacheName::default(), "{}", 1).unwrap();
    let name = address.split(['/', '?']).nth(3).unwrap();
    server.sql(name, "update narval.changes set at = now() - interval '2 hours'").unwrap();
    let pruned = index.database.pool.open().unwrap().run(DEADLINE, async |client| watch::prune(client).await);
    pruned.unwrap();
    assert_eq!(server.sql(name, "select count(*) from narval.changes").unwrap().trim(), "0");
    let (now, has_changed) = run(Some(&seen));
    assert!(has_changed);
    assert!(!run(Some(&now)).1, "it has seen what was pruned");
}
