//! `strftime_now` of chat templates, in UTC: engines run in containers, whose local time that mostly is.

use std::fmt::Write as _;

const DAY_SECONDS: u64 = 86_400;
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Formats a time given in seconds since 1970. A directive that is not known stays as it is.
pub(super) fn format(pattern: &str, seconds: u64) -> String {
    let (year, month, day, day_of_year) = civil(seconds / DAY_SECONDS);
    let weekday = DAYS[(seconds / DAY_SECONDS % 7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let hour_12 = (hour + 11) % 12 + 1;
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern.chars();
    while let Some(character) = rest.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let mut directive = rest.next();
        let is_padded = directive != Some('-');
        if !is_padded {
            directive = rest.next();
        }
        let mut number = |value: u64, width: usize| {
            let width = if is_padded { width } else { 1 };
            // Writing to a `String` cannot fail.
            let _ = write!(out, "{value:0width$}");
        };
        match directive {
            Some('Y') => number(year, 4),
            Some('y') => number(year % 100, 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('j') => number(day_of_year, 3),
            Some('H') => number(hour, 2),
            Some('I') => number(hour_12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('B') => out.push_str(month_name),
            Some('b') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(weekday),
            Some('a') => out.push_str(&weekday[..3]),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Returns year, month, day and day of the year of a day counted from 1970-01-01.
fn civil(mut days: u64) -> (u64, u64, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // 400 years always have as many days; what is left is few enough to count.
    let mut year = 1970 + days / 146_097 * 400;
    days %= 146_097;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let day_of_year = days + 1;
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1, day_of_year)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_time_is_written_as_python_writes_it() {
        let rows = [
            ("the beginning", "%Y-%m-%d %A", 0, "1970-01-01 Thursday"),
            ("a leap day", "%d %b %Y, day %j", 951_782_400, "29 Feb 2000, day 060"),
            ("the day after a year's last", "%B %-d, %Y", 1_735_689_600, "January 1, 2025"),
            ("an afternoon", "%I:%M:%S %p %a %y %%", 1_735_740_307, "02:05:07 PM Wed 25 %"),
            ("midnight has twelve hours", "%-I %p", 0, "12 AM"),
            ("an unknown directive stays", "%Q %", 0, "%Q %"),
            ("a far year", "%Y", 32_503_680_000, "3000"),
        ];
        for (sentence, pattern, seconds, expected) in rows {
            assert_eq!(super::format(pattern, seconds), expected, "{sentence}");
        }
    }
}
