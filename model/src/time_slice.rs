//! How long a task has a time-sliced card at a time. What must stay true: each length has one number of the driver.

use crate::words::words;
use serde::{Deserialize, Serialize};

/// How long a task has a time-sliced card before the next one has it. The driver does not say in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TimeSlice {
    /// Little waiting for work that is used by hand.
    Short,
    /// Between the two.
    #[default]
    Medium,
    /// Little time lost in changing over.
    Long,
}

words!(TimeSlice, "time-slice", TimeSlice::Short => "short", TimeSlice::Medium => "medium", TimeSlice::Long => "long");

impl TimeSlice {
    /// All of them, the shortest first.
    pub const ALL: [TimeSlice; 3] = [TimeSlice::Short, TimeSlice::Medium, TimeSlice::Long];

    /// As NVIDIA's driver counts them; its 0 is what a card has that nobody has set.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            TimeSlice::Short => 1,
            TimeSlice::Medium => 2,
            TimeSlice::Long => 3,
        }
    }

    /// The one of this number.
    #[must_use]
    pub fn of_number(number: u32) -> Option<Self> {
        TimeSlice::ALL.into_iter().find(|length| u32::from(length.number()) == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_the_driver_s_numbers() {
        let numbers = TimeSlice::ALL.map(TimeSlice::number);
        assert_eq!(numbers, [1, 2, 3]);
        assert_eq!(numbers.map(|number| TimeSlice::of_number(number.into())), TimeSlice::ALL.map(Some));
        assert_eq!((TimeSlice::of_number(0), TimeSlice::of_number(4)), (None, None));
    }
}
