//! Variables of a job that are secrets of its tenant: their number, and that each has one value.

use super::{Faults, short};
use crate::bounds;
use crate::job::JobSpec;

impl JobSpec {
    pub(super) fn check_secret_env(&self, faults: &mut Faults) {
        faults.when(
            self.secret_env.len() > bounds::SECRETS_PER_JOB_MAX,
            "secret_env",
            || format!("has {} variables", self.secret_env.len()),
            &format!("use at most {}; put several values into one secret", bounds::SECRETS_PER_JOB_MAX),
        );
        for (key, name) in &self.secret_env {
            faults.when(
                self.env.contains_key(key),
                "secret_env",
                || format!("{} is in env too", short(key)),
                "leave it out of one of them",
            );
            faults.name("secret_env", name);
        }
    }
}
