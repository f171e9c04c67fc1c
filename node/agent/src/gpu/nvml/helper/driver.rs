//! NVML as the helper uses it: one safe method for each call, over the raw symbols.
//!
//! What must stay true: a symbol that this driver lacks is an error of the call and not of the process; a call that fails names itself, NVML's code and its
//! words. The wrapper crate is not used: of the calls below it lacks or breaks most, and its handles cannot leave a thread.

use crate::gpu::nvml::wire::{CardId, Fault, MigMode, Versions};
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlFieldValue_t, nvmlMemory_v2_t, nvmlPciInfo_t, nvmlProcessInfo_t, nvmlReturn_t,
};
use std::ffi::{CStr, CString, OsStr, c_char, c_uint};
use std::mem;

/// Codes of `nvml.h` that are told apart.
pub(super) const UNINITIALIZED: u32 = 1;
pub(super) const NOT_SUPPORTED: u32 = 3;
pub(super) const INSUFFICIENT_SIZE: u32 = 7;
pub(super) const TIMEOUT: u32 = 10;
const FUNCTION_NOT_FOUND: u32 = 13;
pub(super) const GPU_IS_LOST: u32 = 15;
pub(super) const IN_USE: u32 = 19;
/// Bytes for a name, a UUID or a version.
const TEXT_BYTES: usize = 96;
/// Processes of one list at the most; a host has no more GPU processes than this.
const PROCESSES_MAX: u32 = 4_096;
/// `NVML_COMPUTEMODE_EXCLUSIVE_PROCESS`.
const EXCLUSIVE_PROCESS: u32 = 3;

/// A call's answer.
pub(super) type Called<T> = Result<T, Fault>;

/// The loaded library; it is never unloaded.
pub(super) struct Nvml {
    pub(super) lib: NvmlLib,
}

/// Calls a function of the library: `call!(nvml.nvmlDeviceGetName(handle, …))`.
macro_rules! call {
    ($nvml:ident.$name:ident($($arg:expr),* $(,)?)) => {
        match &$nvml.lib.$name {
            // SAFETY: the arguments are what `nvml.h` asks for: handles came from this library, and each pointer is to a local of the type and,
            // for lists, of the length that is passed with it.
            Ok(function) => $nvml.check(stringify!($name), unsafe { function($($arg),*) }),
            Err(_) => Err($nvml.missing(stringify!($name))),
        }
    };
}
pub(super) use call;

/// The version number that NVML wants in a struct's first field.
pub(super) const fn struct_version<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | version << 24
}

/// A text that NVML has written; it ends with a zero.
pub(super) fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Nvml {
    /// Loads the library and initialises it.
    pub(super) fn load(library: &OsStr) -> Result<Self, String> {
        // SAFETY: the library is NVIDIA's or its double; loading either runs nothing that touches this process.
        let lib = unsafe { NvmlLib::new(library) }
            .map_err(|error| format!("{} cannot be loaded: {error}; install the driver", library.display()))?;
        let nvml = Nvml { lib };
        call!(nvml.nvmlInit_v2()).map_err(|fault| fault.to_string())?;
        Ok(nvml)
    }

    pub(super) fn check(&self, call: &str, code: nvmlReturn_t) -> Called<()> {
        if code == 0 {
            return Ok(());
        }
        if code == UNINITIALIZED {
            // The driver was loaded anew: nothing in this process is of use any more, and the agent starts another one.
            eprintln!("muster gpu-helper: {call}: the driver was loaded anew");
            std::process::exit(3);
        }
        Err(self.fault(call, code))
    }

    pub(super) fn fault(&self, call: &str, code: u32) -> Fault {
        let words = match &self.lib.nvmlErrorString {
            // SAFETY: NVML gives a text of its own for every code, which it never frees.
            Ok(function) => unsafe { CStr::from_ptr(function(code)) }.to_string_lossy().into_owned(),
            Err(_) => String::new(),
        };
        Fault::Nvml { call: call.to_owned(), code, words }
    }

    pub(super) fn missing(&self, call: &str) -> Fault {
        let words = "this driver lacks the function; install a newer one".to_owned();
        Fault::Nvml { call: call.to_owned(), code: FUNCTION_NOT_FOUND, words }
    }

    pub(super) fn versions(&self) -> Called<Versions> {
        let mut driver = [0; TEXT_BYTES];
        call!(self.nvmlSystemGetDriverVersion(driver.as_mut_ptr(), TEXT_BYTES as c_uint))?;
        let mut cuda = 0;
        call!(self.nvmlSystemGetCudaDriverVersion_v2(&mut cuda))?;
        Ok(Versions { driver: text(&driver), cuda })
    }

    pub(super) fn count(&self) -> Called<u32> {
        let mut count = 0;
        call!(self.nvmlDeviceGetCount_v2(&mut count))?;
        Ok(count)
    }

    pub(super) fn by_index(&'static self, index: u32) -> Called<Device> {
        let mut handle = std::ptr::null_mut();
        call!(self.nvmlDeviceGetHandleByIndex_v2(index, &mut handle))?;
        Ok(Device { nvml: self, handle })
    }

    pub(super) fn by_uuid(&'static self, uuid: &str) -> Called<Device> {
        let uuid = CString::new(uuid).map_err(|_| Fault::Refused("no UUID".to_owned()))?;
        let mut handle = std::ptr::null_mut();
        call!(self.nvmlDeviceGetHandleByUUID(uuid.as_ptr(), &mut handle))?;
        Ok(Device { nvml: self, handle })
    }

    /// By its address, which opens this card only: to look for a UUID, NVML opens the cards before it too.
    pub(super) fn by_id(&'static self, card: &CardId) -> Called<Device> {
        let pci = CString::new(card.pci.as_str()).map_err(|_| Fault::Refused("no PCI address".to_owned()))?;
        let mut handle = std::ptr::null_mut();
        call!(self.nvmlDeviceGetHandleByPciBusId_v2(pci.as_ptr(), &mut handle))?;
        let device = Device { nvml: self, handle };
        let uuid = device.uuid()?;
        if uuid == card.uuid {
            return Ok(device);
        }
        Err(Fault::Refused(format!(
            "GPU {uuid} is at {}, not {}: restart the agent to take it over",
            card.pci, card.uuid
        )))
    }
}

/// A card, or a MIG device of it.
#[derive(Clone, Copy)]
pub(super) struct Device {
    pub(super) nvml: &'static Nvml,
    pub(super) handle: nvmlDevice_t,
}

// SAFETY: NVML may be called from any thread with any handle (nvml.h, "thread-safe").
unsafe impl Send for Device {}

impl Device {
    pub(super) fn uuid(self) -> Called<String> {
        let (nvml, mut uuid) = (self.nvml, [0; TEXT_BYTES]);
        call!(nvml.nvmlDeviceGetUUID(self.handle, uuid.as_mut_ptr(), TEXT_BYTES as c_uint))?;
        Ok(text(&uuid))
    }

    pub(super) fn name(self) -> Called<String> {
        let (nvml, mut name) = (self.nvml, [0; TEXT_BYTES]);
        call!(nvml.nvmlDeviceGetName(self.handle, name.as_mut_ptr(), TEXT_BYTES as c_uint))?;
        Ok(text(&name))
    }

    pub(super) fn pci(self) -> Called<String> {
        let (nvml, mut pci) = (self.nvml, no_pci());
        call!(nvml.nvmlDeviceGetPciInfo_v3(self.handle, &mut pci))?;
        Ok(address(&pci))
    }

    pub(super) fn minor(self) -> Called<u32> {
        let (nvml, mut minor) = (self.nvml, 0);
        call!(nvml.nvmlDeviceGetMinorNumber(self.handle, &mut minor))?;
        Ok(minor)
    }

    pub(super) fn memory_mib(self) -> Called<u64> {
        self.memory().map(|memory| memory.total >> 20)
    }

    /// In use, without what the driver keeps for itself, and all of it.
    pub(super) fn memory_used_of_mib(self) -> Called<(u64, u64)> {
        self.memory().map(|memory| (memory.used >> 20, memory.total >> 20))
    }

    /// Without what the driver keeps for itself.
    pub(super) fn memory_used_mib(self) -> Called<u64> {
        self.memory().map(|memory| memory.used >> 20)
    }

    fn memory(self) -> Called<nvmlMemory_v2_t> {
        let nvml = self.nvml;
        let version = struct_version::<nvmlMemory_v2_t>(2);
        let mut memory = nvmlMemory_v2_t { version, total: 0, reserved: 0, free: 0, used: 0 };
        call!(nvml.nvmlDeviceGetMemoryInfo_v2(self.handle, &mut memory))?;
        Ok(memory)
    }

    /// `None` for a card without MIG.
    pub(super) fn mig_mode(self) -> Called<Option<MigMode>> {
        let (nvml, mut current, mut pending) = (self.nvml, 0, 0);
        match call!(nvml.nvmlDeviceGetMigMode(self.handle, &mut current, &mut pending)) {
            Ok(()) => Ok(Some(MigMode { current: current == 1, pending: pending == 1 })),
            Err(Fault::Nvml { code: NOT_SUPPORTED, .. }) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Notes a mode, and says whether it is active: 0, or why not.
    pub(super) fn set_mig_mode(self, on: bool) -> Called<u32> {
        let (nvml, mut activation) = (self.nvml, 0);
        call!(nvml.nvmlDeviceSetMigMode(self.handle, on.into(), &mut activation))?;
        Ok(activation)
    }

    /// One field value; `None` where the card or the driver does not have it.
    pub(super) fn field(self, id: u32) -> Called<Option<u64>> {
        let nvml = self.nvml;
        // SAFETY: the struct is of plain numbers, for which zeros are a value.
        let mut field: nvmlFieldValue_t = unsafe { mem::zeroed() };
        field.fieldId = id;
        call!(nvml.nvmlDeviceGetFieldValues(self.handle, 1, &mut field))?;
        if field.nvmlReturn != 0 {
            return Ok(None);
        }
        // SAFETY: every member of the union is a number, and it was zeroed before a shorter one was written.
        Ok(Some(unsafe { field.value.ullVal }))
    }

    pub(super) fn is_exclusive(self) -> Called<bool> {
        let (nvml, mut mode) = (self.nvml, 0);
        call!(nvml.nvmlDeviceGetComputeMode(self.handle, &mut mode))?;
        Ok(mode == EXCLUSIVE_PROCESS)
    }

    /// Whether ECC is on now; none for a card without it.
    pub(super) fn has_ecc_on(self) -> Called<Option<bool>> {
        let (nvml, mut current, mut pending) = (self.nvml, 0, 0);
        match call!(nvml.nvmlDeviceGetEccMode(self.handle, &mut current, &mut pending)) {
            Ok(()) => Ok(Some(current != 0)),
            Err(Fault::Nvml { code: NOT_SUPPORTED, .. }) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    pub(super) fn set_exclusive(self, on: bool) -> Called<()> {
        let nvml = self.nvml;
        call!(nvml.nvmlDeviceSetComputeMode(self.handle, if on { EXCLUSIVE_PROCESS } else { 0 }))
    }

    /// All processes: compute, graphics, MPS clients.
    pub(super) fn processes(self) -> Called<Vec<nvmlProcessInfo_t>> {
        let nvml = self.nvml;
        let mut all =
            self.list(|count, to| call!(nvml.nvmlDeviceGetComputeRunningProcesses_v3(self.handle, count, to)))?;
        all.extend(
            self.list(|count, to| call!(nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(self.handle, count, to)))?,
        );
        all.extend(
            self.list(|count, to| call!(nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(self.handle, count, to)))?,
        );
        Ok(all)
    }

    fn list(self, ask: impl Fn(*mut c_uint, *mut nvmlProcessInfo_t) -> Called<()>) -> Called<Vec<nvmlProcessInfo_t>> {
        let none = nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
        let mut room = 64;
        loop {
            let mut list = vec![none; room as usize];
            let mut count = room;
            match ask(&mut count, list.as_mut_ptr()) {
                Ok(()) => {
                    list.truncate(count as usize);
                    return Ok(list);
                }
                // Processes may come while the list is asked for again.
                Err(Fault::Nvml { code: INSUFFICIENT_SIZE, .. }) if room < PROCESSES_MAX => {
                    room = count.saturating_add(16).clamp(room * 2, PROCESSES_MAX.max(room * 2));
                }
                // A card without graphics has no such list.
                Err(Fault::Nvml { code: NOT_SUPPORTED, .. }) => return Ok(Vec::new()),
                Err(fault) => return Err(fault),
            }
        }
    }
}

/// To be filled.
pub(super) const fn no_pci() -> nvmlPciInfo_t {
    nvmlPciInfo_t {
        busIdLegacy: [0; 16],
        domain: 0,
        bus: 0,
        device: 0,
        pciDeviceId: 0,
        pciSubSystemId: 0,
        busId: [0; 32],
    }
}

/// As sysfs writes it.
pub(super) fn address(pci: &nvmlPciInfo_t) -> String {
    format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device)
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Refused(why) => f.write_str(why),
            Fault::Nvml { call, code, words } => write!(f, "{call}: {words} (NVML code {code})"),
        }
    }
}
