//! How a machine comes by its identity and keeps it: enrolment with a join token, renewal over its own connection, and the count of its sessions, by which
//! copies of its key are found.
//!
//! What must stay true: a private key never leaves its machine; what is on disk is whole at every moment, so that a crash leaves the earlier identity or the
//! next one; nothing here ends what runs, whatever fails.

mod enrol;
mod join_file;
mod renewal;
mod sessions;

pub use enrol::{EnrolError, enrol, is_enrolled};
pub use join_file::{BadJoinFile, JoinFile};
pub use renewal::keep_renewed;
pub use sessions::Sessions;
