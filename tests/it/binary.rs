//! The `fathom` binary as a process of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

use crate::support::{Client, RawClient, RawEngine, TemporaryFile, engine, eventually, post};

/// A running binary, which ends with the test, however that ends.
pub(crate) struct Running {
    child: Child,
    log: Option<BufReader<ChildStderr>>,
    address: String,
}

impl Running {
    /// Starts the binary and waits until it listens.
    fn start(arguments: &[&str]) -> Self {
        let mut running = Self::spawn(Command::new(env!("CARGO_BIN_EXE_fathom")), arguments);
        running.address = running.logged("address");
        running
    }

    /// Starts the binary with so many file descriptors at the most, and waits until it has logged this field, and listens.
    pub(crate) fn start_with_descriptors(limit: u32, arguments: &[&str], field: &str) -> Self {
        let mut command = Command::new("sh");
        let limited = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
        command.args(["-c", &limited, env!("CARGO_BIN_EXE_fathom")]);
        let mut running = Self::spawn(command, arguments);
        running.logged(field);
        running.address = running.logged("address");
        running
    }

    fn spawn(mut command: Command, arguments: &[&str]) -> Self {
        command.args(["--port", "0", "--log-format", "json"]).args(arguments).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let log = child.stderr.take().map(BufReader::new);
        Self { child, log, address: String::new() }
    }

    /// Reads the log up to a line with that field, and returns the field.
    fn logged(&mut self, field: &str) -> String {
        self.logged_with(field, "")
    }

    /// Reads the log up to a line with that field in which this stands.
    fn logged_with(&mut self, field: &str, text: &str) -> String {
        let log = self.log.as_mut().expect("the log is read");
        let mut line = String::new();
        loop {
            line.clear();
            assert!(log.read_line(&mut line).expect("a line") > 0, "the binary ended without saying {field}");
            let entry: serde_json::Value = serde_json::from_str(&line).expect("one JSON object per line");
            let value = &entry["fields"][field];
            let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            if !value.is_null() && shown.contains(text) {
                return shown;
            }
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sends a signal, as the shell does.
    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success(), "{kill}");
    }

    async fn ended(&mut self) -> ExitStatus {
        eventually("the process ends", || {
            let ended = self.child.try_wait().expect("a child");
            async move { ended }
        })
        .await
    }

    pub(crate) async fn wait_until_ready(&self) {
        eventually("it is ready", || async {
            (Client::new().get(&format!("{}/readyz", self.url())).await.status == 200).then_some(())
        })
        .await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[actix::test]
async fn a_log_that_nobody_reads_any_more_stops_nothing() {
    // Port 1 is never an engine's, so that there is something to log after the pipe is gone.
    let mut running = Running::start(&["--worker-urls", "127.0.0.1:1"]);
    drop(running.log.take());
    let client = Client::new();
    eventually("the registry has logged that its engine is not there, and lives", || async {
        let answer = client.get(&format!("{}/workers", running.url())).await;
        (answer.status == 200 && answer.json()["workers"][0]["introspection"] == "failed").then_some(())
    })
    .await;
}

#[actix::test]
async fn a_signal_to_stop_ends_it_with_code_0_once_streams_are_over_and_a_second_one_at_once() {
    let mut engine = RawEngine::start().await;
    for is_told_twice in [false, true] {
        let mut running = Running::start(&["--worker-urls", &engine.url(), "--drain-timeout-secs", "86400"]);
        running.wait_until_ready().await;
        let mut client = RawClient::connect(&running.url()).await;
        client.write(post("/v1/chat/completions", r#"{"stream":true}"#)).await;
        let mut request = engine.next_request().await;
        request.start_stream().await;
        client.read_through("\r\n\r\n").await;
        running.signal("TERM");
        running.logged("num_open");
        if is_told_twice {
            running.signal("INT");
            assert_eq!(running.ended().await.code(), Some(1));
            request.peer_is_gone().await;
        } else {
            request.write_chunk("data: 1\n\n").await;
            client.read_through("data: 1\n\n").await;
            request.end_stream().await;
            client.read_through("0\r\n\r\n").await;
            assert_eq!(running.ended().await.code(), Some(0));
        }
    }
}

#[actix::test]
async fn a_changed_file_is_obeyed_or_refused_whole_with_a_reason() {
    let (first, second) = (engine("first").await, engine("second").await);
    let file = TemporaryFile::new("reload.toml", &format!("worker_urls = ['{}']\n", first.url()));
    let arguments = ["--config", file.path().to_str().expect("a path in ASCII")];
    // What was lowered at start is no change.
    let mut running = Running::start_with_descriptors(256, &arguments, "max_concurrent_requests");
    running.wait_until_ready().await;
    let both = format!("worker_urls = ['{}', '{}']\n", first.url(), second.url());
    file.write(&(both.clone() + "policy = 'fastest'\n"));
    running.signal("HUP");
    running.logged_with("error", "policy = \"fastest\": must be one of");
    file.write(&(both.clone() + "max_body_bytes = 7\n"));
    running.signal("HUP");
    running.logged_with("error", "max_body_bytes cannot change while the router runs");
    file.write(&(both + "log_level = 'debug'\n"));
    // Without a signal too, it is noticed by itself.
    assert_eq!(running.logged("changed"), "worker_urls,log_level");
    // A pipe that nobody reads fills up with lines of that level, and the process waits for room.
    drop(running.log.take());
    let (client, url) = (Client::new(), format!("{}/workers", running.url()));
    eventually("both workers serve", || async {
        let fleet = client.get(&url).await.json();
        let workers = fleet["workers"].as_array().expect("a list");
        let num_serving = workers.iter().filter(|worker| worker["state"] == "serving").count();
        (num_serving == 2).then_some(())
    })
    .await;
}

#[test]
fn a_port_that_is_taken_stops_the_start_with_a_sentence() {
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_fathom")).args(["--port", &port]).output().expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr);
    let expected = format!("fathom: cannot listen on 127.0.0.1 port {port}: Address already in use");
    assert!(!output.status.success() && said.contains(&expected), "{said}");
}

/// Seen in smg-project/smg#2149.
#[actix::test]
async fn a_metrics_port_that_is_taken_stops_the_start_and_a_free_one_is_told_and_serves_metrics_only() {
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = taken.local_addr().unwrap().port().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_fathom"))
        .args(["--port", "0", "--metrics-port", &port, "--log-level", "error"])
        .output()
        .expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.starts_with(&format!("fathom: cannot listen on 127.0.0.1 metrics_port {port}: ")), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");

    let output = Command::new(env!("CARGO_BIN_EXE_fathom"))
        .args(["--port", "31999", "--metrics-port", "31999"])
        .output()
        .expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert_eq!(said.trim(), "fathom: metrics_port = 31999: must be another port than that of the clients");

    let mut running = Running::start(&["--metrics-port", "0"]);
    let address = running.logged("metrics_address");
    let client = Client::new();
    let metrics = client.get(&format!("http://{address}/metrics")).await;
    assert_eq!(metrics.status, 200);
    assert!(String::from_utf8_lossy(&metrics.body).contains("fathom_workers{state=\"serving\"} 0"));
    assert_eq!(client.get(&format!("http://{address}/healthz")).await.status, 200);
    assert_eq!(client.get(&format!("http://{address}/readyz")).await.status, 503);
    for path in ["/workers", "/dashboard", "/v1/models"] {
        assert_eq!(client.get(&format!("http://{address}{path}")).await.status, 404, "{path}");
    }
}

#[test]
fn a_bad_value_stops_the_start_with_a_sentence_that_names_it() {
    let rows: [(&[&str], &str); 6] = [
        (&["--api-keys-file", "/nonexistent/keys"], "api_keys_file = \"/nonexistent/keys\": No such file"),
        (&["--tls-cert-file", "cert.pem"], "tls_cert_file = \"cert.pem\": needs tls_key_file"),
        (
            &["--port", "0", "--tls-cert-file", "/nonexistent/c", "--tls-key-file", "/nonexistent/k"],
            "tls_cert_file = \"/nonexistent/c\": No such file",
        ),
        (&["--worker-urls", "http://ok:1", "ftp://bad:2"], "ftp://bad:2"),
        (&["--load-freshness-ms", "0"], "load_freshness_ms = 0: must be at least 1"),
        (&["--policy", "fastest"], "policy = \"fastest\": must be one of"),
    ];
    for (arguments, expected) in rows {
        let output = Command::new(env!("CARGO_BIN_EXE_fathom")).args(arguments).output().expect("the binary runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{arguments:?} said {said}");
    }
}
