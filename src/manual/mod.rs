//! The manual: what the router does in which case, for those who run it. The README says how to begin and lists every setting.
//!
//! | chapter | answers |
//! |---|---|
//! | [`policies`] | which policy for which fleet, and what each one compares |
//! | [`degradations`] | what happens when a part of the picture is missing, and where that shows |
//! | [`symptoms`] | what to look at when something seems wrong |
//! | [`migrating_from_sglang_router`] | what each of its flags becomes |
//!
//! The life of a request and the ways to extend the router are on the [first page](crate).

#[doc = include_str!("degradations.md")]
pub mod degradations {}

#[doc = include_str!("migrating_from_sglang_router.md")]
pub mod migrating_from_sglang_router {}

#[doc = include_str!("policies.md")]
pub mod policies {}

#[doc = include_str!("symptoms.md")]
pub mod symptoms {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::config::RawConfig;

    const CHAPTERS: [&str; 4] = [
        include_str!("degradations.md"),
        include_str!("migrating_from_sglang_router.md"),
        include_str!("policies.md"),
        include_str!("symptoms.md"),
    ];
    /// What looks like a setting and is none: policies, errors, modules, examples, and fields of `/workers`.
    const OTHERS: [&str; 16] = [
        "cache_aware_zmq",
        "custom_policy",
        "kv.found_ratio",
        "kv.given_up",
        "kv.hash_mode",
        "kv.ranks",
        "least_load",
        "load.bad_frames",
        "load.feed",
        "load.feed_problem",
        "load.reopened",
        "load.trust",
        "power_of_two",
        "rank_choice",
        "round_robin",
        "router_overloaded",
    ];

    /// Words between single backquotes that are written as keys are.
    fn keys_in(text: &str) -> impl Iterator<Item = &str> {
        let code = text.split('`').skip(1).step_by(2);
        code.filter(|word| {
            word.contains(['_', '.'])
                && !word.starts_with("fathom_")
                && word.bytes().any(|byte| byte.is_ascii_lowercase())
                && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.".contains(&byte))
        })
    }

    #[test]
    fn every_setting_that_the_manual_names_exists() {
        let known: BTreeSet<String> = RawConfig::reference().into_iter().map(|setting| setting.key).collect();
        let of_worker = ["api_key", "api_key_env", "bootstrap_port", "dp_ranks", "load_endpoint_port_base"];
        let is_known = |key: &&str| known.contains(*key) || of_worker.contains(key) || OTHERS.contains(key);
        let unknown: Vec<&str> = CHAPTERS.into_iter().flat_map(keys_in).filter(|key| !is_known(key)).collect();
        assert!(unknown.is_empty(), "the manual names settings that there are not: {unknown:?}");
    }

    #[test]
    fn every_metric_that_the_manual_names_is_in_the_readme() {
        let readme = include_str!("../../README.md");
        let named: Vec<&str> = CHAPTERS
            .into_iter()
            .flat_map(|text| text.split('`').skip(1).step_by(2))
            .filter_map(|code| code.split('{').next())
            .filter(|word| word.starts_with("fathom_"))
            .collect();
        assert!(named.len() > 10, "{named:?}");
        for metric in named {
            assert!(readme.contains(metric), "the README does not know {metric}");
        }
    }
}
