//! Which nodes are there, and which paths.

use super::*;

/// Nodes find each other, and those that end or die are gone, by the database's clock.
#[test]
fn nodes_know_who_is_there() {
    let Some(server) = PostgresServer::new() else { return };
    let address = server.database();
    let database = address.split(['/', '?']).nth(3).unwrap().to_owned();
    let sql = |statement: &str| server.sql(&database, statement).unwrap();
    let start = |id: &str| {
        let (index, members) = (Postgres::open(&address).unwrap(), Arc::new(Members::new(id.to_owned(), 1_000)));
        let secret = index.join(&members, &format!("http://{id}.example.org:5000")).unwrap().unwrap();
        (index, members, secret)
    };
    let (_one, seen_by_one, secret) = start("one");
    assert_eq!(seen_by_one.count(), 1);
    let (two, seen_by_two, same) = start("two");
    assert_eq!(seen_by_two.count(), 2, "who joins knows at once who is there");
    soon(|| seen_by_one.count() == 2);
    assert!(same.is_proven(secret.authorization().as_bytes()));
    assert_eq!(sql("select length(value) from narval.meta where key = 'peer secret'"), "52");
    // One is killed, and one ends and says so.
    assert_eq!(sql("select distinct weight from narval.nodes"), "1000");
    sql("insert into narval.nodes values ('killed', 'http://10.0.0.9', 1000, now())");
    soon(|| seen_by_one.count() == 3 && seen_by_two.count() == 3);
    sql("update narval.nodes set seen = now() - interval '31 seconds' where id = 'killed'");
    soon(|| seen_by_one.count() == 2 && seen_by_two.count() == 2);
    two.leave();
    drop(two);
    soon(|| seen_by_one.count() == 1);
    // A node whose row was removed, as after a restore of the database, writes it again.
    sql("delete from narval.nodes");
    soon(|| sql("select string_agg(id, ' ') from narval.nodes") == "one");
    // While the database is away, those that are known stay known, and a node that ends does not wait for it.
    let (three, ..) = start("three");
    soon(|| seen_by_one.count() == 2);
    server.stop();
    soon(|| three.caches().is_err());
    three.leave();
    assert_eq!(seen_by_one.count(), 2);
}

/// A path becomes visible after one with a greater id: the point to which the history is known stays before it until then. Nodes share the
/// history.
#[test]
fn a_history_is_known_up_to_what_is_still_under_way() {
    let Some(server) = PostgresServer::new() else { return };
    let address = server.database();
    let [one, two] = [0, 1].map(|_| Postgres::open(&address).unwrap());
    let cache = one.create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    let (early, late) = ("early", "late");
    let add = |name: &str| {
        assert_eq!(one.commit(cache, vec![path(name, early)], &[], 1).unwrap(), Commit::Done);
        one.last_id().unwrap()
    };
    for file in [early, late] {
        one.add_file(cache, file, &nar(file), 1).unwrap();
    }
    let point = |node: &Postgres| node.history().unwrap().unwrap();
    let first = add("first");
    let history = point(&one).0;
    assert_eq!([point(&one), point(&two)], [(history, first); 2]);
    // As a commit does it, of a path whose id comes before that of the next one.
    let mut other = one.database.pool.open().unwrap();
    let half = "begin; select from narval.nars where name = 'late' for update; \
         insert into narval.paths (cache, hash_part, path, nar_hash, file, narinfo, listing_size, version, added, used) \
         select cache, 'late', 'late', nar_hash, 'late', narinfo, listing_size, version, added, used from narval.paths";
    other.run(DEADLINE, async |client| Ok(client.batch_execute(half).await?)).unwrap();
    let third = add("third");
    assert_eq!(third, first + 2);
    for node in [&one, &two] {
        assert_eq!([point(node), point(node)], [(history, first); 2], "the second one may still come");
        assert_eq!(node.parts_between(cache, (first, i64::MAX), 10).unwrap(), [path("third", early).hash_part]);
    }
    other.run(DEADLINE, async |client| Ok(client.batch_execute("rollback").await?)).unwrap();
    for node in [&one, &two] {
        soon(|| point(node) == (history, third));
    }
}
