//! Filters and methods with Python's results and with a bound on what they may allocate.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use crate::python::{self, Dump};

/// Deepest nesting of a value that is written out.
const DEEPEST: usize = 100;
/// Widest padding a format may ask for, in digits.
const WIDTH_DIGITS: usize = 3;

/// An error raised inside a template.
pub(crate) fn failure(text: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, text)
}

/// Passes a size on if it is within the limit.
pub(crate) fn check_size(size: usize, most: usize) -> Result<(), Error> {
    match size <= most {
        true => Ok(()),
        false => Err(failure(format!("a value exceeds {most} bytes"))),
    }
}

/// Methods of Python's strings, lists and mappings; no result may exceed `most` bytes.
pub(crate) fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    arguments: &[Value],
    most: usize,
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        match (name, arguments) {
            ("title", []) => return Ok(Value::from(python::title(text))),
            ("join", [items]) => return join(items, text, None, most).map(Value::from),
            ("replace", [from, to, ..]) => {
                let (from, to) = (from.as_str().unwrap_or(""), to.as_str().unwrap_or(""));
                check_replacement(text, from, to, most)?;
            }
            ("format", _) => check_format(text)?,
            _ => {}
        }
    }
    let result = pycompat::unknown_method_callback(state, value, name, arguments)?;
    let size = result.as_str().map_or_else(|| result.len().unwrap_or(0), str::len);
    check_size(size, most)?;
    Ok(result)
}

/// Padding is the one thing in a format that makes it long; widths given as arguments are refused.
fn check_format(text: &str) -> Result<(), Error> {
    let wide = text.split(|c: char| !c.is_ascii_digit()).any(|run| run.len() > WIDTH_DIGITS);
    let nested = text
        .match_indices(':')
        .any(|(at, _)| text[at..].find(['{', '}']).is_some_and(|next| text[at + next..].starts_with('{')));
    match wide || nested {
        true => Err(failure("a format with a width above 999 or from an argument")),
        false => Ok(()),
    }
}

fn check_replacement(text: &str, from: &str, to: &str, most: usize) -> Result<(), Error> {
    let count = text.matches(from).count();
    check_size(text.len().saturating_add(count.saturating_mul(to.len())), most)
}

/// The filter `replace`.
pub(crate) fn replace(text: &str, from: &str, to: &str, most: usize) -> Result<String, Error> {
    check_replacement(text, from, to, most)?;
    Ok(text.replace(from, to))
}

/// The filter and method `join`.
pub(crate) fn join(
    items: &Value,
    between: &str,
    attribute: Option<&str>,
    most: usize,
) -> Result<String, Error> {
    let mut out = String::new();
    for (index, item) in items.try_iter()?.enumerate() {
        let item = match attribute {
            Some(name) => item.get_attr(name)?,
            None => item,
        };
        if index > 0 {
            out.push_str(between);
        }
        match item.as_str() {
            Some(text) => out.push_str(text),
            None => out.push_str(&python_text(&item, false, 0)),
        }
        check_size(out.len(), most)?;
    }
    Ok(out)
}

/// The filter `indent`.
pub(crate) fn indent(
    text: &str,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
    most: usize,
) -> Result<String, Error> {
    let width = width.or(options.get("width")?).unwrap_or(4);
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    let lines = text.matches('\n').count() + 1;
    check_size(text.len().saturating_add(lines.saturating_mul(width)), most)?;
    let pad = " ".repeat(width);
    let line = |(index, line): (usize, &str)| match index {
        0 if !first => line.to_owned(),
        _ if line.is_empty() && !blank => String::new(),
        _ => format!("{pad}{line}"),
    };
    Ok(text.split('\n').enumerate().map(line).collect::<Vec<_>>().join("\n"))
}

/// A value as plain JSON; what has no JSON form is an error.
fn plain(value: &Value, depth: usize) -> Result<serde_json::Value, Error> {
    if depth > DEEPEST {
        return Err(failure("tojson: the value is nested too deeply"));
    }
    Ok(match value.kind() {
        ValueKind::None => serde_json::Value::Null,
        ValueKind::Bool => value.is_true().into(),
        ValueKind::String => value.as_str().unwrap_or_default().into(),
        ValueKind::Number => match value.as_i64() {
            Some(integer) if value.is_integer() => integer.into(),
            _ => f64::try_from(value.clone())?.into(),
        },
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.map(|item| plain(&item, depth + 1));
            serde_json::Value::Array(items.collect::<Result<_, _>>()?)
        }
        ValueKind::Map => {
            let entry = |key: Value| {
                let item = plain(&value.get_item(&key)?, depth + 1)?;
                Ok((key.as_str().map_or_else(|| key.to_string(), str::to_owned), item))
            };
            let entries: Result<_, Error> = value.try_iter()?.map(entry).collect();
            serde_json::Value::Object(entries?)
        }
        kind => return Err(failure(format!("tojson: {kind} has no JSON form"))),
    })
}

/// A value as Python prints it; `inside` a list, strings are quoted.
pub(crate) fn python_text(value: &Value, inside: bool, depth: usize) -> String {
    if depth > 32 {
        return "...".to_owned();
    }
    let list = |open: &str, close: &str| {
        let items = value.try_iter().into_iter().flatten();
        let items: Vec<String> = items.map(|item| python_text(&item, true, depth + 1)).collect();
        format!("{open}{}{close}", items.join(", "))
    };
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::None => "None".to_owned(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.to_owned(),
        ValueKind::String if inside => python::quoted(value.as_str().unwrap_or_default()),
        ValueKind::Seq => list("[", "]"),
        ValueKind::Map => {
            let keys = value.try_iter().into_iter().flatten();
            let entry = |key: Value| {
                let item = value.get_item(&key).unwrap_or_default();
                let key = python_text(&key, true, depth + 1);
                format!("{key}: {}", python_text(&item, true, depth + 1))
            };
            format!("{{{}}}", keys.map(entry).collect::<Vec<_>>().join(", "))
        }
        ValueKind::Number if !value.is_integer() => {
            python::float(f64::try_from(value.clone()).unwrap_or(f64::NAN))
        }
        _ => value.to_string(),
    }
}

/// `tojson` as Python's `json.dumps`: `", "` and `": "` between, no HTML escapes.
pub(crate) fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<Value> = options.get("indent")?;
    let indent = indent.filter(|value| !value.is_none());
    let indent = indent.map(|value| match value.as_usize() {
        Some(spaces) if spaces <= 64 => Ok(" ".repeat(spaces)),
        Some(_) => Err(failure("tojson: indent above 64")),
        None => Ok(value.to_string()),
    });
    let indent = indent.transpose()?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(failure("tojson: separators must be two strings")),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let dump = Dump {
        indent,
        item_separator,
        key_separator,
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    Ok(dump.write(&plain(value, 0)?))
}
