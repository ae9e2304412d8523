//! The `fathom` binary as a process of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::support::{Client, eventually};

/// Ends the process with the test, however that ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Starts the binary and returns it with the first address of that field in its log.
fn start_logging(arguments: &[&str], field: &str) -> (Running, BufReader<std::process::ChildStderr>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fathom"));
    command.args(arguments).args(["--log-format", "json"]).stderr(Stdio::piped());
    let mut running = Running(command.spawn().expect("the binary starts"));
    let mut log = BufReader::new(running.0.stderr.take().expect("a pipe"));
    let mut line = String::new();
    loop {
        line.clear();
        assert!(log.read_line(&mut line).expect("a line") > 0, "the binary ended before it listened");
        let entry: serde_json::Value = serde_json::from_str(&line).expect("one JSON object per line");
        if let Some(address) = entry["fields"][field].as_str() {
            return (running, log, address.to_owned());
        }
    }
}

#[actix::test]
async fn a_log_that_nobody_reads_any_more_stops_nothing() {
    // Port 1 is never an engine's, so that there is something to log after the pipe is gone.
    let (_running, log, address) = start_logging(&["--worker-urls", "127.0.0.1:1", "--port", "0"], "address");
    drop(log);
    let client = Client::new();
    eventually("the registry has logged that its engine is not there, and lives", || async {
        let answer = client.get(&format!("http://{address}/workers")).await;
        (answer.status == 200 && answer.json()["workers"][0]["introspection"] == "failed").then_some(())
    })
    .await;
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

    let arguments = ["--port", "0", "--metrics-port", "0"];
    let (_running, _log, address) = start_logging(&arguments, "metrics_address");
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
