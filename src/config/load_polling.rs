//! Whether engines that publish no load are asked for it.

use std::time::Duration;

/// Which engines are asked for their load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum LoadPollingMode {
    /// None: those that publish no load are priced by this router's own requests.
    #[default]
    Off,
    /// Those that advertise no load socket, or one that cannot be opened.
    Auto,
}

/// How engines are asked for their load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadPollingSettings {
    /// Which are asked. Default: [`LoadPollingMode::Off`].
    pub mode: LoadPollingMode,
    /// Pause between two questions to the same engine: 50 ms to a minute. An answer is used for [`LoadSettings::freshness`] from its
    /// question on, so the pause must be well below that. Default: 1 s.
    ///
    /// [`LoadSettings::freshness`]: crate::config::LoadSettings::freshness
    pub interval: Duration,
}

impl Default for LoadPollingSettings {
    fn default() -> Self {
        Self { mode: LoadPollingMode::Off, interval: Duration::from_secs(1) }
    }
}
