//! Random sequences of steps, kills and reboots.
