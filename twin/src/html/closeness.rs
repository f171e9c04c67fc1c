//! The table of how close together gangs were placed.

use super::sections::size_name;
use super::words::{count, percent};
use crate::report::Report;
use std::fmt::Write;

pub(super) fn closeness(page: &mut String, report: &Report) {
    if report.closeness.is_empty() {
        return;
    }
    page.push_str("<section><h2>How close together gangs stood</h2><p>Gangs of at least two cards that were submitted in the window, at their first binding. Means over the gangs; beside each the fewest that an empty fleet would need.</p>");
    page.push_str("<div class=\"scroll\"><table><tr><th>gang</th><th>gangs</th><th>on one node</th><th>under one leaf</th><th>in one block</th><th>nodes</th><th>fewest</th><th>leaves</th><th>fewest</th><th>blocks</th><th>fewest</th></tr>");
    for row in &report.closeness {
        let gangs = row.gangs.max(1) as f64;
        let share = |of: u64| percent(of as f64 / gangs);
        let mean = |sum: u64| format!("{:.2}", sum as f64 / gangs);
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
            size_name(&row.size),
            count(row.gangs),
            share(row.one_node),
            share(row.one_leaf),
            share(row.one_block)
        );
        for sum in [row.nodes, row.nodes_fewest, row.leaves, row.leaves_fewest, row.blocks, row.blocks_fewest] {
            let _ = write!(page, "<td>{}</td>", mean(sum));
        }
        page.push_str("</tr>");
    }
    page.push_str("</table></div></section>\n");
}
