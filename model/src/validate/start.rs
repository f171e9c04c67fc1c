//! The conditions under which a job may start, as far as they can be checked without the fleet and without a clock.

use super::Faults;
use crate::array::ARRAY_TASKS_MAX;
use crate::bounds;
use crate::job::JobSpec;
use crate::start::DependencyKind;

impl JobSpec {
    pub(super) fn check_start(&self, faults: &mut Faults) {
        if let Some(array) = &self.array {
            let tasks = array.indices.len();
            faults.when(
                tasks == 0 || tasks > ARRAY_TASKS_MAX || !array.indices.is_sound(),
                "array.indices",
                || format!("has {tasks} tasks"),
                "use 1 to 10,000 indices, each at most 999,999",
            );
            faults.when(
                array.max_running == Some(0),
                "array.max_running",
                || "is 0".into(),
                "use at least 1, or leave it out for no limit",
            );
        }
        let start = &self.start;
        for (field, moment) in [("start.begin_ms", start.begin_ms), ("start.deadline_ms", start.deadline_ms)] {
            faults.when(
                moment.is_some_and(|ms| ms == 0 || ms > bounds::MOMENT_MS_MAX),
                field,
                || "is no time between 1970 and 2200".into(),
                "send milliseconds since 1970, or leave it out",
            );
        }
        if let (Some(begin_ms), Some(latest_ms)) = (start.begin_ms, self.latest_start_ms()) {
            faults.when(
                begin_ms > latest_ms,
                "start.deadline_ms",
                || "leaves less time after the begin time than the time limit".into(),
                "set a later deadline, an earlier begin time or a shorter time limit",
            );
        }
        faults.when(
            start.dependencies.len() > bounds::DEPENDENCIES_MAX,
            "start.dependencies",
            || format!("has {} jobs", start.dependencies.len()),
            "name at most 64 jobs; let one job wait for them, and depend on that job",
        );
        for (index, on) in start.dependencies.iter().enumerate() {
            let field = format!("start.dependencies[{index}]");
            faults.when(on.job.0 == 0, &format!("{field}.job_id"), || "is 0".into(), "give the id of an earlier job");
            faults.when(
                on.delay_s > bounds::TIME_LIMIT_S_MAX,
                &format!("{field}.delay_s"),
                || format!("is {}", on.delay_s),
                "use at most 366 days",
            );
            faults.when(
                start.any_dependency && on.kind == DependencyKind::AfterCorr,
                &format!("{field}.kind"),
                || "is aftercorr, where one of several dependencies is enough".into(),
                "use afterok, afterany, afternotok or after, or let all dependencies be met",
            );
            faults.when(
                on.delay_s > 0 && on.kind != DependencyKind::After,
                &format!("{field}.delay_s"),
                || format!("is given with {}", on.kind),
                "give a delay with after only",
            );
        }
    }
}
