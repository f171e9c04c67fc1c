//! Replays files without the `muster` binary: `replay FORMAT FLEET DAYS FROM TITLE OUT FILE...`, where FROM is a day or
//! `busiest` and OUT is a path without its ending. It prints where the time went; `muster replay` is what people use.

use muster_twin::fleet::Fleet;
use muster_twin::html;
use muster_twin::import::Trace;
use muster_twin::window::WindowChoice;
use muster_twin::{Options, ReplayInput, replay};
use std::error::Error;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [format, fleet, days, from, title, out, files @ ..] = args.as_slice() else {
        return Err("usage: replay FORMAT FLEET DAYS FROM TITLE OUT FILE...".into());
    };
    let (format, days) = (format.parse()?, days.parse()?);
    let began = Instant::now();
    let mut trace = Trace::default();
    for file in files {
        let name = std::path::Path::new(file).file_name().map_or(file.as_str().into(), |name| name.to_string_lossy());
        trace.add(format, std::fs::File::open(file)?, &name)?;
    }
    let read = began.elapsed();
    let window = match from.as_str() {
        "busiest" => WindowChoice::Busiest { days },
        day => WindowChoice::Days { from: day.parse()?, days },
    };
    let input = ReplayInput {
        title: title.clone(),
        format,
        fleet: Fleet::parse_shorthand(fleet)?,
        options: Options { window, ..Options::default() },
        trace,
    };
    let report = replay(&input, &mut |_, _| {})?;
    let replayed = began.elapsed() - read;
    std::fs::write(format!("{out}.json"), serde_json::to_string(&report)?)?;
    std::fs::write(format!("{out}.html"), html::render(&report))?;
    println!("read {read:.2?}, replayed {replayed:.2?}: {:?}\n{:?}\n{:?}", report.jobs, report.usage, report.work);
    for row in &report.waits {
        println!("{:>8} {:>6} jobs, at once {:>6}, {:?}", row.size, row.jobs, row.at_once, row.wait_s);
    }
    Ok(())
}
