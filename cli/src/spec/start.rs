//! When a job may start, as a tenant writes it: `hold`, `begin`, `deadline`, `dependency`, `kill-on-invalid-dep`.
//!
//! Times are written as people and Slurm write them: `now+1h`, `16:00`, `2026-11-23`, `2026-11-23T16:00`, or with a zone as RFC 3339 has
//! it. A time without a zone is this machine's.

use crate::failure::Failure;
use crate::units::{self, UnitError};
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use muster_model::FieldError;
use muster_proto::v1;

/// How times are written.
const WHEN_FIX: &str = "write now+1h, 16:00, 2026-11-23T16:00 or 2026-11-23T16:00:00Z";

/// What was written.
pub(super) struct StartText<'a> {
    pub(super) hold: bool,
    pub(super) begin: Option<&'a str>,
    pub(super) deadline: Option<&'a str>,
    pub(super) dependency: &'a [String],
    pub(super) kill_on_invalid_dependency: bool,
}

impl StartText<'_> {
    /// The message, or none when nothing was written.
    pub(super) fn into_wire(self, faults: &mut Vec<FieldError>) -> Option<v1::StartConditions> {
        let now = Timestamp::now().to_zoned(TimeZone::system());
        let mut moment_of = |field: &str, text: Option<&str>| match moment(text?, &now) {
            Some(ms) => Some(ms),
            None => {
                let problem = format!("{:?} is not a time", text.unwrap_or_default());
                faults.push(FieldError::new(field, problem, WHEN_FIX));
                None
            }
        };
        let begin_ms = moment_of("begin", self.begin);
        let deadline_ms = moment_of("deadline", self.deadline);
        let mut wire = v1::StartConditions {
            held: self.hold,
            begin_ms,
            deadline_ms,
            kill_on_invalid_dependency: self.kill_on_invalid_dependency,
            ..v1::StartConditions::default()
        };
        let alternatives: Vec<&str> = self.dependency.iter().flat_map(|text| text.split('?')).collect();
        wire.any_dependency = alternatives.len() > self.dependency.len();
        if wire.any_dependency && self.dependency.len() > 1 {
            let problem = format!("{:?} joins dependencies by ? and by commas", self.dependency.join(","));
            faults.push(FieldError::new(
                "dependency",
                problem,
                "use commas where all must be met, or ? where one is enough",
            ));
        }
        for text in alternatives {
            if let Err(fault) = depend(text, &mut wire) {
                faults.push(fault);
            }
        }
        if wire.any_dependency && wire.singleton {
            let problem = "joins singleton with others by ?";
            faults.push(FieldError::new("dependency", problem, "write singleton alone, or with commas"));
        }
        (wire != v1::StartConditions::default()).then_some(wire)
    }
}

/// `afterok:12:13`, `after:12+10` (minutes), `singleton`.
fn depend(text: &str, wire: &mut v1::StartConditions) -> Result<(), FieldError> {
    let fault = |problem: String| {
        FieldError::new(
            "dependency",
            problem,
            "write afterok:JOB[:JOB...], afterany, afternotok, aftercorr, after:JOB[+MINUTES] or singleton, with commas between (? where one is enough)",
        )
    };
    let text = text.trim();
    if text.eq_ignore_ascii_case("singleton") {
        wire.singleton = true;
        return Ok(());
    }
    let Some((kind, jobs)) = text.split_once(':') else {
        return Err(fault(format!("{text:?} names no job")));
    };
    for job in jobs.split(':') {
        let (id, minutes) = job.split_once('+').map_or((job, None), |(id, minutes)| (id, Some(minutes)));
        let job_id = units::whole_number(id.trim()).ok_or_else(|| fault(format!("{job:?} is not a job id")))?;
        let minutes: u64 = match minutes {
            None => 0,
            Some(text) => {
                units::whole_number(text.trim()).ok_or_else(|| fault(format!("{text:?} is no number of minutes")))?
            }
        };
        let delay_s = minutes.saturating_mul(60);
        wire.dependencies.push(v1::Dependency { kind: kind.trim().to_ascii_lowercase(), job_id, delay_s });
    }
    Ok(())
}

/// `0-99`, `1,3,7-9`, `0-20:4`, and `%10` after it for at most so many at once.
pub(super) fn array(text: &str) -> Result<v1::ArraySpec, UnitError> {
    let fix = "write indices such as 0-99, 1,3,7-9 or 0-20:4, and %10 after them for at most 10 at once";
    let wrong = || UnitError { problem: format!("{text:?} is no array"), fix };
    let (indices, limit) = text.split_once('%').map_or((text, None), |(indices, limit)| (indices, Some(limit)));
    indices.parse::<muster_model::IndexSet>().map_err(|_| wrong())?;
    let max_running = limit.map(|limit| limit.trim().parse().map_err(|_| wrong())).transpose()?;
    Ok(v1::ArraySpec { indices: indices.to_owned(), max_running })
}

/// A moment that a flag gives.
///
/// # Errors
/// Names the flag, and how times are written.
pub fn moment_of(field: &str, text: &str) -> Result<u64, Failure> {
    moment_since(field, text, Timestamp::now())
}

/// The same where it is `now_ms`, as in a copy of the state.
///
/// # Errors
/// As [`moment_of`].
pub fn moment_at(field: &str, text: &str, now_ms: u64) -> Result<u64, Failure> {
    let now = i64::try_from(now_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    moment_since(field, text, now.unwrap_or_else(Timestamp::now))
}

fn moment_since(field: &str, text: &str, now: Timestamp) -> Result<u64, Failure> {
    let now = now.to_zoned(TimeZone::system());
    moment(text, &now).ok_or_else(|| Failure::field(field, format!("{text:?} is not a time"), WHEN_FIX))
}

/// A moment, in milliseconds since the Unix epoch. A time of day is the next one of that kind.
fn moment(text: &str, now: &Zoned) -> Option<u64> {
    let text = text.trim();
    let ms = |moment: Timestamp| u64::try_from(moment.as_millisecond()).ok();
    let here = |civil: DateTime| ms(civil.to_zoned(now.time_zone().clone()).ok()?.timestamp());
    if text.eq_ignore_ascii_case("now") {
        return ms(now.timestamp());
    }
    if let Some(after) = text.strip_prefix("now+") {
        let seconds = match units::whole_number(after) {
            // As Slurm has it: a bare number is seconds.
            Some(seconds) => seconds,
            None => units::seconds(after).ok()?,
        };
        return ms(now.timestamp())?.checked_add(seconds.checked_mul(1_000)?);
    }
    if let Ok(moment) = text.parse::<Timestamp>() {
        return ms(moment);
    }
    // A date with a time, or a bare number, can be read as a time.
    if let Some(time) = text.parse::<Time>().ok().filter(|_| text.contains(':') && !text.contains('-')) {
        let today = now.date().to_datetime(time);
        let next = if today > now.datetime() { today } else { now.date().tomorrow().ok()?.to_datetime(time) };
        return here(next);
    }
    if let Ok(civil) = text.parse::<DateTime>() {
        return here(civil);
    }
    here(text.parse::<Date>().ok()?.to_datetime(Time::midnight()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let now = "2026-11-23T10:00:00[UTC]".parse::<Zoned>().expect("a time");
        let at = |text: &str| moment(text, &now).map(units::show_moment);
        let check = |text: &str, expected: &str| assert_eq!(at(text).as_deref(), Some(expected), "{text}");
        check("now+90m", "2026-11-23T11:30:00Z");
        check("now+60", "2026-11-23T10:01:00Z");
        check("16:00", "2026-11-23T16:00:00Z");
        check("09:30", "2026-11-24T09:30:00Z");
        check("2026-12-01", "2026-12-01T00:00:00Z");
        check("2026-12-01T08:15", "2026-12-01T08:15:00Z");
        check("2026-12-01T08:15:00+02:00", "2026-12-01T06:15:00Z");
        for wrong in ["", "soon", "now+", "now++5", "25:00", "12"] {
            assert_eq!(at(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn arrays_are_read_as_slurm_has_them() {
        let read = array("0-20:4%3").expect("an array");
        assert_eq!((read.indices.as_str(), read.max_running), ("0-20:4", Some(3)));
        for wrong in ["", "%3", "1-", "0-9%x"] {
            assert!(array(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn dependencies_are_read_as_slurm_has_them() {
        let mut wire = v1::StartConditions::default();
        for text in ["afterok:12:13", "after:7+10", "singleton"] {
            depend(text, &mut wire).expect("a dependency");
        }
        let read: Vec<_> = wire.dependencies.iter().map(|on| (on.kind.as_str(), on.job_id, on.delay_s)).collect();
        assert_eq!(read, [("afterok", 12, 0), ("afterok", 13, 0), ("after", 7, 600)]);
        assert!(wire.singleton);
        for wrong in ["afterok", "afterok:", "afterok:x", "afterok:1?afterany:2"] {
            assert!(depend(wrong, &mut wire).is_err(), "{wrong}");
        }
    }
}
