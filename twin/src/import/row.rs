//! Rows by column name, and the fields of a row as what they mean.

use super::{BAD_ROW_CHARS_MAX, BadRow, Format, ImportError, Row, Rows};
use csv::StringRecord;
use std::io::Read;

/// A table with a header.
pub(super) struct Table<'a> {
    format: Format,
    source: String,
    header: Vec<String>,
    reader: csv::Reader<Box<dyn Read + 'a>>,
}

/// Where a named column stands; `None` when the file does not have it.
pub(super) type Column = Option<usize>;

impl<'a> Table<'a> {
    /// Reads the header.
    pub(super) fn open(
        format: Format,
        reader: Box<dyn Read + 'a>,
        source: &str,
        delimiter: u8,
    ) -> Result<Self, ImportError> {
        let mut reader =
            csv::ReaderBuilder::new().delimiter(delimiter).flexible(true).trim(csv::Trim::All).from_reader(reader);
        let header = reader
            .headers()
            .map_err(|error| ImportError::Unreadable { source_name: source.to_owned(), why: error.to_string() })?
            .iter()
            .map(|name| name.trim_start_matches('\u{feff}').to_ascii_lowercase())
            .collect();
        Ok(Table { format, source: source.to_owned(), header, reader })
    }

    /// The file's name.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// Where a column stands, in any case of letters.
    pub(super) fn column(&self, name: &str) -> Column {
        self.header.iter().position(|there| there == &name.to_ascii_lowercase())
    }

    /// Where a column stands that must be there.
    pub(super) fn need(&self, name: &'static str) -> Result<usize, ImportError> {
        self.column(name).ok_or_else(|| ImportError::MissingColumn {
            source_name: self.source.clone(),
            column: name,
            format: self.format,
            header: self.header.join(", "),
        })
    }

    /// Every row through `parse`, whose refusals become bad rows with their line.
    pub(super) fn rows(self, mut parse: impl FnMut(&Fields<'_>) -> Result<Row, String> + 'a) -> Rows<'a> {
        let Table { source, mut reader, .. } = self;
        let mut record = StringRecord::new();
        let mut broken = false;
        Box::new(std::iter::from_fn(move || {
            if broken {
                return None;
            }
            let bad = |line, why, text: String| {
                let text = text.chars().take(BAD_ROW_CHARS_MAX).collect();
                Some(Err(BadRow { source: source.clone(), line, why, text }))
            };
            match reader.read_record(&mut record) {
                Ok(false) => None,
                Ok(true) => {
                    let line = record.position().map_or(0, csv::Position::line);
                    match parse(&Fields(&record)) {
                        Ok(row) => Some(Ok(row)),
                        Err(why) => bad(line, why, record.iter().collect::<Vec<_>>().join(",")),
                    }
                }
                Err(error) => {
                    // A row that is not UTF-8 is one bad row; a reader that fails would fail for ever.
                    broken = matches!(error.kind(), csv::ErrorKind::Io(_));
                    let line = error.position().map_or_else(|| reader.position().line(), csv::Position::line);
                    bad(line, error.to_string(), String::new())
                }
            }
        }))
    }
}

/// One row.
pub(super) struct Fields<'r>(&'r StringRecord);

impl<'r> Fields<'r> {
    /// The text of a column; empty when the row or the file does not have it.
    pub(super) fn text(&self, column: impl Into<Column>) -> &'r str {
        column.into().and_then(|at| self.0.get(at)).unwrap_or("")
    }

    /// A whole number.
    pub(super) fn whole(&self, what: &str, column: impl Into<Column>) -> Result<u64, String> {
        let text = self.text(column);
        if text.is_empty() {
            return Err(format!("{what} is empty"));
        }
        text.parse().map_err(|_| format!("{what} {text:?} is not a whole number from 0"))
    }

    /// A whole number, or 0 where there is none.
    pub(super) fn whole_or_0(&self, what: &str, column: impl Into<Column>) -> Result<u64, String> {
        let column = column.into();
        if self.text(column).is_empty() { Ok(0) } else { self.whole(what, column) }
    }

    /// Seconds that may have a fraction, rounded.
    pub(super) fn seconds(&self, what: &str, column: impl Into<Column>) -> Result<u64, String> {
        let text = self.text(column);
        let value: f64 = text.parse().map_err(|_| format!("{what} {text:?} is not a number of seconds"))?;
        if !value.is_finite() || !(0.0..=1e12).contains(&value) {
            return Err(format!("{what} {text:?} is out of range"));
        }
        Ok(value.round() as u64)
    }

    /// A time of day as seconds since 1970, read as UTC: `2017-10-09 07:01:55`, `2017-10-09T07:01:55` or the seconds themselves.
    pub(super) fn time(&self, what: &str, column: impl Into<Column>) -> Result<u64, String> {
        let text = self.text(column);
        if let Ok(seconds) = text.parse::<u64>() {
            return Ok(seconds);
        }
        let wrong = || format!("{what} {text:?} is not a time such as 2017-10-09 07:01:55");
        let civil: jiff::civil::DateTime = text.parse().map_err(|_| wrong())?;
        let stamp = jiff::tz::TimeZone::UTC.to_timestamp(civil).map_err(|_| wrong())?;
        u64::try_from(stamp.as_second()).map_err(|_| wrong())
    }

    /// GPUs, bounded so that a stray number is a bad row and not an absurd gang.
    pub(super) fn gpus(&self, what: &str, column: impl Into<Column>) -> Result<u32, String> {
        gpus(what, self.whole(what, column)?)
    }
}

/// No published gang comes near this many GPUs.
pub(super) const GPUS_PER_JOB_MAX: u64 = 100_000;

/// A number of GPUs within the bound.
pub(super) fn gpus(what: &str, count: u64) -> Result<u32, String> {
    if count > GPUS_PER_JOB_MAX {
        return Err(format!("{what} {count} is more than {GPUS_PER_JOB_MAX} GPUs"));
    }
    Ok(count as u32)
}
