//! Engines that speak HTTP/2 in cleartext.

use actix_web::dev::ServerHandle;
use actix_web::http::Version;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use serde_json::json;

use crate::support::{RunningRouter, assert_all_succeeded, fast_config};

/// Starts an engine that takes both versions and says that it does. Each answer tells which one was used.
fn engine(says_http2: bool) -> (String, ServerHandle) {
    let app = move || {
        let info = json!({"served_model_name": "tiny", "enable_http2": says_http2});
        let models = json!({"object": "list", "data": [{"id": "tiny", "object": "model"}]});
        App::new()
            .route("/server_info", web::get().to(move || std::future::ready(HttpResponse::Ok().json(info.clone()))))
            .route("/v1/models", web::get().to(move || std::future::ready(HttpResponse::Ok().json(models.clone()))))
            .route("/v1/chat/completions", web::post().to(chat))
    };
    let server = HttpServer::new(app).workers(1).disable_signals().bind_auto_h2c(("127.0.0.1", 0)).expect("a port");
    let url = format!("http://{}", server.addrs()[0]);
    let server = server.run();
    let handle = server.handle();
    actix::spawn(server);
    (url, handle)
}

async fn chat(request: HttpRequest, body: web::Bytes) -> HttpResponse {
    let version = if request.version() == Version::HTTP_2 { "2" } else { "1.1" };
    HttpResponse::Ok().insert_header(("x-version", version)).json(json!({"bytes": body.len()}))
}

#[actix::test]
async fn an_engine_that_says_it_speaks_http2_is_spoken_to_in_it_and_others_are_not() {
    for (says_http2, expected) in [(true, "2"), (false, "1.1")] {
        let (url, server) = engine(says_http2);
        let router = RunningRouter::with(fast_config(&[url])).await;
        let mut answers = Vec::new();
        for _ in 0..3 {
            answers.push(router.chat_with("tiny").await);
        }
        assert_all_succeeded(&answers);
        assert!(answers.iter().all(|answer| answer.header("x-version") == expected), "{says_http2}");
        router.stop().await;
        server.stop(false).await;
    }
}
