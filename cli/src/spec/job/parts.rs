//! The parts of a job that are messages of their own, from the text of a tenant.
//!
//! What must stay true: a fault names the key as the tenant wrote it, and all faults of a job are found together.

use super::*;

impl JobText {
    /// What must be so before it may start.
    pub(super) fn start(&self, faults: &mut Vec<FieldError>) -> Option<v1::StartConditions> {
        let dependency = self.dependency.clone().map(OneOrMany::into_vec).unwrap_or_default();
        let text = StartText {
            hold: self.hold == Some(true),
            begin: self.begin.as_ref().map(|text| text.0.as_str()),
            deadline: self.deadline.as_ref().map(|text| text.0.as_str()),
            dependency: &dependency,
            kill_on_invalid_dependency: self.kill_on_invalid_dep == Some(true),
        };
        text.into_wire(faults)
    }

    pub(super) fn spread(&self, faults: &mut Vec<FieldError>) -> Option<v1::Spread> {
        let mut fault = |field: &str, problem: &str, fix: &str| faults.push(FieldError::new(field, problem, fix));
        let (level, required) = match (&self.spread, &self.prefer_spread) {
            (Some(_), Some(_)) => {
                fault(
                    "prefer-spread",
                    "conflicts with spread",
                    "use spread (the job waits for it) or prefer-spread (it does not wait)",
                );
                return None;
            }
            (Some(level), None) => (level, true),
            (None, Some(level)) => (level, false),
            (None, None) => {
                if self.spread_most.is_some() {
                    fault(
                        "spread-most",
                        "is given without spread or prefer-spread",
                        "add spread or prefer-spread with a level",
                    );
                }
                return None;
            }
        };
        Some(v1::Spread { level: level.clone(), tasks_max: self.spread_most, required })
    }

    /// Whether it may be moved, and what that loses.
    pub(super) fn movable(&self, faults: &mut Vec<FieldError>) -> Option<v1::Movable> {
        let checkpoint_every_s = amount("checkpoint-every", self.checkpoint_every.as_ref(), units::seconds, faults);
        let restart_s = amount("restart-time", self.restart_time.as_ref(), units::seconds, faults);
        if self.movable == Some(true) {
            return Some(v1::Movable { checkpoint_every_s, restart_s });
        }
        for (field, said) in
            [("checkpoint-every", self.checkpoint_every.is_some()), ("restart-time", self.restart_time.is_some())]
        {
            if said {
                let fix = "add movable, or leave it out";
                faults.push(FieldError::new(field, "needs movable", fix));
            }
        }
        None
    }

    /// How it is stopped when its devices are needed elsewhere; none where nothing is said.
    pub(super) fn preemption(&self, faults: &mut Vec<FieldError>) -> Option<v1::Preemption> {
        let signal = self.preempt_signal.as_ref().map(|text| text.0.parse::<StopSignal>());
        if let Some(Err(unknown)) = &signal {
            faults.push(FieldError::new("preempt-signal", unknown.problem(), unknown.fix()));
        }
        let grace_s = amount("preempt-grace", self.preempt_grace.as_ref(), units::seconds, faults);
        let checkpoint_mib = amount("checkpoint-size", self.checkpoint_size.as_ref(), units::mebibytes, faults);
        let restart_cost_s = amount("restart-cost", self.restart_cost.as_ref(), units::seconds, faults);
        let said = signal.is_some() || grace_s.is_some() || checkpoint_mib.is_some() || restart_cost_s.is_some();
        said.then(|| v1::Preemption {
            signal: signal.and_then(Result::ok).map(|signal| signal.to_string()).unwrap_or_default(),
            grace_s,
            checkpoint_bytes: checkpoint_mib.unwrap_or(0).saturating_mul(1 << 20),
            restart_cost_s: restart_cost_s.unwrap_or(0),
        })
    }

    /// The size of the gang, as Slurm (`4-16`) or torchrun (`4:16`) write a range.
    pub(super) fn tasks(&self, faults: &mut Vec<FieldError>) -> (u32, Option<v1::Elastic>) {
        let text = self.tasks.as_ref().map_or("1", |text| text.0.trim());
        let range = ["..", ":", "-"].into_iter().find_map(|mark| text.split_once(mark));
        let number = |part: &str| part.trim().parse::<u32>().ok();
        let (least, most) = match range {
            None => (number(text), None),
            Some((least, most)) => (number(least), Some(number(most))),
        };
        let signal = self.resize_signal.as_ref().map(|text| text.0.parse::<StopSignal>());
        if let Some(Err(unknown)) = &signal {
            faults.push(FieldError::new("resize-signal", unknown.problem(), unknown.fix()));
        }
        if signal.is_some() && most.is_none() {
            let fix = "write tasks as a range, such as 4-16, or leave it out";
            faults.push(FieldError::new("resize-signal", "is given for a job of one size", fix));
        }
        let signal = signal.and_then(Result::ok).map(|signal| signal.to_string()).unwrap_or_default();
        match (least, most) {
            (Some(least), None) => (least, None),
            // Four to four is four.
            (Some(least), Some(Some(most))) if least == most => (least, None),
            (Some(least), Some(Some(tasks_max))) => (least, Some(v1::Elastic { tasks_max, signal })),
            _ => {
                let fix = "write a number, or the least and the most of an elastic job: 4-16";
                faults.push(FieldError::new("tasks", format!("{text:?} is not a number of tasks"), fix));
                (1, None)
            }
        }
    }

    /// A signal before the time limit, as Slurm writes it.
    pub(super) fn limit_signal(&self, faults: &mut Vec<FieldError>) -> Option<v1::LimitSignal> {
        let text = self.signal.as_ref()?.0.as_str();
        let (name, before) = text.split_once('@').unwrap_or((text, SIGNAL_BEFORE_S));
        match (name.parse::<StopSignal>(), before.parse()) {
            (Ok(signal), Ok(before_s)) => return Some(v1::LimitSignal { signal: signal.to_string(), before_s }),
            (Err(unknown), _) => faults.push(FieldError::new("signal", unknown.problem(), unknown.fix())),
            (Ok(_), Err(_)) => {
                let problem = format!("{before:?} is not a number of seconds");
                faults.push(FieldError::new("signal", problem, "write SIGNAL@SECONDS, such as USR1@120"));
            }
        }
        None
    }
}
