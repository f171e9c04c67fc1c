//! What an operator should know of a node, in words.

use crate::node::{Node, NodeNotes, Rival};

impl Node {
    /// What an operator should know of it, for people; empty when there is nothing.
    #[must_use]
    pub fn reason(&self) -> String {
        let NodeNotes { drain_reason, quarantine, rival, lacks, .. } = &self.notes;
        let drained = self.drained.then(|| drain_reason.clone()).filter(|reason| !reason.is_empty());
        let quarantine = quarantine.as_ref().map(|quarantine| quarantine.reason.clone());
        let rival = rival.as_ref().map(|rival| {
            let Rival { address, boot_id, .. } = rival;
            format!(
                "another agent asks to be this node (address {address}, boot {boot_id}) and is refused: \
                 give one of the two hosts another name"
            )
        });
        let lacks = Some(lacks.clone()).filter(|lacks| !lacks.is_empty());
        let spared = self.notes.verdicts.in_words();
        let replaced = |(gpu, was): (&u16, &String)| {
            format!(
                "GPU {gpu} is another card than before (was {was}): `muster clear-gpu {} {gpu}` takes note of it",
                self.spec.name
            )
        };
        let replaced: Vec<String> = self.notes.replaced.iter().map(replaced).collect();
        let replaced = (!replaced.is_empty()).then(|| replaced.join("; "));
        let restored = self.notes.restored.as_ref().map(|restored| restored.in_words(&self.spec.name));
        [restored, drained, quarantine, lacks, rival, spared, replaced]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join("; ")
    }
}
