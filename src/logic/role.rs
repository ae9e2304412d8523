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

    /// Returns the part of a request.
    pub fn part(self) -> Part {
        match self {
            Self::Regular => Part::Whole,
            Self::Prefill { .. } => Part::Prefill,
            Self::Decode => Part::Decode,
        }
    }
}

/// A part of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Part {
    /// All of it.
    #[default]
    Whole,
    /// The prompt.
    Prefill,
    /// The tokens.
    Decode,
}
