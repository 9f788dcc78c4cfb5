//! The driver's own library, loaded at run time: `sys` declares the calls we make, `result` turns
//! their answers into values, `device`, `event`, `graph` and `memory` own what they hand out, `map` describes matrices.

mod device;
mod event;
mod graph;
mod map;
mod memory;
mod result;
mod sys;

pub use device::Properties;
pub(crate) use device::{Function, Module, Session};
pub(crate) use event::Event;
pub(crate) use graph::Graph;
pub(crate) use map::TensorMap;
pub(crate) use memory::{DeviceMemory, PinnedMemory};
pub use result::DriverError;
pub use sys::Driver;
pub(crate) use sys::{LaunchAttribute, LaunchSettings};
