//! NARs that a server has stored and not recorded, because it was killed.

use std::path::PathBuf;
use std::process::Command;

use crate::in_bucket::Place;
use crate::lab::{Lab, Nar, object_of};
use crate::support::Store;

#[test]
fn what_a_killed_server_has_stored_is_collected() {
    let Some(place) = Place::new(true) else { return };
    let one = place.lab();
    let other = Lab { server: place.serve(&one.store, "other-node"), store: Store::new() };
    let token = place.narval(&one, &["token", "create", "--push", "--pull", "ci"]);
    let sql = |statement: &str| {
        let database = place.database.as_deref().unwrap().split(['/', '?']).nth(3).unwrap();
        place.postgres.as_ref().unwrap().sql(database, statement).unwrap().trim().to_owned()
    };
    let nar = Nar::of(b"of a push that was not given up");
    assert_eq!(one.put(&nar.url(), &token, &nar.bytes).status, 201);
    assert!(Command::new("kill").args(["-9", &one.server.pid().to_string()]).status().unwrap().success());
    // As of an upload that was not recorded.
    let kept: PathBuf = object_of(&place.s3.root().join("the-cache/a/prefix"), &nar.url());
    let lost = kept.with_file_name(format!("{}-0123456789abcdfg.nar", nar.hash.to_nix32()));
    std::fs::copy(&kept, &lost).unwrap();
    let age = |days: u32| {
        for object in [&kept, &lost] {
            let ago = format!("{days} days ago");
            assert!(Command::new("touch").args(["-d", &ago]).arg(object).status().unwrap().success());
        }
    };
    age(9);
    // The server may be alive, and then what it has just stored is not looked at.
    place.narval(&other, &["cache", "gc"]);
    assert!(lost.exists());
    sql("update narval.writers set seen = seen - 9 * 86400");
    age(3);
    assert_eq!(place.narval(&other, &["cache", "fsck"]), "");
    age(5);
    place.narval(&other, &["cache", "gc"]);
    assert!(!lost.exists() && kept.exists());
    assert_eq!(sql("select count(*) from narval.writers"), "0");
    assert_eq!(other.get(&nar.url()).body, nar.bytes);
    assert_eq!(place.narval(&other, &["cache", "fsck", "--contents"]), "");
}
