//! Messages -> prompt by the model's own template, which is foreign code and runs inside limits.
//!
//! Steps (fuel), call depth, size of the source, of each value and of the output are all bounded, so a
//! template ends, and ends soon. What it prints is written as Python writes it, because that is what
//! the model saw in training.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{AutoEscape, Environment, ErrorKind, Output, Value};

use crate::error::Error;
use crate::python;
use crate::template_filters::{self as filters, failure};
use crate::template_source;

/// Steps one rendering may take; a long conversation needs some ten thousand.
const FUEL: u64 = 5_000_000;
/// Depth of nested calls.
const DEPTH: usize = 100;
/// Most bytes a prompt may have beyond several times its messages.
const OUTPUT: u64 = 4 << 20;
/// Marks a refusal by the template itself, so that it can be told from an error in it.
const RAISED: &str = "\u{1}raised\u{1}";

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, …
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message of this role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into() }
    }
}

/// A model's chat template, checked and ready to render.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
    limits: Arc<Limits>,
}

/// Bounds shared with the functions the template calls; set anew for each rendering.
#[derive(Default)]
struct Limits {
    value: AtomicU64,
    printable: AtomicU64,
    /// Unix seconds for `strftime_now`; 0 means the clock.
    time: AtomicU64,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChatTemplate({} bytes)", self.source.len())
    }
}

impl ChatTemplate {
    /// Reads a template; `bos` and `eos` are the texts of those tokens (empty if there is none).
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, Error> {
        let source = template_source::prepare(source)?;
        let limits = Arc::new(Limits::default());
        let environment = environment(&limits);
        environment.template_from_str(&source).map_err(template_error)?;
        Ok(ChatTemplate { environment, source, bos: bos.to_owned(), eos: eos.to_owned(), limits })
    }

    /// Fixes the time that `strftime_now` sees (Unix seconds, not 0), so that a prompt can be repeated.
    pub fn with_time(self, unix_seconds: u64) -> Self {
        self.limits.time.store(unix_seconds, Ordering::Relaxed);
        self
    }

    /// A number that changes with the template and its two tokens, to tell templates apart.
    pub fn fingerprint(&self) -> u64 {
        crate::dataset::content_hash([self.source.as_str(), self.bos.as_str(), self.eos.as_str()])
    }

    /// The prompt for these messages. `extra` holds further variables, such as `enable_thinking`.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        extra: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, Error> {
        let given: usize = messages.iter().map(|m| m.role.len() + m.content.len()).sum();
        let most = OUTPUT + 4 * given as u64;
        self.limits.value.store(most, Ordering::Relaxed);
        self.limits.printable.store(2 * most, Ordering::Relaxed);
        let variables = self.variables(messages, add_generation_prompt, extra);
        let template = self.environment.template_from_str(&self.source).map_err(template_error)?;
        let mut bounded = Bounded { bytes: Vec::new(), most: most as usize };
        template.render_captured_to(variables, &mut bounded).map_err(template_error)?;
        Ok(String::from_utf8_lossy(&bounded.bytes).into_owned())
    }

    fn variables(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        extra: &serde_json::Map<String, serde_json::Value>,
    ) -> Value {
        let message =
            |m: &Message| Value::from_pairs([("role", m.role.as_str()), ("content", m.content.as_str())]);
        let given = [
            ("tools", Value::from(())),
            ("documents", Value::from(())),
            ("messages", messages.iter().map(message).collect()),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
        ];
        // Later pairs win, so the caller can give tools or another date.
        let given = given.into_iter().map(|(name, value)| (name.to_owned(), value));
        Value::from_pairs(given.chain(extra.iter().map(|(name, value)| (name.clone(), from_json(value)))))
    }
}

fn from_json(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(flag) => Value::from(*flag),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Value::from(integer),
            (_, Some(integer)) => Value::from(integer),
            _ => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(from_json).collect(),
        serde_json::Value::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, item)| (key.as_str(), from_json(item))))
        }
    }
}

/// Output that refuses to grow past a limit.
struct Bounded {
    bytes: Vec<u8>,
    most: usize,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.most {
            return Err(std::io::Error::other(format!("the prompt exceeds {} bytes", self.most)));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn environment(limits: &Arc<Limits>) -> Environment<'static> {
    let mut environment = Environment::new();
    // The settings transformers renders with.
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(DEPTH);
    let shared = Arc::clone(limits);
    environment.set_unknown_method_callback(move |state, value, name, arguments| {
        filters::method(state, value, name, arguments, shared.most())
    });
    let shared = Arc::clone(limits);
    environment.set_formatter(move |out, _state, value| print(&shared, out, value));
    add_filters(&mut environment, limits);
    environment.add_function("raise_exception", |text: String| -> Result<Value, minijinja::Error> {
        Err(failure(format!("{RAISED}{text}")))
    });
    let shared = Arc::clone(limits);
    environment.add_function("strftime_now", move |format: &str| {
        python::strftime(format, shared.now()).map_err(failure)
    });
    let shared = Arc::clone(limits);
    environment.add_function("_bounded", move |value: Value| bounded(&shared, value));
    environment
}

impl Limits {
    fn most(&self) -> usize {
        self.value.load(Ordering::Relaxed) as usize
    }

    fn now(&self) -> u64 {
        match self.time.load(Ordering::Relaxed) {
            0 => {
                let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                since.map_or(0, |elapsed| elapsed.as_secs())
            }
            fixed => fixed,
        }
    }
}

/// Filters of ours in place of the engine's; those that pad without a bound are left out.
fn add_filters(environment: &mut Environment<'static>, limits: &Arc<Limits>) {
    for name in ["batch", "slice", "format", "pprint", "zip"] {
        environment.remove_filter(name);
    }
    environment.add_filter("tojson", filters::to_json);
    let shared = Arc::clone(limits);
    environment.add_filter("replace", move |text: &str, from: &str, to: &str| {
        filters::replace(text, from, to, shared.most())
    });
    let shared = Arc::clone(limits);
    environment.add_filter(
        "join",
        move |items: &Value, between: Option<&str>, attribute: Option<&str>, options: Kwargs| {
            let between = between.or(options.get("d")?).unwrap_or("");
            let attribute = attribute.or(options.get("attribute")?);
            options.assert_all_used()?;
            filters::join(items, between, attribute, shared.most())
        },
    );
    let shared = Arc::clone(limits);
    environment.add_filter(
        "indent",
        move |text: &str, width: Option<usize>, first: Option<bool>, blank: Option<bool>, options: Kwargs| {
            filters::indent(text, width, first, blank, options, shared.most())
        },
    );
}

/// Passes a value on if its text is within the limit.
fn bounded(limits: &Limits, value: Value) -> Result<Value, minijinja::Error> {
    let size = value.as_str().map_or_else(|| value.len().unwrap_or(0), str::len);
    filters::check_size(size, limits.most())?;
    Ok(value)
}

/// Writes a value as Python's `str`, counting what is printed, captured or not.
fn print(limits: &Limits, out: &mut Output, value: &Value) -> Result<(), minijinja::Error> {
    let text = match value.as_str() {
        Some(text) => text.to_owned(),
        None => filters::python_text(value, false, 0),
    };
    let size = text.len() as u64;
    let left =
        limits.printable.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(size));
    left.map_err(|_| failure("the template prints far more than its messages"))?;
    out.write_str(&text).map_err(minijinja::Error::from)
}

fn template_error(error: minijinja::Error) -> Error {
    let detail = error.detail().unwrap_or_default();
    if let Some(text) = detail.strip_prefix(RAISED) {
        return Error::Refused(text.to_owned());
    }
    let problem = match error.kind() {
        ErrorKind::OutOfFuel => format!("it takes more than {FUEL} steps"),
        ErrorKind::WriteFailure => "the prompt is far longer than its messages".to_owned(),
        kind if detail.is_empty() => kind.to_string(),
        kind => format!("{kind}: {detail}"),
    };
    let line = error.line().unwrap_or(1).max(1);
    let remedy = "Use the template from the publisher of the model.".to_owned();
    Error::Template { line, problem, remedy }
}
