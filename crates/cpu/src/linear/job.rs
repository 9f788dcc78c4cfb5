//! What a call computes, as pairs of panels that meet the same tokens: two neighbours of one
//! matrix, or a gate's panel with the same panel of its partner, so that their products are
//! mixed before they are ever stored.

use halfbyte_formats::bf16;
use halfbyte_ops::tensor::{PANEL, UNIT};
use halfbyte_ops::{Matrix, Product, Result, Rows, Weight, WeightFormat, gated};

use crate::arena::Place;
use crate::isa::for_isa;
use crate::narrow::{NarrowRows, Output, copy};
#[cfg(target_arch = "x86_64")]
use crate::square::{self, SQUARE, Tile};
use crate::{Cpu, panel};

/// A matrix with its pointers.
pub(super) struct Source<'a> {
    weights: Weights<'a>,
    pub(super) scale: f32,
    pub(super) outputs: usize,
    pub(super) bias: Option<&'a [f32]>,
}

/// Where the weights of a product lie.
#[derive(Clone, Copy)]
enum Weights<'a> {
    Kept(Kept<'a>),
    Transposed(Kept<'a>),
    Activations(Activations<'a>),
}

/// A weight as it is kept.
#[derive(Clone, Copy)]
pub(super) struct Kept<'a> {
    pub(super) format: WeightFormat,
    pub(super) panels: &'a [u8],
    pub(super) rows: usize,
    /// Units of a panel.
    pub(super) units: usize,
}

/// `[tokens][channels]` of either kind.
#[derive(Clone, Copy)]
pub(super) struct Activations<'a> {
    values: Values<'a>,
    pub(super) tokens: usize,
    pub(super) channels: usize,
    /// Whether they are taken as they are, not rounded.
    exact: bool,
}

#[derive(Clone, Copy)]
enum Values<'a> {
    Wide(&'a [f32]),
    Narrow(NarrowRows),
}

impl<'a> Activations<'a> {
    pub(super) fn new(cpu: &Cpu, x: Rows, exact: bool) -> Result<Activations<'a>> {
        let values = match x.narrow {
            true => Values::Narrow(cpu.arena.narrow("linear", x)?),
            // SAFETY: bounds checked; nobody writes x meanwhile.
            false => Values::Wide(unsafe { cpu.arena.rows("linear", x)?.slice(0, x.rows * x.columns) }),
        };
        Ok(Activations { values, tokens: x.rows, channels: x.columns, exact })
    }

    /// Channels `first..` of a token, at most 16 and all in one tile.
    #[inline(always)]
    pub(super) fn read(&self, token: usize, first: usize, out: &mut [f32]) {
        match &self.values {
            Values::Wide(values) => {
                for (out, x) in out.iter_mut().zip(&values[token * self.channels + first..]) {
                    *out = if self.exact { *x } else { bf16::round(*x) };
                }
            }
            Values::Narrow(rows) => {
                // SAFETY: the token exists; nobody writes x meanwhile.
                let mut row = unsafe { rows.row(token) };
                for (out, x) in out.iter_mut().zip(&row.line(first / 32)[first % 32..]) {
                    *out = bf16::decode(*x);
                }
            }
        }
    }

    /// Tokens `32 group..`, of which some exist, by channels `32 column..`, rounded.
    ///
    /// # Safety
    /// AVX-512 is there.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn square<'b>(
        &self,
        group: usize,
        column: usize,
        space: &'b mut [Tile; 2],
    ) -> square::Rows<'b> {
        let (token, channel) = (group * SQUARE, column * SQUARE);
        // SAFETY: these tokens and channels exist as far as they are counted.
        unsafe {
            match &self.values {
                Values::Wide(x) => {
                    let (tokens, channels) = (self.tokens - token, self.channels - channel);
                    let x = x[token * self.channels + channel..].as_ptr();
                    square::of_values(x, self.channels, tokens, channels, space)
                }
                Values::Narrow(rows) => square::of_narrow(rows, group, column, self.tokens, space),
            }
        }
    }
}

/// Sixteen outputs.
#[derive(Clone, Copy)]
pub(super) enum Panel<'a> {
    /// Rows of a weight, as they are kept.
    Rows(WeightFormat, &'a [u8]),
    /// Columns of a weight, from this one on; its rows are the inner dimension.
    Columns(Kept<'a>, usize),
    /// Channels of activations, from this one on; tokens are the inner dimension.
    Channels(Activations<'a>, usize),
}

/// Where the outputs of a product go: those of a panel, which one token has, lie side by side.
#[derive(Clone, Copy)]
pub(super) struct Out {
    start: Place<f32>,
    /// The panel that begins there.
    panel: usize,
    /// From a token to the next one, and from a panel.
    token_stride: usize,
    panel_stride: usize,
}

impl Out {
    /// Rows of so many outputs, one for each token.
    fn rows(start: Place<f32>, outputs: usize) -> Out {
        Out { start, panel: 0, token_stride: outputs, panel_stride: PANEL }
    }

    /// Place of the outputs from `first` on, which is that of a panel, of a token.
    #[inline(always)]
    pub(super) fn at(&self, token: usize, first: usize) -> Place<f32> {
        let at = token * self.token_stride + (first / PANEL - self.panel) * self.panel_stride;
        Place(self.start.pointer().wrapping_add(at))
    }
}

/// One product, or two that are mixed.
pub(super) enum Job<'a> {
    Plain {
        source: Source<'a>,
        out: Out,
        /// What it is added to: elsewhere, or in the place of the outputs.
        added: Option<Out>,
    },
    /// silu(first) * second; the two products are kept where they are wanted.
    Gated { sources: [Source<'a>; 2], kept: Option<[Output; 2]>, out: Output },
    /// Gradients of the two products that were kept, from that of their mix.
    Unmixed { source: Source<'a>, kept: [Output; 2], outs: [Output; 2] },
}

impl<'a> Kept<'a> {
    fn new(cpu: &Cpu, weight: &Weight) -> Result<(Kept<'a>, f32)> {
        let place = cpu.arena.place::<u8>("linear", weight.buffer)?;
        // SAFETY: bounds checked; weights are not written while ops run (`&mut self`).
        let memory: &'a [u8] = unsafe { place.slice(0, weight.buffer.bytes) };
        let (format, rows, units) = (weight.format, weight.rows, weight.columns.div_ceil(UNIT));
        let kept = Kept { format, panels: &memory[panel::HEADER..], rows, units };
        Ok((kept, panel::scale(weight, memory)))
    }

    /// Panel `index` of 16 rows.
    pub(super) fn panel(&self, index: usize) -> Option<&'a [u8]> {
        let bytes = self.units * self.format.unit_bytes();
        (index * PANEL < self.rows).then(|| &self.panels[index * bytes..][..bytes])
    }
}

impl<'a> Source<'a> {
    fn new(cpu: &Cpu, matrix: &Matrix) -> Result<Source<'a>> {
        let (kept, scale) = Kept::new(cpu, &matrix.weight)?;
        Ok(Source {
            weights: Weights::Kept(kept),
            scale,
            outputs: matrix.weight.rows,
            bias: matrix.bias.map(|bias| cpu.arena.vector("linear", bias)).transpose()?,
        })
    }

    /// Its columns are the outputs.
    fn transposed(cpu: &Cpu, weight: &Weight) -> Result<Source<'a>> {
        let (kept, scale) = Kept::new(cpu, weight)?;
        Ok(Source { weights: Weights::Transposed(kept), scale, outputs: weight.columns, bias: None })
    }

    /// Its channels are the outputs.
    fn activations(x: Activations<'a>) -> Source<'a> {
        Source { weights: Weights::Activations(x), scale: 1.0, outputs: x.channels, bias: None }
    }

    fn panel(&self, index: usize) -> Option<Panel<'a>> {
        let first = index * PANEL;
        (first < self.outputs).then_some(())?;
        match self.weights {
            Weights::Kept(kept) => kept.panel(index).map(|bytes| Panel::Rows(kept.format, bytes)),
            Weights::Transposed(kept) => Some(Panel::Columns(kept, first)),
            Weights::Activations(x) => Some(Panel::Channels(x, first)),
        }
    }

    /// What a panel is read from memory as.
    fn format(&self) -> WeightFormat {
        match self.weights {
            Weights::Kept(kept) => kept.format,
            _ => WeightFormat::F32,
        }
    }

    /// Products of 16 outputs from `first` on, from their sums.
    #[inline(always)]
    fn finish(&self, first: usize, sums: &[f32; PANEL]) -> [f32; PANEL] {
        let mut y = [0.0; PANEL];
        for (y, sum) in y.iter_mut().zip(sums) {
            *y = sum * self.scale;
        }
        if let Some(bias) = self.bias {
            for (y, bias) in y.iter_mut().zip(&bias[first..]) {
                *y += bias;
            }
        }
        y
    }
}

impl<'a> Job<'a> {
    pub(super) fn plain(cpu: &Cpu, product: &Product) -> Result<Job<'a>> {
        let source = Source::new(cpu, &product.matrix)?;
        let out = Out::rows(cpu.arena.rows("linear", product.out)?, source.outputs);
        let place = |rows| Ok(Out::rows(cpu.arena.rows("linear", rows)?, source.outputs));
        let added = product.added.map(place).transpose()?;
        Ok(Job::Plain { source, out, added })
    }

    /// out[t, k] = sum_n x[t, n] weight[n, k]
    pub(super) fn transposed(cpu: &Cpu, weight: &Weight, out: Rows, added: bool) -> Result<Job<'a>> {
        let source = Source::transposed(cpu, weight)?;
        let out = Out::rows(cpu.arena.rows("linear", out)?, source.outputs);
        Ok(Job::Plain { source, out, added: added.then_some(out) })
    }

    /// out[n, k] = sum_t dy[t, n] x[t, k]
    pub(super) fn activations(x: Activations<'a>, out: Place<f32>) -> Job<'a> {
        Job::Plain { source: Source::activations(x), out: Out::rows(out, x.channels), added: None }
    }

    /// The same turned, x and dy in each other's place: out[n / 16, k, n % 16] = sum_t dy[t, n] x[t, k] for so many k, from a
    /// panel of sixteen n on.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn turned(dy: Activations<'a>, panel: usize, columns: usize, out: Place<f32>) -> Job<'a> {
        let out = Out { start: out, panel, token_stride: PANEL, panel_stride: PANEL * columns };
        Job::Plain { source: Source::activations(dy), out, added: None }
    }

    pub(super) fn gated(
        cpu: &Cpu,
        gate: Matrix,
        up: Matrix,
        kept: Option<(Rows, Rows)>,
        out: Rows,
    ) -> Result<Job<'a>> {
        let keep = |(gate, up)| Ok([cpu.arena.output("gated", gate)?, cpu.arena.output("gated", up)?]);
        Ok(Job::Gated {
            sources: [Source::new(cpu, &gate)?, Source::new(cpu, &up)?],
            kept: kept.map(keep).transpose()?,
            out: cpu.arena.output("gated", out)?,
        })
    }

    pub(super) fn gated_gradient(
        cpu: &Cpu,
        down: &Weight,
        (gate, up): (Rows, Rows),
        [dgate, dup]: [Rows; 2],
    ) -> Result<Job<'a>> {
        const OP: &str = "gated_gradient";
        Ok(Job::Unmixed {
            source: Source::transposed(cpu, down)?,
            kept: [cpu.arena.output(OP, gate)?, cpu.arena.output(OP, up)?],
            outs: [cpu.arena.output(OP, dgate)?, cpu.arena.output(OP, dup)?],
        })
    }

    /// Of both panels the same format and, where there are two matrices, the same outputs.
    fn first(&self) -> &Source<'a> {
        match self {
            Job::Plain { source, .. } | Job::Unmixed { source, .. } => source,
            Job::Gated { sources, .. } => &sources[0],
        }
    }

    pub(super) fn format(&self) -> WeightFormat {
        self.first().format()
    }

    /// Panels from one pair's to the next, in each of the two streams.
    pub(super) fn step(&self) -> usize {
        match self {
            Job::Plain { .. } | Job::Unmixed { .. } => 2,
            Job::Gated { .. } => 1,
        }
    }

    pub(super) fn pairs(&self) -> usize {
        self.first().outputs.div_ceil(self.step() * PANEL)
    }

    pub(super) fn panels(&self, pair: usize) -> [Option<Panel<'a>>; 2] {
        match self {
            Job::Plain { source, .. } | Job::Unmixed { source, .. } => {
                [2 * pair, 2 * pair + 1].map(|panel| source.panel(panel))
            }
            Job::Gated { sources: [gate, up], .. } => [gate.panel(pair), up.panel(pair)],
        }
    }
}

for_isa! {
/// Writes a pair's products for the tokens from `token` on, from their sums. No other thread
/// writes these outputs.
pub(super) fn finish(job: &Job<'_>, pair: usize, token: usize, sums: [&[[f32; PANEL]]; 2]) {
    match job {
        Job::Plain { source, out, added } => {
            for (panel, sums) in [2 * pair, 2 * pair + 1].into_iter().zip(sums) {
                one_panel(source, *out, *added, panel * PANEL, token, sums);
            }
        }
        Job::Unmixed { source, kept, outs } => {
            for (panel, sums) in [2 * pair, 2 * pair + 1].into_iter().zip(sums) {
                unmixed_panel(source, kept, outs, panel * PANEL, token, sums);
            }
        }
        Job::Gated { sources: [gate, up], kept, out } => {
            let (first, outputs) = (pair * PANEL, gate.outputs);
            let count = PANEL.min(outputs - first);
            for (t, (g, u)) in sums[0].iter().zip(sums[1]).enumerate() {
                let (g, u) = (gate.finish(first, g), up.finish(first, u));
                for (kept, products) in kept.iter().flatten().zip([&g, &u]) {
                    // SAFETY: as below.
                    unsafe { kept.put(token + t, first, &products[..count]) };
                }
                let mut y = [0.0; PANEL];
                for i in 0..PANEL {
                    y[i] = gated::forward(g[i], u[i]);
                }
                // SAFETY: outputs of this job that no other thread writes.
                unsafe { out.put(token + t, first, &y[..count]) };
            }
        }
    }
}
}

#[inline(always)]
fn one_panel(
    source: &Source<'_>,
    out: Out,
    added: Option<Out>,
    first: usize,
    token: usize,
    sums: &[[f32; PANEL]],
) {
    let count = PANEL.min(source.outputs.saturating_sub(first));
    for (t, sums) in sums.iter().enumerate().take(if count == 0 { 0 } else { sums.len() }) {
        let out = out.at(token + t, first);
        let mut y = source.finish(first, sums);
        if let Some(added) = added {
            let mut before = [0.0; PANEL];
            // SAFETY: inside their rows; in the place of the outputs no other thread writes (`finish`), elsewhere none.
            copy(unsafe { added.at(token + t, first).slice(0, count) }, &mut before[..count]);
            for (y, before) in y.iter_mut().zip(before) {
                *y += before;
            }
        }
        // SAFETY: as above.
        copy(&y[..count], unsafe { out.slice_mut(0, count) });
    }
}

#[inline(always)]
fn unmixed_panel(
    source: &Source<'_>,
    kept: &[Output; 2],
    outs: &[Output; 2],
    first: usize,
    token: usize,
    sums: &[[f32; PANEL]],
) {
    let count = PANEL.min(source.outputs.saturating_sub(first));
    for (t, sums) in sums.iter().enumerate().take(if count == 0 { 0 } else { sums.len() }) {
        let dy = source.finish(first, sums);
        // Read before they are written: gradients may take the place of what was kept.
        let [mut gate, mut up] = [[0.0; PANEL]; 2];
        for (line, kept) in [&mut gate, &mut up].into_iter().zip(kept) {
            // SAFETY: as below.
            unsafe { kept.get(token + t, first, &mut line[..count]) };
        }
        for i in 0..PANEL {
            (gate[i], up[i]) = gated::gradient(gate[i], up[i], dy[i]);
        }
        for (line, out) in [&gate, &up].into_iter().zip(outs) {
            // SAFETY: outputs of this job that no other thread writes.
            unsafe { out.put(token + t, first, &line[..count]) };
        }
    }
}
