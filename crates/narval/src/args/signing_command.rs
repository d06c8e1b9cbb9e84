//! A key whose secret is with a command: an agent, a machine of its own, a hardware module.
//!
//! The command gets the text to sign on standard input, and prints the signature as `name:base64`. Each signature is verified before it is used
//! ([`SecretKey::elsewhere`]), so a command can refuse to sign, and nothing else.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use narval_client::Breaker;
use narval_nix::{PublicKey, SecretKey};
use rustix::process::{Pid, Signal, kill_process_group};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// How long a signature may take, with the time that is waited for others.
const DEADLINE: Duration = Duration::from_secs(10);

/// The longest deadline that can be set.
const DEADLINE_MAX_SECONDS: u64 = 300;

/// Processes of one command at a time.
const AT_ONCE_MAX: usize = 4;

/// The largest output that is read, in bytes. A signature has about 120.
const OUTPUT_LEN_MAX: u64 = 4096;

/// How often it is looked whether a process that has closed its output has ended.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The file.
#[derive(Default)]
struct File {
    public_key: String,
    command: Vec<String>,
    deadline_seconds: Option<u64>,
}

impl File {
    fn parse(text: &str) -> Result<Self, String> {
        let table = DeTable::parse(text).map_err(|error| error.message().to_owned())?;
        let mut file = Self::default();
        for (key, value) in table.get_ref() {
            let key = key.get_ref().as_ref();
            let wrong = |expected: &str| format!("{key}: expected {expected}");
            match (key, value.get_ref()) {
                ("public-key", DeValue::String(text)) => file.public_key = text.to_string(),
                ("command", DeValue::Array(words)) => {
                    let word = |word: &Spanned<DeValue<'_>>| word.get_ref().as_str().map(str::to_owned);
                    file.command = words.iter().map(word).collect::<Option<_>>().ok_or_else(|| wrong("texts"))?;
                }
                ("deadline-seconds", DeValue::Integer(number)) => {
                    file.deadline_seconds = Some(number.as_str().parse().map_err(|_| wrong("a number of seconds"))?);
                }
                ("public-key", _) => return Err(wrong("a text")),
                ("command", _) => return Err(wrong("a list of texts")),
                ("deadline-seconds", _) => return Err(wrong("a number of seconds")),
                _ => return Err(format!("'{key}' is not known: there are public-key, command, deadline-seconds")),
            }
        }
        Ok(file)
    }
}

/// The key that a file describes; `None` if it is none that names a command.
pub(super) fn parse(text: &str) -> Option<Result<SecretKey, String>> {
    // A secret key has one line, with a colon, and is no TOML.
    text.lines().any(|line| line.trim_start().starts_with("command")).then(|| {
        let file = File::parse(text)?;
        let public_key: PublicKey = file.public_key.parse().map_err(|error| format!("public-key: {error}"))?;
        let (program, args) = file.command.split_first().ok_or("command: it is empty")?;
        if !program.starts_with('/') {
            return Err(format!("command: '{program}' is not an absolute path"));
        }
        let deadline = file.deadline_seconds.map_or(DEADLINE, Duration::from_secs);
        if deadline.is_zero() || deadline.as_secs() > DEADLINE_MAX_SECONDS {
            return Err(format!("deadline-seconds: 1 to {DEADLINE_MAX_SECONDS}"));
        }
        let signer = Arc::new(Signer {
            program: program.clone(),
            args: args.to_vec(),
            deadline,
            running: Mutex::new(0),
            has_ended: Condvar::new(),
            breaker: Breaker::default(),
        });
        Ok(SecretKey::elsewhere(public_key, Arc::new(move |message: &[u8]| signer.ask(message))))
    })
}

struct Signer {
    program: String,
    args: Vec<String>,
    deadline: Duration,
    running: Mutex<usize>,
    has_ended: Condvar,
    /// Open while the command hangs: who asks for a signature holds a thread of the server, and strangers can ask for many.
    breaker: Breaker,
}

/// The right to run one of the processes.
struct Permit(Arc<Signer>);

impl Drop for Permit {
    fn drop(&mut self) {
        *self.0.running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.has_ended.notify_one();
    }
}

/// A process, which ends with this, and those of its group with it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Until it has been waited for, its number is not another's.
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw)
            && matches!(self.0.try_wait(), Ok(None))
        {
            kill_process_group(pid, Signal::KILL).ok();
            self.0.wait().ok();
        }
    }
}

impl Signer {
    fn ask(self: &Arc<Self>, message: &[u8]) -> Result<String, String> {
        if self.breaker.is_open() {
            return Err(format!("'{}' has not signed lately: it is asked again in a moment", self.program));
        }
        let until = Instant::now() + self.deadline;
        let answer = self.ask_until(until, message);
        // A refusal is an answer, too.
        if answer.is_err() && Instant::now() >= until {
            self.breaker.trip();
        } else {
            self.breaker.succeeded();
        }
        answer
    }

    fn ask_until(self: &Arc<Self>, until: Instant, message: &[u8]) -> Result<String, String> {
        let late = || format!("'{}' has not signed within {} s", self.program, self.deadline.as_secs());
        let failed = |error: io::Error| format!("'{}': {error}", self.program);
        let permit = self.permit().ok_or_else(late)?;
        let mut command = Command::new(&self.program);
        // Its complaints are in the log of the server.
        command.args(&self.args).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut running = Running(command.spawn().map_err(failed)?);
        let (stdin, stdout) = (running.0.stdin.take(), running.0.stdout.take());
        let (message, (sender, receiver)) = (message.to_vec(), channel());
        // It has the permit: a process that leaves its group, and holds the output open, counts until it ends.
        let talk = move || {
            let _permit = permit;
            if let Some(mut stdin) = stdin {
                // One that signs without reading all of it is found out by its signature.
                stdin.write_all(&message).ok();
            }
            let (mut text, mut out) = (String::new(), stdout.map(|out| out.take(OUTPUT_LEN_MAX)));
            let read = out.as_mut().map_or(Ok(0), |out| out.read_to_string(&mut text));
            // Nobody listens any more if it is late.
            sender.send(read.map(|_| text)).ok();
        };
        std::thread::Builder::new().name("signing".into()).spawn(talk).map_err(failed)?;
        let text = receiver.recv_timeout(until.saturating_duration_since(Instant::now())).map_err(|_| late())?;
        let status = loop {
            match running.0.try_wait().map_err(failed)? {
                Some(status) => break status,
                None if Instant::now() >= until => return Err(late()),
                None => std::thread::sleep(LOOK_EVERY),
            }
        };
        if status.success() { text.map_err(failed) } else { Err(format!("'{}' has failed: {status}", self.program)) }
    }

    /// `None` if too many processes run for too long.
    fn permit(self: &Arc<Self>) -> Option<Permit> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.has_ended.wait_timeout_while(running, self.deadline, |running| *running >= AT_ONCE_MAX);
        let (mut running, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        (!waited.timed_out()).then(|| {
            *running += 1;
            Permit(Arc::clone(self))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(script: &str, public_key: &PublicKey) -> String {
        format!("public-key = '{public_key}'\ncommand = ['/bin/sh', '-c', '''{script}''']\ndeadline-seconds = 1\n")
    }

    fn sign(script: &str, key: &SecretKey) -> Result<narval_nix::Signature, String> {
        let elsewhere = parse(&file(script, &key.public_key())).unwrap().unwrap();
        elsewhere.sign(b"text").map_err(|error| error.to_string())
    }

    #[test]
    fn a_command_signs_or_it_does_not() {
        let (key, other) = (SecretKey::generate("cache-1").unwrap(), SecretKey::generate("cache-1").unwrap());
        let right = key.sign(b"text").unwrap();
        assert_eq!(sign(&format!("cat >/dev/null; echo '{right}'"), &key), Ok(right.clone()));
        let lies = [
            (format!("echo '{}'", other.sign(b"text").unwrap()), "is not its signature"),
            (format!("echo '{}'", key.sign(b"another").unwrap()), "is not its signature"),
            ("echo nonsense".to_owned(), "no signature came back"),
            ("yes | head -c 100000000".to_owned(), "cache-1"),
            (format!("echo '{right}'; exit 3"), "exit status: 3"),
            (format!("sleep 60; echo '{right}'"), "has not signed within 1 s"),
            (format!("echo '{right}'; exec sleep 60"), "has not signed within 1 s"),
            // Its child leaves the group, and holds the output.
            ("setsid sleep 3 & exit 0".to_owned(), "has not signed within 1 s"),
        ];
        for (script, expected) in lies {
            let begun = Instant::now();
            let error = sign(&script, &key).unwrap_err();
            assert!(error.contains(expected) && error.contains("cache-1"), "{script}: {error}");
            assert!(begun.elapsed() < Duration::from_secs(20), "{script}");
        }
    }

    #[test]
    fn one_that_hangs_is_waited_for_once() {
        let key = SecretKey::generate("cache-1").unwrap();
        let elsewhere = parse(&file("sleep 60", &key.public_key())).unwrap().unwrap();
        let sign = || {
            let begun = Instant::now();
            (elsewhere.sign(b"text").unwrap_err().to_string(), begun.elapsed())
        };
        let (first, later) = (sign(), [(); 20].map(|()| sign()));
        assert!(first.0.contains("within 1 s"), "{}", first.0);
        let all: Duration = later.iter().map(|(_, time)| *time).sum();
        assert!(later.iter().all(|(error, _)| error.contains("has not signed lately")), "{later:?}");
        assert!(all < first.1, "twenty took {all:?}, and the first one {:?}", first.1);
    }

    #[test]
    fn a_few_run_at_a_time() {
        let key = SecretKey::generate("cache-1").unwrap();
        let folder = tempfile::tempdir().unwrap();
        // Each says how many there are besides it.
        let script = format!(
            "d={}; t=$(mktemp $d/XXXXXX); ls $d | wc -l >>$d/../seen-{}; sleep 0.1; rm $t; echo '{}'",
            folder.path().display(),
            std::process::id(),
            key.sign(b"text").unwrap()
        );
        let text = file(&script, &key.public_key()).replace("deadline-seconds = 1", "deadline-seconds = 60");
        let elsewhere = parse(&text).unwrap().unwrap();
        std::thread::scope(|scope| {
            let sign = || elsewhere.sign(b"text").unwrap();
            (0..12).for_each(|_| drop(scope.spawn(sign)));
        });
        let seen = folder.path().parent().unwrap().join(format!("seen-{}", std::process::id()));
        let most = std::fs::read_to_string(&seen).unwrap();
        std::fs::remove_file(seen).unwrap();
        assert!(most.lines().all(|count| count.trim().parse::<usize>().unwrap() <= AT_ONCE_MAX), "{most}");
    }

    #[test]
    fn files() {
        let key = SecretKey::generate("cache-1").unwrap();
        assert!(parse(&key.to_file_text().unwrap()).is_none());
        for (text, expected) in [
            ("command = ['/bin/true']".to_owned(), "public-key"),
            (format!("public-key = '{}'\ncommand = []", key.public_key()), "it is empty"),
            (format!("public-key = '{}'\ncommand = ['sign']", key.public_key()), "absolute path"),
            (format!("public-key = '{}'\ncommand = ['/x']\ndeadline-seconds = 0", key.public_key()), "1 to 300"),
            (format!("public-key = '{}'\ncommand = ['/x']\nother = 1", key.public_key()), "other"),
            ("public-key = 'nonsense'\ncommand = ['/x']".to_owned(), "public-key"),
        ] {
            let error = parse(&text).unwrap().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
