//! A typed reason inside a refusal.
//!
//! What must stay true: it is written as its words, as it always was, so that control nodes of any version read it. Whoever decides has the type;
//! a control node that forwarded a command reads the words of the leader.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// See the module. Two are the same when they say the same.
#[derive(Clone, Debug)]
pub enum Reason<T> {
    /// Decided here.
    Decided(T),
    /// As another control node put it.
    Told(String),
}

impl<T> Reason<T> {
    /// The reason itself, where it was decided here.
    pub const fn decided(&self) -> Option<&T> {
        match self {
            Reason::Decided(reason) => Some(reason),
            Reason::Told(_) => None,
        }
    }
}

impl<T> From<T> for Reason<T> {
    fn from(reason: T) -> Self {
        Reason::Decided(reason)
    }
}

impl<T: fmt::Display> fmt::Display for Reason<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Decided(reason) => reason.fmt(f),
            Reason::Told(words) => words.fmt(f),
        }
    }
}

impl<T: fmt::Display> PartialEq for Reason<T> {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl<T: fmt::Display> Eq for Reason<T> {}

impl<T: fmt::Display> Serialize for Reason<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, T> Deserialize<'de> for Reason<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Reason::Told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reject::Reject;
    use crate::shape_fault::ShapeFault;
    use muster_model::JobId;
    use muster_model::capacity::Misfit;

    /// What a version without types wrote: the words, in the same place.
    #[derive(Serialize)]
    struct Words(&'static str, bool);

    #[test]
    fn it_is_written_and_read_as_its_words() {
        let typed = Reject::from(Misfit::Untrusted);
        let bytes = postcard::to_stdvec(&typed).expect("serialises");
        let words = Words("untrusted tenants may share a GPU only through MIG", false);
        assert_eq!(bytes[1..], postcard::to_stdvec(&words).expect("serialises"), "after the number of the variant");
        let read: Reject = postcard::from_bytes(&bytes).expect("is read");
        assert_eq!(read, typed);
        assert_eq!(read.to_string(), typed.to_string());
        assert!(matches!(read, Reject::DoesNotFit { why: Reason::Told(_), over_max: false }));
    }

    #[test]
    fn who_decides_has_the_type() {
        let reject = Reject::shape(JobId(3), ShapeFault::NoModel);
        let Reject::WrongShape { why, .. } = &reject else { panic!("{reject}") };
        assert!(matches!(why.decided(), Some(ShapeFault::NoModel)));
        assert_eq!(
            reject.to_string(),
            "the placement does not match the request of job 3: GPUs requested, but no model given"
        );
    }
}
