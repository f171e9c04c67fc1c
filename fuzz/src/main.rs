//! `muster-fuzz`: runs a target on new inputs until one fails or the time is over.
//!
//! What must stay true: what fails is kept and named, with how to run it again; the same seed tries the same inputs. An input that overflows the stack ends the
//! process, so each is on disk before it is tried.

use anyhow::{Context, Result, bail};
use clap::Parser;
use muster_fuzz::attempt::{again, attempt, keep, on_small_stack};
use muster_fuzz::list::{GROUPS, named};
use muster_fuzz::mutate::Mutator;
use muster_fuzz::target::Target;
use muster_fuzz::{corpus, seed};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Runs fuzz targets: `list` names them, `seed` writes the kept inputs that are not text.
#[derive(Parser)]
struct Args {
    /// `list`, `seed`, or the name of a target.
    what: String,
    /// Inputs to run instead of new ones.
    inputs: Vec<PathBuf>,
    /// How long to try new inputs.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Which inputs are tried.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where inputs that fail are kept; a folder for temporary files without it.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    match args.what.as_str() {
        "list" => list(),
        "seed" => seed::write(&corpus::folder()).context("writing kept inputs")?,
        name => {
            let target = named(name).with_context(|| format!("there is no target {name}; `list` names all"))?;
            let inputs = args.inputs.clone();
            let outcome = match inputs.is_empty() {
                true => on_small_stack(move || search(target, &args)),
                false => on_small_stack(move || run(target, &inputs)),
            };
            return match outcome {
                Ok(tried) => tried,
                Err(why) => bail!("the target's thread: {why}"),
            };
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list() {
    for (group, targets) in GROUPS {
        println!("{group}");
        for target in *targets {
            println!("  {:<20} {}", target.name, target.what);
        }
    }
}

fn run(target: &Target, inputs: &[PathBuf]) -> Result<ExitCode> {
    for path in inputs {
        let input = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        if let Err(why) = attempt(target, &input) {
            eprintln!("error: {} fails on {}: {why}", target.name, path.display());
            return Ok(ExitCode::FAILURE);
        }
    }
    println!("{} inputs: ok", inputs.len());
    Ok(ExitCode::SUCCESS)
}

fn search(target: &Target, args: &Args) -> Result<ExitCode> {
    let folder = args.out.clone().unwrap_or_else(|| std::env::temp_dir().join("muster-fuzz"));
    let kept: Vec<Vec<u8>> =
        corpus::of(target.name).context("reading the kept inputs")?.into_iter().map(|kept| kept.bytes).collect();
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let trying = folder.join(format!("{}-trying-{}", target.name, std::process::id()));
    println!("{}: {} kept inputs, seed {}, {} s", target.name, kept.len(), args.seed, args.seconds);
    println!("the input that is being tried is in {}, in case that the process ends with it", trying.display());
    let (mut mutator, until) = (Mutator::new(args.seed), Instant::now() + Duration::from_secs(args.seconds));
    let mut tried = 0_u64;
    let first = kept.clone();
    let mut first = first.into_iter();
    while Instant::now() < until {
        let input = first.next().unwrap_or_else(|| mutator.input(&kept, target.words));
        std::fs::write(&trying, &input).with_context(|| format!("writing {}", trying.display()))?;
        if let Err(why) = attempt(target, &input) {
            return failed(target, &folder, &input, &why);
        }
        tried += 1;
    }
    std::fs::remove_file(&trying).context("removing the last input")?;
    println!("{tried} inputs: ok");
    Ok(ExitCode::SUCCESS)
}

fn failed(target: &Target, folder: &Path, input: &[u8], why: &str) -> Result<ExitCode> {
    let path = keep(folder, target, input).with_context(|| format!("writing to {}", folder.display()))?;
    eprintln!("error: {}: {why}", target.name);
    eprintln!("the input is in {}; run it again:", path.display());
    eprintln!("  {}", again(target, &path));
    Ok(ExitCode::FAILURE)
}
