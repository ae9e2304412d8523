//! What people write: one struct for flags, environment and file. The doc of a field is its `--help` text.
//!
//! The flag of a key is the key with `-` for `_`; its environment variable is the key in capitals after `FATHOM_`. Values are
//! checked only when all sources are known, so that a bad value is refused in the same words wherever it was written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, Command, Parser};
use serde::de::{DeserializeOwned, IgnoredAny};
use toml::Spanned;

use crate::config::error::ConfigError;
use crate::config::toml_error::{line_at, without_source_text};
use crate::config::{RouterConfig, ServerConfig};

/// Writes out what is done to each key of a group; a key that is missing does not compile.
macro_rules! keys_of {
    ($group:ident: $($key:ident)*) => {
        impl $group {
            /// Fills what is not given here with what is given in `lower`.
            pub(super) fn or(self, lower: Self) -> Self {
                Self { $($key: self.$key.or(lower.$key),)* }
            }

            /// Adds the keys whose values differ.
            pub(super) fn add_differing(&self, other: &Self, keys: &mut Vec<&'static str>) {
                $(if self.$key != other.$key {
                    keys.push(stringify!($key));
                })*
            }
        }
    };
}

mod cache;
mod discovery;
mod edge;
mod engines;
mod kubernetes;
mod process;
mod routing;
mod targets;
mod workers;

pub use cache::RawCache;
pub use discovery::RawDiscovery;
pub use edge::RawEdge;
pub use engines::RawEngines;
pub use kubernetes::RawKubernetes;
pub use process::RawProcess;
pub use routing::RawRouting;
pub use targets::RawTargets;
pub use workers::RawWorkers;

/// Keys that no flag and no variable has.
const FILE_ONLY: [&str; 1] = ["worker"];

/// Routes requests to the LLM inference engine that will answer soonest, by the queue depth that engines publish.
///
/// A flag outranks its environment variable, which outranks the configuration file, for each setting by itself. In the file, a
/// setting is named like its flag, with underscores.
#[derive(Debug, Clone, PartialEq, Default, Parser)]
#[command(name = "fathom", version)]
pub struct CommandLine {
    /// The settings given as flags, or by the environment.
    #[command(flatten)]
    pub settings: RawConfig,

    /// Configuration file (TOML); the only place for settings of single workers. Default: none.
    #[arg(long, env = "FATHOM_CONFIG", value_name = "FILE", help_heading = "Process")]
    pub config: Option<PathBuf>,
}

impl CommandLine {
    /// Reads the configuration file, if one is named, and returns what all sources together say.
    ///
    /// # Errors
    /// Says why the file cannot be read or understood.
    pub fn read(&self) -> Result<RawConfig, ConfigError> {
        let file = match &self.config {
            Some(path) => read(path)?,
            None => RawConfig::default(),
        };
        Ok(self.settings.clone().or(file))
    }

    /// Reads the configuration file, if one is named, and returns the configuration of all sources together. Variables that
    /// hold keys are read from the environment of the process.
    ///
    /// # Errors
    /// Says why the file cannot be read or understood, or which setting is refused.
    pub fn load(self) -> Result<(RouterConfig, ServerConfig), ConfigError> {
        self.read()?.validate(process_environment)
    }
}

/// Looks a variable of this process up.
pub fn process_environment(variable: &str) -> Option<String> {
    // A variable that is not UTF-8 is not a key; kept as far as it is text, it is refused as such rather than as missing.
    std::env::var_os(variable).map(|text| text.to_string_lossy().into_owned())
}

/// Every setting as it was written, and whether it was written at all. In the file all of them are keys of the top level.
#[derive(Debug, Clone, PartialEq, Default, Args)]
#[non_exhaustive]
pub struct RawConfig {
    /// Which workers there are, and when one of them gets no traffic.
    #[command(flatten)]
    pub workers: RawWorkers,
    /// Where workers come from, beside the list.
    #[command(flatten)]
    pub discovery: RawDiscovery,
    /// Which pods of a Kubernetes cluster become workers.
    #[command(flatten)]
    pub kubernetes: RawKubernetes,
    /// How engines are asked, and how requests reach them.
    #[command(flatten)]
    pub engines: RawEngines,
    /// How the worker of a request is chosen, and when there is none.
    #[command(flatten)]
    pub routing: RawRouting,
    /// Targets that are more than one worker, or less.
    #[command(flatten)]
    pub targets: RawTargets,
    /// What is known of the engines' caches, and how prompts are made into tokens.
    #[command(flatten)]
    pub cache: RawCache,
    /// The listener, and who may use it.
    #[command(flatten)]
    pub edge: RawEdge,
    /// The process itself.
    #[command(flatten)]
    pub process: RawProcess,
}

impl RawConfig {
    /// Reads the text of a configuration file.
    ///
    /// # Errors
    /// Names the line, and the key where there is one, of what is not TOML, not a setting or not of its setting's type.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        refuse_unknown_keys(text)?;
        Ok(Self {
            workers: group(text)?,
            discovery: group(text)?,
            kubernetes: group(text)?,
            engines: group(text)?,
            routing: group(text)?,
            targets: group(text)?,
            cache: group(text)?,
            edge: group(text)?,
            process: group(text)?,
        })
    }

    /// Fills what is not given here with what is given in `lower`. A list is one setting: it is replaced, not extended.
    #[must_use]
    pub fn or(self, lower: Self) -> Self {
        Self {
            workers: self.workers.or(lower.workers),
            discovery: self.discovery.or(lower.discovery),
            kubernetes: self.kubernetes.or(lower.kubernetes),
            engines: self.engines.or(lower.engines),
            routing: self.routing.or(lower.routing),
            targets: self.targets.or(lower.targets),
            cache: self.cache.or(lower.cache),
            edge: self.edge.or(lower.edge),
            process: self.process.or(lower.process),
        }
    }

    /// Returns the keys whose values differ, as they were written: one that is left out differs from one that repeats the default.
    pub fn differing_keys(&self, other: &Self) -> Vec<&'static str> {
        let mut keys = Vec::new();
        self.workers.add_differing(&other.workers, &mut keys);
        self.discovery.add_differing(&other.discovery, &mut keys);
        self.kubernetes.add_differing(&other.kubernetes, &mut keys);
        self.engines.add_differing(&other.engines, &mut keys);
        self.routing.add_differing(&other.routing, &mut keys);
        self.targets.add_differing(&other.targets, &mut keys);
        self.cache.add_differing(&other.cache, &mut keys);
        self.edge.add_differing(&other.edge, &mut keys);
        self.process.add_differing(&other.process, &mut keys);
        keys
    }

    /// Returns what `--help` says of each setting, in its order. Settings of single workers are not among them.
    pub fn reference() -> Vec<SettingDoc> {
        let command = Self::augment_args(Command::new("fathom"));
        let docs = command.get_arguments().map(|argument| {
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let (effect, default) = help.rsplit_once(" Default: ").unwrap_or((&help, ""));
            SettingDoc {
                key: argument.get_id().to_string(),
                default: default.to_owned(),
                environment: argument.get_env().unwrap_or_default().to_string_lossy().into_owned(),
                effect: effect.to_owned(),
            }
        });
        docs.collect()
    }
}

/// What is said of one setting.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingDoc {
    /// Key in the file. The flag is the same with `-` for `_`.
    pub key: String,
    /// The default in words, or as it would be written.
    pub default: String,
    /// Name of the environment variable.
    pub environment: String,
    /// What the setting does, its unit and its range.
    pub effect: String,
}

/// Reads one group of settings. Each group leaves the keys of the others alone, so a file is read once for each of them.
fn group<T: DeserializeOwned>(text: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| without_source_text(text, error))
}

fn refuse_unknown_keys(text: &str) -> Result<(), ConfigError> {
    let written: BTreeMap<Spanned<String>, IgnoredAny> = group(text)?;
    let command = RawConfig::augment_args(Command::new("fathom"));
    for key in written.keys() {
        let is_known = FILE_ONLY.contains(&key.as_ref().as_str())
            || command.get_arguments().any(|argument| argument.get_id() == key.as_ref().as_str());
        if !is_known {
            return Err(ConfigError::UnknownKey { line: line_at(text, key.span().start), key: key.as_ref().clone() });
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<RawConfig, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    RawConfig::from_toml(&text).map_err(|source| ConfigError::File { path: path.to_owned(), source: Box::new(source) })
}
