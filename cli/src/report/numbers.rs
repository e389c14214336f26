//! Numbers as people read them.

use indicatif::HumanCount;

/// `1204` as `1,204`.
pub(crate) fn count(number: u64) -> String {
    HumanCount(number).to_string()
}

/// A count with its noun: `1 thread`, `4 threads`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", count(number))
}

/// Large counts to two digits or more: `5.1 G`, `161`.
pub(crate) fn roughly(number: u64) -> String {
    match number {
        ..10_000 => count(number),
        10_000..1_000_000 => format!("{:.1} k", number as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", number as f64 / 1e6),
        _ => format!("{:.1} G", number as f64 / 1e9),
    }
}

/// Nanoseconds with the unit that leaves three to four digits.
pub(crate) fn duration(nanoseconds: i64) -> String {
    let magnitude = nanoseconds.unsigned_abs() as f64;
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let (value, unit) = match nanoseconds.unsigned_abs() {
        ..1_000 => return format!("{nanoseconds} ns"),
        1_000..1_000_000 => (magnitude / 1e3, "µs"),
        1_000_000..1_000_000_000 => (magnitude / 1e6, "ms"),
        _ => (magnitude / 1e9, "s"),
    };
    let digits = if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{sign}{value:.digits$} {unit}")
}

/// A time that cannot be negative, for [`duration`].
pub(crate) fn signed(nanoseconds: u64) -> i64 {
    i64::try_from(nanoseconds).unwrap_or(i64::MAX)
}

/// A change as a percentage with its sign.
pub(crate) fn change(part: f64) -> String {
    let text = percent(part);
    if part >= 0.0 || text == "0.0 %" { format!("+{text}") } else { text }
}

/// Bytes with a binary unit.
pub(crate) fn bytes(number: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if number < 1024 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A part of one as a percentage.
pub(crate) fn percent(part: f64) -> String {
    let text = format!("{:.1} %", part * 100.0);
    if text == "-0.0 %" { "0.0 %".to_owned() } else { text }
}

/// Nanoseconds since the Unix epoch as `2026-11-21 07:38:21 UTC`.
pub(crate) fn date(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// The date so many days after 1970-01-01 (Howard Hinnant, `civil_from_days`; no negative days).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1204), "1,204");
        assert_eq!(count(3_012_554), "3,012,554");
        assert_eq!(counted(1, "thread"), "1 thread");
        assert_eq!(roughly(161), "161");
        assert_eq!(roughly(5_100_000_000), "5.1 G");
        assert_eq!(roughly(9_949_999), "9.9 M");
    }

    #[test]
    fn durations() {
        assert_eq!(duration(0), "0 ns");
        assert_eq!(duration(-999), "-999 ns");
        assert_eq!(duration(1_500), "1.50 µs");
        assert_eq!(duration(-12_345_678), "-12.3 ms");
        assert_eq!(duration(456_000_000), "456 ms");
        assert_eq!(duration(61_000_000_000), "61.0 s");
        assert_eq!(duration(i64::MIN), "-9223372037 s");
    }

    #[test]
    fn sizes_and_dates() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
        assert_eq!(percent(0.0734), "7.3 %");
        assert_eq!(percent(-0.0001), "0.0 %");
        assert_eq!(change(0.0734), "+7.3 %");
        assert_eq!(change(-0.0734), "-7.3 %");
        assert_eq!(change(-0.0001), "+0.0 %");
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(1_709_210_096_000_000_000), "2024-02-29 12:34:56 UTC");
        assert_eq!(date(1_795_246_701_000_000_000), "2026-11-21 07:38:21 UTC");
    }
}
