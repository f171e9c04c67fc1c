//! Images and mounts.

use crate::v1;
use muster_model::{Mount, MountRule, TaskImage, TaskMount};

impl From<&Mount> for v1::Mount {
    fn from(mount: &Mount) -> Self {
        v1::Mount { source: mount.source.clone(), target: mount.target.clone(), writable: !mount.read_only }
    }
}

impl From<v1::Mount> for Mount {
    fn from(v1::Mount { source, target, writable }: v1::Mount) -> Self {
        Mount { source, target, read_only: !writable }
    }
}

impl From<&MountRule> for v1::MountRule {
    fn from(rule: &MountRule) -> Self {
        v1::MountRule { path: rule.path.clone(), write: rule.write }
    }
}

impl From<v1::MountRule> for MountRule {
    fn from(v1::MountRule { path, write }: v1::MountRule) -> Self {
        MountRule { path, write }
    }
}

impl From<TaskImage> for v1::TaskImage {
    fn from(TaskImage { image, below }: TaskImage) -> Self {
        v1::TaskImage { image, below }
    }
}

impl From<v1::TaskImage> for TaskImage {
    fn from(v1::TaskImage { image, below }: v1::TaskImage) -> Self {
        TaskImage { image, below }
    }
}

impl From<&TaskMount> for v1::TaskMount {
    fn from(of: &TaskMount) -> Self {
        v1::TaskMount { mount: Some((&of.mount).into()), below: of.below.clone() }
    }
}

impl From<v1::TaskMount> for TaskMount {
    fn from(v1::TaskMount { mount, below }: v1::TaskMount) -> Self {
        TaskMount { mount: mount.unwrap_or_default().into(), below }
    }
}
