//! NVML's return codes other than success.
//!
//! What must stay true: the numbers are those of `nvml.h`.

use serde::{Deserialize, Serialize};

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("NVML code {}: {self:?}", self.code())]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum Refusal {
    /// `nvmlInit` has not been called, or the host has rebooted since.
    Uninitialized = 1,
    /// An argument is wrong.
    InvalidArgument = 2,
    /// The card, its mode or the driver does not have it.
    NotSupported = 3,
    /// Only root may.
    NoPermission = 4,
    /// There is no such thing.
    NotFound = 6,
    /// The caller's buffer is too small; the size it needs has been written.
    InsufficientSize = 7,
    /// There is no driver.
    DriverNotLoaded = 9,
    /// Nothing came in time.
    Timeout = 10,
    /// The driver cannot deliver interrupts.
    IrqIssue = 11,
    /// The infoROM is damaged.
    CorruptedInforom = 14,
    /// The card has fallen off the bus.
    GpuIsLost = 15,
    /// The card must be reset first.
    ResetRequired = 16,
    /// The operating system refused.
    OperatingSystem = 17,
    /// Library and kernel module differ in version.
    LibRmVersionMismatch = 18,
    /// Somebody uses it.
    InUse = 19,
    /// No memory.
    Memory = 20,
    /// No data.
    NoData = 21,
    /// What is asked for does not fit.
    InsufficientResources = 23,
    /// The version of a struct is not known.
    ArgumentVersionMismatch = 25,
    /// Not yet.
    NotReady = 27,
    /// No GPUs were found.
    GpuNotFound = 28,
    /// Not in this state.
    InvalidState = 29,
    /// The driver does not know either.
    Unknown = 999,
}

/// What a call answers.
pub type Answer<T> = Result<T, Refusal>;

impl Refusal {
    /// The code in `nvml.h`.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }
}

/// The driver's words for a code, as `nvmlErrorString` gives them; with the closing zero, as C reads them.
#[must_use]
pub const fn words(code: u32) -> &'static core::ffi::CStr {
    match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        5 => c"Already Initialized",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        8 => c"Insufficient External Power",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        11 => c"Interrupt Request Issue",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        17 => c"GPU access blocked by the operating system",
        18 => c"Driver/library version mismatch",
        19 => c"In use by another client",
        20 => c"Insufficient Memory",
        21 => c"No data",
        23 => c"Insufficient Resources",
        25 => c"Argument version mismatch",
        27 => c"Not Ready",
        28 => c"No GPUs found",
        29 => c"Invalid State",
        _ => c"Unknown Error",
    }
}
