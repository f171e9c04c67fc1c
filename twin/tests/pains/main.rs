//! What hurts users of today's systems, each as a scenario with what Muster does about it, told line by line and compared as a whole.
//!
//! One file for each pain.

mod evicts_and_cannot_run;
mod large_gang_starves;
mod large_reclaim;
mod no_simulator;
mod pending_without_reason;
mod preemption_loops;
mod quota_per_gpu_model;
mod scenario;
mod storage_cannot_save_all;
mod used_all_week;
mod victims_blind_to_lost_work;
