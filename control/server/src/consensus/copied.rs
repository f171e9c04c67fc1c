//! Objects of a copied state, as they travel and as they are saved: the stored form, which says what it is and whether it is whole.
//!
//! What must stay true: what a copy is read from is never taken for something else; commands and environments of jobs stay in the fleet.

use super::stored;
use muster_model::{Job, JobSpec, Object, ValidJobSpec};

/// Why bytes are not an object.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct NotAnObject {
    why: String,
}

/// The bytes of an object of a state of this feature level.
pub(crate) fn encode(level: u32, object: &Object) -> Vec<u8> {
    stored::encode_raised(super::forms::form_of(level.clamp(1, super::FEATURE_LEVEL_NEWEST)), object)
}

/// The object whose bytes these are.
///
/// # Errors
/// When they are damaged, or were written by a newer version of muster.
pub fn decode(bytes: &[u8]) -> Result<Object, NotAnObject> {
    stored::object(bytes).map_err(|error| NotAnObject { why: error.to_string() })
}

/// The job whose bytes these are.
///
/// # Errors
/// As [`decode`], or when it is another object.
pub(crate) fn decode_job(bytes: &[u8]) -> Result<Job, NotAnObject> {
    match decode(bytes)? {
        Object::Job(job) => Ok(job),
        other => Err(NotAnObject { why: format!("it is no job but {:?}", other.key()) }),
    }
}

/// A job without what its tasks run: a copy is for questions about places and times, and environments may hold secrets.
pub(crate) fn without_commands(job: &Job) -> Job {
    let spec = JobSpec {
        command: vec!["-".to_owned()],
        env: Default::default(),
        secret_env: Default::default(),
        workdir: None,
        ..JobSpec::clone(&job.spec)
    };
    Job { spec: ValidJobSpec::from_control_plane(spec), checkpoint_note: String::new(), ..job.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_model::request::TaskRequest;
    use muster_model::{DeviceRequest, JobId, TenantId};

    #[test]
    fn a_copied_job_is_read_as_it_was_without_its_command_and_environment() {
        let request = TaskRequest { devices: DeviceRequest::None, cpu_milli: 1_000, memory_mib: 0 };
        let mut spec = JobSpec::usual("research", request, &["train", "--token=secret"]);
        spec.env.insert("TOKEN".to_owned(), "secret".to_owned());
        let job = Job::usual(JobId(7), TenantId(1), spec.validate().expect("a valid job"));
        let job = Job { checkpoint_note: "secret".to_owned(), ..job };
        let bytes = encode(3, &Object::Job(without_commands(&job)));
        assert!(!bytes.windows(6).any(|part| part == b"secret"));
        let Object::Job(read) = decode(&bytes).expect("an object") else { panic!("another object") };
        assert_eq!((read.id, &read.spec.request), (job.id, &job.spec.request));
        let cut = decode(&bytes[..bytes.len() - 1]).expect_err("damaged").to_string();
        assert!(cut.contains("checksum"), "{cut}");
    }
}
