//! What part of a request a worker does, where prefill and decode are done by different engines (SGLang, PD disaggregation).

/// The port on which a prefill engine meets decode engines where it says none: SGLang's default.
pub const DEFAULT_BOOTSTRAP_PORT: u16 = 8_998;

/// A worker's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Whole requests.
    #[default]
    Regular,
    /// The prompt. The KV cache that results is fetched by a decode engine, which asks for it at this port.
    Prefill {
        /// The port at the worker's own host.
        bootstrap_port: u16,
    },
    /// The tokens, from the KV cache of a prefill engine.
    Decode,
}

impl Role {
    /// Returns the name used in configuration and answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Regular => "regular",
            Self::Prefill { .. } => "prefill",
            Self::Decode => "decode",
        }
    }

    /// Tells whether two workers do the same part, whatever their ports.
    pub fn is_same_part(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}
