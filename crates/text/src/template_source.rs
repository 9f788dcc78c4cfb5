//! Reads a template's tags before the engine does: refuses what must not run, rewrites two things.
//!
//! - `{% generation %}` becomes `{% with %}`: it only marks the reply for training.
//! - `{% set x = e %}` becomes `{% set x = _bounded((e)) %}`, so that doubling a string in a loop ends in
//!   an error instead of eating the memory (the engine counts steps, not bytes).
//!
//! Long chains of operators and `elif` make a deep syntax tree, which the engine walks by recursion;
//! they are limited here, where the line can be named.

use crate::error::Error;

/// Longest template in bytes; the longest in use have about 20,000.
const LONGEST_SOURCE: usize = 256 * 1024;
/// Most bytes outside string literals in one tag.
const LONGEST_TAG: usize = 3 * 1024;
/// Most `elif` in one template.
const MOST_ELIF: usize = 200;
const REFUSED: [&str; 5] = ["include", "import", "from", "extends", "block"];

/// The source as the engine gets it.
pub(crate) fn prepare(source: &str) -> Result<String, Error> {
    if source.len() > LONGEST_SOURCE {
        let problem = format!("the template has {} bytes, at most {LONGEST_SOURCE}", source.len());
        return Err(refused(source, 0, problem));
    }
    let mut out = String::with_capacity(source.len() + 256);
    let mut at = 0;
    let mut elifs = 0;
    while let Some(open) = next_tag(source, at) {
        out.push_str(&source[at..open]);
        let end = match &source[open..open + 2] {
            "{#" => source[open..].find("#}").map_or(source.len(), |i| open + i + 2),
            _ => tag_end(source, open)?,
        };
        let tag = &source[open..end];
        let name = if tag.starts_with("{%") { tag_name(tag) } else { "" };
        if REFUSED.contains(&name) {
            return Err(refused(source, open, format!("`{name}` is not allowed")));
        }
        elifs += usize::from(name == "elif");
        if elifs > MOST_ELIF {
            return Err(refused(source, open, format!("more than {MOST_ELIF} `elif`")));
        }
        match name {
            "generation" => out.push_str(&tag.replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            "set" => out.push_str(&bounded_set(tag)),
            _ => out.push_str(tag),
        }
        at = end;
        if name == "raw" {
            let stop = source[at..].find("endraw").map_or(source.len(), |i| at + i);
            out.push_str(&source[at..stop]);
            at = stop;
        }
    }
    out.push_str(&source[at..]);
    Ok(out)
}

fn refused(source: &str, at: usize, problem: String) -> Error {
    let line = source[..at].matches('\n').count() + 1;
    let remedy = "Use the template from the publisher of the model.".to_owned();
    Error::Template { line, problem, remedy }
}

fn next_tag(source: &str, from: usize) -> Option<usize> {
    let bytes = source.as_bytes();
    (from..bytes.len().saturating_sub(1))
        .find(|&i| bytes[i] == b'{' && matches!(bytes[i + 1], b'%' | b'{' | b'#'))
}

/// One past the end of the tag at `open`, skipping string literals.
fn tag_end(source: &str, open: usize) -> Result<usize, Error> {
    let bytes = source.as_bytes();
    let close: &[u8; 2] = if bytes[open + 1] == b'%' { b"%}" } else { b"}}" };
    let mut quote = None;
    let mut outside = 0;
    let mut braces = 0usize;
    let mut at = open + 2;
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(q), b) if q == b => quote = None,
            (Some(_), _) => {}
            (None, b'\'' | b'"') => quote = Some(bytes[at]),
            (None, _) => {
                if braces == 0 && bytes[at..].starts_with(close) {
                    return Ok(at + 2);
                }
                braces += usize::from(bytes[at] == b'{');
                braces = braces.saturating_sub(usize::from(bytes[at] == b'}'));
                outside += 1;
            }
        }
        if outside > LONGEST_TAG {
            let problem = format!("one tag has more than {LONGEST_TAG} bytes of expression");
            return Err(refused(source, open, problem));
        }
        at += 1;
    }
    Ok(source.len())
}

fn tag_name(tag: &str) -> &str {
    let inner = tag[2..].trim_start_matches(['-', '+']).trim_start();
    let end = inner.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(inner.len());
    &inner[..end]
}

/// Wraps the value of an assignment; a block assignment (`{% set x %}`) is bounded by what it prints.
fn bounded_set(tag: &str) -> String {
    let Some(equals) = assignment(tag) else {
        return tag.to_owned();
    };
    let Some(close) = tag.rfind("%}") else {
        return tag.to_owned();
    };
    let value_end = tag[..close].trim_end_matches(['-', '+']).len();
    if value_end <= equals {
        return tag.to_owned();
    }
    let value = tag[equals + 1..value_end].trim();
    format!("{} _bounded(({value})) {}", &tag[..=equals], &tag[value_end..])
}

/// Position of the `=` that assigns: the first outside brackets, and before any string.
fn assignment(tag: &str) -> Option<usize> {
    let at = tag.find('=')?;
    let before = &tag[..at];
    (!before.contains(['(', '"', '\'', '|'])).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_assignments_and_generation_change() {
        let cases = [
            ("{%- set a = b if c else d -%}x", "{%- set a = _bounded((b if c else d)) -%}x"),
            ("{% set ns.x = '%}' ~ y %}", "{% set ns.x = _bounded(('%}' ~ y)) %}"),
            ("{% set a, b = 1, 2 %}", "{% set a, b = _bounded((1, 2)) %}"),
            ("{% set x %}{{ y }}{% endset %}", "{% set x %}{{ y }}{% endset %}"),
            ("{%- generation -%}a{% endgeneration %}", "{%- with -%}a{% endwith %}"),
            ("{# set x = 1 #}{{ '{% set x = 1 %}' }}", "{# set x = 1 #}{{ '{% set x = 1 %}' }}"),
            ("{{ {'a': {'b': 1}} }}{% if a == 1 %}", "{{ {'a': {'b': 1}} }}{% if a == 1 %}"),
            ("{% raw %}{% set x = 1 %}{% endraw %}", "{% raw %}{% set x = 1 %}{% endraw %}"),
        ];
        for (source, expected) in cases {
            assert_eq!(prepare(source).unwrap(), expected);
        }
    }

    #[test]
    fn loading_other_templates_is_refused_with_its_line() {
        for tag in ["include 'x' ignore missing", "import 'x' as y", "from 'x' import y", "extends 'x'"] {
            let error = prepare(&format!("a\nb{{%- {tag} %}}")).unwrap_err();
            assert!(error.to_string().contains("line 2"), "{error}");
        }
    }
}
