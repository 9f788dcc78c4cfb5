//! A weight learns from the factors of its gradient, of which only some rows exist at a time:
//!
//! dw[n - first, k] = sum_t dy[t, n - first] x[t, k] (+ sum over tokens[t] = n of de[t, k]) -> `update`

use std::ops::Range;

use halfbyte_formats::state::{Average, adamw, second};

use crate::error::{Result, check};
use crate::tensor::UNIT;
use crate::testing::{Bench, numbers};
use crate::update::{Kept, Recipe, Step};
use crate::{Backend, Buffer, Rows, Weight, WeightFormat};

/// Bytes of a gradient that exist at a time where there is room for more: all matrices of a model of 4 billion weights
/// learn whole. Parts of 17 MB, which stay in the cache of a large GPU, were slower: on an H200 the products took 96
/// instead of 89 ms of a step, the update 47 instead of 30.
const PART: usize = 128 << 20;

/// Rows of a gradient that exist together are whole numbers of these: the panels whose columns are added up first.
const GROUP: usize = second::GROUP * second::APART * second::TOGETHER;

/// Bytes of room that the gradient of a tensor of this shape takes: all of it, or as much as exists at a time.
pub fn room(shape: &[usize]) -> usize {
    let columns = shape.last().copied().unwrap_or(0);
    let all = 4 * shape.iter().product::<usize>();
    all.min(PART.max(4 * GROUP * columns))
}

/// What the gradient of rows `first..` of a weight is made of; there are as many as dy has columns.
#[derive(Clone, Copy, Debug)]
pub struct Factors<'a> {
    /// The row that dy's first column belongs to.
    pub first: usize,
    /// Of the product's results.
    pub dy: Rows,
    /// What the weight was multiplied with.
    pub x: Rows,
    /// As in [`Backend::linear_weight_gradient`].
    pub exact: bool,
    /// Where the weight is a table of tokens too: those, and the gradients of what it gave them.
    pub embedded: Option<(&'a [u32], Rows)>,
}

impl Factors<'_> {
    /// The rows whose gradients exist together: whole groups, counted from the first, that have room. So the squares of
    /// columns are added in the same order, however many parts there are.
    pub fn parts(&self, room: Buffer) -> Result<impl Iterator<Item = Range<usize>>> {
        self.parts_of(room, 4)
    }

    /// The same for values of so many bytes.
    fn parts_of(&self, room: Buffer, bytes: usize) -> Result<impl Iterator<Item = Range<usize>>> {
        let rows = self.dy.columns;
        let columns = self.x.columns.max(1);
        let most = room.bytes.min(self::room(&[rows, columns])) / (bytes * columns);
        let together = if most >= rows { rows } else { most / GROUP * GROUP };
        check(together > 0 || rows == 0, "learn", || {
            format!("no room for {GROUP} rows of {columns} values in {} bytes", room.bytes)
        })?;
        Ok((0..rows).step_by(together.max(1)).map(move |at| at..rows.min(at + together)))
    }

    /// The gradients of some of the rows, counted from the first, in `room`.
    pub fn gradient(
        &self,
        backend: &mut (impl Backend + ?Sized),
        rows: Range<usize>,
        room: Buffer,
    ) -> Result<Rows> {
        let gradient = Rows::new(room, rows.len(), self.x.columns);
        backend.linear_weight_gradient(self.dy, self.x, self.exact, rows.start, gradient)?;
        if let Some((tokens, dy)) = self.embedded {
            backend.embed_gradient(tokens, self.first + rows.start, dy, gradient)?;
        }
        Ok(gradient)
    }

    /// Whether a weight may learn from narrow rows of it: one product of narrow rows gives them, and nobody adds to them.
    /// Tables are few, and some of their rows learn from few tokens.
    fn narrow(&self, backend: &(impl Backend + ?Sized), of: &Weight) -> bool {
        of.format == WeightFormat::Nvfp4
            && self.dy.narrow
            && self.x.narrow
            && self.embedded.is_none()
            && self.x.columns.is_multiple_of(UNIT)
            && backend.narrow_gradients(self.dy.rows)
    }
}

/// Makes the gradient part by part and lets the weight learn from each; gives the number of parts.
pub fn in_parts(
    backend: &mut (impl Backend + ?Sized),
    of: &Weight,
    from: &Factors<'_>,
    kept: &Kept,
    step: &Step,
    room: Buffer,
) -> Result<usize> {
    let mut count = 0;
    let narrow = from.narrow(backend, of);
    for rows in from.parts_of(room, if narrow { 2 } else { 4 })? {
        let gradient = if narrow {
            let gradient = Rows::new(room, rows.len(), from.x.columns).narrow();
            backend.linear_weight_gradient(from.dy, from.x, false, rows.start, gradient)?;
            gradient
        } else {
            from.gradient(backend, rows.clone(), room)?
        };
        backend.update(of, from.first + rows.start, gradient, kept, step)?;
        count += 1;
    }
    Ok(count)
}

/// What every backend must give: what the parts give one after the other, whatever room there is.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    use WeightFormat::{F32, Int8, Nvfp4};
    let full = Recipe { full_second: true, ..Recipe::DEFAULT };
    for (recipe, format) in
        [(Recipe::DEFAULT, Nvfp4), (Recipe::LEAN, Int8), (full, Nvfp4), (Recipe::DEFAULT, F32)]
    {
        for (tokens, columns) in [(70, 192), (33, 64), (3, 200), (5, 80)] {
            // Rows of two calls: whole groups, then what is left.
            check_case(&make, recipe, format, (tokens, [2 * GROUP, 108], columns));
        }
    }
}

/// A weight with everything it learns with.
struct Learning {
    of: Weight,
    kept: Kept,
}

impl Learning {
    fn new<B: Backend>(bench: &mut Bench<B>, recipe: &Recipe, format: WeightFormat, of: [usize; 2]) -> Self {
        let [rows, columns] = of;
        let (of, ..) = bench.weight(format, rows, columns, &numbers(1, rows * columns));
        let mut zeros = |bytes: usize| {
            let buffer = bench.buffer(bytes);
            bench.backend.write_bytes(buffer, &vec![0; bytes]).unwrap();
            buffer
        };
        let remainder = zeros(recipe.remainder_bytes(format, rows, columns));
        let moment = zeros(recipe.moment_bytes(rows, columns));
        let second = zeros(recipe.second_bytes(rows, columns));
        Learning { of, kept: Kept { remainder, moment, second } }
    }

    fn bytes<B: Backend>(&self, bench: &mut Bench<B>) -> [Vec<u8>; 4] {
        let Kept { remainder, moment, second } = self.kept;
        // Behind the panels lies what nobody uses.
        let weight = Buffer { bytes: self.of.buffer.bytes - 64, ..self.of.buffer };
        [weight, remainder, moment, second].map(|buffer| {
            let mut bytes = vec![0; buffer.bytes];
            bench.backend.read_bytes(buffer, &mut bytes).unwrap();
            bytes
        })
    }
}

fn check_case<B: Backend>(
    make: &impl Fn(usize) -> B,
    recipe: Recipe,
    format: WeightFormat,
    (tokens, rows, columns): (usize, [usize; 2], usize),
) {
    let mut bench = Bench::new(make);
    let all = rows.iter().sum();
    let [whole, parts] = [0; 2].map(|_| Learning::new(&mut bench, &recipe, format, [all, columns]));
    let exact = format == WeightFormat::F32;
    let words: Vec<u32> = (0..tokens as u32).map(|t| t * t * 7 % all as u32).collect();
    let de = bench.rows(tokens, columns, &numbers(2, tokens * columns));
    let small = bench.buffer(4 * columns * (GROUP + 44));
    // Where products of few results are another kernel's, parts are compared with the same parts.
    let large = if bench.backend.exact_products() { bench.buffer(4 * columns * all) } else { small };
    let what = format!("learn, {} {tokens} tokens, {all}x{columns}, {recipe:?}", format.name());
    for number in 1..4 {
        let now = step(recipe, number);
        let x = side(&mut bench, (tokens, columns), number as u32, exact);
        let mut first = 0;
        for count in rows {
            let dy = side(&mut bench, (tokens, count), number as u32 / 2 + 9, exact);
            let embedded = (format == WeightFormat::Int8).then_some((&words[..], de));
            let from = Factors { first, dy, x, exact, embedded };
            in_parts(&mut bench.backend, &whole.of, &from, &whole.kept, &now, large).unwrap();
            let want = bench.backend.tallies().unwrap().sum();
            let calls = bench.backend.learn(&parts.of, &from, &parts.kept, &now, small).unwrap();
            let got = bench.backend.tallies().unwrap();
            assert_eq!((got.each.len(), got.sum()), (calls, want), "{what}, step {number}");
            first += count;
        }
        assert!(whole.bytes(&mut bench) == parts.bytes(&mut bench), "{what}, step {number}: bytes differ");
    }
    let dy = side(&mut bench, (tokens, all + 1), 2, exact);
    let from = Factors { first: 0, dy, x: de, exact, embedded: None };
    let too_many = bench.backend.learn(&parts.of, &from, &parts.kept, &step(recipe, 4), small);
    assert!(too_many.is_err(), "{what}: more rows than the weight has");
}

fn step(recipe: Recipe, number: u64) -> Step {
    let settings = adamw::Settings { decay: 0.1, ..adamw::Settings::default() };
    let adamw = adamw::Step::new(&settings, 1e-3, number);
    Step { recipe, adamw, average: Average::new(settings.beta2), seed: 7, step: number, tensor: 3 }
}

/// A factor as products take it.
fn side<B: Backend>(bench: &mut Bench<B>, (rows, columns): (usize, usize), seed: u32, exact: bool) -> Rows {
    let wide = bench.rows(rows, columns, &numbers(seed, rows * columns));
    if exact || seed.is_multiple_of(2) {
        return wide;
    }
    let narrow = bench.output(rows, columns).narrow();
    bench.backend.copy(wide, narrow).unwrap();
    narrow
}
