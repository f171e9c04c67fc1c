//! The page: one HTML file with its plots inside, no script and nothing fetched.

use super::chart::{Dot, Group, Scale, Width, bars, dots};
use super::figures::{Figures, Spread};
use super::summary::{mean_share, of, signed, sizes, wait_of};
use super::{Found, Policy, Source};
use muster_twin::html::opening;
use muster_twin::html::words::{count, escape, span};
use muster_twin::training::{Trained, Training};
use std::fmt::Write;

/// Colour of a policy.
const fn class(policy: Policy) -> &'static str {
    match policy {
        Policy::Muster => "c1",
        Policy::Static => "c2",
        Policy::Fifo => "c3",
        Policy::StrictPriority => "c4",
    }
}

/// Parts of what was held, with their colours.
type Part = (&'static str, &'static str, fn(&Figures) -> f64);
const PARTS: [Part; 4] = [
    ("c3", "reached its end", |run| run.goodput),
    ("ca", "saved by preempted attempts", |run| run.saved),
    ("c5", "lost to preemption", |run| run.lost),
    ("c9", "still running when the replay stopped", |run| run.unfinished),
];

/// See the module.
pub(super) fn render(found: &Found) -> String {
    let options = &found.options;
    let mut page = opening("What quotas with borrowing and reclaim are worth");
    let loads: Vec<String> = options.loads_permille.iter().map(|load| times(*load)).collect();
    let _ = writeln!(
        page,
        "<header><h1>What quotas with borrowing and reclaim are worth</h1><p>{} · {} days at {} of the recorded load · {} seeds · {} runs</p></header>",
        escape(&options.sources.iter().map(|source| title(*source)).collect::<Vec<_>>().join(" and ")),
        options.days,
        loads.join(", "),
        options.seeds,
        found.runs.len()
    );
    let _ = writeln!(page, "<p class=\"lead\">{}</p>", lead(found));
    key(&mut page, options.policies.iter().map(|policy| (class(*policy), policy.title())));
    for source in &options.sources {
        section(&mut page, found, *source);
    }
    verdicts(&mut page, found);
    trees(&mut page, found);
    assumptions(&mut page, found);
    page.push_str("<footer>Made by <code>muster bench quotas</code>: the scheduler and the state machine that run a fleet, in virtual time.</footer>\n</main></body></html>\n");
    page
}

fn title(source: Source) -> &'static str {
    match source {
        Source::Itp => "Microsoft ITP",
        Source::Philly => "Microsoft Philly",
    }
}

fn times(load: u32) -> String {
    format!("{}×", f64::from(load) / 1000.0)
}

fn key(page: &mut String, names: impl Iterator<Item = (&'static str, &'static str)>) {
    page.push_str("<div class=\"key\">");
    for (class, name) in names {
        let _ = write!(page, "<span><i class=\"{class}\"></i>{}</span>", escape(name));
    }
    page.push_str("</div>\n");
}

fn lead(found: &Found) -> String {
    let options = &found.options;
    format!(
        "Every policy gets the same jobs, fleet, time limits ({} % of what a job takes) and checkpoints (one in {}). Fleet and quota tree follow from the training days alone. A dot is the mean over the seeds, its line goes from the least to the most. A tenant below its floor waits at most {} by design: cool-down {}, grace {}, and the time to stop.",
        options.limit_percent,
        span(options.checkpoint_s as f64),
        span(bound_s(found)),
        span(options.cool_down_s as f64),
        span(options.grace_s as f64),
    )
}

/// Cool-down, grace, and a second to stop.
fn bound_s(found: &Found) -> f64 {
    (found.options.cool_down_s + found.options.grace_s + 1) as f64
}

fn groups(found: &Found, source: Source, value: impl Fn(&Figures) -> Option<f64>) -> Vec<Group> {
    let group = |load: &u32| {
        let dot = |policy: &Policy| {
            let runs = of(found, source, *load, *policy);
            Some(Dot { class: class(*policy), spread: Spread::of(runs.iter().filter_map(|run| value(run)))? })
        };
        Group { name: times(*load), dots: found.options.policies.iter().filter_map(dot).collect() }
    };
    found.options.loads_permille.iter().map(group).collect()
}

fn plot(page: &mut String, heading: &str, text: &str, svg: &str) {
    let _ = writeln!(page, "<div><h3>{}</h3><p>{}</p>{svg}</div>", escape(heading), escape(text));
}

fn section(page: &mut String, found: &Found, source: Source) {
    let Some((_, _, trained)) = found.trees.iter().find(|(of, _, _)| *of == source) else { return };
    let _ = writeln!(
        page,
        "<section><h2>{}</h2><p>{} nodes of 8 GPUs, {} tenants. Loads are multiples of the recorded submissions.</p>",
        title(source),
        trained.nodes,
        trained.teams.len()
    );
    what_was_held(page, found, source);
    page.push_str("<div class=\"two\">");
    plot(
        page,
        "Goodput",
        "GPU time of attempts that reach their end, over the bound that no schedule exceeds",
        &dots(
            "Goodput over its bound",
            "of the bound",
            Scale::Percent { least: 40, most: 100 },
            &groups(found, source, |run| Some(run.of_bound())),
            Some((0.97, "97 %")),
            Width::Half,
        ),
    );
    plot(
        page,
        "Floors",
        "Longest time that a tenant waited for a job that its guarantee holds beside all that it uses, counted anew whenever one of its jobs started",
        &dots(
            "Longest wait below a floor",
            "longest wait",
            Scale::Seconds,
            &groups(found, source, |run| Some(run.floor_unserved_s)),
            Some((bound_s(found), "by design")),
            Width::Half,
        ),
    );
    plot(
        page,
        "Burst shares",
        "Jain's index of use above guarantees among siblings that wait for more; static quotas have no burst",
        &dots(
            "Jain's index of burst",
            "1 is even",
            Scale::Index,
            &groups(found, source, |run| run.jain),
            None,
            Width::Half,
        ),
    );
    let lost = groups(found, source, |run| Some(run.lost_of_held()));
    let highs = lost.iter().flat_map(|group| &group.dots).map(|dot| dot.spread.high);
    let lost_most = (100.0 * highs.fold(0.01, f64::max)).ceil() as u32;
    plot(
        page,
        "Lost to preemption",
        "GPU time since the last checkpoint, over what was held",
        &dots(
            "Lost to preemption",
            "of GPU time held",
            Scale::Percent { least: 0, most: lost_most },
            &lost,
            None,
            Width::Half,
        ),
    );
    page.push_str("</div>\n");
    waits(page, found, source);
    figures(page, found, source);
    page.push_str("</section>\n");
}

fn what_was_held(page: &mut String, found: &Found, source: Source) {
    let mut rows = Vec::new();
    for load in &found.options.loads_permille {
        for policy in &found.options.policies {
            let runs = of(found, source, *load, *policy);
            let mean =
                |value: fn(&Figures) -> f64| Spread::of(runs.iter().map(|run| value(run))).map_or(0.0, |s| s.mean);
            let parts = PARTS.iter().map(|(class, _, value)| (*class, mean(*value))).collect();
            rows.push((format!("{} {}", times(*load), policy.title()), parts, mean(|run| run.bound)));
        }
    }
    page.push_str("<h3>What the fleet's GPU time went into</h3><p>Means over the seeds; the vertical line is the bound of goodput</p>");
    key(page, PARTS.iter().map(|(class, name, _)| (*class, *name)));
    page.push_str(&bars("What GPU time went into", &rows));
}

fn waits(page: &mut String, found: &Found, source: Source) {
    for load in &found.options.loads_permille {
        let of_size = |size: String| {
            let dot = |policy: &Policy| {
                let runs = of(found, source, *load, *policy);
                let rows = runs.iter().flat_map(|run| &run.waits).filter(|wait| wait.size == size);
                Some(Dot { class: class(*policy), spread: Spread::of(rows.map(|wait| wait.p99_s))? })
            };
            Group {
                dots: found.options.policies.iter().filter_map(dot).collect(),
                name: if size == "1" { "1 GPU".to_owned() } else { format!("{size} GPUs") },
            }
        };
        let groups: Vec<Group> = sizes(found, source).into_iter().map(of_size).collect();
        let heading = format!("Wait by size of the gang at {}: 99th percentile", times(*load));
        plot(
            page,
            &heading,
            "From submission to the first binding; jobs that were not bound when the replay stopped count with their wait so far, refused ones do not",
            &dots(&heading, "wait", Scale::Seconds, &groups, None, Width::Full),
        );
    }
}

fn figures(page: &mut String, found: &Found, source: Source) {
    page.push_str("<h3>Figures</h3><p>Means over the seeds. Shares are of the fleet's GPU time in the window.</p><div class=\"scroll\"><table><tr><th>load, policy</th><th>offered</th><th>allocated</th><th>goodput</th><th>bound</th><th>goodput of bound</th><th>with saved work</th><th>lost of held</th><th>preempted</th><th>longest below floor</th><th>without a start</th><th>Jain</th></tr>\n");
    for load in &found.options.loads_permille {
        for policy in &found.options.policies {
            let runs = of(found, source, *load, *policy);
            let spread = |value: fn(&Figures) -> f64| Spread::of(runs.iter().map(|run| value(run)));
            let share = |value: fn(&Figures) -> f64| mean_share(spread(value));
            let number = |value: fn(&Figures) -> f64| spread(value).map_or(0, |s| s.mean.round() as u64);
            let jain = Spread::of(runs.iter().filter_map(|run| run.jain));
            let cells = [
                share(|run| run.offered),
                share(|run| run.allocated),
                share(|run| run.goodput),
                share(|run| run.bound),
                share(Figures::of_bound),
                share(Figures::effective_of_bound),
                spread(Figures::lost_of_held).map_or_else(String::new, |s| format!("{:.2} %", s.mean * 100.0)),
                count(number(|run| run.preempted as f64)),
                spread(|run| run.floor_longest_s).map_or_else(String::new, |s| span(s.mean)),
                spread(|run| run.floor_unserved_s).map_or_else(String::new, |s| span(s.mean)),
                jain.map_or_else(|| "–".to_owned(), |s| format!("{:.2}", s.mean)),
            ];
            row(page, *load, *policy, &cells);
        }
    }
    page.push_str("</table></div>\n");
    waits_of_all(page, found, source);
    reservations(page, found, source);
}

fn row(page: &mut String, load: u32, policy: Policy, cells: &[String]) {
    let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
    let _ = writeln!(page, "<tr><td>{} {}</td>{cells}</tr>", times(load), policy.title());
}

fn waits_of_all(page: &mut String, found: &Found, source: Source) {
    let sizes = sizes(found, source);
    page.push_str("<h3>Waits</h3><p>Median and 99th percentile from submission to the first binding, by GPUs of the job. Refused jobs never start.</p><div class=\"scroll\"><table style=\"font-size:12px\"><tr><th>load, policy</th>");
    for size in &sizes {
        let _ = write!(page, "<th>{size}</th>");
    }
    page.push_str("<th>refused jobs</th></tr>\n");
    for load in &found.options.loads_permille {
        for policy in &found.options.policies {
            let runs = of(found, source, *load, *policy);
            let wait = |size: &String| wait_of(&runs, size).unwrap_or_else(|| "–".to_owned());
            let refused = Spread::of(runs.iter().map(|run| run.refused as f64)).map_or(0, |s| s.mean.round() as u64);
            let cells: Vec<String> = sizes.iter().map(wait).chain([count(refused)]).collect();
            row(page, *load, *policy, &cells);
        }
    }
    page.push_str("</table></div>\n");
}

fn reservations(page: &mut String, found: &Found, source: Source) {
    page.push_str("<h3>Reservations</h3><p>Gangs that were told when they start at the latest, and the error of the first time that they were told: negative means earlier. Over all seeds.</p><div class=\"scroll\"><table><tr><th>load, policy</th><th>told</th><th>how far ahead, p50</th><th>covered by a floor all the time</th><th>of those, later than told</th><th>later, covered when they began but not all the time</th><th>later, burst</th><th>latest by</th><th>error p10</th><th>p50</th><th>p90</th></tr>\n");
    for load in &found.options.loads_permille {
        for policy in &found.options.policies {
            let runs: Vec<&Figures> =
                of(found, source, *load, *policy).into_iter().filter(|run| run.reserved > 0).collect();
            let sum = |value: fn(&Figures) -> u64| runs.iter().map(|run| value(run)).sum::<u64>();
            let mean =
                |value: &dyn Fn(&Figures) -> f64| Spread::of(runs.iter().map(|run| value(run))).map_or(0.0, |s| s.mean);
            let latest = runs.iter().map(|run| run.latest_s).fold(0.0, f64::max);
            let _ = writeln!(
                page,
                "<tr><td>{} {}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                times(*load),
                policy.title(),
                count(sum(|run| run.reserved)),
                span(mean(&|run| run.ahead_p50_s)),
                count(sum(|run| run.covered_throughout)),
                count(sum(|run| run.late_covered_throughout)),
                count(sum(|run| run.late_covered - run.late_covered_throughout)),
                count(sum(|run| run.late - run.late_covered)),
                span(latest),
                signed(mean(&|run| run.estimate_s[0])),
                signed(mean(&|run| run.estimate_s[1])),
                signed(mean(&|run| run.estimate_s[2])),
            );
        }
    }
    page.push_str("</table></div>\n");
}

fn verdicts(page: &mut String, found: &Found) {
    page.push_str("<section><h2>The referee</h2>");
    if let Some(why) = &found.not_judged {
        let _ = writeln!(page, "<p>No event log was judged: {}.</p></section>", escape(why));
        return;
    }
    page.push_str("<p>An independent program recomputes quota, floors and the legality of each preemption from the event log of each run alone. Its own measure of floors counts demand that an account covers, by what is charged to the account; what is charged as burst although it fits the guarantee counts for the tenant here and not there.</p><div class=\"scroll\"><table><tr><th>policy</th><th>logs</th><th>accepted</th><th>violations</th><th>warnings</th><th>longest below a floor, by the referee</th><th>of it not waiting for victims</th><th>most preemptions of one job</th></tr>\n");
    for policy in &found.options.policies {
        let runs: Vec<_> =
            found.runs.iter().filter(|run| run.policy == *policy).filter_map(|run| run.verdict.as_ref()).collect();
        let most = |value: fn(&super::referee::Verdict) -> f64| runs.iter().map(|run| value(run)).fold(0.0, f64::max);
        let sum = |value: fn(&super::referee::Verdict) -> u64| runs.iter().map(|run| value(run)).sum::<u64>();
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            policy.title(),
            runs.len(),
            runs.iter().filter(|run| run.violations == 0).count(),
            sum(|run| run.violations),
            sum(|run| run.warnings),
            span(most(|run| run.floor_longest_s)),
            span(most(|run| run.undecided_longest_s)),
            sum_most(&runs),
        );
    }
    page.push_str("</table></div></section>\n");
}

fn sum_most(runs: &[&super::referee::Verdict]) -> u64 {
    runs.iter().map(|run| run.most_often).max().unwrap_or(0)
}

fn trees(page: &mut String, found: &Found) {
    page.push_str("<section><h2>Quota trees, from the training days alone</h2>");
    for (source, training, trained) in &found.trees {
        let _ = writeln!(page, "<h3>{}</h3><p>{}</p>", title(*source), escape(&how(training, trained)));
        page.push_str("<div class=\"scroll\"><table><tr><th>tenant</th><th>quantile of demand, GPUs</th><th>guarantee</th><th>max</th></tr>\n");
        for team in &trained.teams {
            let _ = writeln!(
                page,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                escape(&team.path),
                team.quantile_gpus,
                team.guarantee_gpus,
                team.max_gpus
            );
        }
        page.push_str("</table></div>\n");
    }
    page.push_str("</section>\n");
}

fn how(training: &Training, trained: &Trained) -> String {
    format!(
        "Training days {} to {}. Their mean demand fills {} % of {} nodes. The fleet is handed out whole: 8 GPUs to each tenant, the rest in proportion to the {:.0} % quantile of its hourly demand. The max is {} times the guarantee, or the largest gang of the training days if that is more. Tenants are dealt to {} organisations, the largest first; these guarantee what their teams are guaranteed.",
        training.from_day,
        training.from_day + training.days - 1,
        training.fill_percent,
        trained.nodes,
        f64::from(training.quantile_permille) / 10.0,
        training.max_factor,
        training.organisations
    )
}

fn assumptions(page: &mut String, found: &Found) {
    page.push_str("<section><h2>What was assumed</h2><p>Of the first run of each trace; seeds, loads and policies differ as named. These traces do not record how busy a job kept its GPUs, so effective use is GPU time whose work was kept. Static quotas refuse a gang that is larger than its tenant's guarantee.</p>");
    for (source, lines) in &found.assumptions {
        let _ = write!(page, "<h3>{}</h3><ul>", title(*source));
        for line in lines {
            let _ = write!(page, "<li>{}</li>", escape(line));
        }
        page.push_str("</ul>\n");
    }
    page.push_str("</section>\n");
}
