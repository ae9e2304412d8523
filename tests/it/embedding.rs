//! The router inside somebody's application.

use actix_web::web::{self, Bytes, Data, PayloadConfig};
use actix_web::{App, HttpServer};
use fathom_router::router::Router;

use crate::support::{Client, chat_body, engine, eventually, fast_config};

async fn own_body(body: Bytes, answer: Data<&'static str>) -> String {
    format!("{} {}", **answer, body.len())
}

/// Serves two routers at two scopes, one of them dynamic, beside a route that relies on the application's own data.
#[actix::test]
async fn two_routers_and_own_routes_share_an_application_without_mixing() {
    let (blue, green) = (engine("blue").await, engine("green").await);
    let mut handles = Vec::new();
    for engine in [&blue, &green] {
        handles.push(Router::builder().config(fast_config(&[engine.url()])).start().await.unwrap());
    }
    let (blue_routes, green_routes) = (handles[0].configure(), handles[1].configure());
    let server = HttpServer::new(move || {
        App::new()
            .app_data(Data::new("own"))
            .app_data(PayloadConfig::new(8))
            .route("/own", web::post().to(own_body))
            .service(web::scope("/tenants/{tenant}").configure(green_routes.clone()))
            .service(web::scope("/llm").configure(blue_routes.clone()))
    })
    .workers(2)
    .disable_signals()
    .bind(("127.0.0.1", 0))
    .unwrap();
    let url = format!("http://{}", server.addrs()[0]);
    let server = server.run();
    let stop = server.handle();
    actix::spawn(server);

    let client = Client::new();
    for (scope, name) in [("llm", "blue"), ("tenants/a%20b", "green")] {
        eventually("the router at the scope is ready", || async {
            (client.get(&format!("{url}/{scope}/readyz")).await.status == 200).then_some(())
        })
        .await;
        for path in ["v1/chat/completions", "v1/anything/else?x=1"] {
            let answer = client.post(&format!("{url}/{scope}/{path}"), chat_body(1, false)).await;
            assert_eq!((answer.status, answer.header("x-sim-engine")), (200, name), "/{scope}/{path}");
        }
        let workers = client.get(&format!("{url}/{scope}/workers")).await.json();
        assert_eq!(workers["workers"].as_array().map(Vec::len), Some(1), "{workers}");
        let metrics = client.get(&format!("{url}/{scope}/metrics")).await.body;
        assert!(String::from_utf8_lossy(&metrics).contains("fathom_requests_total{kind=\"completed\"} 2"));
    }
    let seen: Vec<String> = green.stats().recent.into_iter().map(|request| request.path_and_query).collect();
    assert_eq!(seen, ["/v1/chat/completions", "/v1/anything/else?x=1"], "the engine sees its own paths");

    let own = client.post(&format!("{url}/own"), "12345678").await;
    assert_eq!((own.status, &own.body[..]), (200, &b"own 8"[..]), "the application's own data is untouched");
    assert_eq!(client.post(&format!("{url}/own"), "123456789").await.status, 413, "and so is its own limit");
    stop.stop(false).await;
    for handle in handles {
        handle.stop().await;
    }
}

#[actix::test]
async fn a_path_with_dot_segments_is_refused() {
    let engine = engine("a").await;
    let router = crate::support::RunningRouter::over(&[&engine]).await;
    let mut client = crate::support::RawClient::connect(&router.url).await;
    for path in ["/v1/../flush_cache", "/v1/%2e%2e/flush_cache", "/v1/x/./y"] {
        client.write(crate::support::post(path, "{}")).await;
        let answer = client.answer().await;
        assert_eq!(answer.first_line(), "HTTP/1.1 400 Bad Request", "{path}");
        assert_eq!(answer.header_values("x-fathom-error-code"), ["invalid_path"], "{path}");
    }
    assert!(engine.stats().recent.is_empty());
    router.stop().await;
}
