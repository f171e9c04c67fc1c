//! Figures as people read them.

use muster_model::resources::{GpuUnits, Resource, cards_in_words, thousandths_in_words};
use muster_model::{GpuModel, JobId};

pub(super) use muster_model::resources::cpus_in_words as cpus;
pub(super) use muster_model::resources::memory_in_words as memory;

/// `8 h100`, `2.5 h100`, `18 CPUs`, `64 GiB`.
pub(super) fn amount(resource: Resource, value: u64) -> String {
    resource.in_words(value)
}

/// `h100`, `CPU`, `memory`.
pub(super) fn resource_word(resource: Resource) -> String {
    match resource {
        Resource::Gpu(model) => model.to_string(),
        Resource::Cpu => "CPU".to_owned(),
        Resource::Memory => "memory".to_owned(),
    }
}

/// A limit as it can be written: hundredths of a card, tenths of a CPU.
pub(super) fn as_written(resource: Resource, amount: u64) -> u64 {
    match resource {
        Resource::Gpu(_) => amount.next_multiple_of(GpuUnits::CARD.0 / 100),
        Resource::Cpu => amount.next_multiple_of(100),
        Resource::Memory => amount,
    }
}

/// The same without its unit.
pub(super) fn bare(resource: Resource, value: u64) -> String {
    match resource {
        Resource::Gpu(_) => cards_in_words(GpuUnits(value)),
        Resource::Cpu => thousandths_in_words(value),
        Resource::Memory => memory(value),
    }
}

/// The unit alone.
pub(super) fn unit(resource: Resource) -> String {
    match resource {
        Resource::Gpu(model) => model.to_string(),
        Resource::Cpu => "CPUs".to_owned(),
        Resource::Memory => "of memory".to_owned(),
    }
}

/// A job that the reader may not know of, in the place of its id; no job has this one.
pub(super) const HIDDEN: JobId = JobId(0);

/// `job 12`, `jobs 12, 13`, `job 12 and 2 jobs of other tenants`; at most `most` are named.
pub(super) fn named_jobs(jobs: &[JobId], most: usize) -> String {
    let own: Vec<String> = jobs.iter().filter(|job| **job != HIDDEN).map(ToString::to_string).collect();
    let others = match jobs.len() - own.len() {
        0 => None,
        1 => Some("1 job of another tenant".to_owned()),
        count => Some(format!("{count} jobs of other tenants")),
    };
    let own = match own.as_slice() {
        [] => None,
        [only] => Some(format!("job {only}")),
        _ => Some(format!("jobs {}", listed(own.into_iter(), most))),
    };
    [own, others].into_iter().flatten().collect::<Vec<_>>().join(" and ")
}

/// `job 12`, or whose it is where the reader may not know of it.
pub(super) fn named_job(job: JobId) -> String {
    if job == HIDDEN { "a job of another tenant".to_owned() } else { format!("job {job}") }
}

/// `1 task`, `8 tasks`.
pub(super) fn tasks(count: u64) -> String {
    counted(count, "task")
}

/// `1 node`, `2 nodes`.
pub(super) fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {}", several(what)) }
}

fn several(what: &str) -> String {
    if what == "leaf" { "leaves".to_owned() } else { format!("{what}s") }
}

/// What a job without cards is measured in is CPUs.
pub(super) fn word(model: Option<GpuModel>) -> String {
    model.map_or_else(|| "CPUs".to_owned(), |model| model.to_string())
}

/// So many cards of a model, or CPUs.
pub(super) fn of(model: Option<GpuModel>, value: u64) -> String {
    model.map_or_else(|| cpus(value), |model| format!("{value} {model}"))
}

/// At most `max` of them by name, the rest counted.
pub(super) fn listed(names: impl Iterator<Item = String>, max: usize) -> String {
    let names: Vec<String> = names.collect();
    if names.len() <= max {
        return names.join(", ");
    }
    format!("{} and {} more", names[..max].join(", "), names.len() - max)
}

pub(super) fn joined(parts: impl Iterator<Item = String>, by: &str) -> String {
    parts.collect::<Vec<_>>().join(by)
}

/// A span of time in its two largest units: `3 d 4 h`, `2 h 5 min`, `40 s`. Rounded down.
pub(super) fn span(span_ms: u64) -> String {
    let s = span_ms / 1_000;
    let two = |large: u64, large_word: &str, small: u64, small_word: &str| match small {
        0 => format!("{large} {large_word}"),
        small => format!("{large} {large_word} {small} {small_word}"),
    };
    match s {
        0..60 => format!("{s} s"),
        60..3_600 => two(s / 60, "min", s % 60, "s"),
        3_600..86_400 => two(s / 3_600, "h", s % 3_600 / 60, "min"),
        _ => two(s / 86_400, "d", s % 86_400 / 3_600, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_told_in_two_units() {
        let told = [0, 59_999, 60_000, 90_000, 3_600_000, 7_500_000, 86_400_000, 273_600_000].map(span);
        assert_eq!(told, ["0 s", "59 s", "1 min", "1 min 30 s", "1 h", "2 h 5 min", "1 d", "3 d 4 h"]);
    }

    #[test]
    fn amounts_are_told_as_people_say_them() {
        let h100 = Resource::Gpu(GpuModel::H100);
        assert_eq!([7_000, 3_500, 1_000].map(|units| amount(h100, units)), ["1 h100", "0.5 h100", "0.14 h100"]);
        assert_eq!([1_000, 18_000, 2_500, 100].map(cpus), ["1 CPU", "18 CPUs", "2.5 CPUs", "0.1 CPUs"]);
        assert_eq!([10, 1_024, 1_536, 524_288].map(memory), ["10 MiB", "1 GiB", "1.5 GiB", "512 GiB"]);
        assert_eq!([1, 2].map(tasks), ["1 task", "2 tasks"]);
        assert_eq!(listed((1..=4).map(|n| n.to_string()), 2), "1, 2 and 2 more");
    }
}
