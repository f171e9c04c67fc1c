//! What a page of the cluster's audit means for an export that has come so far.
//!
//! What must stay true: nothing is exported that does not follow from what was exported before it; records that the cluster has no more, or has altered,
//! are an error that names them and never a silent gap.

use super::chain::{Broken, Head, follow};
use muster_model::AuditRecord;

/// A page of the cluster's audit.
#[derive(Clone, Debug)]
pub struct Page {
    /// The records after the number that was asked for, the oldest first.
    pub records: Vec<AuditRecord>,
    /// The last record of the cluster.
    pub newest: Head,
    /// Records up to this number have been removed from the cluster.
    pub removed: u64,
}

/// Why an export cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// Records were removed before they were exported.
    #[error(
        "records {from} to {through} of the audit were removed from the cluster before they were exported; to go on without them, begin with --from {}",
        through.saturating_add(1)
    )]
    Removed {
        /// The first of them.
        from: u64,
        /// The last of them.
        through: u64,
    },
    /// The cluster has another record under a number that was exported.
    #[error(
        "record {0} of the audit is not the one that was exported: the history of the cluster was rewritten, or this is another cluster"
    )]
    Rewritten(u64),
    /// The cluster's audit ends before what was exported.
    #[error(
        "the audit of the cluster ends with record {newest}, and record {exported} was exported: records were taken from the cluster, or this is another cluster"
    )]
    CutOff {
        /// The cluster's last.
        newest: u64,
        /// The last that was exported.
        exported: u64,
    },
    /// A record does not follow from the one before it.
    #[error("the audit of the cluster is not whole: {}{}", .0, hint(.0))]
    Broken(#[from] Broken),
    /// The export is to begin with a record that is not there yet.
    #[error(
        "--from: is {from}, and the audit of the cluster ends with record {newest}; begin with one that is there, or with the next"
    )]
    NotYet {
        /// The one to begin with.
        from: u64,
        /// The cluster's last.
        newest: u64,
    },
    /// The control node has sent records that were not asked for.
    #[error("the control node that answers cannot begin with a record: it is older than this program; upgrade it")]
    Older,
}

/// Whoever does not see every record sees gaps.
fn hint(broken: &Broken) -> &'static str {
    match broken {
        Broken::Missing { .. } => "; an export needs the role auditor or operator, which see every record",
        Broken::OutOfPlace { .. } | Broken::Altered(_) => "",
    }
}

/// How far an export has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The record that is exported next.
    next: u64,
    /// The one before it, if it is known.
    before: Option<Head>,
}

impl Progress {
    /// An export that begins with a record.
    #[must_use]
    pub fn from_record(next: u64) -> Self {
        Progress { next: next.max(1), before: None }
    }

    /// An export that has come up to a record.
    #[must_use]
    pub fn after(last: Head) -> Self {
        Progress { next: last.number.saturating_add(1), before: Some(last) }
    }

    /// The record that is exported next.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The number after which records are asked for: the first one that comes is then the one before the next, to compare.
    #[must_use]
    pub fn ask_after(&self) -> u64 {
        self.next.saturating_sub(2)
    }

    /// Takes a page that was asked for with [`Progress::ask_after`], and gives what is exported of it.
    ///
    /// # Errors
    /// When the page does not continue what was exported.
    pub fn take(&mut self, page: Page) -> Result<Vec<AuditRecord>, Stopped> {
        let before = self.next - 1;
        if page.removed > before {
            return Err(Stopped::Removed { from: self.next, through: page.removed });
        }
        if page.newest.number < before {
            let newest = page.newest.number;
            return Err(match self.before {
                Some(_) => Stopped::CutOff { newest, exported: before },
                None => Stopped::NotYet { from: self.next, newest },
            });
        }
        if page.records.first().is_some_and(|first| first.number <= self.ask_after()) {
            return Err(Stopped::Older);
        }
        let mut new = Vec::new();
        for record in page.records {
            if record.number == before {
                let there = Head { number: before, hash: record.hash };
                match self.before {
                    Some(known) if known != there => return Err(Stopped::Rewritten(before)),
                    _ => self.before = Some(there),
                }
                continue;
            }
            if self.before.is_none() && record.number != self.next {
                return Err(Broken::Missing { last: before, found: record.number }.into());
            }
            let head = follow(self.before, &record)?;
            (self.next, self.before) = (head.number.saturating_add(1), Some(head));
            new.push(record);
        }
        // Of the newest the cluster also tells the hash apart from the records.
        match self.before {
            Some(last) if last.number == page.newest.number && last != page.newest => {
                Err(Stopped::Rewritten(last.number))
            }
            _ => Ok(new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::chain::example;
    use super::*;
    use muster_control_core::audit_link;

    fn head(record: &AuditRecord) -> Head {
        Head { number: record.number, hash: record.hash }
    }

    /// What a cluster with these records answers.
    fn page(records: &[AuditRecord], after: u64, size: usize) -> Page {
        let removed = records[0].number - 1;
        let newest = head(records.last().expect("one"));
        let part = records.iter().filter(|record| record.number > after).take(size).cloned().collect();
        Page { records: part, newest, removed }
    }

    fn step(progress: &mut Progress, records: &[AuditRecord]) -> Result<Vec<u64>, Stopped> {
        let taken = progress.take(page(records, progress.ask_after(), 4))?;
        Ok(taken.iter().map(|record| record.number).collect())
    }

    #[test]
    fn every_record_comes_once_and_in_order() {
        let all = example(10);
        let mut progress = Progress::from_record(1);
        let mut seen = Vec::new();
        for known in [3, 3, 9, 9, 10, 10] {
            // A page has four records, and the first of them may be known.
            seen.extend(step(&mut progress, &all[..known]).expect("it goes on"));
        }
        assert_eq!(seen, (1..=10).collect::<Vec<_>>());
        assert_eq!(progress, Progress::after(head(&all[9])));
    }

    #[test]
    fn an_export_that_begins_later_is_checked_against_the_record_before_it() {
        let mut all = example(10);
        assert_eq!(step(&mut Progress::from_record(5), &all), Ok(vec![5, 6, 7]));
        all[4].target.push('x');
        assert_eq!(step(&mut Progress::from_record(5), &all), Err(Broken::Altered(5).into()));
        // Where that one was removed, the first is believed.
        assert_eq!(step(&mut Progress::from_record(5), &example(10)[4..]), Ok(vec![5, 6, 7, 8]));
    }

    #[test]
    fn an_export_does_not_begin_after_the_end() {
        let all = example(4);
        assert_eq!(step(&mut Progress::from_record(6), &all), Err(Stopped::NotYet { from: 6, newest: 4 }));
        let mut progress = Progress::from_record(5);
        assert_eq!(step(&mut progress, &all), Ok(vec![]));
        assert_eq!(step(&mut progress, &example(5)), Ok(vec![5]));
    }

    #[test]
    fn records_that_were_removed_first_are_named() {
        let all = example(10);
        let removed = Err(Stopped::Removed { from: 1, through: 4 });
        assert_eq!(step(&mut Progress::from_record(1), &all[4..]), removed);
        let removed = Err(Stopped::Removed { from: 3, through: 4 });
        assert_eq!(step(&mut Progress::after(head(&all[1])), &all[4..]), removed);
        assert!(Stopped::Removed { from: 3, through: 4 }.to_string().contains("--from 5"));
        // What was removed behind the export harms nothing.
        assert_eq!(step(&mut Progress::after(head(&all[3])), &all[4..]), Ok(vec![5, 6, 7, 8]));
        assert_eq!(step(&mut Progress::after(head(&all[4])), &all[4..]), Ok(vec![6, 7, 8]));
    }

    #[test]
    fn a_history_that_was_rewritten_names_the_record() {
        let all = example(10);
        let mut other = example(10);
        other[3].target.push('x');
        for at in 3..10 {
            other[at].hash = audit_link(&other[at - 1].hash, &other[at]);
        }
        assert_eq!(step(&mut Progress::after(head(&all[5])), &other), Err(Stopped::Rewritten(6)));
        assert_eq!(step(&mut Progress::after(head(&all[9])), &other), Err(Stopped::Rewritten(10)));
        // Also where the record itself was removed from the cluster.
        assert_eq!(step(&mut Progress::after(head(&all[5])), &other[6..]), Err(Broken::Altered(7).into()));
        let cut = Err(Stopped::CutOff { newest: 8, exported: 10 });
        assert_eq!(step(&mut Progress::after(head(&all[9])), &all[..8]), cut);
    }

    #[test]
    fn records_that_are_withheld_are_no_gap_in_silence() {
        let all = example(10);
        let mut seen = page(&all, 0, 10);
        seen.records.retain(|record| record.number != 3);
        assert_eq!(Progress::from_record(1).take(seen), Err(Broken::Missing { last: 2, found: 4 }.into()));
        let mut seen = page(&all, 3, 10);
        seen.records.remove(1);
        seen.records.remove(0);
        assert_eq!(Progress::from_record(5).take(seen), Err(Broken::Missing { last: 4, found: 6 }.into()));
        // A control node that does not know the question answers from the beginning.
        assert_eq!(Progress::after(head(&all[5])).take(page(&all, 0, 10)), Err(Stopped::Older));
    }
}
