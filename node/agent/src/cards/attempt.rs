//! One attempt on one card: take the steps, then read what has become of it. Every call has a deadline.
//!
//! What must stay true: a step is taken only after the one before it has succeeded; the card is read after the last step whatever became of it, so that the
//! next plan starts from what is there; a call that overruns its deadline is given up, and nothing else is asked of the card in this attempt.

use super::Cards;
use crate::gpu::{CardState, GpuError};
use muster_node_core::CardStep;
use muster_runtime::Host;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// A reading takes milliseconds; a driver that needs longer than this is in trouble.
const READ_MAX: Duration = Duration::from_secs(5);
/// Changing the mode of a card or making an instance takes seconds at the most.
const STEP_MAX: Duration = Duration::from_secs(30);
/// A reset ends the helper, which may just be starting (two minutes), runs a command (one and a half), and waits until the helper is there again.
const RESET_MAX: Duration = Duration::from_secs(360);

/// Why an attempt did not succeed.
enum Failure {
    /// The driver said no.
    Refused(GpuError),
    /// It said nothing.
    Silent { doing: String, waited: Duration },
}

pub(super) async fn make(cards: &Cards, index: usize, steps: Vec<CardStep>) {
    let card = index as u16;
    let mut failure = None;
    for step in &steps {
        if let Err(why) = take(cards, card, *step).await {
            if *step == CardStep::Reset && matches!(why, Failure::Refused(_)) {
                take_back(cards, card, &steps).await;
            }
            failure = Some(why);
            break;
        }
    }
    let read = match failure {
        Some(Failure::Silent { .. }) => None,
        _ => match read(cards, card).await {
            Ok(state) => Some(state),
            Err(why) => {
                failure = Some(why);
                None
            }
        },
    };
    let node = &cards.host.name;
    let trouble = failure.map(|failure| match failure {
        Failure::Refused(error) => {
            tracing::error!(node, card, %error, "a GPU cannot be read or set");
            (error.to_string(), read.is_none())
        }
        Failure::Silent { doing, waited } => (silence(&cards.host, card, &doing, waited), true),
    });
    if trouble.is_some() {
        metrics::counter!("muster_agent_card_failures_total").increment(1);
    }
    cards.over(index, read, trouble, steps);
}

/// Logs that the driver has not answered for a card, and says it in words.
pub(super) fn silence(host: &Host, card: u16, doing: &str, waited: Duration) -> String {
    tracing::error!(
        node = host.name,
        card,
        doing,
        ?waited,
        "the driver does not answer for a GPU; the GPU is withheld"
    );
    let since = host.clock.wall_ms().saturating_sub(waited.as_millis() as u64);
    format!("the driver has not answered since {} ({doing})", muster_model::utc::show(since))
}

async fn read(cards: &Cards, card: u16) -> Result<CardState, Failure> {
    within(READ_MAX, "reading its state", cards.backend.state(card)).await
}

async fn take(cards: &Cards, card: u16, step: CardStep) -> Result<(), Failure> {
    if step == CardStep::Reset {
        return reset(cards, card).await;
    }
    within(STEP_MAX, &step.to_string(), cards.backend.take(card, step)).await
}

/// Resets a card, and waits until that is taken into account: otherwise the next plan would reset it again. A reset that was refused does not count.
async fn reset(cards: &Cards, card: u16) -> Result<(), Failure> {
    if !cards.may_reset(card) {
        let why = "it was reset twice within a day and asks for a reset again; reboot the node, or look at the GPU"
            .to_owned();
        return Err(Failure::Refused(GpuError::Refused { card, why }));
    }
    tracing::warn!(node = cards.host.name, card, "resetting a GPU of a drained node that nobody uses");
    let done = within(RESET_MAX, &CardStep::Reset.to_string(), cards.backend.take(card, CardStep::Reset)).await;
    if !matches!(done, Err(Failure::Refused(_))) {
        cards.count_reset(card);
    }
    done?;
    metrics::counter!("muster_agent_gpu_resets_total").increment(1);
    tracing::warn!(node = cards.host.name, card, "a GPU was reset");
    let (heard, until_heard) = oneshot::channel();
    // Whoever keeps verdicts has ended where nobody hears of it.
    if cards.tell_reset.send((card, heard)).await.is_ok() {
        let _ = until_heard.await;
    }
    Ok(())
}

/// Takes back a MIG mode that was noted for a reset which is not done: otherwise it would come with the next reboot, and the card is withheld until then.
async fn take_back(cards: &Cards, card: u16, steps: &[CardStep]) {
    let noted = steps.iter().find_map(|step| if let CardStep::NoteMig(on) = step { Some(*on) } else { None });
    if let Some(on) = noted
        && take(cards, card, CardStep::NoteMig(!on)).await.is_err()
    {
        tracing::error!(node = cards.host.name, card, "a MIG mode that was noted for a reset could not be taken back");
    }
}

async fn within<T>(most: Duration, doing: &str, call: impl Future<Output = Result<T, GpuError>>) -> Result<T, Failure> {
    match timeout(most, call).await {
        Ok(answer) => answer.map_err(Failure::Refused),
        Err(_) => Err(Failure::Silent { doing: doing.to_owned(), waited: most }),
    }
}
