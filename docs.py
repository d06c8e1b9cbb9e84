def sub(path, *pairs):
    t=open(path).read()
    for a,b in pairs:
        assert t.count(a)>=1, (path,a)
        t=t.replace(a,b,1)
    open(path,'w').write(t)
import os
os.chdir('/work/wt/backup')
sub('docs/security.md',('''them can sign for these caches. Files are 0600. A key that must not be there is given by `--sign-key`, and the cache has none of its own.
''','''them can sign for these caches. Files are 0600. A key that must not be there is given by `--sign-key`, and the cache has none of its own: a file, a credential of systemd, or a
[command](#keys-that-are-somewhere-else). `narval cache backup` leaves keys in the index out unless it is told otherwise.
'''),
('''A token is 32 random bytes and an id.''','''### Keys that are somewhere else

Wherever a key file is named (`sign-keys`, `--sign-key`), the file can name a command that has the key: an agent, another machine, a hardware module. Then the secret is neither in
the server's files nor in its memory.

```toml
public-key = "cache.example.org-1:6NCHdD59X431o0gWypbMrAURkbJ16ZPMQFGspcDShjY="
command = ["/usr/local/bin/sign-with-the-module", "--slot", "1"]    # an absolute path, and arguments; no shell
deadline-seconds = 10                                               # the default; 300 at most
```

The command gets the text to sign on standard input, and prints the signature as Nix has it, `NAME:BASE64` (Ed25519). For a key that OpenSSL has:

```sh
f=$(mktemp) && cat > "$f"
printf 'cache.example.org-1:' && openssl pkeyutl -sign -rawin -inkey key.pem -in "$f" | base64 -w0
```

- It signs everything that the cache signs: narinfos, [releases](releases.md) and [filters](presence-filters.md). The text of a narinfo begins with `1;`, that of a release with `narval-release-1`,
  that of a filter with `NarvalPresence:`, so a command can refuse what it does not want to sign.
- Each signature is verified with the public key before it is used: a command can refuse to sign, and cannot make the server send anything wrong.
- Four processes of a command run at a time, for `deadline-seconds` each with the time that is waited for others; 4 KiB of output are read. What is late is killed with its process group.
- When it does not sign, what needs the signature is answered with 503 and `Retry-After`, and the log has the reason: nothing is sent or recorded without a signature that was
  promised. What is signed already is served as before, and a signature that a path has is not asked for again.
- A signature costs a process, once for each path that is pushed, or that a live store is asked for the first time.

A file that systemd passes (`LoadCredential=`, `LoadCredentialEncrypted=`) is a key file like any other: `narval-serve.service` has those in `/etc/narval/keys`, which the server itself
cannot read.

A token is 32 random bytes and an id.'''))
sub('CHANGELOG.md',('''- `narval key rotate CACHE`: a new key''','''- A key file (`sign-keys`, `--sign-key`) can name a command that signs, for keys of agents and hardware modules: it gets the text on standard input and prints the signature, which is verified. When it
  fails, lies or hangs, clients get 503, and nothing is sent without its signature. `SecretKey::sign` and `Release::sign` of `narval-nix` return a `Result`. See
  [docs/security.md](docs/security.md#keys-that-are-somewhere-else).
- `narval key rotate CACHE`: a new key'''))
sub('docs/backup.md',(" Keys in files are never in it."," Keys in files and [commands](security.md#keys-that-are-somewhere-else) are never in it."))
