//! Writing to and reading from the caller's memory.
//!
//! What must stay true: a null pointer is refused, a text is cut nowhere: it fits with its closing zero or is refused.

use crate::state::refusal::{Answer, Refusal};
use std::ffi::{CStr, c_char, c_uint};

/// Writes a value.
pub(super) unsafe fn put<T>(to: *mut T, value: T) -> Answer<()> {
    if to.is_null() {
        return Err(Refusal::InvalidArgument);
    }
    to.write(value);
    Ok(())
}

/// Writes a text to a buffer of this length.
pub(super) unsafe fn put_text(to: *mut c_char, length: c_uint, text: &str) -> Answer<()> {
    if to.is_null() {
        return Err(Refusal::InvalidArgument);
    }
    if text.len() >= length as usize {
        return Err(Refusal::InsufficientSize);
    }
    std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
    to.add(text.len()).write(0);
    Ok(())
}

/// A text of the caller's.
pub(super) unsafe fn text(from: *const c_char) -> Answer<String> {
    if from.is_null() {
        return Err(Refusal::InvalidArgument);
    }
    Ok(CStr::from_ptr(from).to_string_lossy().into_owned())
}

/// Writes a list the way NVML does where the caller says how much room there is: `count` holds the room before and the length after; a
/// list that does not fit is refused, and `count` says what it takes.
pub(super) unsafe fn put_list<T: Copy>(to: *mut T, count: *mut c_uint, list: &[T]) -> Answer<()> {
    if count.is_null() {
        return Err(Refusal::InvalidArgument);
    }
    let room = count.read() as usize;
    count.write(list.len() as c_uint);
    if room < list.len() {
        return Err(Refusal::InsufficientSize);
    }
    put_all(to, list)
}

/// Writes a list where NVML demands that the caller has provided for the longest possible one: `count` is only written.
pub(super) unsafe fn put_all_and_count<T: Copy>(to: *mut T, count: *mut c_uint, list: &[T]) -> Answer<()> {
    put(count, list.len() as c_uint)?;
    put_all(to, list)
}

unsafe fn put_all<T: Copy>(to: *mut T, list: &[T]) -> Answer<()> {
    if list.is_empty() {
        return Ok(());
    }
    if to.is_null() {
        return Err(Refusal::InvalidArgument);
    }
    std::ptr::copy_nonoverlapping(list.as_ptr(), to, list.len());
    Ok(())
}

/// A text as a C array that is filled up with zeros; too long a text is cut before its last place.
pub(super) fn array<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, byte) in array.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = byte as c_char;
    }
    array
}

/// The version number that NVML demands in the first field of a struct.
pub(super) const fn struct_version<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | version << 24
}
