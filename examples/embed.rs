//! The router inside an actix-web application that has routes of its own, at two scopes and on several HTTP threads.
//!
//! Run: `cargo run --release --example embed`. The last line is `embed: 8 requests, 8 ok, 0 failed`.

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use actix_web::{App, HttpServer, web};
use fathom_router::config::RouterConfig;
use fathom_router::logic::endpoint::{Endpoint, WorkerUrl};
use fathom_router::router::Router;
use fathom_router::sim::{SimConfig, SimEngine};

mod support;

use support::{Client, Failure};

async fn about() -> &'static str {
    "an application with a router inside"
}

#[actix::main]
async fn main() -> Result<(), Failure> {
    let engine = SimEngine::start(SimConfig::default()).await?;
    let mut config = RouterConfig::default();
    config.workers = vec![Endpoint::new(WorkerUrl::parse(&engine.url())?)];

    // These lines are all there is to embedding.
    let router = Router::builder().config(config).start().await?;
    let routes = router.configure();
    let server = HttpServer::new(move || {
        App::new()
            .route("/about", web::get().to(about))
            .service(web::scope("/llm").configure(routes.clone()))
            .service(web::scope("/tenants/{tenant}").configure(routes.clone()))
    })
    .workers(2)
    .h1_allow_half_closed(false) // a client that leaves ends the engine's work at once
    .tcp_nodelay(true) // the first chunk of a stream leaves at once
    .disable_signals()
    .bind(("127.0.0.1", 0))?;

    let address = format!("http://{}", server.addrs()[0]);
    let server = server.run();
    let stop = server.handle();
    actix::spawn(server);

    let client = Client::new();
    client.wait_until_serving(&format!("{address}/llm"), 1).await?;
    let about = client.get(&format!("{address}/about")).await?;
    println!("GET /about: {} {}", about.status, String::from_utf8_lossy(&about.body));
    let mut num_ok = 0;
    for (number, scope) in ["llm", "tenants/blue", "llm", "tenants/green"].iter().cycle().take(8).enumerate() {
        let answer = client.chat(&format!("{address}/{scope}"), "hello", 4, number % 2 == 0).await?;
        println!("POST /{scope}/v1/chat/completions: {} by engine {}", answer.status, answer.header("x-sim-engine"));
        num_ok += usize::from(answer.status == 200);
    }
    stop.stop(true).await;
    router.stop().await;
    println!("embed: 8 requests, {num_ok} ok, {} failed", 8 - num_ok);
    Ok(())
}
