//! Where workers come from beside the configured list.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::check::{DAY_SECS, secs};
use crate::config::error::ConfigError;
use crate::config::raw::RawDiscovery;
use crate::logic::dns_set::{DnsName, MAX_DNS_NAMES};

/// The sources of workers beside [`RouterConfig::workers`](crate::config::RouterConfig::workers). A worker that several sources
/// name is served once, until the last of them drops it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DiscoverySettings {
    /// File that keeps the workers which the operator added while the router ran: read at start, replaced with each change, readable by
    /// its owner only. It holds names of variables with keys, never a key. Default: none, and they are forgotten at the end.
    pub admin_workers_file: Option<PathBuf>,
    /// File with `worker_urls` and `[[worker]]` tables, looked at each second. It must be readable at start; a change that cannot be
    /// read, and a file that is missing, are logged and change nothing. Default: none.
    pub workers_file: Option<PathBuf>,
    /// Names whose addresses are workers, at most 64. Default: none.
    pub dns_names: Vec<DnsName>,
    /// Pause before a name is looked up again, give or take a tenth: 1 s to a day. Default: 30 s.
    pub dns_interval: Duration,
}

impl Default for DiscoverySettings {
    fn default() -> Self {
        Self {
            admin_workers_file: None,
            workers_file: None,
            dns_names: Vec::new(),
            dns_interval: Duration::from_secs(30),
        }
    }
}

impl DiscoverySettings {
    pub(super) fn read(raw: &RawDiscovery) -> Result<Self, ConfigError> {
        let mut settings = Self {
            admin_workers_file: raw.admin_workers_file.clone(),
            workers_file: raw.workers_file.clone(),
            ..Self::default()
        };
        for part in raw.dns_names.iter().flatten() {
            for text in part.split(|c: char| c == ',' || c.is_whitespace()) {
                let rule = "must be a host name, a colon and a port";
                let name = DnsName::parse(text);
                let name =
                    name.ok_or_else(|| ConfigError::Rule { key: "dns_names", value: format!("{text:?}"), rule })?;
                if !settings.dns_names.contains(&name) {
                    settings.dns_names.push(name);
                }
            }
        }
        if let Some(interval_secs) = raw.dns_interval_secs {
            settings.dns_interval = Duration::from_secs(interval_secs);
        }
        Ok(settings)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.dns_names.len() > MAX_DNS_NAMES {
            let value = format!("{} names", self.dns_names.len());
            return Err(ConfigError::Rule { key: "dns_names", value, rule: "must be at most 64 names" });
        }
        secs("dns_interval_secs", self.dns_interval, 1..=DAY_SECS)
    }
}

#[cfg(test)]
mod tests {
    use super::DiscoverySettings;
    use crate::config::raw::RawDiscovery;

    fn read(parts: &[&str]) -> Result<DiscoverySettings, String> {
        let dns_names = Some(parts.iter().map(|part| (*part).to_owned()).collect());
        let settings = DiscoverySettings::read(&RawDiscovery { dns_names, ..RawDiscovery::default() });
        settings.and_then(|settings| settings.check().map(|()| settings)).map_err(|error| error.to_string())
    }

    /// Seen in sgl-project/sglang#12621.
    #[test]
    fn every_way_to_write_names_gives_the_same_list_and_none_is_left_out() {
        for parts in [&["a:1", "b:2"][..], &["a:1,b:2"], &["a:1 b:2"], &["a:1", "A:1", "b:2"]] {
            let names: Vec<String> =
                read(parts).expect("names").dns_names.iter().map(|name| name.to_string()).collect();
            assert_eq!(names, ["a:1", "b:2"], "{parts:?}");
        }
        let rule = "must be a host name, a colon and a port";
        for (parts, value) in [(["a:1,,b:2"], ""), (["a"], "a"), (["a:1,b:0"], "b:0"), (["http://a:1"], "http://a:1")] {
            assert_eq!(read(&parts), Err(format!("dns_names = {value:?}: {rule}")), "{parts:?}");
        }
        let many: Vec<String> = (0..65).map(|number| format!("n{number}:1")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(read(&many), Err("dns_names = 65 names: must be at most 64 names".to_owned()));
    }

    #[test]
    fn the_interval_has_a_range() {
        let raw = RawDiscovery { dns_interval_secs: Some(0), ..RawDiscovery::default() };
        let refused = DiscoverySettings::read(&raw).and_then(|settings| settings.check()).expect_err("no interval");
        assert_eq!(refused.to_string(), "dns_interval_secs = 0: must be at least 1");
    }
}
