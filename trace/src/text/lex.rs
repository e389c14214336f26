//! Words of a line, and the values in them.

/// A message about what is wrong; the caller knows the line.
pub(super) type Result<T> = std::result::Result<T, String>;

/// Splits a line into words at spaces outside of strings; `#` outside of a string ends it.
pub(super) fn words(line: &str) -> Result<Vec<&str>> {
    let mut words = Vec::new();
    let mut start = None;
    let (mut quoted, mut escaped) = (false, false);
    let mut end = line.len();
    for (i, c) in line.char_indices() {
        if quoted {
            quoted = escaped || c != '"';
            escaped = !escaped && c == '\\';
            continue;
        }
        if c == '#' {
            end = i;
            break;
        }
        if c.is_whitespace() {
            words.extend(start.take().map(|s: usize| &line[s..i]));
        } else {
            start.get_or_insert(i);
            quoted = c == '"';
        }
    }
    if quoted {
        return Err("a string does not end".into());
    }
    words.extend(start.map(|s| &line[s..end]));
    Ok(words)
}

/// A number, decimal or `0x`.
pub(super) fn number<T: TryFrom<u64>>(word: &str) -> Result<T> {
    let digits = word.strip_prefix("0x");
    // `from_str_radix` would take a sign.
    let signed = digits.unwrap_or(word).starts_with(['+', '-']);
    let value = match digits {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => word.parse(),
    };
    let value = value.ok().filter(|_| !signed).ok_or_else(|| format!("{word:?} is no number"))?;
    T::try_from(value).map_err(|_| format!("{word} is too large"))
}

/// A number that may be negative.
pub(super) fn signed(word: &str) -> Result<i32> {
    word.parse().map_err(|_| format!("{word:?} is no 32-bit number"))
}

/// An id: a prefix and a number.
pub(super) fn id<T: TryFrom<u64>>(word: &str, prefix: &str) -> Result<T> {
    let digits = word.strip_prefix(prefix).filter(|d| d.starts_with(|c: char| c.is_ascii_digit()));
    number(digits.ok_or_else(|| format!("{word:?} is not of the form {prefix}0"))?)
}

/// Bytes in hexadecimal.
pub(super) fn hex(word: &str) -> Result<Vec<u8>> {
    let wrong = || format!("{:?} is not bytes in hexadecimal", shortened(word));
    let (pairs, []) = word.as_bytes().as_chunks::<2>() else { return Err(wrong()) };
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let bytes = pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?));
    bytes.collect::<Option<_>>().ok_or_else(wrong)
}

/// So much of a word as belongs into a message.
pub(super) fn shortened(word: &str) -> &str {
    word.char_indices().nth(40).map_or(word, |(i, _)| &word[..i])
}

/// Numbers with commas between them.
pub(super) fn list<T: TryFrom<u64>>(word: &str) -> Result<Vec<T>> {
    if word.is_empty() { Ok(Vec::new()) } else { word.split(',').map(number).collect() }
}

/// A quoted string, with the escapes of Rust.
pub(super) fn string(word: &str) -> Result<String> {
    let wrong = || format!("{:?} is not a quoted string", shortened(word));
    let inner = word.strip_prefix('"').and_then(|w| w.strip_suffix('"')).ok_or_else(wrong)?;
    let mut out = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => return Err(wrong()),
            '\\' => out.push(escape(&mut chars).ok_or_else(wrong)?),
            c => out.push(c),
        }
    }
    Ok(out)
}

fn escape(chars: &mut std::str::Chars<'_>) -> Option<char> {
    Some(match chars.next()? {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        '0' => '\0',
        c @ ('"' | '\'' | '\\') => c,
        'u' => {
            let rest = chars.as_str().strip_prefix('{')?;
            let (digits, rest) = rest.split_once('}')?;
            *chars = rest.chars();
            char::from_u32(u32::from_str_radix(digits, 16).ok()?)?
        }
        _ => return None,
    })
}

/// `name=value`
pub(super) fn field(word: &str) -> Result<(&str, &str)> {
    word.split_once('=')
        .ok_or_else(|| format!("{:?} is not of the form name=value", shortened(word)))
}

/// `a:b`
pub(super) fn pair(word: &str) -> Result<(&str, &str)> {
    word.split_once(':').ok_or_else(|| format!("{:?} is not of the form a:b", shortened(word)))
}

/// The message about a field that no line of this kind has.
pub(super) fn unknown(name: &str) -> String {
    format!("unknown field {:?}", shortened(name))
}
