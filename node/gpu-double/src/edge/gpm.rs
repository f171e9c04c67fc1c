//! GPM: metrics between two samples.
//!
//! What must stay true: a sample belongs to this process and remembers the load at its moment, so metrics need neither the card nor the
//! instance to be there still; two samples of one moment, or in the wrong order, give nothing.

use super::handle::{self, Kind};
use super::macros::export;
use super::out::put;
use super::session::View;
use crate::state::gauges::Load;
use crate::state::refusal::{Answer, Refusal};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGpmMetric_t, nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t,
};
use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Samples of one process: two for each card and instance are enough, and a leak is to be found.
const SAMPLES_MAX: usize = 16_384;

/// Metrics of one call; the length of the array in `nvmlGpmMetricsGet_t`.
const METRICS_MAX: u32 = 210;

/// Whose load, and when; slot and GPU instance.
#[derive(Clone, Copy, Debug)]
struct Sample {
    of: (usize, Option<u32>),
    at_ms: u64,
    load: Load,
}

#[derive(Default)]
struct Samples {
    made: u64,
    samples: BTreeMap<u64, Option<Sample>>,
}

static SAMPLES: Mutex<Samples> = Mutex::new(Samples { made: 0, samples: BTreeMap::new() });

fn samples() -> MutexGuard<'static, Samples> {
    SAMPLES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(view: &View, gpu_instance: Option<u32>, sample: nvmlGpmSample_t) -> Answer<()> {
    let load = view.card()?.load(gpu_instance)?;
    let number = handle::number(Kind::GpmSample, sample)?;
    let mut samples = samples();
    let place = samples.samples.get_mut(&number).ok_or(Refusal::InvalidArgument)?;
    *place = Some(Sample { of: (view.target.slot, gpu_instance), at_ms: view.now_ms, load });
    Ok(())
}

fn taken(sample: nvmlGpmSample_t) -> Answer<Sample> {
    let number = handle::number(Kind::GpmSample, sample)?;
    samples().samples.get(&number).copied().flatten().ok_or(Refusal::InvalidArgument)
}

unsafe fn fill(metric: *mut nvmlGpmMetric_t, first: &Sample, second: &Sample) {
    let answer = first.load.metric_between(&second.load, (*metric).metricId);
    (*metric).nvmlReturn = answer.as_ref().err().map_or(0, |refusal| refusal.code());
    (*metric).value = answer.unwrap_or_default();
}

export! {
    fn nvmlGpmSampleAlloc(call, to: *mut nvmlGpmSample_t) {
        call.system()?;
        let mut samples = samples();
        if samples.samples.len() >= SAMPLES_MAX {
            return Err(Refusal::Memory);
        }
        samples.made += 1;
        let number = samples.made;
        samples.samples.insert(number, None);
        put(to, handle::of_number(Kind::GpmSample, number))
    }

    fn nvmlGpmSampleFree(_call, sample: nvmlGpmSample_t) {
        let number = handle::number(Kind::GpmSample, sample)?;
        samples().samples.remove(&number).map(|_| ()).ok_or(Refusal::InvalidArgument)
    }

    fn nvmlGpmSampleGet(call, device: nvmlDevice_t, sample: nvmlGpmSample_t) {
        take(&call.whole(device)?, None, sample)
    }

    fn nvmlGpmMigSampleGet(call, device: nvmlDevice_t, gpu_instance: c_uint, sample: nvmlGpmSample_t) {
        let view = call.whole(device)?;
        view.card()?.in_mig_mode()?;
        take(&view, Some(gpu_instance), sample)
    }

    fn nvmlGpmMetricsGet(call, get: *mut nvmlGpmMetricsGet_t) {
        call.system()?;
        if get.is_null() || (*get).numMetrics > METRICS_MAX {
            return Err(Refusal::InvalidArgument);
        }
        if (*get).version != 1 {
            return Err(Refusal::ArgumentVersionMismatch);
        }
        let (first, second) = (taken((*get).sample1)?, taken((*get).sample2)?);
        if first.of != second.of || first.at_ms >= second.at_ms {
            return Err(Refusal::InvalidArgument);
        }
        let metrics = std::ptr::addr_of_mut!((*get).metrics).cast::<nvmlGpmMetric_t>();
        (0..(*get).numMetrics as usize).for_each(|at| fill(metrics.add(at), &first, &second));
        Ok(())
    }

    fn nvmlGpmQueryDeviceSupport(call, device: nvmlDevice_t, to: *mut nvmlGpmSupport_t) {
        let view = call.whole(device)?;
        if to.is_null() {
            return Err(Refusal::InvalidArgument);
        }
        if (*to).version != 1 {
            return Err(Refusal::ArgumentVersionMismatch);
        }
        (*to).isSupportedDevice = view.card()?.has_gpm().is_ok().into();
        Ok(())
    }
}
