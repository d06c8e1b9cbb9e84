//! libzstd's decoding context; each decoding thread creates its own.

use zstd_safe::{DCtx, DParameter, get_error_name};

use super::error::DecodeError;

/// The largest window accepted: 128 MiB, what `zstd --ultra -22` writes.
pub const WINDOW_LOG_MAX: u32 = 27;

/// A decoding context with the window limit set.
pub(super) fn context() -> Result<DCtx<'static>, DecodeError> {
    context_with_window(WINDOW_LOG_MAX)
}

/// A decoding context that rejects frames with a larger window than this binary logarithm says.
pub(super) fn context_with_window(window_log_max: u32) -> Result<DCtx<'static>, DecodeError> {
    let failed = |reason: &str| DecodeError::Start("zstd", reason.to_owned());
    let mut context = DCtx::try_create().ok_or_else(|| failed("out of memory"))?;
    context.set_parameter(DParameter::WindowLogMax(window_log_max)).map_err(|code| failed(get_error_name(code)))?;
    Ok(context)
}
