//! One pass over one cell: the fixed list of policies, each of which looks at the view, changes it and proposes.
//!
//! What must stay true: a pass is bounded by steps, never by time, and the same view gives the same proposals; policies know the view and what is
//! below it, never each other but for the gates that all starts go through; whoever adds a policy adds it to this list.

use crate::policy::gate::Pass;
use crate::policy::{grow, guard, hand_over, moves, reclaim, reserve, shrink, start};
use crate::proposal::{Bounds, Plan};
use crate::search::Steps;
use crate::view::View;
use muster_model::CellId;

/// Plans one pass over `cell`. `now_ms` is the clock that the state's times are of; time limits are counted from there.
pub fn plan(view: &mut View, cell: CellId, bounds: &Bounds, now_ms: u64) -> Plan {
    let mut plan = Plan::default();
    let mut steps = Steps::default();
    view.last_pass_ms = now_ms;
    view.end_backoffs(now_ms);
    view.look_around(cell, now_ms);
    let mut pass = Pass { cell, now_ms, guards: guard::guards(view, cell) };
    start::start_waiting(view, &mut pass, bounds, &mut steps, &mut plan);
    if !plan.more {
        // Before others lose devices, those that may be moved make room.
        moves::make(view, cell, bounds, now_ms, &mut steps, &mut plan);
    }
    if !plan.more {
        reclaim::reclaim(view, cell, bounds, now_ms, &mut steps, &mut plan);
    }
    if !plan.more {
        shrink::shrink(view, cell, bounds, now_ms, &mut steps, &mut plan);
    }
    if !plan.more {
        reserve::reserve(view, cell, bounds, now_ms, &mut steps, &mut plan);
    }
    // In a pass that stopped at a bound some have not been tried here yet.
    if !plan.more {
        hand_over::hand_over(view, cell, bounds, now_ms, &mut plan);
    }
    guard::count(view, cell, bounds, now_ms, &mut plan);
    if !plan.more {
        grow::grow(view, &pass, bounds, &mut steps, &mut plan);
    }
    plan.steps = steps.0;
    plan
}
