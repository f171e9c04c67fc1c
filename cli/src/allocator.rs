//! The allocator of the process: snmalloc (decision 0026), or the C library's where so many addresses cannot be had.
//!
//! snmalloc reserves 256 GiB of addresses before the first allocation and aborts when it does not get them: under `ulimit -v`, as login nodes set
//! it, or without overcommitment. What must stay true: it is decided once, so that what one allocator has given is never given back to the other.

use snmalloc_rs::SnMalloc;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU8, Ordering};

/// See the module.
#[derive(Debug)]
pub struct Allocator;

const UNDECIDED: u8 = 0;
const SNMALLOC: u8 = 1;
const SYSTEM: u8 = 2;

static CHOSEN: AtomicU8 = AtomicU8::new(UNDECIDED);

/// More than snmalloc asks for.
const ADDRESSES: usize = 512 << 30;

fn is_snmalloc() -> bool {
    match CHOSEN.load(Ordering::Relaxed) {
        SNMALLOC => true,
        SYSTEM => false,
        _ => choose() == SNMALLOC,
    }
}

/// Tries whether the addresses can be had. The first allocation comes before there is a second thread.
#[cold]
fn choose() -> u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping somewhere, which nothing else knows and which is removed at once.
    let got = unsafe {
        let place = libc::mmap(null_mut(), ADDRESSES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        place != libc::MAP_FAILED && libc::munmap(place, ADDRESSES) == 0
    };
    let chosen = if got { SNMALLOC } else { SYSTEM };
    CHOSEN.store(chosen, Ordering::Relaxed);
    chosen
}

// SAFETY: each call goes on as it came to an allocator, always to the same one.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as promised to this function.
        unsafe { if is_snmalloc() { SnMalloc.alloc(layout) } else { System.alloc(layout) } }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as promised to this function.
        unsafe { if is_snmalloc() { SnMalloc.dealloc(place, layout) } else { System.dealloc(place, layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as promised to this function.
        unsafe { if is_snmalloc() { SnMalloc.alloc_zeroed(layout) } else { System.alloc_zeroed(layout) } }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as promised to this function.
        unsafe {
            if is_snmalloc() { SnMalloc.realloc(place, layout, bytes) } else { System.realloc(place, layout, bytes) }
        }
    }
}
