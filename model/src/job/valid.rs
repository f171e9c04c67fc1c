//! Specifications that were checked, and the two ways to have one: [`JobSpec::validate`], and the control plane's own word.
//!
//! What must stay true: what a client sends becomes a [`ValidJobSpec`] by being checked and in no other way. It cannot be deserialised by
//! itself; whoever reads one that the control plane has accepted says so by name.

use super::JobSpec;
use serde::Serialize;
use std::ops::Deref;
use std::sync::Arc;

/// A specification that has passed [`JobSpec::validate`]: carried instead of checked again. It never changes, so what holds it shares it: the
/// log entry, the job, and each later version of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ValidJobSpec(Arc<JobSpec>);

impl ValidJobSpec {
    /// It has just been checked.
    pub(crate) fn checked(spec: JobSpec) -> Self {
        ValidJobSpec(Arc::new(spec))
    }

    /// Of a job that the control plane has accepted, as its leader, its log or its store has it. It was checked then, by the rules of then, and is
    /// never checked again: a rule that became stricter since must not make an accepted job disappear.
    #[must_use]
    pub fn from_control_plane(spec: JobSpec) -> Self {
        ValidJobSpec(Arc::new(spec))
    }
}

impl Deref for ValidJobSpec {
    type Target = JobSpec;
    fn deref(&self) -> &JobSpec {
        &self.0
    }
}

/// Reads specifications out of the log, the store, and messages between control nodes, for `#[serde(deserialize_with)]`. Clients' bytes never
/// come this way: they are messages of the API, which are validated.
pub mod trusted {
    use super::{JobSpec, ValidJobSpec};
    use serde::{Deserialize, Deserializer};

    struct Trusted(ValidJobSpec);

    impl<'de> Deserialize<'de> for Trusted {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            JobSpec::deserialize(deserializer).map(|spec| Trusted(ValidJobSpec::from_control_plane(spec)))
        }
    }

    /// One.
    ///
    /// # Errors
    /// Bytes that are no specification.
    pub fn spec<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ValidJobSpec, D::Error> {
        Trusted::deserialize(deserializer).map(|trusted| trusted.0)
    }

    /// Several.
    ///
    /// # Errors
    /// Bytes that are no list of specifications.
    pub fn specs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ValidJobSpec>, D::Error> {
        Ok(Vec::<Trusted>::deserialize(deserializer)?.into_iter().map(|trusted| trusted.0).collect())
    }
}
