//! NVIDIA's Xid codes: what each means, and what Muster does about it.
//!
//! Source of codes, mnemonics and immediate actions: NVIDIA's Xid catalogue,
//! <https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html>. Class, harm and confinement are our reading of it. What must stay
//! true: a code that is not in the table is never taken for harmless; the table agrees with the collected facts (tests).

use serde::{Deserialize, Serialize};
use std::fmt;

/// An error code of NVIDIA's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Xid(pub u16);

/// What kind of fault a code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// The application's own fault; the card is well.
    App,
    /// To be counted, no more.
    Record,
    /// The card needs a reset.
    Reset,
    /// The application is lost; the card works on and needs a reset when it is idle.
    AppThenResetWhenIdle,
    /// The node needs a reboot.
    NodeReboot,
    /// A person must look at hardware, firmware or the virtual machine.
    Operator,
    /// The driver says what it needs by its recovery action.
    QueryRecoveryAction,
    /// What it needs depends on registers in its text; the driver's recovery action is asked.
    Decode,
    /// Comes with Xid 48 and is treated as that.
    DetailOf48,
    /// The catalogue gives no action.
    Unknown,
}

/// The first action that the catalogue asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Immediate {
    /// `RESTART_APP`.
    RestartApp,
    /// `IGNORE`.
    Ignore,
    /// `RESET_GPU`.
    ResetGpu,
    /// `RESTART_BM`: reboot the machine.
    RestartBm,
    /// `RESTART_VM`.
    RestartVm,
    /// `CHECK_MECHANICALS`.
    CheckMechanicals,
    /// `UPDATE_SWFW`.
    UpdateSwFw,
    /// `WORKFLOW_XID_45`: follow the Xid that it accompanies.
    WorkflowXid45,
    /// `WORKFLOW_XID_48`.
    WorkflowXid48,
    /// `WORKFLOW_NVLINK_ERR`.
    WorkflowNvlinkErr,
    /// `WORKFLOW_NVLINK5_ERR`.
    WorkflowNvlink5Err,
    /// `XID_154`: read the recovery action.
    Xid154,
    /// The catalogue has none.
    Absent,
}

impl Immediate {
    /// The catalogue's word; empty where it has none.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Immediate::RestartApp => "RESTART_APP",
            Immediate::Ignore => "IGNORE",
            Immediate::ResetGpu => "RESET_GPU",
            Immediate::RestartBm => "RESTART_BM",
            Immediate::RestartVm => "RESTART_VM",
            Immediate::CheckMechanicals => "CHECK_MECHANICALS",
            Immediate::UpdateSwFw => "UPDATE_SWFW",
            Immediate::WorkflowXid45 => "WORKFLOW_XID_45",
            Immediate::WorkflowXid48 => "WORKFLOW_XID_48",
            Immediate::WorkflowNvlinkErr => "WORKFLOW_NVLINK_ERR",
            Immediate::WorkflowNvlink5Err => "WORKFLOW_NVLINK5_ERR",
            Immediate::Xid154 => "XID_154",
            Immediate::Absent => "",
        }
    }
}

/// Whose work is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Harm {
    /// Nobody's.
    Nobody,
    /// That of the process, if the driver names one; otherwise another Xid says whose.
    NamedProcess,
    /// That of the process; of all who hold the scope when the driver names none.
    Process,
    /// That of all who hold the scope.
    Everyone,
}

/// What Muster does about a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Counts it; whose work is lost, [`Row::harm`] says.
    Record,
    /// Starts nothing new and resets the card once it is idle.
    ResetWhenIdle,
    /// Starts nothing new; the node is to be rebooted.
    Reboot,
    /// Starts nothing new until an operator clears the card.
    Inspect,
    /// Starts nothing new until the driver's recovery action is known.
    QueryRecoveryAction,
}

impl Action {
    /// The word in a metric's label.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Action::Record => "record",
            Action::ResetWhenIdle => "reset-when-idle",
            Action::Reboot => "reboot",
            Action::Inspect => "inspect",
            Action::QueryRecoveryAction => "query-recovery-action",
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The code.
    pub code: u16,
    /// The catalogue's name.
    pub mnemonic: &'static str,
    /// The catalogue's first action.
    pub immediate: Immediate,
    /// Our reading of it.
    pub class: Class,
    /// Whose work is lost.
    pub harm: Harm,
    /// A MIG instance that the driver names with the error is all that it touches.
    pub is_confined: bool,
    /// For people.
    pub meaning: &'static str,
}

macro_rules! rows {
    ($($code:literal $class:ident $immediate:ident $harm:ident $reach:ident $mnemonic:literal $meaning:literal;)*) => {
        &[$(Row {
            code: $code,
            mnemonic: $mnemonic,
            immediate: Immediate::$immediate,
            class: Class::$class,
            harm: Harm::$harm,
            is_confined: rows!(@$reach),
            meaning: $meaning,
        }),*]
    };
    (@instance) => { true };
    (@card) => { false };
}

/// In order of codes. Xid 48 ends nobody whom it does not name: 94 or 95 follows and says whom it hit. Xid 109 is an application's to
/// NVIDIA's device plugin and a reset's to the catalogue: it ends its process, and the card is reset when idle. Xid 45 is also
/// logged when a process is killed, so it ends nobody.
pub const TABLE: &[Row] = rows! {
    13 App RestartApp Process instance "ROBUST_CHANNEL_GR_EXCEPTION" "the application's kernel raised an exception";
    31 App RestartApp Process instance "ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT" "the application accessed GPU memory that is not mapped";
    43 App Ignore Nobody instance "ROBUST_CHANNEL_RESETCHANNEL_VERIF_ERROR" "the application hit a software fault and stopped using the GPU";
    45 App WorkflowXid45 Nobody instance "ROBUST_CHANNEL_PREEMPTIVE_REMOVAL" "the driver removed the work of a process that ended";
    46 Reset ResetGpu Everyone card "ROBUST_CHANNEL_GPU_TIMEOUT_ERROR" "the GPU stopped processing";
    48 Reset WorkflowXid48 NamedProcess instance "ROBUST_CHANNEL_GPU_ECC_DBE" "memory has an uncorrectable (double-bit) error";
    54 Operator CheckMechanicals Nobody card "SILENT_RUNNING_PWR_REDUCED_CLOCKING" "the auxiliary power connector is not connected";
    62 Reset ResetGpu Everyone card "PMU_HALT_ERROR" "the GPU's power controller halted";
    63 Record Ignore Nobody card "INFOROM_DRAM_RETIREMENT_EVENT" "a memory row is to be remapped at the next reset";
    64 Reset ResetGpu Nobody card "INFOROM_DRAM_RETIREMENT_FAILURE" "a memory row could not be remapped";
    68 App RestartApp Process instance "ROBUST_CHANNEL_NVDEC0_ERROR" "the application's video decoding failed";
    74 Reset WorkflowNvlinkErr Nobody card "NVLINK_ERROR" "an NVLink connection failed, here or at its peer";
    78 Operator UpdateSwFw Nobody card "VGPU_START_ERROR" "a virtual GPU could not be started";
    79 NodeReboot RestartBm Everyone card "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS" "the GPU has fallen off the bus";
    92 Record Ignore Nobody card "EXCESSIVE_SBE_INTERRUPTS" "memory has many corrected (single-bit) errors";
    94 AppThenResetWhenIdle RestartApp Process instance "ROBUST_CHANNEL_CONTAINED_ERROR" "an uncorrectable memory error hit one application";
    95 Reset ResetGpu Everyone card "ROBUST_CHANNEL_UNCONTAINED_ERROR" "an uncorrectable memory error hit every application";
    109 Reset ResetGpu Process instance "ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR" "the GPU could not switch away from the application in time";
    110 Reset ResetGpu Everyone card "SEC_FAULT_ERROR" "the GPU's security engine failed";
    119 Reset ResetGpu Everyone card "GSP_RPC_TIMEOUT" "the GPU's system processor (GSP) does not answer";
    120 Reset ResetGpu Everyone card "GSP_ERROR" "the GPU's system processor (GSP) failed";
    121 Record Ignore Nobody card "C2C_ERROR" "the chip-to-chip link corrected an error";
    136 Reset ResetGpu Nobody card "ALI_TRAINING_FAIL" "an NVLink connection could not be trained";
    137 Record Ignore Nobody card "NVLINK_PRIV_ERR" "an access over NVLink faulted";
    140 Reset ResetGpu Everyone card "UNRECOVERABLE_ECC_ERROR_ESCAPE" "an uncorrectable memory error escaped containment";
    143 Reset ResetGpu Everyone card "GPU_INIT_ERROR" "the GPU could not be initialised";
    144 Decode WorkflowNvlink5Err Nobody card "NVLINK_SAW_ERROR" "NVLink reported an error (SAW)";
    145 Decode WorkflowNvlink5Err Nobody card "NVLINK_RLW_ERROR" "NVLink reported an error (RLW)";
    146 Decode WorkflowNvlink5Err Nobody card "NVLINK_TLW_ERROR" "NVLink reported an error (TLW)";
    147 Decode WorkflowNvlink5Err Nobody card "NVLINK_TREX_ERROR" "NVLink reported an error (TREX)";
    148 Decode WorkflowNvlink5Err Nobody card "NVLINK_NVLPW_CTRL_ERROR" "NVLink reported an error (NVLPW control)";
    149 Decode WorkflowNvlink5Err Nobody card "NVLINK_NETIR_ERROR" "NVLink reported an error (NETIR)";
    150 Decode WorkflowNvlink5Err Nobody card "NVLINK_MSE_ERROR" "NVLink reported an error (MSE)";
    151 Operator RestartVm Nobody card "ROBUST_CHANNEL_KEY_ROTATION_ERROR" "the keys of confidential computing could not be rotated";
    154 QueryRecoveryAction Xid154 Nobody card "GPU_RECOVERY_ACTION_CHANGED" "the driver changed the recovery action that it asks for";
    155 Reset ResetGpu Nobody card "NVLINK_SW_DEFINED_ERROR" "NVLink reported an error of its software";
    156 Reset ResetGpu Nobody card "RESOURCE_RETIREMENT_EVENT" "a faulty part of the GPU is to be retired at the next reset";
    157 Operator Ignore Nobody card "RESOURCE_RETIREMENT_FAILURE" "a faulty part of the GPU could not be retired: no spare is left";
    158 Reset ResetGpu Everyone card "GPU_FATAL_TIMEOUT" "the GPU did not answer in time";
    167 Unknown Absent Nobody card "PCIE_FATAL_TIMEOUT" "PCIe did not answer in time";
    171 DetailOf48 Absent NamedProcess instance "UNCORRECTABLE_DRAM_ERROR" "memory (DRAM) has an uncorrectable error";
    172 DetailOf48 Absent NamedProcess instance "UNCORRECTABLE_SRAM_ERROR" "a cache (SRAM) has an uncorrectable error";
};

impl Row {
    /// What Muster does about it.
    #[must_use]
    pub const fn action(&self) -> Action {
        match self.class {
            Class::App | Class::Record => Action::Record,
            Class::Reset | Class::AppThenResetWhenIdle | Class::DetailOf48 => Action::ResetWhenIdle,
            Class::NodeReboot => Action::Reboot,
            Class::Operator | Class::Unknown => Action::Inspect,
            Class::QueryRecoveryAction | Class::Decode => Action::QueryRecoveryAction,
        }
    }
}

impl Xid {
    /// The driver changed its recovery action; the text says to what.
    pub const RECOVERY_ACTION_CHANGED: Xid = Xid(154);
    /// A row remap failed.
    pub const REMAP_FAILED: Xid = Xid(64);

    /// Its row; `None` for a code that the table does not have.
    #[must_use]
    pub fn row(self) -> Option<&'static Row> {
        TABLE.binary_search_by_key(&self.0, |row| row.code).ok().map(|at| &TABLE[at])
    }

    /// One short sentence for people, without the code.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        self.row().map_or("a code that this version does not know", |row| row.meaning)
    }

    /// What kind of fault it is.
    #[must_use]
    pub fn class(self) -> Class {
        self.row().map_or(Class::Unknown, |row| row.class)
    }

    /// What Muster does about it; an unknown code is withheld for inspection.
    #[must_use]
    pub fn action(self) -> Action {
        self.row().map_or(Action::Inspect, Row::action)
    }

    /// Whose work is lost; with an unknown code that is not known either, and nobody is ended.
    #[must_use]
    pub fn harm(self) -> Harm {
        self.row().map_or(Harm::Nobody, |row| row.harm)
    }

    /// Whether a MIG instance that the driver names with it is all that it touches.
    #[must_use]
    pub fn is_confined(self) -> bool {
        self.row().is_some_and(|row| row.is_confined)
    }
}

impl fmt::Display for Xid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Xid {}", self.0)
    }
}
