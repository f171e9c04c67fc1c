//! The C symbols, and the only unsafe code.
//!
//! What must stay true: every symbol has the signature that `nvml-wrapper-sys` declares (checked when this is compiled), names itself to
//! the fault rules, and answers nothing before `nvmlInit`.
//!
//! SAFETY, for every unsafe operation below this module: callers keep to NVML's contract. A pointer that is passed is null or points to as
//! many valid, writable (for `const`: readable) elements as its function's other arguments say, and stays so during the call; strings end
//! with a zero. Null is refused before it is used. Handles are numbers in the guise of pointers and are never dereferenced.

// Each function is unsafe as a whole, by the contract above; marking every line of it again would say nothing more.
#![allow(unsafe_op_in_unsafe_fn)]
#![allow(non_snake_case)]

mod compute_instances;
mod device;
mod events;
mod fields;
mod gpm;
mod gpu_instances;
mod handle;
mod health;
mod links;
mod macros;
mod memory;
mod mig_devices;
mod out;
mod processes;
mod session;
mod settings;
mod system;
mod telemetry;

/// The names of all exported functions.
#[must_use]
pub fn names() -> Vec<&'static str> {
    [
        system::NAMES,
        device::NAMES,
        memory::NAMES,
        mig_devices::NAMES,
        gpu_instances::NAMES,
        compute_instances::NAMES,
        events::NAMES,
        fields::NAMES,
        health::NAMES,
        telemetry::NAMES,
        gpm::NAMES,
        processes::NAMES,
        links::NAMES,
        settings::NAMES,
    ]
    .concat()
}
