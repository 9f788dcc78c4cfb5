//! Moves every tensor from the source into the sink: copied where nothing changes, else read,
//! encoded and written run by run on all cores.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;

use halfbyte_checkpoint::{
    Checkpoint, Encoding, Format, LayerTensor, OutputTensor, Sink, Tensor, TensorName, copy_tensor,
};
use halfbyte_formats::nvfp4::{self, Scales};

use crate::coding::{Coding, Deviation, Encoded};
use crate::failure::{Code, Failure, Result};
use crate::output::Progress;
use crate::rows::{self, each_run, runs};

/// A tensor to be written and where it comes from.
pub(super) struct Job<'a> {
    pub(super) declared: OutputTensor,
    pub(super) source: &'a Tensor,
}

/// A tensor that was written.
pub(super) struct Written {
    /// How its values were encoded; `None` when stored bytes were copied.
    pub(super) coding: Option<Coding>,
    pub(super) deviation: Deviation,
}

/// Everything one conversion needs while it runs.
pub(super) struct Stream<'a> {
    pub(super) source: &'a Checkpoint,
    pub(super) format: Format,
    pub(super) scales: Scales,
    pub(super) jobs: &'a [Job<'a>],
}

/// The parts of a group run as one product, so they share a tensor scale.
type Group = (usize, bool);

impl Stream<'_> {
    /// Writes every tensor; the results are in the order of the jobs.
    pub(super) fn run(&self, sink: &mut dyn Sink) -> Result<Vec<Written>> {
        let values: u64 = self.jobs.iter().map(|job| job.source.values() as u64).sum();
        let out = Mutex::new(Out { sink, progress: Progress::new("writing", values) });
        let mut globals = HashMap::new();
        let mut written = Vec::new();
        for number in 0..self.jobs.len() {
            written.push(self.tensor(number, &out, &mut globals)?);
        }
        Ok(written)
    }

    fn tensor(
        &self,
        number: usize,
        out: &Mutex<Out<'_>>,
        globals: &mut HashMap<Group, f32>,
    ) -> Result<Written> {
        let job = &self.jobs[number];
        if self.copies(job)? {
            let mut out = lock(out);
            let copied = copy_tensor(self.source, job.source, &mut *out.sink, number, &job.declared)?;
            if copied {
                out.progress.add(job.source.values() as u64);
                return Ok(Written { coding: None, deviation: Deviation::default() });
            }
        }
        let encoding = job.declared.encoding;
        let global = match encoding {
            Encoding::Nvfp4 => self.global(job, globals)?,
            _ => 1.0,
        };
        let coding = Coding { encoding, global, scales: self.scales };
        let deviations = each_run(&runs(job.source.rows(), job.source.columns()), |run| {
            self.write_run(number, coding, run, out)
        })?;
        if encoding == Encoding::Nvfp4 {
            lock(out).sink.set_global(number, global)?;
        }
        let mut deviation = Deviation::default();
        deviations.into_iter().for_each(|part| deviation.add(part));
        Ok(Written { coding: Some(coding), deviation })
    }

    /// Whether the stored bytes go over as they are.
    fn copies(&self, job: &Job<'_>) -> Result<bool> {
        let (from, to) = (job.source.encoding, job.declared.encoding);
        if !(from.is_nvfp4() && to.is_nvfp4()) {
            return Ok(from == to);
        }
        let global = self.source.nvfp4_global(job.source)?;
        match self.format {
            // A .dat has no tensor scale.
            Format::Dat => Ok(global == 1.0),
            Format::ModelOpt => self.group_agrees(job, global),
            Format::Gguf | Format::HuggingFace => Ok(true),
        }
    }

    /// Whether all NVFP4 parts of the job's group have `global` already.
    fn group_agrees(&self, job: &Job<'_>, global: f32) -> Result<bool> {
        for other in self.group_jobs(job) {
            let agrees =
                other.source.encoding.is_nvfp4() && self.source.nvfp4_global(other.source)? == global;
            if !agrees {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The jobs that will be NVFP4 and share this one's tensor scale; itself among them.
    fn group_jobs<'b>(&'b self, job: &'b Job<'b>) -> impl Iterator<Item = &'b Job<'b>> {
        let (name, wanted) = (job.declared.name, group(job.declared.name));
        self.jobs.iter().filter(move |other| {
            let other = &other.declared;
            let same = other.name == name || (wanted.is_some() && group(other.name) == wanted);
            same && other.encoding.is_nvfp4()
        })
    }

    /// The tensor scale of a tensor that is quantised now.
    fn global(&self, job: &Job<'_>, known: &mut HashMap<Group, f32>) -> Result<f32> {
        if self.format == Format::Dat {
            return Ok(1.0);
        }
        let group = group(job.declared.name);
        if let Some(global) = group.and_then(|group| known.get(&group)) {
            return Ok(*global);
        }
        let mut amax = 0.0f32;
        for other in self.group_jobs(job) {
            amax = amax.max(self.amax(other.source)?);
        }
        let global = nvfp4::tensor_scale(amax, self.scales);
        if let Some(group) = group {
            known.insert(group, global);
        }
        Ok(global)
    }

    fn amax(&self, tensor: &Tensor) -> Result<f32> {
        let parts = each_run(&runs(tensor.rows(), tensor.columns()), |run| {
            Ok(nvfp4::amax(&rows::read(self.source, tensor, run)?))
        })?;
        Ok(parts.into_iter().fold(0.0, f32::max))
    }

    fn write_run(
        &self,
        number: usize,
        coding: Coding,
        run: Range<usize>,
        out: &Mutex<Out<'_>>,
    ) -> Result<Deviation> {
        let tensor = self.jobs[number].source;
        let values = rows::read(self.source, tensor, run.clone())?;
        self.check_finite(tensor, &run, &values)?;
        let Some(encoded) = coding.encode(&values) else {
            let problem = format!("{}: nothing can be written as {}", tensor.name, coding.encoding);
            return Err(Failure::new(Code::Failed, problem));
        };
        let back = coding.decode(&encoded, values.len());
        if let Some(at) = back.iter().position(|value| !value.is_finite()) {
            return Err(self.place(
                tensor,
                run.start + at / tensor.columns(),
                format!("{} is too large for {}", values[at], coding.encoding),
                "use --weights bf16 or f32",
            ));
        }
        let deviation = Deviation::between(&values, &back);
        let mut out = lock(out);
        match &encoded {
            Encoded::Bytes(bytes) => out.sink.write_raw(number, run.start, bytes)?,
            Encoded::Nvfp4 { codes, block_scales } => {
                out.sink.write_nvfp4(number, run.start, codes, block_scales)?
            }
        }
        out.progress.add(values.len() as u64);
        Ok(deviation)
    }

    /// A model with a NaN is broken, and quantising would spread it over a block.
    fn check_finite(&self, tensor: &Tensor, run: &Range<usize>, values: &[f32]) -> Result<()> {
        let bits = values.iter().fold(0, |most: u32, value| most.max(value.to_bits() & 0x7fff_ffff));
        if f32::from_bits(bits).is_finite() {
            return Ok(());
        }
        let at = values.iter().position(|value| !value.is_finite()).unwrap_or(0);
        let problem = format!("the value in column {} is {}", at % tensor.columns(), values[at]);
        let remedy =
            "the model is broken: copy or train it again (halfbyte inspect --stats counts such values)";
        Err(self.place(tensor, run.start + at / tensor.columns(), problem, remedy))
    }

    fn place(&self, tensor: &Tensor, row: usize, problem: String, remedy: &str) -> Failure {
        let place = format!("tensor {}, row {row}", tensor.disk_name);
        halfbyte_checkpoint::Error::input(&self.source.path, place, problem, remedy).into()
    }
}

/// What the threads share.
struct Out<'a> {
    sink: &'a mut dyn Sink,
    progress: Progress,
}

/// A thread that panicked has failed the whole conversion already; the others may end in peace.
fn lock<'a, 'b>(out: &'a Mutex<Out<'b>>) -> std::sync::MutexGuard<'a, Out<'b>> {
    out.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn group(name: TensorName) -> Option<Group> {
    match name {
        TensorName::Layer(layer, LayerTensor::Q | LayerTensor::K | LayerTensor::V) => Some((layer, true)),
        TensorName::Layer(layer, LayerTensor::Gate | LayerTensor::Up) => Some((layer, false)),
        _ => None,
    }
}
