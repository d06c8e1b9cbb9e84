//! Whether the kernel encrypts.

/// Whether the kernel encrypts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum KtlsMode {
    /// Never.
    #[default]
    Off,
    /// If the kernel supports it.
    Auto,
    /// Fail if the kernel does not support it.
    On,
}
