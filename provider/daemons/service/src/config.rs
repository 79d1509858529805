//! Configuration files in TOML. Every error names the file, the line and what to do.

use serde::de::{self, DeserializeOwned, Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use toml::Spanned;

/// A configuration file that was read.
#[derive(Debug)]
pub struct File<T> {
    /// What it says.
    pub value: T,
    path: PathBuf,
    text: String,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        error: std::io::Error,
    },
    /// The file says something that is not valid.
    #[error("{}:{line}:{column}: {message}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, from 1 on.
        line: usize,
        /// The column, from 1 on.
        column: usize,
        /// What is wrong, and what to do.
        message: String,
    },
}

impl<T: DeserializeOwned> File<T> {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, or has other keys or values than `T`.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::Read { path: path.into(), error })?;
        Self::parse(path, text)
    }

    /// As [`File::read`], for a text that was read from this file.
    ///
    /// # Errors
    /// As [`File::read`].
    pub fn parse(path: &Path, text: String) -> Result<Self, Error> {
        match toml::from_str(&text) {
            Ok(value) => Ok(Self { value, path: path.into(), text }),
            Err(error) => {
                let message = error.message().trim_end().replace('\n', "; ");
                Err(content(path, &text, error.span().unwrap_or(0..0), message))
            }
        }
    }
}

impl<T> File<T> {
    /// The error for what stands at this place of the file.
    pub fn error(&self, span: Range<usize>, message: impl Into<String>) -> Error {
        content(&self.path, &self.text, span, message.into())
    }

    /// A value that must be in a range. `text` says so in the error.
    ///
    /// # Errors
    /// It is not in the range.
    pub fn within<V: Copy + PartialOrd>(
        &self,
        value: Option<&Spanned<V>>,
        default: V,
        range: RangeInclusive<V>,
        text: &str,
    ) -> Result<V, Error> {
        match value {
            None => Ok(default),
            Some(value) if range.contains(value.get_ref()) => Ok(*value.get_ref()),
            Some(value) => Err(self.error(value.span(), text)),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn content(path: &Path, text: &str, span: Range<usize>, message: String) -> Error {
    let before = text.get(..span.start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
    Error::Content { path: path.into(), line, column, message }
}

/// Where the page of counters is: a table of the file.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// The address.
    pub listen: SocketAddr,
}

/// A number of bytes: an integer, or a text such as "256 MiB".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// The units of texts, and by how many bits they shift.
const UNITS: [(&str, u32); 5] = [("B", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];

impl std::str::FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let help = || format!("{text:?} is not a size: write a number and a unit, for example \"256 MiB\"");
        let digits = text.trim().trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = text.trim()[digits.len()..].trim();
        let number: u64 = digits.parse().map_err(|_| help())?;
        let (_, shift) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(help)?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(|| format!("{text:?} exceeds 16 EiB"))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, shift): &&(&str, u32)| self.0.is_multiple_of(1 << shift) && self.0 >> shift > 0;
        let (unit, shift) = UNITS.iter().rev().find(fits).unwrap_or(&UNITS[0]);
        write!(f, "{} {unit}", self.0 >> shift)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct OfBytes;

        impl Visitor<'_> for OfBytes {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes, or a text such as \"256 MiB\"")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Bytes, E> {
                u64::try_from(number).map(Bytes).map_err(|_| E::custom("a size is not negative"))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Bytes, E> {
                Ok(Bytes(number))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                text.parse().map_err(E::custom)
            }
        }

        from.deserialize_any(OfBytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        size: Spanned<Bytes>,
    }

    fn parse(text: &str) -> Result<File<Sample>, String> {
        File::parse(Path::new("a.toml"), text.to_owned()).map_err(|error| error.to_string())
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [("0 B", 0), ("1KiB", 1024), (" 256 MiB ", 256 << 20), ("2 TiB", 2 << 40)] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)));
        }
        for text in ["", "1", "KiB", "1 KB", "-1 KiB", "1.5 GiB", "99999999999 TiB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        assert_eq!(Bytes(256 << 20).to_string(), "256 MiB");
        assert_eq!(Bytes(1025).to_string(), "1025 B");
        assert_eq!(Bytes(0).to_string(), "0 B");
    }

    #[test]
    fn errors_name_file_line_and_column() {
        assert_eq!(parse("size = 4096").unwrap().value.size.get_ref(), &Bytes(4096));
        let error = parse("\nsize = \"4 KB\"").unwrap_err();
        assert!(error.starts_with("a.toml:2:8: \"4 KB\" is not a size: write"), "{error}");
        let error = parse("size = 1\nsise = 2").unwrap_err();
        assert!(error.starts_with("a.toml:2:1: unknown field `sise`, expected `size`"), "{error}");
        let file = parse("# a size\nsize = \"4 KiB\"").unwrap();
        let error = file.error(file.value.size.span(), "too small: write 8 KiB or more").to_string();
        assert_eq!(error, "a.toml:2:8: too small: write 8 KiB or more");
    }

    #[test]
    fn a_file_that_is_not_there() {
        let error = File::<Sample>::read(Path::new("/nonexistent/a.toml")).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/a.toml: No such file"), "{error}");
    }
}
