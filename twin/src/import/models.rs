//! GPU models by the names that traces give them.

use muster_model::GpuModel;

/// What a name in a trace means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// This model.
    Model(GpuModel),
    /// No name that is known here.
    Unknown,
}

/// Parts of the names that Slurm sites and NVML use, the more exact first: a name is compared without regard to case, `_` being `-`.
const PARTS: &[(&[&str], GpuModel)] = &[
    (&["a100", "40"], GpuModel::A100_40),
    (&["a100"], GpuModel::A100_80),
    (&["h100", "94"], GpuModel::H100_94),
    (&["h100", "nvl"], GpuModel::H100_94),
    (&["h100"], GpuModel::H100),
    (&["gh200"], GpuModel::GH200),
    (&["h200"], GpuModel::H200),
    (&["b200"], GpuModel::B200),
    (&["l40"], GpuModel::L40S),
    (&["v100", "32"], GpuModel::V100_32),
    (&["v100"], GpuModel::V100_16),
    (&["p100"], GpuModel::P100),
    (&["a30"], GpuModel::A30),
    (&["a10"], GpuModel::A10),
    (&["t4"], GpuModel::T4),
];

/// The catalogue's model for a name such as `h100`, `nvidia_a100_80gb_pcie` or `tesla-t4`.
#[must_use]
pub fn model_named(text: &str) -> Known {
    if let Ok(model) = text.parse() {
        return Known::Model(model);
    }
    let name = text.to_ascii_lowercase().replace('_', "-");
    // A model's number must not run on: `a1000` is no A100, `gb200` is no B200.
    let holds = |part: &str| {
        name.match_indices(part).any(|(at, _)| {
            let before = name[..at].chars().next_back();
            let after = name[at + part.len()..].chars().next();
            !before.is_some_and(|c| c.is_ascii_alphanumeric()) && !after.is_some_and(|c| c.is_ascii_digit())
        })
    };
    PARTS
        .iter()
        .find(|(parts, _)| parts.iter().all(|part| holds(part)))
        .map_or(Known::Unknown, |(_, model)| Known::Model(*model))
}

/// The catalogue's model for one of openb's names.
fn openb_model(name: &str) -> Option<GpuModel> {
    Some(match name {
        "P100" => GpuModel::P100,
        "V100M16" => GpuModel::V100_16,
        "V100M32" => GpuModel::V100_32,
        "T4" => GpuModel::T4,
        "A10" => GpuModel::A10,
        "G2" => GpuModel::A30,
        "G3" => GpuModel::A100_80,
        _ => return None,
    })
}

/// The models of an openb `gpu_spec`, which is a list joined by `|`, each once, in the list's order.
pub(crate) fn openb_models(spec: &str) -> Result<Vec<GpuModel>, String> {
    let mut models = Vec::new();
    for name in spec.split('|').map(str::trim).filter(|name| !name.is_empty()) {
        let model = openb_model(name).ok_or_else(|| format!("unknown GPU model {name:?} in gpu_spec"))?;
        if !models.contains(&model) {
            models.push(model);
        }
    }
    Ok(models)
}
