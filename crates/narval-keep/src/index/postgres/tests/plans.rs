//! How PostgreSQL carries out the statements that both databases run.

use super::*;
use crate::index::sql::tests::plans;

#[test]
fn postgres_reads_no_whole_table() {
    let Some(server) = PostgresServer::shared() else { return };
    let address = server.database();
    drop(Postgres::open(&address).unwrap());
    let name = address.split(['/', '?']).nth(3).unwrap();
    let fill = plans::fill()
        .replace("{text}", "lpad(i::text, 32, '0')")
        .replace("{bytes}", "decode(lpad(i::text, 32, '0'), 'hex')");
    server.sql(name, &format!("set search_path to narval; {fill}; {}; analyze", plans::fill_audit())).unwrap();
    for (title, sql, has_one_row) in
        plans::statements().into_iter().flat_map(|(title, sql)| [(title.clone(), sql, true), (title, sql, false)])
    {
        let plan = server.sql(name, &format!("explain {}", plans::explained(sql, has_one_row))).unwrap();
        assert!(!plan.contains("Seq Scan") || plans::may_read_all(&title), "{title}: {plan}");
    }
}
