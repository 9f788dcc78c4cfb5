//! GPUs that the driver shows, and one of them opened.

use std::env;
use std::path::{Path, PathBuf};

use halfbyte_cuda::{Device, Driver, MANY, usual_places};

use super::kernels::Products;
use crate::failure::Result;

/// A device with the fastest products up to these; `doctor` says why there is no library.
pub(super) fn open(number: u32, products: Products) -> Result<Device> {
    let driver = Driver::load().map_err(halfbyte_ops::Error::from)?;
    let mut device = Device::open(driver, number)?;
    if products == Products::CublasLt {
        let _ = device.use_library(&libraries(), MANY);
    }
    Ok(device)
}

/// Where cuBLASLt may be: the file that is named, else Python environments in use and the usual places.
fn libraries() -> Vec<PathBuf> {
    if let Some(named) = env::var_os("HALFBYTE_CUBLASLT") {
        return vec![named.into()];
    }
    let virtual_environment = env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let beside = env::split_paths(&path).filter(|folder| folder.join("python3").exists());
    let pythons = beside.filter_map(|folder| folder.parent().map(Path::to_path_buf));
    let pythons: Vec<PathBuf> = virtual_environment.into_iter().chain(pythons).collect();
    usual_places(&pythons)
}

/// A GPU that the driver shows, whether or not it can be used.
pub(crate) struct Gpu {
    pub(crate) name: String,
    pub(crate) capability: (u32, u32),
    pub(crate) memory: u64,
    /// Where it can be opened.
    pub(crate) free: Option<u64>,
    pub(crate) integrated: bool,
}

/// What the driver shows.
pub(crate) struct Gpus {
    /// 13000 for CUDA 13.0
    pub(crate) version: u32,
    pub(crate) devices: Vec<Gpu>,
}

impl Gpus {
    /// Asks the driver; or why there is nobody to ask.
    pub(crate) fn look() -> std::result::Result<Gpus, String> {
        let look = || -> std::result::Result<Gpus, halfbyte_cuda::DriverError> {
            let driver = Driver::load()?;
            let version = driver.version()?;
            let all: std::result::Result<Vec<_>, _> =
                (0..driver.devices()?).map(|number| driver.properties(number)).collect();
            let free = |number| open(number, Products::Own).ok()?.memory().ok();
            let devices = all?.into_iter().zip(0..).map(|(found, number)| Gpu {
                free: free(number).map(|(free, _)| free as u64),
                name: found.name,
                capability: found.capability,
                memory: found.memory as u64,
                integrated: found.integrated,
            });
            Ok(Gpus { version, devices: devices.collect() })
        };
        look().map_err(|error| error.to_string())
    }
}
