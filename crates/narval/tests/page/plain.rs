//! The page without script, and what every document has: as a text browser, a strict profile or a crawler sees it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use narval_nix::Sha256;

use crate::HTML;
use crate::lab::Lab;
use crate::support::{Answer, Server, hash_part};

/// The targets of a document's links, and the text behind each, up to the end of the element.
fn links(document: &str) -> Vec<(String, String)> {
    let parts = document.split("<a ").skip(1);
    parts
        .filter_map(|part| {
            let (attributes, rest) = part.split_once('>')?;
            let href = attributes.split("href=\"").nth(1)?.split('"').next()?;
            Some((href.replace("&amp;", "&"), rest.split("</a>").next()?.to_owned()))
        })
        .collect()
}

/// Where a relative link of a document leads.
fn resolve(at: &str, link: &str) -> String {
    if link.starts_with('/') {
        return link.to_owned();
    }
    let path = at.split('?').next().unwrap();
    if link.starts_with('?') {
        return format!("{path}{link}");
    }
    let mut folders: Vec<&str> = path.split('/').collect();
    folders.pop();
    let (path, query) = link.split_once('?').map_or((link, None), |(path, query)| (path, Some(query)));
    for part in path.split('/') {
        match part {
            ".." => drop(folders.pop()),
            "." => {}
            part => folders.push(part),
        }
    }
    if path.ends_with("./") {
        folders.push("");
    }
    format!("{}{}", folders.join("/"), query.map(|query| format!("?{query}")).unwrap_or_default())
}

/// Follows the first link whose text has this.
fn follow(server: &Server, at: &str, text: &str) -> (String, Answer) {
    let document = server.ask("GET", at, HTML);
    let links = links(document.text());
    let found = links.iter().find(|(_, shown)| shown.contains(text));
    let (link, _) = found.unwrap_or_else(|| panic!("{at} has no link '{text}': {links:?}"));
    let to = resolve(at, link);
    let answer = server.ask("GET", &to, HTML);
    assert_eq!(answer.status, 200, "{at} → {link} → {to}: {}", answer.text());
    (to, answer)
}

#[test]
fn a_text_browser_finds_a_path_reads_key_and_url_and_downloads_a_file() {
    let lab = Lab::signing(&[]);
    let tree = crate::add_tree(&lab.store, "tree-1.0");
    lab.push(&tree);
    let server = &lab.server;
    let first = server.ask("GET", "/", HTML);
    assert!(first.text().contains("<code aria-label=\"URL\">http://"), "{}", first.text());
    assert!(first.text().contains("<code aria-label=\"Public key\">own-1:"), "{}", first.text());
    // The search is a form.
    assert!(first.text().contains("<form role=\"search\" action=\"./\">") && first.text().contains("name=\"q\""));
    let (at, _) = follow(server, "/?q=TREE", "tree");
    assert_eq!(at, format!("/_narval/path/{}", hash_part(&tree)));
    let (_, archive) = follow(server, &at, "Download as tar");
    assert!(archive.complete && archive.body.len() > 400_000);
    let (at, _) = follow(server, &at, "run");
    let (_, file) = follow(server, &at, "Download");
    assert_eq!(file.body, std::fs::read(lab.store.real(&tree).join("bin/run")).unwrap());
    let (at, _) = follow(server, &at, "tree-1.0");
    let (_, folder) = follow(server, &at, "bin/");
    assert!(folder.text().contains("<bdi>run</bdi>"), "{}", folder.text());
    // Names that nothing has are answered with what could be done.
    let (at, _) = follow(server, "/?q=tere", "tree");
    assert_eq!(at, "/?q=tree");
    for filter in ["pinned", "unsigned", "largest", "unused"] {
        let answer = server.ask("GET", &format!("/?q=&filter={filter}"), HTML);
        assert_eq!(answer.text().contains("<bdi>tree</bdi>"), filter == "largest", "{filter}: {}", answer.text());
    }
}

/// Data is in the documents, never in script or style: these are the same everywhere, and nothing else may run.
#[test]
fn script_style_and_policy_are_constant_and_everything_is_small() {
    let lab = Lab::signing(&[]);
    let tree = crate::add_tree(&lab.store, "tree-1.0");
    lab.push(&tree);
    let private = Lab::new(&["--private"]);
    let hash = hash_part(&tree);
    let inner = |answer: &Answer, name: &str| {
        let text = answer.text();
        assert_eq!(text.matches(&format!("<{name}")).count(), 1, "{name}");
        text.split(&format!("<{name}>")).nth(1).unwrap().split(&format!("</{name}>")).next().unwrap().to_owned()
    };
    let sign_in = private.server.ask("GET", "/", HTML);
    let policy = sign_in.field("content-security-policy").unwrap().to_owned();
    let assets = ["script", "style"].map(|name| inner(&sign_in, name));
    for (asset, kind) in std::iter::zip(&assets, ["script", "style"]) {
        let hash = STANDARD.encode(Sha256::of(asset.as_bytes()).as_bytes());
        assert!(policy.contains(&format!("{kind}-src 'sha256-{hash}'")), "{kind}: {policy}");
    }
    assert!(
        policy.contains("default-src 'none'") && policy.contains("form-action 'self'") && !policy.contains("unsafe")
    );
    let same = format!("/_narval/compare/{hash}/{hash}");
    let views = [
        "/",
        "/?q=tree",
        &format!("/_narval/path/{hash}"),
        &format!("/_narval/files/{hash}/bin"),
        &same,
        "/_narval/status",
        "/_narval/path/x",
    ];
    for view in views {
        let answer = lab.server.ask("GET", view, HTML);
        assert_eq!(answer.field("content-security-policy"), Some(policy.as_str()), "{view}");
        assert_eq!(["script", "style"].map(|name| inner(&answer, name)), assets, "{view}");
        assert_eq!(answer.field("cache-control"), Some("no-store"), "{view}");
        for attribute in [" style=", " onclick=", " onload=", "javascript:"] {
            let without = assets.iter().fold(answer.text().to_owned(), |text, asset| text.replace(asset, ""));
            assert!(!without.contains(attribute), "{view}: {attribute}");
        }
        let compressed = lab.server.ask("GET", view, &[HTML[0], "Accept-Encoding: zstd"]);
        assert_eq!(compressed.field("content-encoding"), Some("zstd"), "{view}");
        assert!(compressed.body.len() < 30_000, "{view}: {} bytes", compressed.body.len());
        let head = lab.server.ask("HEAD", view, HTML);
        assert_eq!((head.status, head.body.len()), (answer.status, 0), "{view}");
    }
}

/// Whoever may not read gets one document, whatever is asked for. A session reads, and nothing of that is stored.
#[test]
fn a_private_cache_looks_like_none_and_a_session_reads_it() {
    let lab = Lab::new(&[]);
    let config = lab.store.path("serve.toml");
    std::fs::write(&config, "[[cache]]\nname = 'team'\npublic = false\ndescription = 'Of <b>the</b> group.'\n")
        .unwrap();
    let server = Lab::serve(&lab.store, &["--config", config.to_str().unwrap()]);
    let lab = Lab { store: lab.store, server };
    let tree = crate::add_tree(&lab.store, "tree-1.0");
    let hash = hash_part(&tree).to_owned();
    let elsewhere = lab.sign_in(&lab.token(&["--admin", "--cache", "default"]));
    let seen = |name: &str, below: &str, fields: &[&str]| {
        let answer = lab.server.ask("GET", &format!("/{name}{below}"), &[&[HTML[0]], fields].concat());
        let names = ["content-type", "cache-control", "etag", "vary", "content-security-policy", "www-authenticate"];
        let fields: Vec<_> = names.iter().map(|field| answer.field(field).map(str::to_owned)).collect();
        (answer.status, fields, answer.text().replace(name, "NAME"))
    };
    let views = [
        "",
        "/",
        "/?q=tree",
        "/_narval/status",
        "/_narval/manage",
        "/_narval/path/x",
        &format!("/_narval/path/{hash}"),
    ];
    for view in views {
        let without = seen("team", view, &[]);
        assert_eq!(without.0, 200, "{view}");
        assert!(without.2.contains("<h1>Sign in</h1>") && !without.2.contains("NAME"), "{view}");
        assert_eq!(without, seen("team", "/", &[]), "{view}: one document");
        assert_eq!(without, seen("nosuch", view, &[]), "{view}");
        // A session of another cache learns nothing, either.
        assert_eq!(seen("team", view, &[&elsewhere.cookie]), seen("nosuch", view, &[&elsewhere.cookie]), "{view}");
        let bearer = format!("Authorization: Bearer {}", lab.token(&["--push", "--cache", "team"]));
        assert_eq!(seen("team", view, &[&bearer]), seen("nosuch", view, &[&bearer]), "{view}");
    }
    let own = lab.sign_in(&lab.token(&["--pull", "--cache", "default,team"]));
    let overview = seen("team", "/", &[&own.cookie]);
    assert!(
        overview.2.contains("is a new binary cache") && overview.2.contains("Of &lt;b&gt;the&lt;/b&gt; group."),
        "{}",
        overview.2
    );
    assert_eq!(overview.1[1].as_deref(), Some("no-store"));
    assert!(overview.1[3].as_deref().unwrap().contains("cookie"));
    // Without a slash at the end, links lead below the cache, too.
    let bare = lab.server.ask("GET", "/team", &[HTML[0], &own.cookie]);
    assert!(bare.text().contains("href=\"team/_narval/status\""), "{}", bare.text());
    // A text for other clients is what it was.
    let text = lab.server.ask("GET", "/", &["Accept: */*"]);
    assert!(text.text().starts_with("This is a Nix binary cache") && text.field("cache-control").is_none());
}

/// Looking is no use of a path: what nobody installs is not kept because somebody looks at the list.
#[test]
fn looking_at_paths_is_no_use_of_them() {
    let lab = Lab::signing(&[]);
    let tree = crate::add_tree(&lab.store, "tree-1.0");
    lab.push(&tree);
    let Lab { store, server } = lab;
    assert_eq!(server.terminate(), Some(0));
    let index = |statement: &str| {
        let output = std::process::Command::new("sqlite3").arg(store.path("data/index.sqlite")).arg(statement).output();
        crate::support::stdout(output.unwrap()).trim().to_owned()
    };
    index("update paths set used = used - 4000000");
    let days = "select (unixepoch() - used) / 86400 from paths";
    let server = Lab::serve(&store, &[]);
    for view in ["/", "/?q=tree", &format!("/_narval/path/{}", hash_part(&tree)), "/_narval/page/check"] {
        assert_eq!(server.ask("GET", view, HTML).status, 200, "{view}");
    }
    assert!(server.ask("GET", "/?q=&filter=unused", HTML).text().contains("<bdi>tree</bdi>"));
    // Uses are recorded when it ends, at the latest.
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(index(days), "46");
    // A client's question is a use.
    let server = Lab::serve(&store, &[]);
    assert_eq!(server.get(&format!("/{}.narinfo", hash_part(&tree))).status, 200);
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(index(days), "0");
}
