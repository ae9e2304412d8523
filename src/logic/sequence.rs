//! Order within one publisher's stream.
//!
//! A publisher numbers its messages from zero, one by one, and starts again at zero when its process restarts; nothing else on
//! the wire tells the two apart. The rule: zero is always a restart; a number far behind the cursor is one too; a number a
//! little behind is a late message and is dropped, unless the next one continues from it, which only a restarted publisher does.

/// How far behind the cursor a message may be and still count as late rather than as a restart.
const LATE_WINDOW: u64 = 16;

/// What a sequence number means for the stream it came on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequenceStep {
    /// The message follows the last one, or is the first of the stream.
    Next,
    /// The message is new, but some before it never came.
    Gap {
        /// How many never came.
        missing: u64,
    },
    /// The publisher started again.
    Restart,
    /// The message was seen already.
    Duplicate,
    /// The message is older than one already seen.
    Late,
}

/// Where a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SequenceCursor {
    last: Option<u64>,
    regressed: Option<u64>,
}

impl SequenceCursor {
    /// Judges a message's number and moves on.
    pub fn advance(&mut self, sequence: u64) -> SequenceStep {
        let step = self.judge(sequence);
        match step {
            SequenceStep::Next | SequenceStep::Gap { .. } | SequenceStep::Restart => {
                *self = Self { last: Some(sequence), regressed: None };
            }
            SequenceStep::Late => self.regressed = Some(sequence),
            SequenceStep::Duplicate => {}
        }
        step
    }

    fn judge(&self, sequence: u64) -> SequenceStep {
        let Some(last) = self.last else {
            return SequenceStep::Next;
        };
        if sequence > last {
            return match sequence - last - 1 {
                0 => SequenceStep::Next,
                missing => SequenceStep::Gap { missing },
            };
        }
        if sequence == 0 && last > 0 {
            return SequenceStep::Restart;
        }
        if sequence == last {
            return SequenceStep::Duplicate;
        }
        let continues_regressed = self.regressed.is_some_and(|regressed| sequence == regressed + 1);
        if continues_regressed || last - sequence > LATE_WINDOW { SequenceStep::Restart } else { SequenceStep::Late }
    }
}

#[cfg(test)]
mod tests {
    use super::{SequenceCursor, SequenceStep};
    use SequenceStep::{Duplicate, Gap, Late, Next, Restart};

    fn steps(numbers: &[u64]) -> Vec<SequenceStep> {
        let mut cursor = SequenceCursor::default();
        numbers.iter().map(|number| cursor.advance(*number)).collect()
    }

    #[test]
    fn each_number_means_what_the_table_says() {
        let rows: &[(&str, &[u64], &[SequenceStep])] = &[
            ("a stream counts up", &[0, 1, 2], &[Next, Next, Next]),
            ("a late joiner starts anywhere", &[7, 8], &[Next, Next]),
            ("missing numbers are counted", &[1, 5], &[Next, Gap { missing: 3 }]),
            ("a repetition changes nothing", &[4, 4, 5], &[Next, Duplicate, Next]),
            ("a message slightly behind is late", &[1000, 999, 1001], &[Next, Late, Next]),
            ("zero is a restart", &[1000, 0, 1], &[Next, Restart, Next]),
            ("zero right after one is a restart", &[1, 0], &[Next, Restart]),
            ("zero twice is a repetition", &[0, 0], &[Next, Duplicate]),
            ("far behind is a restart", &[1000, 3], &[Next, Restart]),
            ("a restart whose zero was lost shows in its second message", &[10, 1, 2, 3], &[Next, Late, Restart, Next]),
            ("two late messages in falling order are both late", &[10, 9, 8], &[Next, Late, Late]),
            ("the largest number does not overflow", &[u64::MAX, 0], &[Next, Restart]),
        ];
        for (sentence, numbers, expected) in rows {
            assert_eq!(steps(numbers), *expected, "{sentence}");
        }
    }
}
