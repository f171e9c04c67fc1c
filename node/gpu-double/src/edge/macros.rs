//! One form for every exported function.
//!
//! What must stay true: a function that is exported is checked against the bindings and is in its module's `NAMES`.

/// Exports functions of NVML. In the body `$call` is a [`Call`](super::session::Call) that bears the function's name; the body's answer
/// becomes the return code.
macro_rules! export {
    ($( fn $name:ident($call:ident $(, $arg:ident: $kind:ty)*) $body:block )*) => {
        /// The functions of this module.
        pub(super) const NAMES: &[&str] = &[$( stringify!($name) ),*];

        $(
            #[doc = concat!("`", stringify!($name), "` of `nvml.h`.")]
            ///
            /// # Safety
            /// The caller keeps to NVML's contract; see the module `edge`.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $kind),*) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
                unsafe fn answer(
                    $call: $crate::edge::session::Call $(, $arg: $kind)*
                ) -> $crate::state::refusal::Answer<()> $body

                match answer($crate::edge::session::Call::new(stringify!($name)) $(, $arg)*) {
                    Ok(()) => 0,
                    Err(refusal) => refusal.code(),
                }
            }

            const _: fn(&mut nvml_wrapper_sys::bindings::NvmlLib) = |library| library.$name = Ok($name);
        )*
    };
}

pub(super) use export;
