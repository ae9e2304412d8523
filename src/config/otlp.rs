//! Where spans of requests go.

use url::Url;

use crate::config::ConfigError;

const KEY: &str = "otlp_endpoint";
/// Where collectors take spans, by the OTLP specification.
const TRACES_PATH: &str = "/v1/traces";

/// Returns the address that spans are posted to.
///
/// # Errors
/// Says why it cannot be one, or that this build exports none.
pub(crate) fn traces_url(endpoint: &str) -> Result<String, ConfigError> {
    let refused = |rule| ConfigError::Rule { key: KEY, value: format!("{endpoint:?}"), rule };
    let mut url = Url::parse(endpoint)
        .ok()
        .filter(|url| url.scheme() == "http" && url.has_host() && url.query().is_none() && url.fragment().is_none())
        .ok_or_else(|| refused("must be an address such as http://collector:4318; only http:// is spoken"));
    if endpoint.contains('@') {
        // What stands before it may be a secret.
        return Err(ConfigError::Secret { key: KEY, rule: "credentials do not belong into an address" });
    }
    if !cfg!(feature = "otel") {
        return Err(refused("this build exports no spans (feature `otel`)"));
    }
    if let Ok(url) = &mut url
        && url.path() == "/"
    {
        url.set_path(TRACES_PATH);
    }
    url.map(String::from)
}

#[cfg(test)]
mod tests {
    use super::traces_url;

    #[test]
    fn an_address_without_a_path_gets_the_one_of_the_specification() {
        for (endpoint, expected) in [
            ("http://collector:4318", "http://collector:4318/v1/traces"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/traces"),
            ("http://collector", "http://collector/v1/traces"),
            ("http://collector:4318/v1/traces", "http://collector:4318/v1/traces"),
            ("http://collector/tenant/7", "http://collector/tenant/7"),
        ] {
            assert_eq!(traces_url(endpoint).unwrap_or_else(|error| panic!("{error}")), expected);
        }
    }

    #[test]
    fn what_cannot_be_posted_to_is_refused_without_its_secrets() {
        for endpoint in
            ["", "collector:4318", "https://collector", "grpc://collector:4317", "http://c?a=b", "http://c#d"]
        {
            let error = traces_url(endpoint).expect_err(endpoint).to_string();
            let expected = "must be an address such as http://collector:4318; only http:// is spoken";
            assert_eq!(error, format!("otlp_endpoint = {endpoint:?}: {expected}"));
        }
        for endpoint in ["http://user:secret@collector", "https://user:secret@collector"] {
            let error = traces_url(endpoint).expect_err(endpoint).to_string();
            assert_eq!(error, "otlp_endpoint: credentials do not belong into an address");
        }
    }
}
