//! Which nodes are there.

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
