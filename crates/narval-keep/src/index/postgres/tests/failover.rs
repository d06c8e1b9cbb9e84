//! A standby that takes over without the last transactions.

use super::*;

/// The address of the same database at another server.
fn at(address: &str, from: &PostgresServer, to: &PostgresServer) -> String {
    address.replace(&from.port.to_string(), &to.port.to_string())
}

/// The new primary gives out the numbers of lost transactions again. Who has seen those notices its changes all the same, and a collection that
/// was paused meanwhile is over.
#[test]
fn numbers_that_are_given_out_again_mean_nothing() {
    let Some(primary) = PostgresServer::new() else { return };
    let address = primary.database();
    let before = Postgres::open(&address).unwrap();
    let standby = primary.standby();
    primary.wait_for(&standby);
    standby.cut_off();
    let node = Node::new(false).unwrap();
    let look = |index: &Postgres, before: Option<&watch::Seen>| {
        let mut connection = index.database.pool.open().unwrap();
        connection.run(DEADLINE, async |client| watch::look(client, &node, before).await).unwrap()
    };
    for name in ["a", "b", "c"] {
        before.create_cache(&CacheName::parse(name).unwrap(), "{}", 1).unwrap();
    }
    let lost = before.begin_collection().unwrap().unwrap();
    before.continue_collection(lost).unwrap();
    let (seen, _) = look(&before, None);
    assert!(!look(&before, Some(&seen)).1);
    primary.crash();
    standby.promote();

    let after = Postgres::open(&at(&address, &primary, &standby)).unwrap();
    after.create_cache(&CacheName::parse("other").unwrap(), "{}", 1).unwrap();
    assert!(look(&after, Some(&seen)).1, "its transaction has a number that was seen");
    let (seen, _) = look(&after, None);
    assert!(!look(&after, Some(&seen)).1);
    let fence = after.begin_collection().unwrap().unwrap();
    assert_eq!(fence.0 >> 31, lost.0 >> 31, "it is given out again");
    assert!(matches!(after.continue_collection(lost), Err(IndexError::Superseded { .. })));
    after.continue_collection(fence).unwrap();
}

/// What a standby says is old: of several hosts, the one that takes writes is used, wherever it is in the list.
#[test]
fn of_several_hosts_the_primary_is_asked() {
    let Some(primary) = PostgresServer::new() else { return };
    let address = primary.database();
    let standby = primary.standby();
    let hosts = |first: &PostgresServer, second: &PostgresServer| {
        address.replace(&primary.port.to_string(), &format!("{},127.0.0.1:{}", first.port, second.port))
    };
    let index = Postgres::open(&hosts(&standby, &primary)).unwrap();
    let cache = index.create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    let Err(error) = Postgres::open(&at(&address, &primary, &standby)) else { panic!("it is a standby") };
    assert!(error.is_unavailable() && error.to_string().contains("takes no writes"), "{error}");
    primary.wait_for(&standby);
    primary.crash();
    standby.promote();
    soon(|| index.caches().is_ok_and(|caches| caches.len() == 1 && caches[0].id == cache));
    soon(|| index.create_cache(&CacheName::parse("new").unwrap(), "{}", 1).is_ok());
}
