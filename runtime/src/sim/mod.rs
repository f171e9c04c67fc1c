//! The simulated seams: virtual time, links that delay and cut, disks that lose what was not synced, one seed.
