//! How busy a card or a MIG instance was, from GPM: the mean between two samples of the card's counters.
//!
//! What must stay true: samples that are compared are of one card or one instance, known by its UUID, since the counters of an id that is used again begin
//! anew; they are at least 100 ms apart, or the driver's figures mean nothing; every sample is freed. A helper that is started anew has no earlier sample, so
//! the first figures come with its second one.

use super::driver::{Called, Device, Nvml, call};
use super::taken::{Taken, told};
use muster_node_core::telemetry::Figure;
use nvml_wrapper_sys::bindings::{nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// NVIDIA's least distance of two samples.
const APART_MIN: Duration = Duration::from_millis(100);
/// `NVML_GPM_METRICS_GET_VERSION`, `NVML_GPM_SUPPORT_VERSION`.
const VERSION: u32 = 1;

const OF_PERCENT: f64 = 0.01;
const OF_MIB: f64 = 1_048_576.0;

/// Metrics of `nvmlGpmMetricId_t`, with the figure that each is and what it is multiplied with.
const METRICS: [(u32, Figure, f64); 9] = [
    (1, Figure::GraphicsActive, OF_PERCENT),
    (2, Figure::SmActive, OF_PERCENT),
    (3, Figure::SmOccupancy, OF_PERCENT),
    (5, Figure::TensorActive, OF_PERCENT),
    (10, Figure::DramActive, OF_PERCENT),
    (20, Figure::PcieSent, OF_MIB),
    (21, Figure::PcieReceived, OF_MIB),
    (60, Figure::NvlinkReceived, OF_MIB),
    (61, Figure::NvlinkSent, OF_MIB),
];

/// The whole card, or the instance of this id and UUID.
pub(super) type Of = Option<(u32, String)>;

/// The last sample of a card and of each of its instances.
#[derive(Default)]
pub(super) struct Activity {
    is_supported: Option<bool>,
    last: BTreeMap<Of, (GpmSample, Instant)>,
}

/// A sample of NVML's, freed with this.
struct GpmSample {
    nvml: &'static Nvml,
    handle: nvmlGpmSample_t,
}

impl GpmSample {
    fn new(nvml: &'static Nvml) -> Called<Self> {
        let mut handle = std::ptr::null_mut();
        call!(nvml.nvmlGpmSampleAlloc(&mut handle))?;
        Ok(GpmSample { nvml, handle })
    }
}

impl Drop for GpmSample {
    fn drop(&mut self) {
        let nvml = self.nvml;
        // There is nothing to be done about one that cannot be freed.
        let _ = call!(nvml.nvmlGpmSampleFree(self.handle));
    }
}

impl Activity {
    /// Takes a sample, and tells what was between the last one and this.
    pub(super) fn measure(&mut self, device: Device, of: Of, taken: &mut Taken) -> Called<()> {
        if !self.is_supported(device)? {
            return Ok(());
        }
        let (nvml, now) = (device.nvml, Instant::now());
        if self.last.get(&of).is_some_and(|(_, at)| now - *at < APART_MIN) {
            return Ok(());
        }
        let Some(sample) = told(GpmSample::new(nvml))? else { return Ok(()) };
        let got = match &of {
            None => call!(nvml.nvmlGpmSampleGet(device.handle, sample.handle)),
            Some((id, _)) => call!(nvml.nvmlGpmMigSampleGet(device.handle, *id, sample.handle)),
        };
        if told(got)?.is_none() {
            self.last.remove(&of);
            return Ok(());
        }
        if let Some((before, _)) = self.last.get(&of) {
            told(compare(nvml, before, &sample, taken))?;
        }
        self.last.insert(of, (sample, now));
        Ok(())
    }

    /// Lets go of what is not there any more.
    pub(super) fn keep(&mut self, stands: impl Fn(&Of) -> bool) {
        self.last.retain(|of, _| stands(of));
    }

    fn is_supported(&mut self, device: Device) -> Called<bool> {
        if let Some(known) = self.is_supported {
            return Ok(known);
        }
        let nvml = device.nvml;
        let mut support = nvmlGpmSupport_t { version: VERSION, isSupportedDevice: 0 };
        let told = told(call!(nvml.nvmlGpmQueryDeviceSupport(device.handle, &mut support)))?;
        Ok(*self.is_supported.insert(told.is_some() && support.isSupportedDevice != 0))
    }
}

fn compare(nvml: &'static Nvml, before: &GpmSample, after: &GpmSample, taken: &mut Taken) -> Called<()> {
    // SAFETY: the struct is of numbers and pointers, for which zeros are a value.
    let mut get: nvmlGpmMetricsGet_t = unsafe { std::mem::zeroed() };
    get.version = VERSION;
    get.numMetrics = METRICS.len() as u32;
    (get.sample1, get.sample2) = (before.handle, after.handle);
    for (metric, (id, ..)) in get.metrics.iter_mut().zip(METRICS) {
        metric.metricId = id;
    }
    call!(nvml.nvmlGpmMetricsGet(&mut get))?;
    for (metric, (_, figure, scale)) in get.metrics.iter().zip(METRICS) {
        if metric.nvmlReturn == 0 {
            taken.put(figure, metric.value * scale);
        }
    }
    Ok(())
}
