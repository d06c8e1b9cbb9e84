//! Debian's chromium, driven by its remote protocol over pipes.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use base64::Engine;
use serde_json::{Value, json};

/// How long the browser may take for one thing.
const PATIENCE: Duration = Duration::from_secs(90);

/// A browser with one page. It ends when dropped.
pub struct Browser {
    child: Child,
    to: File,
    from: Receiver<Value>,
    number: u64,
    session: String,
    /// What the page complained of: errors, and violations of its policy.
    pub complaints: Vec<String>,
    /// Requests that named a dictionary (RFC 9842).
    pub dictionaries_named: usize,
    _folder: tempfile::TempDir,
}

impl Browser {
    /// `None`: there is no browser on this machine.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// The same with further options.
    pub fn start_with(options: &[&str]) -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|folder| folder.join("chromium").exists()) {
            eprintln!("skipped: chromium is not installed");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let [input, output] = ["in", "out"].map(|name| folder.path().join(name));
        assert!(Command::new("mkfifo").args([&input, &output]).status().unwrap().success());
        let mut command = Command::new("sh");
        command.args(["-c", r#"exec chromium "$@" 3<"$PIPE_IN" 4>"$PIPE_OUT""#, "chromium"]);
        command.env("PIPE_IN", &input).env("PIPE_OUT", &output).env("HOME", folder.path()).env("TMPDIR", folder.path());
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]);
        command.args(["--disable-sync", "--disable-background-networking", "--disable-component-update"]);
        command.args(["--disable-dev-shm-usage", "--ignore-certificate-errors", "--remote-debugging-pipe"]);
        command.arg(format!("--user-data-dir={}", folder.path().join("profile").display()));
        command.process_group(0);
        command.args(options).arg("about:blank").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        // In the order in which the shell opens them: each waits for the other side.
        let to = OpenOptions::new().write(true).open(&input).unwrap();
        let mut from = BufReader::new(File::open(&output).unwrap());
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while from.read_until(0, &mut message).is_ok_and(|read| read > 0) {
                message.pop();
                if sender.send(serde_json::from_slice(&message).unwrap()).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let mut browser = Self {
            child,
            to,
            from: receiver,
            number: 0,
            session: String::new(),
            complaints: Vec::new(),
            dictionaries_named: 0,
            _folder: folder,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.resize(1280);
        Some(browser)
    }

    /// Calls a method of the protocol.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        let answer = self.ask(method, params);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.number += 1;
        let mut message = json!({ "id": self.number, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        let mut text = serde_json::to_vec(&message).unwrap();
        text.push(0);
        self.to.write_all(&text).unwrap();
        loop {
            let answer = self.from.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{method}: {error}"));
            if answer["id"] == self.number {
                return answer;
            }
            self.event(&answer);
        }
    }

    fn event(&mut self, event: &Value) {
        let params = &event["params"];
        if event["method"] == "Network.requestWillBeSentExtraInfo"
            && let Some(headers) = params["headers"].as_object()
        {
            let is_named = headers.keys().any(|name| name.eq_ignore_ascii_case("available-dictionary"));
            self.dictionaries_named += usize::from(is_named);
        }
        let complaint = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => params["exceptionDetails"].to_string(),
            Some("Runtime.consoleAPICalled") if params["type"] != "log" => params["args"].to_string(),
            Some("Log.entryAdded") => params["entry"]["text"].to_string() + " " + &params["entry"]["url"].to_string(),
            _ => return,
        };
        self.complaints.push(complaint);
    }

    /// The result of a script, which may be a promise.
    pub fn eval(&mut self, script: &str) -> Value {
        let params = json!({ "expression": script, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{script}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until a script's result is true.
    pub fn wait(&mut self, script: &str) {
        let until = Instant::now() + PATIENCE;
        // While the page leads elsewhere, there is nothing that could answer.
        let params = json!({ "expression": format!("Boolean({script})"), "awaitPromise": true, "returnByValue": true });
        while self.ask("Runtime.evaluate", params.clone())["result"]["result"]["value"] != true {
            if Instant::now() > until {
                let text = self.eval("document.body?.innerText");
                panic!("never: {script}: {text} {:?}", self.complaints);
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Opens an address anew, and waits until its text has this.
    pub fn open(&mut self, url: &str, text: &str) {
        self.call("Page.navigate", json!({ "url": "about:blank" }));
        self.wait("location.href === 'about:blank'");
        self.call("Page.navigate", json!({ "url": url }));
        self.wait("location.href !== 'about:blank' && document.readyState === 'complete'");
        self.shows(text);
    }

    /// Waits until the page's text has this.
    pub fn shows(&mut self, text: &str) {
        self.wait(&format!("document.body?.innerText.includes({})", json!(text)));
    }

    /// Sets the width of the window.
    pub fn resize(&mut self, width: u32) {
        let params = json!({ "width": width, "height": if width < 600 { 844 } else { 900 }, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", params);
    }

    /// Which colours the user prefers.
    pub fn prefer(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Clicks the first element that a selector and its text name.
    pub fn click(&mut self, selector: &str, text: &str) {
        let find = format!(
            "[...document.querySelectorAll({})].find((one) => one.textContent.includes({}) && one.checkVisibility())",
            json!(selector),
            json!(text)
        );
        // At once: the page may put another document in the place of this one.
        self.wait(&format!("(() => {{ const one = {find}; one?.click(); return one; }})()"));
    }

    /// Types into a field.
    pub fn fill(&mut self, selector: &str, text: &str) {
        let selector = json!(selector);
        self.wait(&format!("document.querySelector({selector})"));
        self.eval(&format!("document.querySelector({selector}).focus()"));
        self.eval(&format!("document.querySelector({selector}).value = ''"));
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Presses a key.
    pub fn press(&mut self, key: &str, code: u32) {
        for kind in ["keyDown", "keyUp"] {
            let mut params = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            if key == "Enter" && kind == "keyDown" {
                params["text"] = "\r".into();
            }
            self.call("Input.dispatchKeyEvent", params);
        }
    }

    /// Writes what the whole page looks like into the folder of `NARVAL_SCREENSHOTS`, if it is set.
    pub fn screenshot(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("NARVAL_SCREENSHOTS") else { return };
        let size =
            self.eval("[document.documentElement.clientWidth, Math.min(document.documentElement.scrollHeight, 2400)]");
        let clip = json!({ "x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1 });
        let shot = self.call("Page.captureScreenshot", json!({ "clip": clip, "captureBeyondViewport": true }));
        let png = base64::engine::general_purpose::STANDARD.decode(shot["data"].as_str().unwrap()).unwrap();
        let path: PathBuf = Path::new(&folder).join(format!("{name}.png"));
        std::fs::write(path, png).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // All its processes are in its group. Chromium 156 does not end for `Browser.close`.
        let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", self.child.id())]).status();
        let _ = self.child.wait();
    }
}
